"""The admin socket of `--admin-uds`: puts the worker to sleep and wakes it. Event loop.

A Unix socket of its own, whose file decides who may use it: no key opens it, and no route of the
public address leads here. Paths and answers are those of vLLM, which production-stack calls.

Level 0 only pauses: new requests get 503, running ones end first, cached prefixes are forgotten.
Level 1 also gives back KV blocks and weights: on a GPU the weights go to host memory, elsewhere
they are read again from the open files. Level 2 keeps no copy of the weights.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from ingle.errors import IngleError, RefusedError
from ingle.server.admin_models import ModelRoutes
from ingle.server.admin_query import check_names, number
from ingle.server.state import ServerState
from ingle.server.status import json_response, response_of, response_of_http

MOST_WAIT_S = 3600.0


class Admin:
    """The handlers of one admin socket."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._turn = asyncio.Lock()
        """One change at a time."""
        self._woken = asyncio.Event()
        """Set while a wake-up waits: a sleep that still waits for requests gives up then."""
        self._num_wakes = 0

    def app(self) -> web.Application:
        """The application that listens on the socket."""
        app = web.Application(middlewares=[errors])
        app.router.add_post("/sleep", self.sleep)
        app.router.add_post("/wake_up", self.wake_up)
        app.router.add_get("/is_sleeping", self.is_sleeping)
        app.router.add_post("/reset_prefix_cache", self.reset_prefix_cache)
        ModelRoutes(self._state.models).add_to(app.router)
        return app

    async def sleep(self, request: web.Request) -> web.Response:
        """POST /sleep?level=N&timeout_s=S: answers once the memory has been given back.

        If requests still run after `timeout_s` (30), the worker is awake again and it is a 409.
        """
        check_names(request, "level", "timeout_s", "mode")
        level = int(number(request, "level", 1, 0, 2, whole=True))
        wait_s = number(request, "timeout_s", 30, 0, MOST_WAIT_S)
        mode = request.query.get("mode", "wait")
        if mode != "wait":
            raise RefusedError(f"mode: must be wait, not {mode[:40]!r}", "mode", status=501)
        deepest = self._state.models.deepest_sleep()
        if level > deepest:
            # Before running requests are waited for.
            raise RefusedError(too_deep(level, deepest), "level", "not_supported", 501)
        if self._state.models.swap():
            # Before any request is refused for it.
            raise RefusedError(SWAPS, code="not_supported", status=409)
        async with self._turn:
            was_asleep = self._state.asleep
            if not was_asleep:
                self._state.fall_asleep()
            try:
                await self._until_idle(wait_s)
                await self._run(self._state.models.sleep, level)
            except BaseException:
                self._state.asleep = was_asleep
                raise
        return json_response({"is_sleeping": True})

    async def wake_up(self, request: web.Request) -> web.Response:
        """POST /wake_up: answers once requests are taken. No effect on a worker that is awake.

        A sleep that still waits for running requests gives up.
        """
        check_names(request)
        self._num_wakes += 1
        self._woken.set()
        try:
            async with self._turn:
                if not self._state.models.swap():
                    await self._run(self._state.models.wake)
                self._state.wake_up()
        finally:
            self._num_wakes -= 1
            if self._num_wakes == 0:
                self._woken.clear()
        return json_response({"is_sleeping": False})

    async def _until_idle(self, wait_s: float) -> None:
        """Waits until no request runs. Errors: RefusedError 409 if some still do in the end."""
        waits = [asyncio.ensure_future(each) for each in (self._state.idle(), self._woken.wait())]
        await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if count := self._state.count():
            when = "at a wake-up" if self._woken.is_set() else f"after {wait_s:g} s"
            raise RefusedError(
                f"{count} requests still run {when}", code="still_running", status=409
            )

    async def is_sleeping(self, request: web.Request) -> web.Response:
        """GET /is_sleeping."""
        return json_response({"is_sleeping": self._state.asleep})

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        """POST /reset_prefix_cache: later requests find no prefix of earlier ones."""
        self._state.models.reset_prefix_caches()
        return json_response({"status": "ok"})

    async def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        """Calls what blocks, to its end, on a submit thread."""
        await self._state.turns.run(ADMIN, 0, work, *arguments)


def too_deep(level: int, deepest: int) -> str:
    """Why a worker does not sleep at this level."""
    message = f"level: this worker can sleep at level {deepest} at most, not {level}"
    return message if deepest else f"{message}; --enable-sleep-mode lets it give weights back"


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


SWAPS = "models make room for each other here: POST /models/NAME/sleep sends one away"
ADMIN = "\x00admin"
"""Whose turn it is on the submit threads: no tenant has this name."""
