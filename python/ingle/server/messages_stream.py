"""[8] The events of a streamed message, made from the core's chat chunks. Event loop.

There is one object per stream, as in responses_stream.py. The event order is Anthropic's:
message_start; then start, deltas and stop of each content block; then message_delta and
message_stop. ping and error may come in between.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from ingle.generation import EncodedRequest, TextPrompt
from ingle.server.answer import stream, whole_body
from ingle.server.event_buffer import EventBuffer
from ingle.server.messages import Chat, Shape, content_of, new_block, usage_of
from ingle.server.models import ServedModel
from ingle.server.off_loop import off_loop
from ingle.server.state import ServerState
from ingle.server.status import anthropic_type

encode = msgspec.json.encode


class ChunkChoice(Struct):
    """What a chunk adds to the only choice."""

    delta: dict[str, Any]
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Chunk(Struct):
    """One of the core's events."""

    choices: list[ChunkChoice] = []
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


decode = msgspec.json.Decoder(Chunk).decode
decode_chat = msgspec.json.Decoder(Chat).decode


class MessageStream:
    """State of one stream."""

    def __init__(self, shape: Shape, count_tokens: Callable[[str], int]) -> None:
        self._shape = shape
        self._count_tokens = count_tokens
        self._events = EventBuffer(shape.chunked)
        self._usage: dict[str, Any] | None = None
        """The core's latest usage; None until message_start has been sent."""
        self._num_blocks = 0
        self._kind: str | None = None
        """Type of the open block, which is the last one."""
        self._call_index: int | None = None
        self._thinking: list[str] = []
        self._end: dict[str, Any] = shape.stop("stop", None)
        self._has_failed = False

    def begin(self) -> bytes:
        """Nothing: message_start has the prompt's token count, which comes with the first frame."""
        return b""

    def translate(self, frame: bytes) -> bytes:
        """The events for one of the core's frames; may be empty."""
        for block in frame.split(b"\n\n"):
            if block == b"data: [DONE]":
                if not self._has_failed:
                    self._finish()
            elif block.startswith(b"data: "):
                self._chunk(decode(block[6:]))
            elif block and self._usage is not None:
                self._event("ping")  # A comment, which keeps the connection alive.
            elif block:
                self._events.add_raw(block)
        return self._events.take()

    def _chunk(self, chunk: Chunk) -> None:
        if chunk.error is not None:
            self._has_failed = True
            self._event("error", error=failure(chunk.error))
            return
        if self._usage is None and chunk.usage is not None:
            self._start(chunk.usage)
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            delta = choice.delta
            if delta.get("reasoning_content"):
                self._thinking.append(delta["reasoning_content"])
                self._text("thinking", delta["reasoning_content"])
            if delta.get("content"):
                self._text("text", delta["content"])
            for call in delta.get("tool_calls") or ():
                self._call(call)
            if choice.finish_reason is not None:
                self._end = self._shape.stop(choice.finish_reason, choice.stop_reason)

    def _start(self, usage: dict[str, Any]) -> None:
        end = {"stop_reason": None, "stop_sequence": None}
        message = self._shape.message([], end, usage_of(usage, 0))
        self._event("message_start", message=message)
        self._event("ping")

    def _text(self, kind: str, delta: str) -> None:
        if self._kind != kind:
            self._open(kind)
        self._delta(f"{kind}_delta", kind, delta)

    def _call(self, call: dict[str, Any]) -> None:
        function = call["function"]
        if self._kind != "tool_use" or self._call_index != call["index"]:
            self._open("tool_use", id=call["id"], name=function["name"])
            self._call_index = call["index"]
        if function.get("arguments"):
            self._delta("input_json_delta", "partial_json", function["arguments"])

    def _open(self, kind: str, **fields: Any) -> None:
        self._close()
        self._kind = kind
        block = new_block(kind, **fields)
        self._event("content_block_start", index=self._num_blocks, content_block=block)
        self._num_blocks += 1

    def _close(self) -> None:
        if self._kind is None:
            return
        if self._kind == "thinking":
            # Some clients drop a thinking block without a signature instead of sending it back.
            self._delta("signature_delta", "signature", "")
        self._event("content_block_stop", index=self._num_blocks - 1)
        self._kind = None

    def _finish(self) -> None:
        self._close()
        thinking = "".join(self._thinking)
        num_thinking = self._count_tokens(thinking) if thinking else 0
        usage = usage_of(self._usage, num_thinking) if self._usage else {"output_tokens": 0}
        self._event("message_delta", delta=self._end, usage=usage)
        self._event("message_stop")

    def _delta(self, kind: str, field: str, text: str) -> None:
        delta = {"type": kind, field: text}
        self._event("content_block_delta", index=self._num_blocks - 1, delta=delta)

    def _event(self, kind: str, **fields: Any) -> None:
        self._events.add(kind, {"type": kind, **fields})


def failure(error: dict[str, Any]) -> dict[str, Any]:
    """The error object of a stream that failed after its start."""
    status = 503 if error.get("code") == "shutdown" else 500
    return {"type": anthropic_type(status), "message": error.get("message", "")}


async def answer_message(
    request: web.Request,
    state: ServerState,
    model: ServedModel,
    asked: EncodedRequest,
    shape: Shape,
) -> web.StreamResponse:
    """Runs a chat and responds with the message.

    The core must not add chunk framing to the stream; that happens here.
    """

    def count_tokens(text: str) -> int:
        return len(model.core.tokenize(encode(TextPrompt(text, False))))

    if asked.stream:
        return await stream(request, state, model, asked, MessageStream(shape, count_tokens))
    body = await whole_body(state, model, asked)

    def message() -> bytes:
        chat = decode_chat(body)
        choice = chat.choices[0]
        thinking = choice.message.get("reasoning_content")
        usage = usage_of(chat.usage, count_tokens(thinking) if thinking else 0)
        end = shape.stop(choice.finish_reason, choice.stop_reason)
        return encode(shape.message(content_of(choice.message), end, usage))

    whole = await off_loop(len(body), message)
    return web.Response(body=whole, content_type="application/json")
