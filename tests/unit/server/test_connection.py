import asyncio

import pytest
from aiohttp import web

from ingle.server import connection
from ingle.server.connection import Connection


async def respond(request):
    return web.Response(text="ok")


@pytest.fixture
async def address(monkeypatch):
    monkeypatch.setattr(connection, "KEEPALIVE_S", 0.2)
    loop = asyncio.get_running_loop()
    manager = web.Server(respond)
    server = await loop.create_server(lambda: Connection(manager, loop), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()
    server.close()
    await manager.shutdown()


@pytest.mark.parametrize("head", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_connection_without_a_whole_head_is_closed(address, head):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(head)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_a_request_in_time_is_answered(address):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
    assert b"ok" in await asyncio.wait_for(reader.read(), 5), "closed once it is idle"
    writer.close()


@pytest.mark.parametrize(("extra", "timers"), [(0, 0), (1, 1)])
async def test_only_a_long_answer_needs_a_deadline(monkeypatch, extra, timers):
    body = b"x" * (connection.AT_ONCE_BYTES + extra)
    deadlines = []

    async def respond_at_length(request):
        return web.Response(body=body)

    def timeout(delay):
        deadlines.append(delay)
        return original(delay)

    original = asyncio.timeout
    monkeypatch.setattr(connection.asyncio, "timeout", timeout)
    loop = asyncio.get_running_loop()
    manager = web.Server(respond_at_length)
    server = await loop.create_server(lambda: Connection(manager, loop), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
    answer = await reader.read()
    assert answer.endswith(body)
    assert deadlines == timers * [connection.EOF_S]
    writer.close()
    server.close()
    await manager.shutdown()
