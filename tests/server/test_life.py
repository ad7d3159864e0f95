"""Clients that leave, queues that are full, slow readers, signals."""

import concurrent.futures
import contextlib
import json
import resource
import select
import signal
import socket
import time

import openai
import pytest

from server.worker import (
    Worker,
    cpu_seconds,
    http_request,
    parse_events,
    voluntary_switches,
    wait_for,
    whole,
)

LONG = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def slow_worker():
    """A sim device whose long answers take seconds, with room for two requests and four waiting."""
    with Worker("--device", "sim", "--max-num-seqs", "2", "--max-queue", "4") as worker:
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()


@pytest.fixture
def slow(slow_worker):
    """The same, idle: what a test leaves behind is gone before the next one."""
    yield slow_worker
    slow_worker.wait_until_idle()


def send(worker, **fields):
    """Sends a request and does not wait for its answer."""
    connection = worker.connect()
    body = json.dumps(LONG | fields).encode()
    connection.sendall(http_request("POST", "/v1/completions", body))
    return connection


def blocks_in_use(worker):
    return worker.metric("vllm:kv_cache_usage_perc")


def test_a_disconnect_frees_everything_at_once(slow):
    connections = [send(slow, stream=bool(i % 2)) for i in range(6)]
    wait_for(lambda: slow.health()["in_system"] == 6, 5, lambda: str(slow.health()))
    wait_for(lambda: blocks_in_use(slow) > 0, 5, lambda: str(slow.health()))
    for connection in connections:
        connection.close()
    wait_for(lambda: slow.health()["in_system"] == 0, 1, lambda: str(slow.health()))
    wait_for(lambda: blocks_in_use(slow) == 0, 1, lambda: str(blocks_in_use(slow)))
    assert slow.metric("vllm:num_requests_running") == 0
    assert slow.metric("vllm:num_requests_waiting") == 0


@pytest.mark.parametrize("reset", [False, True])
def test_a_disconnect_in_the_middle_of_a_stream_aborts_it(slow, reset):
    connection = slow.open_stream(**LONG)
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    wait_for(lambda: slow.health()["in_system"] == 0, 1, lambda: str(slow.health()))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_pipelines_without_end_is_noticed_when_it_leaves(slow, stream):
    connection = send(slow, stream=stream)
    wait_for(lambda: slow.health()["in_system"] == 1, 5, lambda: str(slow.health()))
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            connection.sendall(http_request("GET", "/version"))
    connection.close()
    wait_for(lambda: slow.health()["in_system"] == 0, 1, lambda: str(slow.health()))


def test_a_queued_request_can_be_aborted(slow):
    running = [send(slow) for _ in range(2)]
    wait_for(lambda: slow.health()["running"] == 2, 5, lambda: str(slow.health()))
    waiting = send(slow)
    wait_for(lambda: slow.health()["in_system"] == 3, 5, lambda: str(slow.health()))
    waiting.close()
    wait_for(lambda: slow.health()["in_system"] == 2, 1, lambda: str(slow.health()))
    for connection in running:
        connection.close()
    slow.wait_until_idle()


def test_equal_and_similar_request_ids_stay_apart(slow):
    headers = {"X-Request-Id": "a"}

    def ask(**fields):
        return slow.post("/v1/completions", LONG | {"max_tokens": 20} | fields, headers=headers)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        same = [pool.submit(ask, request_id="a") for _ in range(3)]
        similar = pool.submit(ask, request_id="ab")
        leaving = send(slow, request_id="a")
        leaving.close()
        answers = [future.result() for future in [*same, similar]]
    assert [answer.status for answer in answers] == [200] * 4
    assert len({answer.json["id"] for answer in answers}) == 4
    assert {answer.headers["X-Request-Id"] for answer in answers} == {"a"}


def test_full_queue_is_429_with_retry_after(slow):
    connections = [send(slow, stream=True) for _ in range(6)]
    wait_for(lambda: slow.health()["in_system"] == 6, 5, lambda: str(slow.health()))
    for fields in ({}, {"stream": True}):
        reply = slow.post("/v1/completions", LONG | fields)
        assert reply.status == 429
        assert 1 <= int(reply.headers["Retry-After"]) <= 60
        assert reply.error["code"] == "rate_limit_exceeded"
        assert "6" in reply.error["message"]
    client = openai.OpenAI(base_url=slow.url + "/v1", api_key="x", max_retries=0)
    with client, pytest.raises(openai.RateLimitError):
        client.completions.create(model="llama-tied-bf16", prompt="x")
    # More choices than will ever fit are the client's fault, not a matter of time.
    assert slow.post("/v1/completions", LONG | {"n": 100}).status == 400
    # Other routes and the streams that run do not notice.
    assert slow.get("/health").status == 200
    connections[0].settimeout(5)
    assert connections[0].recv(65536)
    for connection in connections:
        connection.close()


