"""How many Python calls of our own a short request takes, and what it leaves to the collector.

A count is the same on every machine.
"""

import asyncio
import gc
import json
import re
import socket
import sys
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

import ingle
from ingle import _core
from ingle.engine import Engine
from ingle.server import create_app
from ingle.server.connection import Connection

PACKAGE = str(Path(ingle.__file__).parent)
NUM_REQUESTS = 40
MOST_CALLS = 86
"""For each request; a coroutine that is resumed counts again. At 523656c there were 95."""
CHAT = {"messages": [{"role": "user", "content": "word " * 24}], "max_tokens": 1}
STREAM = {"prompt": "word " * 24, "max_tokens": 1, "stream": True, "temperature": 0.0}
END = b"0\r\n\r\n"
FRAME = b"9\r\ndata: 1\n\n\r\n" + END


@pytest.fixture
async def address(core, monkeypatch):
    def submit(key, request):
        if request["output"].get("stream"):
            core.push(key, _core.FRAME, FRAME)
        core.push(key, _core.END, b"{}")

    core.on_submit = submit
    monkeypatch.setattr("ingle.engine._core.Engine", lambda options, sockets, *shared: core)
    with Engine("m") as engine:
        runner = web.AppRunner(create_app(engine), handler_cancellation=True, access_log=None)
        await runner.setup()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(runner.server, loop), "127.0.0.1", 0)
        yield server.sockets[0].getsockname()
        server.close()
        await runner.cleanup()


def ask(address, path, body, num_requests, status=200):
    """Sends requests one after the other on one connection, and reads each answer."""
    document = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(document)}\r\n\r\n"
    )
    with socket.create_connection(address, timeout=20) as connection:
        for _ in range(num_requests):
            connection.sendall(head.encode() + document)
            data = b""
            while not is_whole(data):
                data += connection.recv(65536)
            assert data.startswith(b"HTTP/1.1 %d " % status), data


def is_whole(data):
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return body.endswith(END) if length is None else len(body) == int(length[1])


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", STREAM)],
    ids=["chat", "stream"],
)
async def test_a_short_request_takes_few_calls(core, address, path, body):
    calls = Counter()

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls[frame.f_code.co_qualname] += 1

    await asyncio.to_thread(ask, address, path, body, 3)
    sys.setprofile(count)
    try:
        await asyncio.to_thread(ask, address, path, body, NUM_REQUESTS)
    finally:
        sys.setprofile(None)
    assert sum(calls.values()) / NUM_REQUESTS <= MOST_CALLS, calls


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", CHAT, 200),
        ("/v1/completions", STREAM, 200),
        ("/v1/completions", STREAM | {"temperature": -1}, 400),
    ],
    ids=["chat", "stream", "refused"],
)
async def test_a_request_leaves_no_cycles_of_objects(address, path, body, status):
    await asyncio.to_thread(ask, address, path, body, 3, status)
    gc.collect()
    gc.disable()
    try:
        await asyncio.to_thread(ask, address, path, body, NUM_REQUESTS, status)
        num_unreachable = gc.collect()
    finally:
        gc.enable()
    assert num_unreachable < NUM_REQUESTS, "the collector of a serving process comes rarely"
