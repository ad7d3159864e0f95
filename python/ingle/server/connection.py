"""[1] One client connection: aiohttp's, with every error in OpenAI's format. Event loop.

aiohttp answers what it cannot parse before any application code runs. This file handles those
cases.
"""

import asyncio
import contextlib
import re
import socket
import struct
from typing import Any, Final

from aiohttp import HttpVersion10, HttpVersion11, StreamReader, hdrs, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import LineTooLong

from ingle.errors import OverloadedError
from ingle.server.aiohttp_private import PrivateRequestHandler, PrivateStreamResponse
from ingle.server.headroom import Headroom
from ingle.server.request_id import HEADER, request_id
from ingle.server.status import error_response, response_of_http, whole_response
from ingle.traces import trace

KEEPALIVE_S: Final = 95.0
"""Longer than nginx keeps its side (75 s), so that a reused connection is never just closing.

Also how long a new connection has for its first request's head.
"""
EOF_S: Final = 60.0
"""Maximum wait for a client to read the end of an answer."""
CLOSE_S: Final = 10.0
"""How long a client that still sends may take to notice that it was refused; aiohttp's number."""
MAX_LINE_BYTES: Final = 8190
MAX_HEADERS: Final = 128
MOST_HEAD_BYTES: Final = 128 << 10
"""Four times what other servers accept. More than the rest of a small body that nobody has read."""
PIECE_BYTES: Final = 8 << 10
FRAMED_BYTES_A_BYTE: Final = 8
"""A byte in a chunk of its own takes six."""
HEAD_BYTES: Final = 4 << 20
"""More than the longest head that is read, and than what is read at once."""
MOST_LINES: Final = 1024
"""Ends of lines in what is parsed at once; a head has up to twice MAX_HEADERS, a chunk two."""


