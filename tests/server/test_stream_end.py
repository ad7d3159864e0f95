"""The end of a stream whose bytes the core has sent itself: the client can react to it before the
event loop learns of it, and must not notice."""

import json
import time

import pytest
from aiohttp.helpers import DEFAULT_CHUNK_SIZE

from server.worker import Worker, http_request

LAST = b"data: [DONE]\n\n\r\n0\r\n\r\n"


@pytest.fixture
def worker():
    with Worker("--device", "sim", "--sim-speed", "1") as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()


def ask(connection, **fields):
    """One streamed answer on a kept connection, byte for byte: its parts as they were read."""
    body = {"prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 3} | fields
    connection.sendall(http_request("POST", "/v1/completions", json.dumps(body).encode()))
    parts = []
    while not parts or not parts[-1].endswith(LAST):
        part = connection.recv(65536)
        assert part, parts
        parts.append(part)
    return parts


def test_the_head_comes_with_the_first_event(worker):
    with worker.connect() as connection:
        for _ in range(3):
            first = ask(connection)[0]
            assert first.startswith(b"HTTP/1.1 200"), first
            assert b"data: {" in first, first


def test_requests_directly_after_the_end_of_the_last_are_answered(worker):
    # The long stream keeps the engine busy.
    with worker.open_stream(), worker.connect() as connection:
        for number in range(20):
            answer = b"".join(ask(connection, max_tokens=1 + number % 3))
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.count(b"HTTP/1.1 200") == 1, answer
            # Two tokens that share a character come in one event.
            assert 1 <= body.count(b"data: {") <= 1 + number % 3, answer
            assert body.count(b'"finish_reason":"length"') == 1, answer


def test_a_request_sent_before_the_end_of_the_last_waits_for_it(worker):
    with worker.open_stream(), worker.connect() as connection:
        body = json.dumps({"prompt": "x", "stream": True, "max_tokens": 5, "ignore_eos": True})
        request = http_request("POST", "/v1/completions", body.encode())
        connection.sendall(request + request)
        answers = b""
        while answers.count(LAST) < 2:
            part = connection.recv(65536)
            assert part, answers
            answers += part
        first, second, rest = answers.split(LAST)
        assert rest == b""
        for answer in (first, second):
            assert answer.startswith(b"HTTP/1.1 200"), answer
            assert 1 <= answer.count(b"data: {") <= 5
            assert answer.count(b'"finish_reason":"length"') == 1


def test_clients_that_close_after_the_end_leave_nothing(worker):
    with worker.open_stream():
        for _ in range(5):
            with worker.connect() as connection:
                ask(connection)
        assert worker.health()["running"] == 1
    worker.wait_until_idle()


def test_a_connection_that_must_close_is_closed_soon(worker):
    with worker.open_stream(), worker.connect() as connection:
        body = json.dumps({"prompt": "x", "stream": True, "max_tokens": 2}).encode()
        request = http_request("POST", "/v1/completions", body, Connection="close")
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        assert answer.endswith(LAST)


def test_the_end_is_counted_where_no_request_follows():
    # SIGTERM waits for requests whose end has not been reported.
    with Worker("--device", "sim", "--sim-speed", "1") as worker, worker.connect() as connection:
        ask(connection, max_tokens=2)
        started = time.monotonic()
        assert worker.stop() == 0, worker.errors()
        assert time.monotonic() - started < 10, "the grace period is 30 s"


def test_a_body_behind_one_of_very_many_chunks_is_read(worker):
    # aiohttp's parser keeps a pause from the last chunk of the one to the body of the other. The
    # stream in front lets the chunks pile up.
    most_chunks = DEFAULT_CHUNK_SIZE // 16 + 1
    plain = http_request("POST", "/v1/completions", b'{"prompt": "x", "max_tokens": 1}')
    stream = b'{"prompt": "x", "stream": true, "ignore_eos": true, "max_tokens": 150}'
    head = http_request(
        "POST", "/v1/completions", Content_Type="application/json", Transfer_Encoding="chunked"
    )
    body = b'{"prompt": "x", "max_tokens": 1}'.ljust(most_chunks)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with worker.connect() as connection:
        first = http_request("POST", "/v1/completions", stream)
        connection.sendall(first + head + chunks + b"0\r\n\r\n" + plain)
        answers = b""
        while answers.count(b'"usage"') < 2:
            part = connection.recv(65536)
            assert part, answers
            answers += part
        assert answers.count(b"HTTP/1.1 200 OK") == 3, answers
