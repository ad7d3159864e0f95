"""State that all handlers of one server share. Event loop only."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from ingle.errors import OverloadedError
from ingle.hardening import Lockdown
from ingle.server.auth import ApiKeys
from ingle.server.cors import Cors
from ingle.server.headroom import Headroom
from ingle.server.models import Models
from ingle.server.parse import UnknownFields
from ingle.server.tracing import Tracer
from ingle.server.turns import Turns


@dataclass(kw_only=True)
class ServerState:
    """One server: its models, its keys, its running requests, and whether it is shutting down."""

    models: Models
    keys: ApiKeys
    cors: Cors | None
    """None if no other origin is allowed."""
    unknown: UnknownFields
    on_fatal: Callable[[str], None]
    started_at: int
    """Unix seconds."""
    headroom: Headroom
    lockdown: Lockdown
    turns: Turns
    """Threads for work that may take long in the core."""
    tracer: Tracer | None = None
    open_resources: list[web.AbstractResource] = field(default_factory=list)
    """Routes that need no key; where the application is mounted they have its prefix."""
    draining: bool = False
    asleep: bool = False
    """An operator has put the worker to sleep; see admin.py."""
    dead: bool = False
    _running: set[int] = field(default_factory=set)
    """By identity: aiohttp's requests have no hash."""
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self, request: web.BaseRequest) -> None:
        """The body of a request has arrived. The request runs until `leave`."""
        self._running.add(id(request))

    def leave(self, request: web.BaseRequest) -> None:
        """The request has ended and its response is written."""
        self._running.discard(id(request))
        # Before the drain nobody waits, and after its start nothing enters.
        if (self.draining or self.asleep) and not self._running:
            self._idle.set()

    def count(self) -> int:
        """The number of running requests."""
        return len(self._running)

    async def idle(self) -> None:
        """Waits until no request runs. Only while `draining` or `asleep`."""
        if self._running:
            await self._idle.wait()

    def fall_asleep(self) -> None:
        """Takes no requests from now on."""
        self._idle.clear()
        self.asleep = True

    def wake_up(self) -> None:
        """Takes requests again."""
        self.asleep = False

    def open_paths(self) -> list[str]:
        """Paths that need no key."""
        return [resource.canonical for resource in self.open_resources]

    def fatal(self, reason: str) -> None:
        """The engine has died: reports it once. Every request gets its own error."""
        if not self.dead:
            self.dead = True
            self.on_fatal(reason)

    def refuse_if_leaving(self) -> None:
        """Errors: OverloadedError 503 once the worker is shutting down, or if it lacks memory."""
        if self.draining or self.dead:
            raise OverloadedError("the worker is shutting down", RETRY_S, status=503)
        if self.asleep:
            message = "the worker is asleep until its operator wakes it"
            raise OverloadedError(message, RETRY_S, status=503)
        headroom = self.headroom
        headroom.looks_in -= 1
        # Written out, because every request comes by here twice.
        if headroom.short or headroom.looks_in < 0:
            headroom.refuse_if_short()


STATE: Final = web.AppKey("STATE", ServerState)
RETRY_S: Final = 1.0
