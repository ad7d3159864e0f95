"""The value of `--allowed-origins`: which web pages may call the server from a browser. Runs once.

An origin is a scheme, a host and perhaps a port (RFC 6454); browsers compare it as a whole.
"""

import ipaddress
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
    except (ValueError, RecursionError):
        raise ConfigError("allowed_origins: begins like a JSON list and is not one") from None
    if not all(isinstance(entry, str) for entry in found):
        raise ConfigError("allowed_origins: the JSON list must hold strings only")
    return list(found)


def _origin(entry: str) -> str:
    found = ORIGIN.match(entry.lower())
    if found is None:
        raise _refused(
            entry, "write SCHEME://HOST or SCHEME://HOST:PORT without a path, or `*` alone"
        )
    scheme, host, port = found.groups()
    host = _host(entry, host)
    if port is None:
        return f"{scheme}://{host}"
    number = int(port)
    if not 1 <= number <= MOST_PORT:
        raise _refused(entry, f"the port must be from 1 to {MOST_PORT}")
    is_default = DEFAULT_PORTS.get(scheme) == number
    return f"{scheme}://{host}" if is_default else f"{scheme}://{host}:{number}"


def _host(entry: str, host: str) -> str:
    """The host as browsers write it. Errors: ConfigError for one that no URL can have."""
    if host.startswith("["):
        try:
            return f"[{ipaddress.IPv6Address(host[1:-1])}]"
        except ValueError:
            raise _refused(entry, "the brackets must hold an IPv6 address") from None
    labels = host.removesuffix(".").split(".")
    # Browsers read a host whose last part is a number as an IPv4 address.
    if NUMBER.match(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise _refused(entry, "the host is not an IPv4 address of four numbers") from None
    if len(host) > MOST_HOST or max(map(len, labels)) > MOST_LABEL:
        raise _refused(
            entry, f"a host has at most {MOST_HOST} characters, {MOST_LABEL} in each part"
        )
    return host


def _refused(entry: str, why: str) -> ConfigError:
    return ConfigError(f"allowed_origins: {entry[:200]!r} is not an origin: {why}")


ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]*)://([a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|\[[0-9a-f:.]+\])(?::([0-9]{1,9}))?\Z"
)
NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
DEFAULT_PORTS = {"http": 80, "https": 443}
MOST_PORT = 65535
MOST_HOST, MOST_LABEL = 253, 63
"""RFC 1035, section 2.3.4."""
