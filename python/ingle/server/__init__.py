"""The OpenAI-compatible HTTP server: `create_app(engine)`; `ingle serve` runs it in a process."""

from ingle.server.app import create_app
from ingle.server.auth import ApiKeys, read_key_file

__all__ = ["ApiKeys", "create_app", "read_key_file"]