def test_lower_priority_numbers_run_first(slow):
    running = [send(slow) for _ in range(2)]
    wait_for(lambda: slow.health()["running"] == 2, 5, lambda: str(slow.health()))
    later = [send(slow, priority=5, max_tokens=200) for _ in range(2)]
    wait_for(lambda: slow.health()["in_system"] == 4, 5, lambda: str(slow.health()))
    sooner = [send(slow, priority=-5, max_tokens=400) for _ in range(2)]
    wait_for(lambda: slow.health()["in_system"] == 6, 5, lambda: str(slow.health()))
    for connection in running:
        connection.close()
    # The long answers came last and end first.
    for connection in sooner:
        assert b"200 OK" in connection.recv(100)
    assert select.select(later, [], [], 0)[0] == []
    for connection in [*sooner, *later]:
        connection.close()


def test_neighbours_do_not_change_an_answer(cpu):
    alone = cpu.complete(prompt="The quick brown fox", max_tokens=30)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        others = [
            pool.submit(cpu.complete, "neighbour " * i, temperature=i % 2, max_tokens=30 + i)
            for i in range(7)
        ]
        together = pool.submit(cpu.complete, "The quick brown fox", max_tokens=30).result()
        for other in others:
            other.result()
    assert whole(together) == whole(alone)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 100])
def test_cold_and_warm_answers_are_equal(cpu, length):
    fields = {"prompt": [7 + i % 300 for i in range(length)], "max_tokens": 12, "logprobs": 2}
    cold, *warm = [cpu.complete(**fields) for _ in range(3)]
    for answer in warm:
        assert answer["choices"] == cold["choices"]
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == (length - 1) // 16 * 16, "the last token is always computed"


def test_a_salt_separates_cached_prefixes(cpu):
    def cached(**fields):
        answer = cpu.complete(prompt=[9] * 64, max_tokens=1, **fields)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(cache_salt="s1"), cached(cache_salt="s1"), cached(cache_salt="s2")] == [0, 48, 0]


def test_a_disconnect_keeps_the_cached_prefix(cpu):
    prompt = [11 + i % 300 for i in range(200)]
    connection = cpu.open_stream(prompt=prompt, max_tokens=1500)
    connection.close()
    cpu.wait_until_idle()
    usage = cpu.complete(prompt=prompt, max_tokens=1)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 192


def test_a_slow_reader_stalls_nobody_and_is_cut(sim):
    # Nothing is read: the kernel's buffers fill, then ours to its bound, then the request ends.
    before = sim.metric("vllm:request_success_total")
    options = {"continuous_usage_stats": True, "include_usage": True}
    body = LONG | {"stream": True, "n": 32, "stream_options": options, "return_token_ids": True}
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.connect(sim.address)
    with stuck:
        stuck.sendall(http_request("POST", "/v1/completions", json.dumps(body).encode()))
        for _ in range(5):
            sim.complete(max_tokens=20, stream=True)
        wait_for(lambda: sim.health()["in_system"] == 0, 30, lambda: str(sim.health()))
        assert sim.metric("vllm:request_success_total") >= before
        # What arrived is short of the whole answer: 32 x 2000 events of some 300 bytes.
        size = 0
        stuck.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while part := stuck.recv(1 << 20):
                size += len(part)
        assert size < 12 << 20


def test_slow_but_steady_reader_gets_everything(sim):
    body = LONG | {"stream": True, "max_tokens": 500, "return_token_ids": True}
    expected = whole(sim.post("/v1/completions", LONG | {"max_tokens": 500}).json)
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(sim.address)
    request = http_request("POST", "/v1/completions", json.dumps(body).encode(), Connection="close")
    reader.sendall(request)
    data = bytearray()
    with reader:
        while part := reader.recv(1024):
            data += part
    head, _, chunks = bytes(data).partition(b"\r\n\r\n")
    assert b"200 OK" in head
    events = parse_events(dechunk(chunks))
    text = "".join(event["choices"][0]["text"] for event in events)
    assert {0: (text, ["length"])} == expected


def dechunk(data):
    """The body of a chunked answer; fails unless every chunk is well formed."""
    parts = []
    while True:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        assert data[count : count + 2] == b"\r\n"
        if count == 0:
            assert data == b"\r\n"
            return b"".join(parts)
        parts.append(data[:count])
        data = data[count + 2 :]


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_idle_costs_nothing(device, request):
    worker = request.getfixturevalue(device)
    worker.complete()
    worker.wait_until_idle()
    pid = worker.process.pid
    before, switches = cpu_seconds(pid), voluntary_switches(pid)
    time.sleep(3)  # Not for ordering: this is the span that is measured.
    # One tick of the clock; without rounding, 0.52 - 0.51 is more than 0.01.
    assert round(cpu_seconds(pid) - before, 6) <= 0.01
    assert voluntary_switches(pid) - switches <= 6


