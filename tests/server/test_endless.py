"""What is too large, never ends or takes long to read."""

import contextlib
import http.client
import json
import re
import select
import shutil
import threading
import time

import pytest

from server.worker import LIMIT_S, TINY, Worker, http_request, wait_for

PIECE_BYTES = 1 << 16
HUNDRED_MB = 100_000_000
MOST_SENT_BYTES = 24 << 20
"""What a server may take before it says no: three of its largest bodies."""
MOST_KEPT_BYTES = 24 << 20
"""How much larger it may be afterwards."""


@pytest.fixture(scope="module")
def worker():
    """A server of its own, so that its memory is that of these tests."""
    with Worker("--device", "sim", "--sim-speed", "inf") as worker:
        # All threads and buffers that there will be: a body of nearly the largest size.
        body = json.dumps({"prompt": "x " * 4_000_000}).encode()
        assert worker.post("/v1/completions", body).status == 400
        yield worker
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()


def resident_bytes(worker):
    with open(f"/proc/{worker.process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def flood(worker, head, part, ends_at=HUNDRED_MB, reads=True):
    """Sends a part again and again until an answer comes, if `reads`, or so many bytes are out.

    Returns the answer's beginning and how many bytes went out.
    """
    part *= max(1, PIECE_BYTES // len(part))
    sent = 0
    with worker.connect() as connection:
        connection.sendall(head)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while sent < ends_at and not (reads and is_readable(connection)):
                connection.sendall(part)
                sent += len(part)
        # What came before a reset can still be read.
        with contextlib.suppress(ConnectionResetError):
            return connection.recv(65536) if is_readable(connection) else b"", sent
        return b"", sent


def is_readable(connection):
    return bool(select.select([connection], [], [], 0)[0])


POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b"x" * 65536 + b"\r\n"
SIZED = POST + b"Content-Length: %d\r\n\r\n"
ENDLESS = {
    "body": (SIZED % HUNDRED_MB, b"x", 413),
    "body of 2^60 bytes": (SIZED % 2**60, b"x", 413),
    "chunks": (CHUNKED, CHUNK, 413),
    "chunk": (CHUNKED + b"7fffffff\r\n", b"x", 413),
    "trailers": (CHUNKED + b"0\r\n", b"X-A: b\r\n", 400),
    "headers": (GET, b"X-A: b\r\n", 400),
    "header": (GET + b"X-A: ", b"a", 431),
    "header name": (GET, b"a", 431),
    "request line": (b"GET /", b"a", 431),
    "method": (b"", b"A", 400),
}


@pytest.mark.parametrize(("head", "part", "status"), ENDLESS.values(), ids=ENDLESS)
def test_a_request_that_never_ends_is_refused_soon(worker, head, part, status):
    before = resident_bytes(worker)
    answer, sent = flood(worker, head, part, MOST_SENT_BYTES)
    assert answer, f"{sent} bytes and no answer"
    assert int(answer.split(b" ", 2)[1]) == status, answer
    assert b'{"error":{"message":' in answer
    assert resident_bytes(worker) - before < MOST_KEPT_BYTES
    worker.complete(max_tokens=1)


def test_a_fault_in_a_body_whose_request_already_waits_for_it_is_answered(worker):
    """The head comes alone, so the request's handler runs before the fault is seen."""
    head, part, status = ENDLESS["trailers"]
    before = worker.health()["in_system"]
    with worker.connect() as connection:
        connection.sendall(head)
        worker.complete(max_tokens=1)  # The server has read the head.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(400):
                connection.sendall(part * 1024)
                if is_readable(connection):
                    break
        answer = connection.recv(65536)
        assert int(answer.split(b" ", 2)[1]) == status, answer
        assert b"not valid HTTP" in answer
        while connection.recv(65536):
            pass
    assert worker.health()["in_system"] == before


@pytest.mark.parametrize(("start", "part"), [(b"", b"0"), (b"1;", b"x")], ids=["size", "extension"])
def test_chunks_without_contents_are_cut_off(worker, start, part):
    """The parser counts none of these bytes: there is no answer, but there is an end."""
    before = resident_bytes(worker)
    answer, sent = flood(worker, CHUNKED + start, part)
    assert answer == b""
    assert sent < HUNDRED_MB
    assert resident_bytes(worker) - before < MOST_KEPT_BYTES
    worker.complete(max_tokens=1)


@pytest.mark.parametrize("name", ["body", "chunks", "headers"])
def test_a_client_that_does_not_listen_fills_no_memory(worker, name):
    head, part, _ = ENDLESS[name]
    before = resident_bytes(worker)
    flood(worker, head, part, reads=False)
    assert resident_bytes(worker) - before < MOST_KEPT_BYTES
    assert worker.health()["in_system"] == 0
    worker.complete(max_tokens=1)


class Gaps(threading.Thread):
    """Reads a paced stream; remembers the longest wait for its next bytes."""

    def __init__(self, worker):
        super().__init__(daemon=True)
        self._connection = worker.open_stream(max_tokens=2000)
        self._ends = threading.Event()
        self.count = 0
        self.longest = 0.0

    def run(self):
        last = time.perf_counter()
        while not self._ends.is_set() and self._connection.recv(65536):
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now
            self.count += 1

    def __enter__(self):
        self.start()
        wait_for(lambda: self.count > 3, 5.0, lambda: "the stream stands still")
        self.longest = 0.0
        return self

    def __exit__(self, *_):
        seen = self.count
        wait_for(lambda: self.count > seen, 5.0, lambda: "the stream stands still")
        self._ends.set()
        self.join()
        self._connection.close()


WORDS = "The quick brown fox jumps over the lazy dog, 12 times; then it's done.\n"
LONG_RUNS = {
    "letter": "a",
    "space": " ",
    "mark": "\u0301",
    "emoji": "🙂",
    "newline": "\n",
    "digit": "7",
    "apostrophe": "'",
    "letter and space": "a ",
}


@pytest.fixture(scope="module")
def paced(tmp_path_factory):
    """A sim device at its own pace, whose context is too long for 1 MB to be refused unread."""
    folder = tmp_path_factory.mktemp("long") / "model"
    shutil.copytree(TINY, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    with Worker("--device", "sim", model=folder) as worker:
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()


def measured(worker, unit):
    """Seconds for a prompt of 1 MB, and the longest gap of a stream beside it."""
    text = unit * (1_000_000 // len(unit.encode()))
    body = json.dumps({"prompt": text}, ensure_ascii=False).encode()
    with Gaps(worker) as gaps:
        began = time.perf_counter()
        reply = worker.post("/v1/completions", body)
        took = time.perf_counter() - began
    assert reply.error["code"] == "context_length_exceeded"
    counted = re.search(r"prompt has (\d+) tokens", reply.error["message"])
    assert int(counted[1]) > 100_000, "it has been tokenised"
    return took, gaps.longest


@pytest.mark.parametrize("unit", LONG_RUNS.values(), ids=LONG_RUNS)
def test_a_long_run_is_linear_and_stalls_nobody(paced, unit):
    """Measured: up to 15 times what text costs, alone; quadratic is 10^5 times."""
    for _ in range(3):
        text_s, text_gap = measured(paced, WORDS)
        took_s, gap = measured(paced, unit)
        if took_s < 300 * text_s and gap < 0.05:
            break
    assert took_s < 300 * text_s, (took_s, text_s)
    assert gap < max(0.05, 2 * text_gap), (gap, text_gap)


@pytest.mark.long
def test_connections_are_reused_after_a_pause(sim):
    """After an answer, after a stream and after an error; 70 s at most, less than nginx waits."""
    asked = [
        ({"prompt": "x", "max_tokens": 1}, 200),
        ({"prompt": "x", "max_tokens": 1, "stream": True}, 200),
        ({"prompt": 5}, 400),
    ]
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        kept = []
        for wait_s in (6, 30, 70):
            for body, status in asked:
                connection = http.client.HTTPConnection(*sim.address, timeout=LIMIT_S)
                stack.enter_context(contextlib.closing(connection))
                connection.connect()
                kept.append((wait_s, connection, connection.sock.getsockname(), body, status))
                use(*kept[-1][1:])
        for wait_s, *each in kept:
            # Not for ordering: this is the wait that is meant.
            time.sleep(max(0, began + wait_s - time.monotonic()))
            use(*each)


def use(connection, name, body, status):
    """One request on a connection that must still be the same one."""
    assert connection.sock is not None, "the server closed the connection"
    assert connection.sock.getsockname() == name
    text = json.dumps(body).encode()
    connection.request("POST", "/v1/completions", text, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == status
    response.read()


def test_idle_connections_are_kept_longer_than_any_proxy_waits(sim):
    """The wait itself is in a long test."""
    request = http_request("POST", "/v1/completions", b'{"prompt":"x","max_tokens":1}')
    with sim.connect() as connection:
        connection.sendall(request)
        head = connection.recv(65536).partition(b"\r\n\r\n")[0].lower()
        assert b"connection: close" not in head
        assert b"keep-alive: timeout" not in head, "it would have to be 75 s at least"
