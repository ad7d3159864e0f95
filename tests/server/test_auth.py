"""API keys on every route and every odd spelling of one."""

import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from server.worker import TINY, Worker, cpu_seconds, http_request, wait_for


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("# tenants\nalice:key-a\nbob:key-b\nops:key-c admin\n")
    file.chmod(0o600)
    with Worker("--device", "cpu", "--api-key-file", file) as worker:
        yield worker
        assert worker.stop() == 0
        assert "key-a" not in worker.errors() + worker.summary


ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/llama-tied-bf16"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/tokenizer_info"),
    ("GET", "/openapi.json"),
    ("HEAD", "/v1/models"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions/render"),
    ("POST", "/v1/chat/completions/render"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("GET", "/"),
    ("GET", "/nowhere"),
    ("GET", "/v1/completions"),
    ("OPTIONS", "/v1/completions"),
    ("POST", "/health"),
    ("DELETE", "/ready"),
]
ODD_PATHS = [
    "//v1/models",
    "/V1/models",
    "/v1//models",
    "/v1/../v1/models",
    "/./v1/models",
    "/v1/models/",
    "/v1/models?x=/health",
    "/v1/models#/health",
    "/%761/models",
    "/health/../v1/models",
    "/health/v1/models",
    "/health%2f..%2fv1/models",
    "/health;/v1/models",
    "//health",
    "/Health",
    "/health/",
    "/health?",
    "http://test/health",
    "http://test/v1/models",
    "*",
]


def test_list_of_routes_is_complete(keyed):
    paths = keyed.get("/openapi.json", headers={"Authorization": "Bearer key-a"}).json["paths"]
    known = {path.replace("llama-tied-bf16", "{model}") for _, path in ROUTES}
    assert set(paths) <= known | {"/health", "/ready"}


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_needs_a_key(keyed, method, path):
    body = b'{"prompt":"x","tokens":[1],"messages":[]}' if method == "POST" else None
    reply = keyed.request(method, path, body)
    assert reply.status == 401
    assert reply.headers["WWW-Authenticate"] == "Bearer"
    if path.startswith("/v1/messages"):
        assert reply.json["error"]["type"] == "authentication_error"
    elif method != "HEAD":
        assert reply.error["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ODD_PATHS)
@pytest.mark.parametrize("host", ["test", "127.0.0.1/health", "/health", ""])
def test_no_spelling_of_a_path_gets_round_the_key(keyed, path, host):
    request = http_request("GET", path, Connection="close").replace(
        b"Host: test", b"Host: " + host.encode()
    )
    status = int(keyed.raw(request).split(b" ", 2)[1])
    assert status in (400, 401), "400: the parser refused it before anybody looked"


def test_only_health_and_ready_are_open(keyed):
    assert keyed.get("/health").status == 200
    assert keyed.get("/ready").status == 200
    assert keyed.request("HEAD", "/ready").status == 200


def test_metrics_are_for_admins(keyed):
    for key, status in (("key-a", 403), ("key-b", 403), ("key-c", 200)):
        reply = keyed.get("/metrics", headers={"Authorization": f"Bearer {key}"})
        assert reply.status == status
        if status == 403:
            assert reply.error["type"] == "permission_error"
            assert reply.error["code"] == "admin_key_required"


def test_health_shows_the_load_only_with_a_key(keyed):
    assert keyed.get("/health").json == {"status": "ok"}
    assert keyed.get("/health", headers={"Authorization": "Bearer wrong"}).json == {"status": "ok"}
    with_key = keyed.get("/health", headers={"Authorization": "Bearer key-a"}).json
    assert (with_key["status"], with_key["running"]) == ("ok", 0)


def test_every_key_opens_everything_else(keyed):
    for key in ("key-a", "key-b", "key-c"):
        headers = {"Authorization": f"Bearer {key}"}
        assert keyed.get("/v1/models", headers=headers).status == 200
        body = {"prompt": "x", "max_tokens": 1}
        assert keyed.post("/v1/completions", body, headers=headers).status == 200
    assert keyed.get("/nowhere", headers=headers).status == 404


@pytest.mark.parametrize(
    "value",
    [
        "key-a",
        "Bearer key",
        "Bearer key-aa",
        "Bearer alice:key-a",
        "Bearer ",
        "Basic key-a",
        "\xff",
    ],
)
def test_a_wrong_key_is_unauthorized(keyed, value):
    headers = {"Authorization": value}
    assert keyed.get("/v1/models", headers=headers).status == 401


def test_tenants_share_no_prefix_cache(keyed):
    prompt = " ".join(str(i) for i in range(100))

    def cached(key):
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        reply = keyed.post("/v1/completions", body, headers={"Authorization": f"Bearer {key}"})
        return reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached("key-a") == 0
    assert cached("key-a") > 0
    assert cached("key-b") == 0
    assert cached("key-b") > 0


def test_bad_key_file_stops_the_start(tmp_path):
    file = tmp_path / "keys"
    file.write_text("just-a-secret\n")
    file.chmod(0o600)
    with pytest.raises(AssertionError, match="line 1: must be tenant:key") as caught:
        Worker("--device", "cpu", "--api-key-file", file, model=TINY)
    assert "just-a-secret" not in str(caught.value)


def test_a_body_without_a_key_is_refused_before_it_comes(keyed):
    head = http_request("POST", "/v1/completions", Content_Length="8000000")
    with keyed.connect() as connection:
        connection.sendall(head.replace(b"Host: test", b"Host: test\r\nContent-Type: a/json"))
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 401")
        assert b"\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_without_a_key_costs_nothing(keyed, chunked):
    size = 24 << 20
    head = http_request(
        "POST",
        "/v1/completions",
        **{"Transfer_Encoding": "chunked"} if chunked else {"Content_Length": str(size)},
    )
    piece = b"1\r\nx\r\n" * 10_000 if chunked else b"x" * 60_000
    before = cpu_seconds(keyed.process.pid)
    with keyed.connect() as connection:
        connection.sendall(head)
        for _ in range(size // len(piece)):
            connection.sendall(piece)
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")
    # Parsed, so many chunks take over two seconds.
    assert cpu_seconds(keyed.process.pid) - before < 0.5


def test_a_small_body_without_a_key_leaves_the_connection_open(keyed):
    body = b'{"prompt": "x"}'
    request = http_request("POST", "/v1/completions", body)
    head = request.removesuffix(body)
    with keyed.connect() as connection:
        for _ in range(3):
            connection.sendall(head)
            assert connection.recv(65536).startswith(b"HTTP/1.1 401")
            connection.sendall(body)


def test_sighup_reads_the_keys_again_and_drops_no_stream(tmp_path):
    file = tmp_path / "keys"
    file.write_text("alice:key-a\n")
    file.chmod(0o600)
    with Worker("--device", "sim", "--api-key-file", file) as worker:

        def status(key):
            return worker.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status

        body = b'{"prompt":"x","stream":true,"ignore_eos":true,"max_tokens":300,"temperature":0}'
        request = http_request("POST", "/v1/completions", body, Authorization="Bearer key-a")
        with worker.connect() as connection:
            connection.sendall(request)
            data = connection.recv(65536)
            assert data.startswith(b"HTTP/1.1 200")
            file.write_text("bob:key-b\n")
            worker.process.send_signal(signal.SIGHUP)
            wait_for(lambda: status("key-b") == 200, 5.0, worker.errors)
            assert status("key-a") == 401
            file.write_text("nonsense\n")
            worker.process.send_signal(signal.SIGHUP)
            wait_for(lambda: "the keys stay" in worker.errors(), 5.0, worker.errors)
            assert status("key-b") == 200
            while not data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                part = connection.recv(65536)
                assert part, data[-200:]
                data += part
        assert "nonsense" not in worker.errors()
        assert worker.stop() == 0


def test_reloads_under_load_lose_no_request(tmp_path):
    """A key that stays is never refused, while streams run and the file changes all the time."""
    file = tmp_path / "keys"
    file.write_text("alice:key-a\n")
    file.chmod(0o600)
    path, done = "/v1/completions", b"data: [DONE]\n\n\r\n0\r\n\r\n"
    options = ("--device", "sim", "--sim-speed", "20", "--max-queue", "256")
    with Worker(*options, "--api-key-file", file) as worker:
        headers = {"Authorization": "Bearer key-a"}
        body = {"prompt": "x", "ignore_eos": True, "max_tokens": 200, "stream": True}
        stop = threading.Event()

        def ask(_):
            count = 0
            while not stop.is_set() or not count:
                with worker.connect() as connection:
                    request = http_request("POST", path, json.dumps(body).encode(), **headers)
                    connection.sendall(request)
                    data = b""
                    while not data.endswith(done):
                        part = connection.recv(65536)
                        assert part, data[-200:]
                        data += part
                    assert data.startswith(b"HTTP/1.1 200"), data[:200]
                count += 1
            return count

        with ThreadPoolExecutor(16) as pool:
            asking = [pool.submit(ask, i) for i in range(16)]
            try:
                for i in range(12):
                    new = tmp_path / "new"
                    new.write_text(f"bob:key-{i}\nalice:key-a\n")
                    new.chmod(0o600)
                    new.replace(file)
                    worker.process.send_signal(signal.SIGHUP)
                    known = {"Authorization": f"Bearer key-{i}"}
                    wait_for(
                        lambda known=known: worker.get("/v1/models", headers=known).status == 200,
                        10.0,
                        worker.errors,
                    )
                    gone = {"Authorization": f"Bearer key-{i - 1}"}
                    assert worker.get("/v1/models", headers=gone).status == 401
            finally:
                stop.set()
            assert all(future.result() for future in asking)
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors()


def test_sighup_without_a_key_file_ends_the_server_as_sigterm_does():
    with Worker("--device", "sim", "--sim-speed", "inf") as worker:
        assert worker.stop(signal.SIGHUP) == 0


def test_a_key_file_that_others_can_read_stops_the_start(tmp_path):
    file = tmp_path / "keys"
    file.write_text("alice:key-a\n")
    file.chmod(0o644)
    with pytest.raises(AssertionError, match="api-key-file: others can read") as caught:
        Worker("--device", "sim", "--api-key-file", file)
    assert "key-a" not in str(caught.value)
