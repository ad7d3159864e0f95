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
        async with self._turn:
            was_asleep = self._state.asleep
            if not was_asleep:
                self._state.fall_asleep()
            try:
                await asyncio.wait_for(self._state.idle(), wait_s)
                await self._run(self._state.models.sleep, level)
            except TimeoutError:
                self._state.wake_up()
                message = f"{self._state.count()} requests still run after {wait_s:g} s"
                raise RefusedError(message, code="still_running", status=409) from None
            except BaseException:
                self._state.asleep = was_asleep
                raise
        return json_response({"is_sleeping": True})

    async def wake_up(self, request: web.Request) -> web.Response:
        """POST /wake_up: answers once requests are taken. No effect on a worker that is awake."""
        check_names(request)
        async with self._turn:
            await self._run(self._state.models.wake)
            self._state.wake_up()
        return json_response({"is_sleeping": False})

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


def check_names(request: web.Request, *known: str) -> None:
    """Errors: RefusedError 400 names a part of the query that has no effect here."""
    for name in request.query:
        if name not in known:
            allowed = f"the query may have {', '.join(known)}" if known else "takes no query"
            raise RefusedError(f"{name[:40]}: {request.path} {allowed}", name[:40])


def number(
    request: web.Request, name: str, default: float, low: float, high: float, whole: bool = False
) -> float:
    """A number of the query. Errors: RefusedError 400 names it."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not low <= found <= high or (whole and found != int(found)):
        kind = "whole number" if whole else "number"
        raise RefusedError(f"{name}: must be a {kind} from {low:g} to {high:g}", name)
    return found


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


ADMIN = "\x00admin"
"""Whose turn it is on the submit threads: no tenant has this name."""
