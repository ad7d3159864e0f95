"""Request-smuggling shapes sent straight to the server: refused and closed, or read in one way."""

import concurrent.futures
import contextlib
import json
import re

import pytest

from server.smuggling import BODY, SECOND, head, shapes

SHAPES = list(shapes())
# Unambiguous, though unusual: both requests are answered.
BOTH = re.compile(r"te-only-(6|7|8|15)|chunk-16|line-[01]|host-6|get-with-body|hop-by-hop")
# The connection ends after the first: what follows belongs to another protocol.
FIRST = re.compile(r"upgrade|connect")
# Legal sizes of 400 GB and 16 GiB: the first is refused at once and lingers, the second when so
# much has come, which no test sends.
TOO_LARGE = ("cl-19", "chunk-19")


def answers(worker, data):
    """Statuses of all answers, and all bytes; the server must close the connection."""
    received = b""
    with worker.connect() as connection:
        connection.settimeout(10)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(data)
            while part := connection.recv(65536):
                received += part
    return [int(s) for s in re.findall(rb"HTTP/1\.[01] (\d+)", received)], received


def test_there_are_300_shapes():
    assert len({data for _, data in SHAPES}) >= 300
    assert len({name for name, _ in SHAPES}) == len(SHAPES)


def test_each_shape_is_framed_one_way_or_refused(sim):
    shapes_here = [shape for shape in SHAPES if shape[0] not in TOO_LARGE]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda shape: answers(sim, shape[1]), shapes_here)
    wrong = []
    for (name, _), (statuses, received) in zip(shapes_here, results, strict=True):
        expected = [[400]]
        if BOTH.fullmatch(name):
            expected = [[200, 200]]
        elif FIRST.fullmatch(name):
            expected = [[200], [404]]
        if statuses not in expected or (b'"version"' in received) != (len(statuses) == 2):
            wrong.append((name, statuses, received[:200]))
        if statuses == [400]:
            document = json.loads(received.partition(b"\r\n\r\n")[2])
            assert set(document["error"]) == {"message", "type", "param", "code"}
    assert not wrong


def test_a_length_beyond_the_limit_is_refused_before_the_body(sim):
    with sim.connect() as connection:
        connection.sendall(head(b"Content-Length: 9000000"))
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_valid_pair_cut_anywhere_is_two_requests(sim, size):
    """The control: the harness sees two answers where there are two requests, in any cut."""
    data = head(b"Content-Length: %d" % len(BODY)) + BODY + SECOND
    with sim.connect() as connection:
        for start in range(0, len(data), size):
            connection.sendall(data[start : start + size])
        received = b""
        while part := connection.recv(65536):
            received += part
    assert received.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize(
    "host", ["a", "a.b:80", "localhost:", "127.0.0.1:8000", "[::1]:8000", "x_y", ""]
)
def test_hosts_that_are_right(sim, host):
    data = sim.raw(f"GET /version HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert data.startswith(b"HTTP/1.1 200")
