"""[1] Cross-origin requests: what a browser must read before a page of another origin may ask.

Event loop. Exists only where `--allowed-origins` is set. Credentials of browsers (cookies) are
never allowed: keys travel in headers that the page sets itself.
"""

import re
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from ingle.origins import checked_origins

METHODS: Final = "GET, HEAD, POST"
"""All methods that any route has."""
MAX_AGE_S: Final = 7200
"""How long a browser may remember a preflight's answer; Chrome keeps none longer."""
EXPOSED: Final = "X-Request-Id, Request-Id, Retry-After"
"""Headers of an answer that the page may read, besides those that are always readable."""
ALLOWED_HEADERS: Final = "Authorization, Content-Type, X-Api-Key, X-Request-Id"
"""Where a preflight names no headers; else it gets back those that it asks for."""
HEADER_NAMES: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,2048}\Z")


class Cors:
    """The origins that may ask, and the headers that tell them so."""

    def __init__(self, origins: Sequence[str]) -> None:
        """Errors: ConfigError names an entry that is neither an origin nor `*`."""
        checked = checked_origins(origins)
        self._is_any = checked == ("*",)
        self._origins = frozenset(checked)

    def headers(self, request: web.BaseRequest) -> dict[str, str]:
        """What an answer carries, be it good or an error.

        With exact origins the answer differs by origin, which caches must know: `Vary` is there
        also where the origin is absent or not allowed.
        """
        if self._is_any:
            return EVERYBODY
        origin = request.headers.get("Origin")
        if origin not in self._origins:
            return NOBODY
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": EXPOSED,
            "Vary": "Origin",
        }

    def preflight(self, request: web.BaseRequest) -> web.Response | None:
        """The answer to a browser that asks whether it may ask; None if this is no such request.

        The browser sends no key with it, so it is answered before keys are checked. The caller
        adds `headers`; without an Access-Control-Allow-Origin in them the browser gives up.
        """
        if request.method != "OPTIONS" or "Origin" not in request.headers:
            return None
        if "Access-Control-Request-Method" not in request.headers:
            return None
        wanted = request.headers.get("Access-Control-Request-Headers", "")
        return web.Response(
            status=204,
            headers={
                "Access-Control-Allow-Methods": METHODS,
                "Access-Control-Allow-Headers": (
                    wanted if HEADER_NAMES.match(wanted) else ALLOWED_HEADERS
                ),
                "Access-Control-Max-Age": str(MAX_AGE_S),
            },
        )


EVERYBODY: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": EXPOSED,
}
NOBODY: Final = {"Vary": "Origin"}
