"""The HTTP server: `create_app(engine)` is the application, `ingle serve` runs it."""

from typing import TYPE_CHECKING, Any

from ingle.server.auth import ApiKeys, read_key_file

if TYPE_CHECKING:
    from ingle.server.app import create_app


def __getattr__(name: str) -> Any:
    # The application needs aiohttp, which a start imports while the model loads.
    if name != "create_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ingle.server.app import create_app

    return create_app


__all__ = ["ApiKeys", "create_app", "read_key_file"]
