"""Addresses of stores and credentials, from the environment. No error shows a credential."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from ingle.errors import ConfigError


def endpoint(environment: Mapping[str, str], name: str) -> str | None:
    """The address of a store, without a slash at its end; None if none is set.

    Errors: ConfigError, which does not show the address: it may have a password.
    """
    value = environment.get(name, "").strip().rstrip("/")
    if not value:
        return None
    message = f"{name}: must be an http or https address without user, query and fragment"
    try:
        parts = urlsplit(value)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ConfigError(message) from None
    extras = "@" in parts.netloc or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not has_host or extras:
        raise ConfigError(message)
    if not VISIBLE.fullmatch(value):
        raise ConfigError(message)
    return value


def credential(environment: Mapping[str, str], name: str) -> str | None:
    """A token or key, without the line end that a file may have left; None if none is set.

    Errors: ConfigError, which does not show it, for what no HTTP header can have.
    """
    value = environment.get(name, "").strip()
    if value and not VISIBLE.fullmatch(value):
        raise ConfigError(f"{name}: must be printable ASCII characters without spaces")
    return value or None


VISIBLE = re.compile(r"[!-~]+")
