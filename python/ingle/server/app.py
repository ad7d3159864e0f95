"""[1] Joins the parts of the HTTP server: `create_app`. Event loop."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal

from aiohttp import web

from ingle.engine import Engine
from ingle.engines import Engines
from ingle.errors import FatalError, IngleError
from ingle.hardening import Lockdown
from ingle.memory import give_back_memory
from ingle.server import routes
from ingle.server.answer import common_headers, is_anthropic, log_failure
from ingle.server.auth import ApiKeys
from ingle.server.connection import framing_error, leaves_http
from ingle.server.cors import Cors
from ingle.server.headroom import Headroom
from ingle.server.models import Models
from ingle.server.parse import UnknownFields
from ingle.server.request_id import label, request_id
from ingle.server.state import STATE, ServerState
from ingle.server.status import (
    error_response,
    in_anthropic_shape,
    response_of,
    response_of_http,
)
from ingle.server.tracing import Tracer
from ingle.server.turns import Turns
from ingle.traces import trace

log = logging.getLogger("ingle.server")


def create_app(
    engine: Engine | Engines,
    *,
    api_keys: ApiKeys | None = None,
    unknown_fields: Literal["refuse", "warn"] = "refuse",
    max_body_bytes: int = 8 << 20,
    allowed_origins: Sequence[str] = (),
    on_fatal: Callable[[str], None] | None = None,
    lockdown: Lockdown | None = None,
    tracer: Tracer | None = None,
) -> web.Application:
    """The HTTP API of one model or of several, as an aiohttp application.

    The application watches the engines' events while it runs; it does not close them.
    `allowed_origins`: web pages of these origins may ask from a browser; `*` alone allows all.
    `lockdown` is shown in /health and /metrics. `tracer` sends a span of each request.
    `on_fatal` is called once, with a reason, when the engine has died: the process should exit.
    Run it with `handler_cancellation=True`, else a client that leaves keeps its request running.
    It can be mounted: `other.add_subapp("/llm", create_app(engine))`; nothing but /llm/health and
    /llm/ready is then open without a key.
    """
    app = web.Application(client_max_size=max_body_bytes, middlewares=[boundary])
    models = Models(engine)
    headroom = Headroom(models.first.core.memory_room, give_back_memory)
    app[STATE] = ServerState(
        models=models,
        keys=api_keys or ApiKeys({}),
        cors=Cors(allowed_origins) if allowed_origins else None,
        unknown=UnknownFields(warn=unknown_fields == "warn"),
        on_fatal=on_fatal or (lambda reason: None),
        started_at=int(time.time()),
        headroom=headroom,
        turns=Turns(headroom),
        lockdown=lockdown or Lockdown("off"),
        tracer=tracer,
    )
    routes.add_routes(app, app[STATE])
    app.cleanup_ctx.append(watch_engine)
    return app


async def watch_engine(app: web.Application) -> AsyncIterator[None]:
    """While the application runs, its loop drains the engines' events."""
    state = app[STATE]
    state.models.watch(asyncio.get_running_loop(), state.fatal)
    yield
    state.models.leave()
    state.turns.close()


LEAVING = (KeyboardInterrupt, SystemExit, GeneratorExit)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def boundary(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Around every request, also those without a route: framing, key, handler, errors."""
    state = request.app[STATE]
    answering = answered(request, handler, state)
    tracer = state.tracer
    response = await (answering if tracer is None else tracer.around(answering))
    if state.draining:
        response.force_close()
    if not response.prepared:  # A prepared response is a stream, which has done all this.
        if leaves_http(request):
            response.force_close()
        if response.status >= 400 and is_anthropic(request) and isinstance(response, web.Response):
            in_anthropic_shape(response, request_id(request))
        response.headers.update(common_headers(request, state))
    return response


async def answered(
    request: web.Request, handler: Handler, state: ServerState
) -> web.StreamResponse:
    """What the handler answers, or what its error means, once the key is known."""
    wrong = framing_error(request)
    if wrong is not None:
        refusal = error_response(400, wrong)
        refusal.force_close()
        return refusal
    try:
        preflight = None if state.cors is None else state.cors.preflight(request)
        if preflight is not None:
            return preflight
        request[routes.IDENTITY] = state.keys.identity(request, state.open_paths)
        return await handler(request)
    except IngleError as error:
        if isinstance(error, FatalError) and not state.draining:
            state.fatal(str(error))
        log_failure(request, error)
        return response_of(error)
    except web.HTTPException as error:
        return response_of_http(error, request.path)
    except (asyncio.CancelledError, ConnectionError, *LEAVING):
        raise  # The client has gone, or the process is ending.
    except Exception as error:  # noqa: BLE001 # Logged, without its text.
        log.error("request %s failed\n%s", label(request), trace(error))
        return error_response(500, "internal error")
    except BaseException as panic:  # noqa: BLE001 # A panic of the core is no Exception.
        # The core has logged its place; its own text could quote a prompt.
        log.error("request %s failed: %s", label(request), type(panic).__name__)
        return error_response(500, "internal error")
    finally:
        state.leave(request)
