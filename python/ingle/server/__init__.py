"""The HTTP server: `create_app(engine)` is the application, `ingle serve` runs it."""

from ingle.server.app import create_app
from ingle.server.auth import ApiKeys, read_key_file

__all__ = ["ApiKeys", "create_app", "read_key_file"]