class Connection(PrivateRequestHandler):
    """aiohttp's handler of one connection; made by the listener, see lifecycle.py."""

    __slots__ = (
        "_body",
        "_head_bytes",
        "_headroom",
        "_held",
        "_is_discarding",
        "_is_feeding",
        "_lost",
        "_most_bytes",
        "_num_bytes",
        "_request_seen",
    )

    def __init__(
        self,
        server: web.Server,
        loop: asyncio.AbstractEventLoop,
        max_body_bytes: int = 8 << 20,
        headroom: Headroom | None = None,
    ) -> None:
        options: dict[str, Any] = {
            "access_log": None,
            # A small compressed body can be a large one; routes.py refuses it.
            "auto_decompress": False,
            "keepalive_timeout": KEEPALIVE_S,
            "max_field_size": MAX_LINE_BYTES,
            "max_headers": MAX_HEADERS,
            "max_line_size": MAX_LINE_BYTES,
        }
        super().__init__(server, loop=loop, **options)
        self._headroom = headroom
        self._body: StreamReader | None = None
        """Of the request that came last."""
        self._head_bytes = 0
        """Of a head that has not come whole: what came after the last body."""
        self._held = bytearray()
        """Bytes that have been read and wait to be parsed."""
        self._is_discarding = False
        """Whether the incoming bytes belong to a request that has been answered already."""
        self._is_feeding = False
        self._lost = asyncio.Event()
        self._most_bytes = FRAMED_BYTES_A_BYTE * max_body_bytes + HEAD_BYTES
        self._num_bytes = 0
        """Read since the last request's head; the parser counts no chunk sizes and extensions."""
        self._request_seen = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come. It is cut off while there is no memory for its request either."""
        super().connection_made(transport)
        if self._headroom is None or not isinstance(transport, asyncio.Transport):
            return
        try:
            self._headroom.refuse_if_short()
        except OverloadedError:
            reset(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client. Many small chunks are parsed in pieces, between other work.

        The loop reads up to 256 KB at once; in chunks of one byte that keeps a parser busy for a
        tenth of a second.
        """
        if self._request_seen != self.request_count:
            self._request_seen, self._num_bytes = self.request_count, 0
        self._num_bytes += len(data)
        if self._num_bytes > self._most_bytes:
            if self.transport is not None:
                reset(self.transport)
            return
        if self._is_discarding:
            return
        if self._held and data:
            self._held += data
        elif len(data) > PIECE_BYTES and data.count(b"\r\n") > MOST_LINES:
            self._held += data
            self.pause_transport()
            self._feed_soon()
        else:
            self._parse(data)
            if self.waiting and not isinstance(self.waiting[-1][0], RawRequestMessage):
                self._drop_rest()

    def _parse(self, data: bytes) -> None:
        """Hands bytes to the parser, and counts those of a head."""
        seen = self.request_count
        in_body = self._body is not None and not self._body.is_eof()
        super().data_received(data)
        if self.waiting:
            self._body = self.waiting[-1][1]
        if in_body or self.request_count != seen:
            self._head_bytes = 0
        else:
            self._count_head(len(data))

    def _count_head(self, num_bytes: int) -> None:
        """Ends a connection whose request has too long a head; the parser bounds lines alone."""
        self._head_bytes += num_bytes
        if self._head_bytes <= MOST_HEAD_BYTES:
            return
        if self.transport is not None:
            self.transport.write(HEAD_TOO_LONG)
            self.transport.close()
        self._is_discarding = True

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection has ended, by either side."""
        self._lost.set()
        super().connection_lost(exc)

    def _drop_rest(self) -> None:
        """After bytes that are not HTTP, since nobody can tell what the next ones mean.

        Without that each later piece would be one more fault in the queue of requests, and a
        request with the fault in its body would wait for the rest of it.
        """
        self._discard()
        request = self.current_request
        if request is not None and not request.content.is_eof():
            request.content.set_exception(web.RequestPayloadError(NOT_HTTP))

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Continues reading after a pause.

        aiohttp asks for it with each part of a body that is taken, and then runs the parser over
        nothing. That is left out where the body has come whole and nothing was paused; within one
        that has not, the parser may stand still without the connection: many chunks in the body
        before it leave a pause behind.
        """
        request = self.current_request
        is_whole = request is not None and request.content.is_eof()
        if self.is_reading_paused or (resume_parser and not is_whole):
            super().resume_reading(resume_parser)

    def _discard(self) -> None:
        """Drops incoming bytes unparsed until the client closes or aiohttp's deadline passes.

        Closing at once would reset the connection, and a client that is still sending would not see
        its answer.
        """
        self._is_discarding = True
        self._held.clear()
        self.resume_transport()

    async def _see_off(self, request: web.BaseRequest) -> bool:
        """Waits for a refused client that still sends. Returns whether the connection is done.

        If not, aiohttp waits: it can where the body can be read on.
        """
        self._discard()
        if request.content.exception() is None:
            return False
        if self.transport is not None:
            self.transport.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._lost.wait()
        return True

    def _feed_soon(self) -> None:
        if not self._is_feeding:
            self._is_feeding = True
            self.event_loop.call_soon(self._feed)

    def _feed(self) -> None:
        self._is_feeding = False
        if self.transport is None:
            self._held.clear()
        if not self._held or self.is_reading_paused or self.is_queue_paused:
            return  # If aiohttp has paused, its resuming brings us back.
        piece = bytes(self._held[:PIECE_BYTES])
        rest = self._held[PIECE_BYTES:]
        self._held.clear()
        self._parse(piece)
        if self.waiting and not isinstance(self.waiting[-1][0], RawRequestMessage):
            self._drop_rest()
        else:
            self._held += rest
        if self._held:
            self.pause_transport()  # aiohttp may have resumed meanwhile.
        if not self.is_reading_paused and not self.is_queue_paused:
            self.resume_transport()

    def resume_transport(self) -> None:
        """Continues reading once the bytes read so far are parsed."""
        if self._held:
            self._feed_soon()
        else:
            super().resume_transport()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The response to bytes that are not a request. The connection is closed after it."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        expected = request.headers.get("Expect", "100-continue")
        if status >= 500 and expected.lower() != "100-continue":
            # aiohttp quotes the expectation in its own refusal, which it then cannot always write.
            status, message = 417, "the only supported expectation is 100-continue"
        elif isinstance(exc, LineTooLong):
            status, message = 431, "a header or the request line is too long"
        elif status < 500:
            # The parser's own text quotes the client's bytes, over several lines.
            message = NOT_HTTP
        else:
            self.logger.error("a connection failed\n%s", "" if exc is None else trace(exc))
            message = "internal error"
        response = error_response(status, message)
        response.force_close()
        return response

    def pause_for_queue(self) -> None:
        """aiohttp's answer to a client that sends request upon request without waiting.

        Behind a POST, which may run for minutes, that is refused: while nothing is read nobody
        would notice that the client has left, and what it asked for would run to its end.
        """
        request = self.current_request
        if request is not None and request.method == "POST" and self.transport is not None:
            reset(self.transport)
            return
        super().pause_for_queue()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Sends the rest of an answer. aiohttp's own errors are put into our format first.

        A client that does not take it within EOF_S is cut off.
        """
        is_whole = isinstance(resp, EventResponse) and resp.is_whole
        if is_whole and not self.writing_paused:
            # Nearly always there is nothing to wait for. A timer would cost time.
            return await super().finish_response(request, resp, start_time)
        if isinstance(resp, web.HTTPException):
            resp = response_of_http(resp, request.path)
        is_refused_early = not resp.prepared and has_much_to_come(request)
        if is_refused_early:
            resp.force_close()
        if not resp.prepared:
            add_headers(request, resp)
        if self._fits(resp) and not is_refused_early:
            return await super().finish_response(request, resp, start_time)
        try:
            async with asyncio.timeout(EOF_S):
                if is_whole:
                    await self.drained()
                finished = await super().finish_response(request, resp, start_time)
            if not is_refused_early:
                return finished
            resp, is_lost = finished
            return resp, is_lost or await self._see_off(request)
        except TimeoutError:
            if request.transport is not None:
                reset(request.transport)
            return resp, True

    def _fits(self, response: web.StreamResponse) -> bool:
        """Whether the transport takes a whole response at once, so that nothing waits."""
        body = response.body if isinstance(response, web.Response) else None
        transport = self.transport
        return (
            isinstance(body, bytes)
            and len(body) <= AT_ONCE_BYTES
            and not self.writing_paused
            and transport is not None
            and not transport.get_write_buffer_size()
        )


def add_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Adds what every response has and the application has not set."""
    headers = response.headers
    headers[hdrs.SERVER] = "ingle"
    if HEADER not in headers:
        # The request never reached the application: its bytes may not even be HTTP.
        headers[HEADER] = request_id(request)


