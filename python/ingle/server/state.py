"""What all handlers of one server share. Event loop only."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from ingle.engine import Engine
from ingle.errors import OverloadedError
from ingle.server.auth import ApiKeys
from ingle.server.parse import UnknownFields
from ingle.server.sse import Heartbeat


@dataclass(kw_only=True)
class ServerState:
    """One server: its engine, its keys, what runs, and whether it is leaving."""

    engine: Engine
    keys: ApiKeys
    unknown: UnknownFields
    on_fatal: Callable[[str], None]
    started_at: int
    """Unix seconds."""
    heartbeat: Heartbeat | None = None
    draining: bool = False
    dead: bool = False
    plain: dict[int, Callable[[str], None]] = field(default_factory=dict)
    """Running requests that are not streamed, by key: how to end each with a message."""

    def fatal(self, reason: str) -> None:
        """The engine has died: says so once; every request has got or gets its error."""
        if not self.dead:
            self.dead = True
            self.on_fatal(reason)

    def refuse_if_draining(self) -> None:
        """Errors: OverloadedError 503 once the worker is leaving."""
        if self.draining:
            raise OverloadedError("the worker is shutting down", DRAIN_RETRY_S, status=503)


STATE: Final = web.AppKey("STATE", ServerState)
DRAIN_RETRY_S: Final = 1.0
