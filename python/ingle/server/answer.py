"""[3] -> [9] One generation over HTTP: submit, then one body or one stream, then the end.

Event loop only. Whatever happens to the connection, the request's key is aborted or has ended when
these functions return.
"""

import asyncio
import secrets
import time
from typing import Any

from aiohttp import HttpVersion11, web

from ingle.dispatch import ABORTED, END, ERROR, Dispatcher
from ingle.engine import submit_async
from ingle.errors import FailedError, error_of_event
from ingle.generation import GenerationRequest, encode, is_slow_to_submit
from ingle.server.connection import leaves_http
from ingle.server.convert import Caller
from ingle.server.sse import HEADERS, EventStream, Translator
from ingle.server.state import ServerState


def caller_of(
    request: web.Request, tenant: str, kind: str, model: str, separator: str = "-"
) -> Caller:
    """What the connection says about a request; `kind` starts the answer's id."""
    return Caller(
        tenant=tenant,
        response_id=f"{kind}{separator}{secrets.token_hex(16)}",
        created=int(time.time()),
        chunked=request.version == HttpVersion11,
        model=model,
    )


async def answer(
    request: web.Request,
    state: ServerState,
    document: GenerationRequest,
    headers: dict[str, str],
) -> web.StreamResponse:
    """Runs one request to its end; `headers` are added to a good answer."""
    if document.output.stream:
        return await stream(request, state, document, headers)
    return await body(state, document, headers)


async def submit(dispatcher: Dispatcher, document: GenerationRequest, sink: Any) -> int:
    """Hands a request to the core; what takes long there happens on another thread."""
    if is_slow_to_submit(document):
        return await submit_async(dispatcher, encode(document), sink, inline_bytes=0)
    return await submit_async(dispatcher, encode(document), sink)


async def body(
    state: ServerState, document: GenerationRequest, headers: dict[str, str]
) -> web.Response:
    """The core's JSON body as it is."""
    whole = await whole_body(state, document)
    return web.Response(body=whole, headers=headers, content_type="application/json")


async def whole_body(state: ServerState, document: GenerationRequest) -> bytes:
    """One JSON body, when all choices have ended."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def sink(kind: int, payload: Any) -> None:
        if done.done():
            return
        if kind == END:
            done.set_result(payload)
        elif kind == ERROR:
            done.set_exception(error_of_event(payload))
        elif kind == ABORTED:
            done.set_exception(FailedError("the request was aborted"))

    try:
        key = await submit(state.engine.dispatcher, document, sink)
    except asyncio.CancelledError:
        done.cancel()  # Nobody waits for the end that the abort will bring.
        raise
    state.enter(key)
    try:
        return await done
    finally:
        state.leave(key)
        state.engine.dispatcher.abort(key)


async def stream(
    request: web.Request,
    state: ServerState,
    document: GenerationRequest,
    headers: dict[str, str],
    translator: Translator | None = None,
) -> web.StreamResponse:
    """Events as they come. Errors before the first byte are ordinary answers."""
    dispatcher, heartbeat = state.engine.dispatcher, state.heartbeat
    loop = asyncio.get_running_loop()
    events = EventStream(state.engine.core, loop, translator)
    key = await submit(dispatcher, document, events)
    state.enter(key)
    try:
        if events.error is not None:
            raise error_of_event(events.error)
        response = web.StreamResponse(headers={**HEADERS, **headers})
        if leaves_http(request):
            response.force_close()
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        events.start(key, transport)
        heartbeat.add(key)
        await events.done
        return response
    finally:
        state.leave(key)
        heartbeat.remove(key)
        dispatcher.abort(key)