def test_health_is_false_while_a_step_hangs():
    # A decode step of this profile takes seconds; after one of them work waits and nothing moves.
    with Worker("--device", "sim", "--sim-speed", "0.001", "--health-stall-s", "1") as worker:
        assert worker.get("/health").status == 200
        connection = send(worker, max_tokens=2)
        wait_for(lambda: worker.get("/health").status == 503, 10, lambda: str(worker.health()))
        assert worker.health()["status"] == "stuck"
        assert worker.get("/ready").status == 503
        assert b"200 OK" in connection.recv(100), "the request itself goes on"
        wait_for(lambda: worker.get("/health").status == 200, 10, lambda: str(worker.health()))
        connection.close()
        assert worker.stop() == 0


@pytest.mark.long
def test_silent_streams_get_a_comment():
    with Worker("--device", "sim", "--sim-speed", "0.0001") as worker:
        connection = worker.connect()
        body = json.dumps(LONG | {"stream": True, "max_tokens": 2}).encode()
        began = time.monotonic()
        connection.sendall(http_request("POST", "/v1/completions", body))
        connection.settimeout(20)
        data = b""
        while not data.endswith(b"3\r\n:\n\n\r\n"):
            data += connection.recv(65536)
        assert 9 < time.monotonic() - began < 16
        assert b"data: " not in data, "nothing is sent before the first token"
        connection.close()
        worker.wait_until_idle()


def read_to_end(connection):
    data = b""
    with connection:
        while part := connection.recv(65536):
            data += part
    return data


def test_sigterm_lets_running_requests_end():
    with Worker("--device", "sim") as worker:
        stream = worker.open_stream(**LONG | {"max_tokens": 200})
        plain = send(worker, max_tokens=200)
        kept = worker.connect()
        wait_for(lambda: worker.health()["in_system"] == 2, 5, lambda: str(worker.health()))
        worker.process.send_signal(signal.SIGTERM)
        wait_for(lambda: worker.get("/ready").status == 503, 5, lambda: "still ready")
        assert worker.health()["status"] == "draining"
        for body in (LONG, LONG | {"stream": True}):
            reply = worker.post("/v1/completions", body)
            assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
            assert reply.error["code"] == "service_unavailable"
        kept.close()
        assert read_to_end(stream).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        head, _, body = read_to_end(plain).partition(b"\r\n\r\n")
        assert b"200 OK" in head
        assert json.loads(body)["usage"]["completion_tokens"] == 200
        assert worker.wait() == 0
        assert "Traceback" not in worker.errors(), worker.errors()


@pytest.mark.parametrize("how", ["deadline", "second signal", "interrupt"])
def test_a_request_that_runs_at_the_shutdown_deadline_gets_an_error(how):
    timeout = "0.2" if how == "deadline" else "60"
    with Worker("--device", "sim", "--shutdown-timeout", timeout) as worker:
        stream = worker.open_stream(**LONG)
        plain = send(worker)
        wait_for(lambda: worker.health()["in_system"] == 2, 5, lambda: str(worker.health()))
        number = signal.SIGINT if how == "interrupt" else signal.SIGTERM
        worker.process.send_signal(number)
        if how != "deadline":
            wait_for(lambda: worker.get("/ready").status == 503, 5, lambda: "still ready")
            worker.process.send_signal(number)
        data = read_to_end(stream)
        assert b'data: {"error":{"message":"the server is shutting down"' in data
        assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert b"503 Service Unavailable" in read_to_end(plain)
        assert worker.wait() == 0
        assert "Traceback" not in worker.errors(), worker.errors()


def test_sigterm_when_idle_ends_at_once():
    with Worker("--device", "sim") as worker:
        worker.complete()
        kept = worker.connect()
        began = time.monotonic()
        assert worker.stop() == 0
        assert time.monotonic() - began < 2
        kept.close()


def test_a_unix_socket_serves_as_a_port_does(tmp_path):
    path = tmp_path / "ingle.sock"
    with Worker("--device", "cpu", "--uds", path) as worker:
        answer = worker.complete()
        events = worker.complete(stream=True)
        assert "".join(e["choices"][0]["text"] for e in events) == answer["choices"][0]["text"]
        assert worker.get("/v1/models").status == 200
        connection = worker.open_stream(max_tokens=1500)
        connection.close()
        worker.wait_until_idle()
        assert worker.stop() == 0
    assert not path.exists()


def test_more_connections_than_the_soft_limit_of_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        worker = Worker("--device", "sim", "--sim-speed", "inf")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with worker, contextlib.ExitStack() as stack:
        for _ in range(min(600, hard - 100)):
            stack.enter_context(worker.connect()).sendall(b"GET /hea")
        worker.complete()
        assert worker.stop() == 0
        assert "Traceback" not in worker.errors(), worker.errors()
