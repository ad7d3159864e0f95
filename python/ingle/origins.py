"""The value of `--allowed-origins`: which web pages may call the server from a browser. Runs once.

An origin is a scheme, a host and perhaps a port (RFC 6454); browsers compare it as a whole.
"""

import json
import re
from collections.abc import Sequence

from ingle.errors import ConfigError


def parse_origins(text: str) -> tuple[str, ...]:
    """The origins of a comma-separated list, or of a JSON list as vLLM takes it; `*` stands alone.

    Errors: ConfigError names the entry that is not an origin.
    """
    return checked_origins(_entries(text))


def checked_origins(entries: Sequence[str]) -> tuple[str, ...]:
    """The origins as browsers send them: lower case, without the scheme's default port.

    Errors: ConfigError names the entry that is not an origin.
    """
    if "*" in entries:
        if len(entries) > 1:
            raise ConfigError("allowed_origins: `*` allows every origin and stands alone")
        return ("*",)
    return tuple(_origin(entry) for entry in entries)


def _entries(text: str) -> list[str]:
    if not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"allowed_origins: not a JSON list: {error}") from error
    if not all(isinstance(entry, str) for entry in found):
        raise ConfigError("allowed_origins: the JSON list must hold strings only")
    return list(found)


def _origin(entry: str) -> str:
    found = ORIGIN.match(entry.lower())
    if found is None:
        raise ConfigError(
            f"allowed_origins: {entry[:200]!r} is not an origin; write SCHEME://HOST or "
            "SCHEME://HOST:PORT without a path, or `*` alone for every origin"
        )
    scheme, host, port = found.groups()
    is_default = port is None or DEFAULT_PORTS.get(scheme) == int(port)
    return f"{scheme}://{host}" if is_default else f"{scheme}://{host}:{int(port)}"


ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]*)://([a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?\Z"
)
DEFAULT_PORTS = {"http": 80, "https": 443}
