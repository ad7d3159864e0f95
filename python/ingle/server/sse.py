"""[9] Server-sent events: from the core's frames to the client's socket. Event loop only.

If the transport is a plain socket without unsent bytes, the core sends the frames itself. Otherwise
the drain callback writes them to aiohttp's transport, without a queue, a task wake-up or JSON. The
handler waits for one future per stream.
"""

import asyncio
from typing import Any, Final, Protocol

from ingle.dispatch import ABORTED, END, ERROR, FRAME, HEADED, Core
from ingle.server.connection import reset

HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
    "Server": "ingle",
}


class Translator(Protocol):
    """Translates the core's frames to another format. The core then never gets the socket."""

    def begin(self) -> bytes:
        """The bytes before the first frame."""

    def translate(self, frame: bytes) -> bytes:
        """A frame in the new format; may be empty."""


MOST_BUFFERED_BYTES: Final = 1 << 20
"""A client with this much unread data is too slow; its request is aborted."""
SLOW_BUFFERED_BYTES: Final = 256 << 10
SLOW_S: Final = 30.0
"""A client is too slow, too, with more than the former unread for the latter."""
MOST_ATTACHES: Final = 4
"""How often one stream's socket is offered to the core."""


class EventStream:
    """One streamed answer: the sink of its events, and the future that the handler waits for."""

    __slots__ = (
        "_attaches",
        "_core",
        "_head",
        "_held",
        "_key",
        "_loop",
        "_slow_since",
        "_translator",
        "_transport",
        "done",
        "ended",
        "error",
        "frames",
        "too_slow",
    )

    def __init__(
        self,
        core: Core,
        loop: asyncio.AbstractEventLoop,
        translator: Translator | None = None,
    ) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self.ended = False
        """Whether the last frame has passed through here or was sent by the core."""
        self.error: bytes | None = None
        """Payload of the ERROR event, if the request failed. The client has received the error."""
        self.frames = 0
        """Frames that passed through here."""
        self.too_slow = False
        self._core = core
        self._head = b""
        """The response headers, if they may still have to be written before the first frame."""
        self._loop = loop
        self._key = -1
        self._transport: asyncio.Transport | None = None
        self._held: list[bytes] = []
        self._slow_since: float | None = None
        self._translator = translator
        self._attaches = 0 if translator is None else MOST_ATTACHES

    def __call__(self, kind: int, payload: Any) -> None:
        """The sink: writes a frame or records the end."""
        if kind in (FRAME, HEADED):
            self.frames += 1
            if kind == HEADED:
                self._head = b""
            if self._translator is not None:
                payload = self._translator.translate(payload)
            if self._transport is None:
                self._held.append(payload)
            else:
                self._write(payload)
                self._offer_socket()
            return
        if kind == END:
            self.ended = True
        elif kind == ERROR:
            self.error = payload
            if SLOW_READER in payload:
                self._cut()
        if not self.done.done() and kind != ABORTED:
            self.done.set_result(None)

    def start(
        self,
        key: int,
        transport: asyncio.Transport,
        head: bytes = b"",
    ) -> None:
        """Releases earlier and later frames, with `head` before them.

        The head waits for the first frame: one write for both, by the core or by us.
        """
        self._key = key
        self._transport = transport
        self._head = head
        held, self._held = self._held, []
        if self._translator is not None:
            held.insert(0, self._translator.begin())
        for frame in held:
            self._write(frame)
        if held:
            self._offer_socket()
        elif self._attaches < MOST_ATTACHES:
            self._attaches += 1
            self._attach()

    def _write(self, frame: bytes) -> None:
        transport = self._transport
        if not frame or transport is None or self.too_slow or transport.is_closing():
            return
        if self._head:
            frame, self._head = self._head + frame, b""
        # This frame does not count: one large frame does not mean that the client is slow.
        buffered = transport.get_write_buffer_size()
        transport.write(frame)
        if buffered <= SLOW_BUFFERED_BYTES:
            self._slow_since = None
            return
        now = self._loop.time()
        if self._slow_since is None:
            self._slow_since = now
        if buffered > MOST_BUFFERED_BYTES or now - self._slow_since > SLOW_S:
            self._cut()

    def _cut(self) -> None:
        self.too_slow = True
        if self._transport is not None:
            reset(self._transport)
        if not self.done.done():
            self.done.set_result(None)

    def _offer_socket(self) -> None:
        if self._attaches < MOST_ATTACHES:
            self._attaches += 1
            # In the loop's next round: uvloop keeps what was written until the end of this one.
            self._loop.call_soon(self._attach)

    def _attach(self) -> None:
        fd = -1 if self.done.done() else plain_socket_fd(self._transport)
        if fd >= 0:
            # If a frame is on its way here, the core keeps sending through the loop, and that frame
            # offers again.
            # The core also stays with the loop if no descriptor is left for its copy of the socket.
            try:  # noqa: SIM105 # suppress() would cost three calls a stream.
                self._core.attach_socket(self._key, fd, self.frames, self._head)
            except OSError:
                pass


class Heartbeat:
    """Lets the core write comments to silent streams, so that proxies keep them open.

    One timer for all streams, none while there are none.
    """

    SWEEP_S: Final = 5.0
    """The core writes a comment if nothing was sent for 10 s, so silence lasts 15 s at most."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._keys: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, key: int) -> None:
        """Adds a stream until `remove`."""
        self._keys.add(key)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.SWEEP_S, self._sweep)

    def remove(self, key: int) -> None:
        """Removes a stream."""
        self._keys.discard(key)

    def _sweep(self) -> None:
        self._timer = None
        for key in self._keys:
            self._core.ping(key)
        if self._keys:
            self._timer = asyncio.get_running_loop().call_later(self.SWEEP_S, self._sweep)


def plain_socket_fd(transport: asyncio.Transport | None) -> int:
    """Descriptor of a socket that the core may write to beside the transport, or -1.

    Only if nothing is encrypted and nothing is buffered, so that the order is kept.
    """
    if transport is None or transport.is_closing() or transport.get_write_buffer_size():
        return -1
    if transport.get_extra_info("sslcontext") is not None:
        return -1
    socket = transport.get_extra_info("socket")
    return -1 if socket is None else int(socket.fileno())


SLOW_READER = b'"slow_reader"'
"""In the error of a stream that the core gave up because its client does not read."""
