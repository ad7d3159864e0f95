"""[1] Cross-origin requests (CORS): which web pages may use the server from a browser.

Event loop. Exists only if `--allowed-origins` is set. Browser credentials (cookies) are never
allowed: keys travel in headers that the page sets itself.
"""

import re
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from ingle.origins import checked_origins

METHODS: Final = "GET, HEAD, POST"
"""All methods that any route has."""
MAX_AGE_S: Final = 7200
"""How long a browser may cache a preflight response. Chrome's own limit is the same."""
EXPOSED: Final = "X-Request-Id, Request-Id, Retry-After"
"""Response headers that a page may read, in addition to those that every page may."""
ALLOWED_HEADERS: Final = "Authorization, Content-Type, X-Api-Key, X-Request-Id"
"""Used when a preflight names no headers. Otherwise the requested headers are allowed."""
HEADER_NAMES: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,2048}\Z")


class Cors:
    """The allowed origins, and the response headers that say so."""

    def __init__(self, origins: Sequence[str]) -> None:
        """Errors: ConfigError names an entry that is neither an origin nor `*`."""
        checked = checked_origins(origins)
        self._is_any = checked == ("*",)
        self._origins = frozenset(checked)

    def headers(self, request: web.BaseRequest) -> dict[str, str]:
        """The headers of every response, errors included.

        With exact origins the response depends on the origin, and caches must know that. So
        `Vary` is set even when the origin is absent or not allowed.
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
        """The response to a preflight request; None if this is not one.

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
