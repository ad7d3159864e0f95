"""[1] API keys: who may send requests, for which tenant, and who is an admin.

Event loop. The file is read at start and again on SIGHUP. Requests are denied by default. The
decision uses the raw request line, before any normalisation, so no spelling of a path bypasses it.
"""

import hashlib
import hmac
import os
import stat
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ingle.errors import ConfigError, RefusedError
from ingle.small_files import read_bounded

if TYPE_CHECKING:
    from aiohttp import web

OPEN_PATHS = ("/health", "/ready")


class Identity(NamedTuple):
    """The owner of a request's key."""

    tenant: str
    """Empty without a key."""
    is_known: bool
    """Whether the key is valid, or no keys are configured."""
    is_admin: bool
    """Whether the key may read what concerns all tenants."""


class ApiKeys:
    """The keys of one file. Without keys everything is open and the tenant has no name."""

    def __init__(
        self, tenants_by_key: dict[str, str], admin_keys: Collection[str] = frozenset()
    ) -> None:
        # Only keyed digests are stored, and they are compared in constant time. Neither a memory
        # dump nor response times reveal a key.
        self._secret = os.urandom(32)
        self._count = len(tenants_by_key)
        self._num_admins = sum(key in admin_keys for key in tenants_by_key)
        self._buckets: dict[bytes, list[tuple[bytes, Identity]]] = {}
        """By the first bytes of the digest, so that the cost does not grow with the keys."""
        for key, tenant in tenants_by_key.items():
            digest = self._digest(key.encode())
            identity = Identity(tenant, True, key in admin_keys)
            self._buckets.setdefault(digest[:BUCKET_BYTES], []).append((digest, identity))

    def __str__(self) -> str:
        """How many keys there are, for people."""
        if not self._count:
            return "without API keys"
        keys = f"{self._count} API key{'s' if self._count > 1 else ''}"
        admins = f"{self._num_admins} for admins" if self._num_admins else "none for admins"
        return f"with {keys}, {admins}" + ("" if self._num_admins else ": /metrics is closed")

    def identity(
        self,
        request: "web.BaseRequest",
        open_paths: Callable[[], Collection[str]] = lambda: OPEN_PATHS,
    ) -> Identity:
        """The owner of the request's key. Paths in `open_paths` need none.

        Errors: RefusedError 401 unless the key is known or the path is open.
        """
        if not self._count:
            return EVERYBODY
        for key in _keys_of(request):
            digest = self._digest(key.encode("utf-8", "surrogateescape"))
            for known, identity in self._buckets.get(digest[:BUCKET_BYTES], ()):
                if hmac.compare_digest(known, digest):
                    return identity
        if request.method in ("GET", "HEAD") and request.raw_path in open_paths():
            return NOBODY
        raise RefusedError(
            "missing or unknown API key; send `Authorization: Bearer KEY` or `X-Api-Key: KEY`",
            code="invalid_api_key",
            status=401,
        )

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=32).digest()


BUCKET_BYTES: Final = 8
MOST_BYTES: Final = 64 << 20
"""Of a key file: half a million keys."""
EVERYBODY: Final = Identity("", is_known=True, is_admin=True)
NOBODY: Final = Identity("", is_known=False, is_admin=False)


def _keys_of(request: "web.BaseRequest") -> Iterator[str]:
    """The keys in a request's headers, as OpenAI's and Anthropic's clients send them."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield key.strip()
    own = request.headers.get("X-Api-Key")
    if own is not None:
        yield own.strip()


def read_key_file(path: Path) -> ApiKeys:
    """Reads `tenant:key` lines, `tenant:key admin` for an admin; `#` starts a comment line.

    Errors: ConfigError with the line's number, never with its text. Also if users other than the
    owner can write the file, or users outside its group can read it.
    """
    return parse_keys(path, read_secret(path))


def parse_keys(path: Path, text: str) -> ApiKeys:
    """The keys in the text of a key file. Errors: as `read_key_file`."""
    tenants: dict[str, str] = {}
    admins: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        place = f"api_key_file: {path} line {number}"
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        tenant, colon, rest = (part.strip() for part in entry.partition(":"))
        if not (tenant and colon and rest):
            raise ConfigError(f"{place}: must be tenant:key or tenant:key admin")
        key, *marks = rest.split()
        if not key.isprintable():
            raise ConfigError(f"{place}: the key has a character that no header can have")
        if marks not in ([], ["admin"]):
            raise ConfigError(f"{place}: only the word `admin` may follow the key")
        if key in tenants:
            raise ConfigError(f"{place}: duplicate key")
        tenants[key] = tenant
        if marks:
            admins.add(key)
    if not tenants:
        raise ConfigError(f"api_key_file: {path} has no keys")
    return ApiKeys(tenants, admins)


def read_secret(path: Path) -> str:
    """The text of a file that only its owner may write and only owner and group may read.

    Errors: ConfigError says what is wrong with the file.
    """
    try:
        # Some editors put a mark before the first tenant's name.
        return read_bounded(path, MOST_BYTES, partial(_check_owner, path)).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_key_file: cannot read {path}: {error}") from error


def _check_owner(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        return  # A pipe, as from process substitution, has no meaningful mode.
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"api_key_file: {path} belongs to user {found.st_uid}, who can change it; it must "
            f"belong to root or to the user that runs ingle ({os.geteuid()})"
        )
    for bits, what in ((0o022, "write"), (0o004, "read")):
        if mode & bits:
            raise ConfigError(
                f"api_key_file: others can {what} {path} (its mode is {mode:o}); "
                f"chmod 600 {path} (640 lets its group read it)"
            )
