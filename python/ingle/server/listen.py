"""Binds the address of a server, which listens once the model can answer. Main thread."""

import socket

from ingle.config import Settings
from ingle.errors import ConfigError
from ingle.server.unix_socket import UnixListener


def bind(settings: Settings) -> socket.socket:
    """A bound socket that does not listen yet. Errors: ConfigError names host and port, or path."""
    if settings.uds is not None:
        return UnixListener(settings.uds)
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host: cannot resolve {settings.host!r}: {error}") from error
    family, kind, protocol, _, where = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError as error:
        listener.close()
        place = f"{settings.host} port {settings.port}"
        raise OSError(f"cannot listen on {place}: {error.strerror}") from error
    return listener


def address(listener: socket.socket) -> str:
    """The address for clients, as a URL or a path."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
