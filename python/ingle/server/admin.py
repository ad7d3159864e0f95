"""The admin socket of `--admin-uds`: puts the worker to sleep and wakes it. Event loop.

A Unix socket of its own, whose file decides who may use it: no key opens it, and no route of the
public address leads here. Paths and answers are those of vLLM, which production-stack calls.

Level 0 only pauses: new requests get 503, running ones end first, cached prefixes are forgotten.
Level 1 also gives the weights back. The sim device has none, so both are the same there; other
devices refuse level 1 by name: a locked worker could not read its weights again.
"""

import asyncio
from typing import Any

from aiohttp import web

from ingle.errors import IngleError, RefusedError
from ingle.server.state import ServerState
from ingle.server.status import json_response, response_of, response_of_http

MOST_WAIT_S = 3600.0


class Admin:
    """The handlers of one admin socket."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._turn = asyncio.Lock()
        """One change at a time."""

    def app(self) -> web.Application:
        """The application that listens on the socket."""
        app = web.Application(middlewares=[errors])
        app.router.add_post("/sleep", self.sleep)
        app.router.add_post("/wake_up", self.wake_up)
        app.router.add_get("/is_sleeping", self.is_sleeping)
        app.router.add_post("/reset_prefix_cache", self.reset_prefix_cache)
        return app

    async def sleep(self, request: web.Request) -> web.Response:
        """POST /sleep?level=N&timeout_s=S: answers once nothing runs.

        If requests still run after `timeout_s` (30), the worker is awake again and it is a 409.
        """
        level = number(request, "level", 1, 0, 2)
        wait_s = number(request, "timeout_s", 30, 0, MOST_WAIT_S)
        device = self._state.models.first.info["device"]
        if level >= 1 and not device.startswith("sim"):
            raise RefusedError(
                f"level {level:g} gives weights back, which the device {device} cannot: use 0",
                "level",
                "not_supported",
                501,
            )
        async with self._turn:
            self._state.fall_asleep()
            try:
                await asyncio.wait_for(self._state.idle(), wait_s)
            except TimeoutError:
                self._state.wake_up()
                message = f"{self._state.count()} requests still run after {wait_s:g} s"
                raise RefusedError(message, code="still_running", status=409) from None
            self._state.models.reset_prefix_caches()
        return json_response({"is_sleeping": True})

    async def wake_up(self, request: web.Request) -> web.Response:
        """POST /wake_up: takes requests again. No effect on a worker that is awake."""
        self._state.wake_up()
        return json_response({"is_sleeping": False})

    async def is_sleeping(self, request: web.Request) -> web.Response:
        """GET /is_sleeping."""
        return json_response({"is_sleeping": self._state.asleep})

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        """POST /reset_prefix_cache: later requests find no prefix of earlier ones."""
        self._state.models.reset_prefix_caches()
        return json_response({"status": "ok"})


def number(request: web.Request, name: str, default: float, low: float, high: float) -> float:
    """A number of the query. Errors: RefusedError 400 names it."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not low <= found <= high:
        raise RefusedError(f"{name}: must be a number from {low:g} to {high:g}", name)
    return found


@web.middleware
async def errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Errors in the shape of the public address."""
    try:
        answer: web.StreamResponse = await handler(request)
    except IngleError as error:
        return response_of(error)
    except web.HTTPException as error:
        return response_of_http(error, request.path)
    return answer
