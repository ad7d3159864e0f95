"""[9] Server-sent events: from the core's frames to the client's socket. Event loop only.

A frame is written to aiohttp's transport from the drain callback itself: no queue, no task wake-up,
no JSON. Where the transport is a plain socket without buffered bytes the core is told to send the
stream's further frames itself. The handler waits for one future, once a stream.
"""

import asyncio
from typing import Any, Final

from aiohttp import web

from ingle import _core
from ingle.dispatch import ABORTED
from ingle.server.status import error_body

HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

MOST_BUFFERED_BYTES: Final = 1 << 20
"""A client that leaves so much unread is too slow; its request is aborted."""
SLOW_BUFFERED_BYTES: Final = 256 << 10
SLOW_S: Final = 30.0
"""So is one that leaves more than the former unread for the latter."""
PING_S: Final = 15.0
"""Longest silence on a stream; proxies close connections that say nothing for a minute."""


class EventStream:
    """One streamed answer: the sink of its events, and what the handler waits for."""

    __slots__ = (
        "_held",
        "_loop",
        "_slow_since",
        "_transport",
        "attached",
        "chunked",
        "done",
        "error",
        "frames",
        "silent_sweeps",
        "too_slow",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, chunked: bool) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self.chunked = chunked
        self.error: bytes | None = None
        """Payload of the ERROR event, if the request failed; the client has been told."""
        self.frames = 0
        """Frames seen here so far; the heartbeat compares it."""
        self.silent_sweeps = 0
        self.attached = False
        self.too_slow = False
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._held: list[bytes] = []
        self._slow_since: float | None = None

    def __call__(self, kind: int, payload: Any) -> None:
        """The sink: writes a frame, or notes the end."""
        if kind == _core.FRAME:
            self.frames += 1
            if self._transport is None:
                self._held.append(payload)
            else:
                self._write(payload)
            return
        if kind == _core.ERROR:
            self.error = payload
        if not self.done.done() and kind != ABORTED:
            self.done.set_result(None)

    def start(self, transport: asyncio.Transport) -> None:
        """The headers are out: frames that came before, and all later ones, go to `transport`."""
        self._transport = transport
        held, self._held = self._held, []
        for frame in held:
            self._write(frame)

    def ping(self) -> None:
        """Writes a comment, which clients skip, so that proxies see life."""
        if self._transport is not None and not self.attached:
            self._write(b"3\r\n:\n\n\r\n" if self.chunked else b":\n\n")

    def fail(self, message: str) -> None:
        """Ends the stream from our side: an error event, `[DONE]`, and the handler goes on."""
        if self.done.done():
            return
        event = b"data: " + error_body(503, message) + b"\n\ndata: [DONE]\n\n"
        if self.chunked:
            event = b"%x\r\n%b\r\n" % (len(event), event)
        self(_core.FRAME, event)
        self.error = b""
        self.done.set_result(None)

    def _write(self, frame: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing() or self.too_slow:
            return
        transport.write(frame)
        buffered = transport.get_write_buffer_size()
        if buffered <= SLOW_BUFFERED_BYTES:
            self._slow_since = None
            return
        now = self._loop.time()
        if self._slow_since is None:
            self._slow_since = now
        if buffered > MOST_BUFFERED_BYTES or now - self._slow_since > SLOW_S:
            # abort, not close: close would wait for the client to read what is buffered.
            self.too_slow = True
            transport.abort()
            if not self.done.done():
                self.done.set_result(None)


class Heartbeat:
    """Keeps silent streams alive. One timer for all of them, none while there are none."""

    SWEEP_S: Final = 5.0

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._streams: dict[EventStream, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: EventStream) -> None:
        """Watches a stream until `remove`."""
        self._streams[stream] = stream.frames
        if self._timer is None:
            self._timer = self._loop.call_later(self.SWEEP_S, self._sweep)

    def remove(self, stream: EventStream) -> None:
        """Forgets a stream."""
        self._streams.pop(stream, None)

    def streams(self) -> list[EventStream]:
        """All that are running."""
        return list(self._streams)

    def _sweep(self) -> None:
        self._timer = None
        for stream, seen in self._streams.items():
            stream.silent_sweeps = 0 if stream.frames != seen else stream.silent_sweeps + 1
            self._streams[stream] = stream.frames
            if stream.silent_sweeps * self.SWEEP_S >= PING_S:
                stream.silent_sweeps = 0
                stream.ping()
        if self._streams:
            self._timer = self._loop.call_later(self.SWEEP_S, self._sweep)


def plain_socket_fd(request: web.BaseRequest) -> int:
    """Descriptor of a socket that the core may write to beside the transport, or -1.

    Only where nothing is encrypted and nothing is buffered, so that order is kept.
    """
    transport = request.transport
    if transport is None or transport.get_extra_info("sslcontext") is not None:
        return -1
    if transport.get_write_buffer_size() or transport.is_closing():
        return -1
    socket = transport.get_extra_info("socket")
    return -1 if socket is None else int(socket.fileno())
