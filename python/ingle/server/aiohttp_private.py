"""[1] The private names of aiohttp that we depend on, under public names. Event loop.

No other file of the package may use a private name of aiohttp. The test of this file lists each one
and checks that the installed version has it. pyproject.toml pins the minor version. Before moving
the pin, read what has changed around these names.
"""

import asyncio
from collections import deque
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.http_writer import StreamWriter

SLOTS: Any = web.RequestHandler
"""Its slots under public names cost no call; a property does, and each request reads six."""


class PrivateRequestHandler(web.RequestHandler):
    """aiohttp's connection handler, with public access to what our subclass needs."""

    __slots__ = ()

    request_count: int = SLOTS._request_count
    """How many requests have come on this connection."""
    current_request: web.BaseRequest | None = SLOTS._current_request
    """The request whose handler runs."""
    event_loop: asyncio.AbstractEventLoop = SLOTS._loop
    """The loop that the connection belongs to."""
    waiting: deque[tuple[Any, StreamReader]] = SLOTS._messages
    """Heads and bodies that no handler has yet; a head that is an error stands for a fault."""
    is_reading_paused: bool = SLOTS._reading_paused
    """Whether reading is paused because a body buffer is full."""
    is_queue_paused: bool = SLOTS._buffer_paused
    """Whether reading is paused because too many pipelined requests wait."""

    def pause_transport(self) -> None:
        """Stops reading from the client until `resume_transport`."""
        self._pause_transport_reading()

    def resume_transport(self) -> None:
        """Starts reading again. aiohttp calls this; subclasses may override it."""
        super()._resume_transport_reading()

    def pause_for_queue(self) -> None:
        """Pauses reading because too many pipelined requests wait; as above."""
        super()._pause_reading_for_buffer()

    async def drained(self) -> None:
        """Waits until the transport accepts more. Errors: ConnectionError if it is closed."""
        await self._drain_helper()

    def _resume_transport_reading(self) -> None:
        self.resume_transport()

    def _pause_reading_for_buffer(self) -> None:
        self.pause_for_queue()


class PrivateStreamResponse(web.StreamResponse):
    """A response whose head can be sent together with the first bytes of the body."""

    _send_headers_immediately = False

    async def head(self, request: web.Request) -> bytes:
        """Status line and headers, for the caller to write; empty if aiohttp has written them."""
        writer = await self.prepare(request)
        if not isinstance(writer, StreamWriter) or not writer._headers_buf:
            return b""
        head, writer._headers_buf = writer._headers_buf, None
        writer._headers_written = True
        writer.output_size += len(head)
        return head
