import asyncio
import socket

import pytest

from ingle import _core
from ingle.dispatch import ABORTED
from ingle.server import sse
from ingle.server.sse import EventStream, Heartbeat

KEY = 5


class Transport:
    """Keeps what is written; says how much of it is unread."""

    def __init__(self):
        self.written = []
        self.unread = 0
        self.socket = None
        self.closing = False
        self.aborted = False

    def write(self, data):
        self.written.append(data)

    def get_write_buffer_size(self):
        return self.unread

    def is_closing(self):
        return self.closing

    def abort(self):
        self.aborted = self.closing = True

    def get_extra_info(self, name):
        return self.socket if name == "socket" else None


class Clock:
    """The part of a loop that an EventStream uses, with time that the test sets."""

    def __init__(self):
        self.now = 0.0

    def time(self):
        return self.now

    def create_future(self):
        return asyncio.get_running_loop().create_future()

    def call_soon(self, call):
        asyncio.get_running_loop().call_soon(call)


@pytest.fixture
def transport():
    return Transport()


@pytest.fixture
async def stream(core):
    return EventStream(core, Clock())


async def test_frames_before_the_headers_are_held(stream, transport):
    stream(_core.FRAME, b"1")
    stream.start(KEY, transport)
    stream(_core.FRAME, b"2")
    assert transport.written == [b"1", b"2"]
    assert not stream.done.done()
    stream(_core.END, None)
    assert stream.done.done()


async def test_error_ends_the_stream_and_is_kept(stream, transport):
    stream.start(KEY, transport)
    stream(_core.ERROR, b"{}")
    assert stream.done.done()
    assert stream.error == b"{}"
    assert transport.written == []


async def test_abort_alone_does_not_end_the_wait(stream):
    # Whoever aborts has said why to the client, or is the handler itself on its way out.
    stream(ABORTED, None)
    assert not stream.done.done()


async def test_nothing_is_written_to_a_closing_transport(stream, transport):
    stream.start(KEY, transport)
    transport.closing = True
    stream(_core.FRAME, b"1")
    assert transport.written == []


async def test_a_slow_reader_is_cut_at_the_bound(stream, transport):
    stream.start(KEY, transport)
    transport.unread = sse.MOST_BUFFERED_BYTES
    stream(_core.FRAME, b"1")
    assert not transport.aborted
    transport.unread += 1
    stream(_core.FRAME, b"2")
    assert transport.aborted
    assert stream.too_slow
    assert stream.done.done()


async def test_a_slow_reader_is_cut_after_a_while(stream, transport):
    stream.start(KEY, transport)
    transport.unread = sse.SLOW_BUFFERED_BYTES + 1
    stream(_core.FRAME, b"1")
    stream._loop.now = sse.SLOW_S
    stream(_core.FRAME, b"2")
    assert not transport.aborted
    transport.unread = 0
    stream(_core.FRAME, b"3")
    transport.unread = sse.SLOW_BUFFERED_BYTES + 1
    stream._loop.now = 2 * sse.SLOW_S + 1
    stream(_core.FRAME, b"4")
    assert not transport.aborted, "it had caught up in between"
    stream._loop.now = 3 * sse.SLOW_S + 2
    stream(_core.FRAME, b"5")
    assert transport.aborted


async def test_core_is_offered_an_idle_plain_socket(core, stream, transport):
    transport.socket = socket.socket()
    with transport.socket:
        stream.start(KEY, transport, b"head")
        assert core.attached == [(KEY, transport.socket.fileno(), 0, b"head")]
        stream(_core.FRAME, b"1")
        stream(_core.FRAME, b"2")
        assert transport.written == [b"head1", b"2"]
        assert len(core.attached) == 1, "what was written may still lie in the loop"
        await asyncio.sleep(0)
        assert core.attached[-1] == (KEY, transport.socket.fileno(), 2, b"")
        for _ in range(10):
            stream(_core.FRAME, b"3")
            await asyncio.sleep(0)
        assert len(core.attached) == sse.MOST_ATTACHES


async def test_head_that_the_core_has_sent_is_not_written_again(core, stream, transport):
    with socket.socket() as transport.socket:
        stream.start(KEY, transport, b"head")
        stream(_core.HEADED, b"rest of head and 1")
        stream(_core.FRAME, b"2")
        await asyncio.sleep(0)
    assert transport.written == [b"rest of head and 1", b"2"]
    assert core.attached[-1][2:] == (2, b"")


async def test_head_goes_out_with_the_first_frame_where_the_core_does_not_send(stream, transport):
    stream.start(KEY, transport, b"head")
    assert transport.written == []
    stream(_core.FRAME, b"1")
    stream(_core.FRAME, b"2")
    assert transport.written == [b"head1", b"2"]


async def test_core_is_offered_no_other_socket(core, stream, transport):
    transport.socket = socket.socket()
    with transport.socket:
        transport.unread = 1
        stream.start(KEY, transport)
        await asyncio.sleep(0)
        transport.unread = 0
        transport.get_extra_info = {"socket": transport.socket, "sslcontext": object()}.get
        stream(_core.FRAME, b"1")
        await asyncio.sleep(0)
        transport.get_extra_info = {}.get
        stream(_core.FRAME, b"2")
        await asyncio.sleep(0)
    assert core.attached == []


async def test_a_reader_too_slow_for_the_core_is_cut(stream, transport):
    stream.start(KEY, transport)
    stream(_core.ERROR, b'{"error":{"message":"m","code":"slow_reader"},"status":500}')
    assert transport.aborted
    assert stream.too_slow


async def test_heartbeat_pings_all_streams_and_rests_without(core):
    heartbeat = Heartbeat(core)
    heartbeat.add(1)
    heartbeat.add(2)
    timer = heartbeat._timer
    assert timer is not None
    heartbeat._sweep()
    heartbeat.remove(1)
    heartbeat._sweep()
    assert sorted(core.pinged) == [1, 2, 2]
    heartbeat.remove(2)
    heartbeat._sweep()
    assert heartbeat._timer is None, "no timer while nothing streams"
    timer.cancel()


async def test_stream_goes_on_without_a_descriptor_for_the_core(core, stream, transport):
    def refuse(key, fd, frames_seen, head):
        raise OSError(24, "Too many open files")

    core.attach_socket = refuse
    failures = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    with socket.socket() as transport.socket:
        stream.start(KEY, transport)
        await asyncio.sleep(0)
        stream(_core.FRAME, b"a")
        await asyncio.sleep(0)
    assert transport.written == [b"a"]
    assert failures == []
