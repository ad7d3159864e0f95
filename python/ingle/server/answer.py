"""[3] -> [9] One generation over HTTP: submit, then one body or one stream, then the end.

Event loop only. Whatever happens to the connection, the request has ended or been aborted when
these functions return.
"""

import asyncio
import contextlib
import functools
import logging
import re
from typing import Any

from aiohttp import HttpVersion11, web

from ingle.dispatch import ABORTED, END, ERROR, Sink
from ingle.engine import submit_async
from ingle.errors import FailedError, IngleError, OverloadedError, RefusedError, error_of_event
from ingle.generation import EncodedRequest
from ingle.server.connection import EventResponse, leaves_http
from ingle.server.headroom import BYTES_A_PROMPT_BYTE, BYTES_OF_A_CHAT
from ingle.server.models import ServedModel
from ingle.server.request_id import HEADER, label, request_id
from ingle.server.sse import HEADERS, EventStream, Translator
from ingle.server.state import ServerState
from ingle.server.tracing import SPAN

log = logging.getLogger("ingle.server")

NOTHING: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
MESSAGES_PATH = re.compile(r"/v1/messages(?:/|\Z)")


async def answer(
    request: web.Request,
    state: ServerState,
    model: ServedModel,
    asked: EncodedRequest,
) -> web.StreamResponse:
    """Runs one request from submission to its end."""
    if asked.stream:
        return await stream(request, state, model, asked)
    # The core's JSON body, unchanged.
    return web.Response(body=await whole_body(state, model, asked), content_type="application/json")


def common_headers(request: web.BaseRequest, state: ServerState) -> dict[str, str]:
    """The headers of every response, errors and streams included."""
    name = request_id(request)
    headers = {HEADER: name}
    if is_anthropic(request):
        headers["Request-Id"] = name  # Anthropic's clients read this one.
    if state.cors is not None:
        headers |= state.cors.headers(request)
    return headers


def is_anthropic(request: web.BaseRequest) -> bool:
    """Whether the URL belongs to Anthropic's API, with or without a prefix."""
    path = request.path
    # Most paths cannot match, and the search would cost more than the rest of this function.
    return "/messages" in path and MESSAGES_PATH.search(path) is not None


def log_failure(request: web.BaseRequest, error: IngleError) -> None:
    """Logs a request that failed on our side, with its request id."""
    if not isinstance(error, (RefusedError, OverloadedError)):
        log.error("request %s failed: %s", label(request), error)


async def submit_slow(
    state: ServerState, model: ServedModel, asked: EncodedRequest, sink: Any
) -> int:
    """Submits a request that takes long in the core. Such requests take turns on other threads.

    Errors: those of submit; OverloadedError 503 if there is no thread, or not enough memory.
    """
    # If the client disconnects here, nothing has been submitted.
    await state.turns.take(asked.tenant)
    num_bytes = BYTES_A_PROMPT_BYTE * len(asked.document)
    if not asked.is_slow:  # A chat that was not brief.
        num_bytes = max(num_bytes, BYTES_OF_A_CHAT)
    in_thread = functools.partial(state.turns.call, asked.tenant, num_bytes)
    return await submit_async(model.dispatcher, asked.document, sink, True, in_thread)


async def whole_body(state: ServerState, model: ServedModel, asked: EncodedRequest) -> bytes:
    """One JSON body, once all choices have ended.

    Errors: those of the core; OverloadedError 503 if there is too little memory for it.
    """
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

    dispatcher = model.dispatcher
    with (
        state.headroom.reserve(asked.tenant, asked.answer_bytes) if asked.answer_bytes else NOTHING
    ):
        span = SPAN.get()
        watching = sink if span is None else span.sink(sink)
        try:
            key = None if asked.is_slow else dispatcher.submit_if_brief(asked.document, watching)
            if key is None:
                key = await submit_slow(state, model, asked, watching)
        except asyncio.CancelledError:
            done.cancel()  # The abort ends the request, and nothing waits for that.
            raise
        try:
            return await done
        finally:
            dispatcher.abort(key)


async def stream(
    request: web.Request,
    state: ServerState,
    model: ServedModel,
    asked: EncodedRequest,
    translator: Translator | None = None,
) -> web.StreamResponse:
    """Events as they arrive. Errors before the first byte are ordinary responses."""
    dispatcher, heartbeat = model.dispatcher, model.heartbeat
    loop = asyncio.get_running_loop()
    events = EventStream(model.core, loop, translator)
    span = SPAN.get()
    sink: Sink = events if span is None else span.sink(events)
    key = None if asked.is_slow else dispatcher.submit_if_brief(asked.document, sink)
    if key is None:
        key = await submit_slow(state, model, asked, sink)
    try:
        if events.error is not None:
            raise error_of_event(events.error)
        response = EventResponse(headers=HEADERS | common_headers(request, state))
        if leaves_http(request) or request.version < HttpVersion11:
            # Without chunks, the end of the connection ends the body.
            response.force_close()
        head = await response.head(request)
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        events.start(key, transport, head)
        heartbeat.add(key)
        await events.done
        if events.error is not None:
            log_failure(request, error_of_event(events.error))
        response.is_whole = events.ended and asked.chunked
        return response
    finally:
        heartbeat.remove(key)
        dispatcher.abort(key)
