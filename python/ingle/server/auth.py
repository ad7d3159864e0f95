"""[1] API keys: who may ask, and as which tenant. Event loop; the file is read once at start.

Default deny: the decision looks at the raw request line, before any normalisation, so no spelling
of a path gets round it.
"""

import hashlib
import hmac
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from aiohttp import web

from ingle.config import read_text
from ingle.errors import ConfigError, RefusedError

OPEN_PATHS = ("/health", "/ready")


class ApiKeys:
    """The keys of one file; without keys everything is open and the tenant has no name."""

    def __init__(self, tenants_by_key: dict[str, str]) -> None:
        # Keys are looked up by a keyed digest: how long a comparison takes says nothing about them.
        self._secret = os.urandom(32)
        self._tenants = {self._digest(k.encode()): t for k, t in tenants_by_key.items()}

    def tenant(
        self,
        request: web.BaseRequest,
        open_paths: Callable[[], Collection[str]] = lambda: OPEN_PATHS,
    ) -> str:
        """The tenant whose key the request carries; what `open_paths` gives needs none.

        Errors: RefusedError 401 unless the key is known or the path is open to all.
        """
        if not self._tenants:
            return ""
        for key in _keys_of(request):
            digest = self._digest(key.encode("utf-8", "surrogateescape"))
            for known, tenant in self._tenants.items():
                if hmac.compare_digest(known, digest):
                    return tenant
        if request.method in ("GET", "HEAD") and request.raw_path in open_paths():
            return ""
        raise RefusedError(
            "missing or unknown API key; send `Authorization: Bearer KEY` or `X-Api-Key: KEY`",
            code="invalid_api_key",
            status=401,
        )

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=32).digest()


def _keys_of(request: web.BaseRequest) -> Iterator[str]:
    """The keys that a request carries: as OpenAI's clients send them, and as Anthropic's do."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield key.strip()
    own = request.headers.get("X-Api-Key")
    if own is not None:
        yield own.strip()


def read_key_file(path: Path) -> ApiKeys:
    """Reads `tenant:key` lines; `#` starts a comment line.

    Errors: ConfigError with the line's number, never with its text.
    """
    tenants: dict[str, str] = {}
    for number, line in enumerate(read_text("api_key_file", path).splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        tenant, colon, key = (part.strip() for part in entry.partition(":"))
        if not (tenant and colon and key):
            raise ConfigError(f"api_key_file: {path} line {number}: must be tenant:key")
        if key in tenants:
            raise ConfigError(f"api_key_file: {path} line {number}: the key is there twice")
        tenants[key] = tenant
    if not tenants:
        raise ConfigError(f"api_key_file: {path}: no keys")
    return ApiKeys(tenants)