def has_much_to_come(request: web.BaseRequest) -> bool:
    """Whether a request was answered before most of its body had arrived.

    A small body is read to its end, so that the connection can be reused.
    """
    if request.content.is_eof():
        return False
    length = request.content_length
    return length is None or length > SMALL_BODY_BYTES


HEAD_TOO_LONG: Final = whole_response(431, "the head of the request is too long")
SMALL_BODY_BYTES: Final = 64 << 10
AT_ONCE_BYTES: Final = 32 << 10
"""With the headers, less than the 64 KiB at which a transport begins to refuse more."""


class EventResponse(PrivateStreamResponse):
    """The response headers of a stream. The core's frames follow on the same socket."""

    is_whole = False
    """Whether the end of the body was written with the last frame."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Ends the body, unless that has been done."""
        if not self.is_whole:
            await super().write_eof(data)


def framing_error(request: web.BaseRequest) -> str | None:
    """A fault in a request's framing or Host header; None if there is none.

    The parser refuses nearly everything that two parsers may read differently. This is the rest.
    """
    headers = request.headers
    if request.version < HttpVersion10:
        return "HTTP before 1.0 is not supported"
    encoding = headers.get(hdrs.TRANSFER_ENCODING)
    if encoding is not None:
        if request.version < HttpVersion11:
            return "Transfer-Encoding is not part of HTTP/1.0"
        if encoding.lower() != "chunked":
            return "the only supported Transfer-Encoding is chunked"
    host = headers.get(hdrs.HOST)
    if host is not None and HOST.match(host) is None:
        return "the Host header is not a name or address"
    return None


def leaves_http(request: web.BaseRequest) -> bool:
    """Whether the parser expects another protocol next, so the connection must end."""
    return hdrs.UPGRADE in request.headers or request.method == "CONNECT"


NOT_HTTP: Final = "the request is not valid HTTP"
HOST: Final = re.compile(r"^(?:[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?$")
"""RFC 9110 section 7.2, without what no client sends; empty where there is no name."""


def reset(transport: asyncio.Transport) -> None:
    """Closes a connection at once and drops what its client has not read.

    Without the linger option the kernel would keep megabytes per connection for minutes.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and not transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
