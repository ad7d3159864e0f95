"""[8] The events of a streamed response, made from the core's chat chunks. Event loop.

One object per stream: `begin` gives the first bytes, `translate` turns each of the core's frames
into frames of the new format. The event order is OpenAI's: created, in_progress; then added, deltas
and done of each output item; last completed, incomplete or failed. There is no `[DONE]`.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Raw, Struct

from ingle.generation import EncodedRequest, TextPrompt
from ingle.server.answer import stream, whole_body
from ingle.server.event_buffer import EventBuffer
from ingle.server.models import ServedModel
from ingle.server.off_loop import off_loop
from ingle.server.responses import Chat, LogProbs, Shape, new_item, new_part, output_of, usage_of
from ingle.server.state import ServerState

encode = msgspec.json.encode


class ChunkChoice(Struct):
    """What a chunk adds to the only choice."""

    delta: dict[str, Any]
    finish_reason: str | None = None
    logprobs: LogProbs | None = None


class Chunk(Struct):
    """One of the core's events."""

    choices: list[ChunkChoice] = []
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


decode = msgspec.json.Decoder(Chunk).decode
decode_chat = msgspec.json.Decoder(Chat).decode


class ResponseStream:
    """State of one stream."""

    def __init__(self, shape: Shape, chunked: bool, count_tokens: Callable[[str], int]) -> None:
        self._shape = shape
        self._count_tokens = count_tokens
        self._sequence = 0
        self._events = EventBuffer(chunked)
        self._output: list[dict[str, Any]] = []
        """Items so far; the last one is open while `_kind` is set."""
        self._kind: str | None = None
        self._texts: list[str] = []
        """Deltas of the open item."""
        self._logprobs: list[Raw] = []
        self._call_index: int | None = None
        self._reasoning: list[str] = []
        self._finish_reason = "stop"
        self._usage: dict[str, Any] | None = None

    def begin(self) -> bytes:
        """The first two events."""
        for kind in ("response.created", "response.in_progress"):
            self._event(kind, response=self._shape.open())
        return self._events.take()

    def translate(self, frame: bytes) -> bytes:
        """The events that say what `frame` says; may be empty."""
        for block in frame.split(b"\n\n"):
            if block == b"data: [DONE]":
                self._end()
            elif block.startswith(b"data: "):
                self._chunk(decode(block[6:]))
            elif block:
                self._events.add_raw(block)
        return self._events.take()

    def _chunk(self, chunk: Chunk) -> None:
        if chunk.error is not None:
            self._finish_reason = "error"
            self._event("response.failed", response=self._shape.failed(chunk.error))
            return
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            delta = choice.delta
            logprobs = choice.logprobs.content if choice.logprobs else []
            if delta.get("reasoning_content"):
                self._text("reasoning", delta["reasoning_content"], [])
            if delta.get("content") or logprobs:
                self._text("message", delta.get("content") or "", logprobs)
            for call in delta.get("tool_calls") or ():
                self._call(call)
            self._finish_reason = choice.finish_reason or self._finish_reason

    def _text(self, kind: str, delta: str, logprobs: list[Raw]) -> None:
        if self._kind != kind:
            self._open(kind)
        self._texts.append(delta)
        self._logprobs += logprobs
        if kind == "reasoning":
            self._reasoning.append(delta)
            self._part_event("response.reasoning_text.delta", delta=delta)
        else:
            self._part_event("response.output_text.delta", delta=delta, logprobs=logprobs)

    def _call(self, call: dict[str, Any]) -> None:
        function = call["function"]
        if self._kind != "function_call" or self._call_index != call["index"]:
            self._open("function_call", call_id=call["id"], name=function["name"])
            self._call_index = call["index"]
        delta = function.get("arguments")
        if delta:
            self._texts.append(delta)
            self._item_event("response.function_call_arguments.delta", delta=delta)

    def _open(self, kind: str, **fields: Any) -> None:
        self._close("completed")
        self._kind = kind
        item = new_item(kind, **fields)
        self._output.append(item)
        place = len(self._output) - 1
        self._event("response.output_item.added", output_index=place, item=item)
        if kind != "function_call":
            self._part_event("response.content_part.added", part=new_part(kind))

    def _close(self, status: str) -> None:
        kind, item = self._kind, self._output[-1] if self._output else {}
        if kind is None:
            return
        text = "".join(self._texts)
        if kind == "function_call":
            item["arguments"] = text
            name = item["name"]
            self._item_event("response.function_call_arguments.done", arguments=text, name=name)
        else:
            part = new_part(kind) | {"text": text}
            if kind == "reasoning":
                self._part_event("response.reasoning_text.done", text=text)
            else:
                part["logprobs"] = self._logprobs
                done = "response.output_text.done"
                self._part_event(done, text=text, logprobs=self._logprobs)
            self._part_event("response.content_part.done", part=part)
            item["content"] = [part]
        item["status"] = status
        place = len(self._output) - 1
        self._event("response.output_item.done", output_index=place, item=item)
        self._kind, self._texts, self._logprobs = None, [], []

    def _end(self) -> None:
        if self._finish_reason == "error":
            return
        if not self._output:
            self._open("message")
        is_cut = self._finish_reason == "length"
        self._close("incomplete" if is_cut else "completed")
        reasoning = "".join(self._reasoning)
        num_reasoning = self._count_tokens(reasoning) if reasoning else 0
        usage = usage_of(self._usage, num_reasoning) if self._usage else {}
        whole = self._shape.ended(self._output, self._finish_reason, usage)
        self._event(f"response.{whole['status']}", response=whole)

    def _part_event(self, kind: str, **fields: Any) -> None:
        self._item_event(kind, content_index=0, **fields)

    def _item_event(self, kind: str, **fields: Any) -> None:
        place = len(self._output) - 1
        self._event(kind, item_id=self._output[-1]["id"], output_index=place, **fields)

    def _event(self, kind: str, **fields: Any) -> None:
        document = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        self._events.add(kind, document)


async def answer_response(
    request: web.Request,
    state: ServerState,
    model: ServedModel,
    asked: EncodedRequest,
    shape: Shape,
) -> web.StreamResponse:
    """Runs a chat and answers with the response of it.

    The core must not put chunk framing around a stream; that is done here.
    """

    def count_tokens(text: str) -> int:
        return len(model.core.tokenize(encode(TextPrompt(text, False))))

    if asked.stream:
        translator = ResponseStream(shape, shape.chunked, count_tokens)
        return await stream(request, state, model, asked, translator)
    body = await whole_body(state, model, asked)

    def translated() -> bytes:
        chat = decode_chat(body)
        choice = chat.choices[0]
        reasoning = choice.message.get("reasoning_content")
        usage = usage_of(chat.usage, count_tokens(reasoning) if reasoning else 0)
        return encode(shape.ended(output_of(choice), choice.finish_reason, usage))

    whole = await off_loop(len(body), translated)
    return web.Response(body=whole, content_type="application/json")
