"""The edge of HTTP: limits, protocol versions, methods, broken bytes."""

import contextlib
import http.client
import json
import re
import time

import pytest

from server.twice import ASKED, PATHS, both, refused_bytes_twice, refused_twice
from server.worker import Worker, http_request, joined, parse_events, whole

BODY = json.dumps({"prompt": "x", "temperature": 0, "max_tokens": 4}).encode()
STREAM = json.dumps({"prompt": "x", "temperature": 0, "max_tokens": 4, "stream": True}).encode()


def head_and_body(data):
    head, _, body = data.partition(b"\r\n\r\n")
    return head.decode("latin-1"), body


def status_of(data):
    return int(data.split(b" ", 2)[1])


def error_of(data):
    """The error object of a raw answer."""
    head, body = head_and_body(data)
    assert "application/json" in head, data
    document = json.loads(body)
    assert set(document["error"]) == {"message", "type", "param", "code"}
    return document["error"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":"\xff"}',
        b'{"prompt":"x"',
        b"",
        b"null",
        b"[]",
        b'"x"',
        b'\xef\xbb\xbf{"prompt":"x"}',
        b'{"prompt":"a\x00b"}',
        b'{"prompt":"\\ud83d"}',
        b'{"prompt":"x","prompt":"y"}',
        b'{"prompt":"x","n":1,"n":1}',
        b"[" * 10_000,
        b'{"logit_bias":' * 10_000,
        b'{"prompt":"x","user":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_broken_json_is_refused_on_every_endpoint(cpu, path, body):
    if "chat" in path:
        # Nothing but what is broken must be wrong.
        chat = rb'"messages":[{"role":"user","content":\1}]'
        body = re.sub(rb'"prompt":("[^"]*")', chat, body)
    reply = cpu.post(path, body)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    if path in ASKED and b"{" in body:
        assert refused_bytes_twice(cpu, path, body)["code"] == reply.error["code"]


@pytest.mark.parametrize("name", PATHS)
def test_nul_and_every_other_character_is_text(cpu, name):
    both(getattr(cpu, name), "a\0b\u2028\ufeff\U0010ffff")


def test_a_header_that_is_too_long_is_431(cpu):
    request = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 100_000 + b"\r\n\r\n"
    data = cpu.raw(request)
    assert status_of(data) == 431
    error_of(data)


def test_a_request_line_that_is_too_long_is_431(cpu):
    assert status_of(cpu.raw(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")) == 431


def test_too_many_headers_are_refused(cpu):
    lines = b"".join(b"X-%d: 1\r\n" % i for i in range(5000))
    data = cpu.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n")
    assert status_of(data) in (400, 431)
    error_of(data)


def test_a_head_that_is_too_long_is_431_before_it_is_whole(cpu):
    """Each of its lines is short enough; nobody needs a key to send it."""
    lines = b"".join(b"X-%d: " % i + b"x" * 8000 + b"\r\n" for i in range(100))
    with cpu.connect() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + lines)
        data = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                data += part
    # The reset of a connection may overtake the answer.
    assert not data or status_of(data) == 431


def test_a_long_head_is_read_and_so_is_one_after_a_long_body(cpu):
    lines = b"".join(b"X-%d: " % i + b"x" * 8000 + b"\r\n" for i in range(10))
    head = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + lines
    body = b'{"prompt": "' + b"x" * 300_000 + b'"}'
    post = http_request("POST", "/tokenize", body)
    with cpu.connect() as connection:
        for data in (head + b"\r\n", post, head + b"\r\n", post, head + b"\r\n"):
            connection.sendall(data)
            assert connection.recv(1 << 20).startswith(b"HTTP/1.1 "), data[:40]
            connection.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                while connection.recv(1 << 20):
                    pass
            connection.settimeout(20)


def test_a_long_body_behind_many_small_chunks_is_no_head(cpu):
    small = b"1\r\n \r\n" * 3000
    large = b"%x\r\n" % 400_000 + b" " * 400_000 + b"\r\n"
    end = b"16\r\n" + b'{"prompt": "x", "a":1}' + b"\r\n0\r\n\r\n"
    head = http_request(
        "POST", "/tokenize", Transfer_Encoding="chunked", Content_Type="application/json"
    )
    data = cpu.raw(head + small + large + end, until_close=False)
    assert error_of(data)["param"] == "a", data


def test_http_before_1_0_is_refused(cpu):
    assert b'"HTTP before 1.0 is not supported"' in cpu.raw(b"GET /health\r\n\r\n")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_413(cpu, chunked):
    def parts():
        yield b'{"prompt":"'
        for _ in range(9):
            yield b"x" * (1 << 20)
        yield b'"}'

    body = parts() if chunked else b"".join(parts())
    connection = http.client.HTTPConnection(*cpu.address, timeout=30)
    # The answer may come before all is sent.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["error"]["message"]
    connection.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"G\x00T / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\nab",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_bytes_that_are_no_request(cpu, garbage):
    data = cpu.raw(garbage)
    assert status_of(data) == 400, data
    message = error_of(data)["message"]
    assert "\n" not in message
    assert "Traceback" not in message


@pytest.mark.parametrize("name", ["x", "", "llama-tied-bf16 ", "../x", "x" * 1024])
@pytest.mark.parametrize("path", ASKED)
def test_an_unknown_model_is_404(cpu, path, name):
    error = refused_twice(cpu, path, 404, **ASKED[path], model=name)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize("fields", [{}, {"model": None}, {"model": "llama-tied-bf16"}])
@pytest.mark.parametrize("name", PATHS)
def test_a_request_without_a_model_gets_the_served_one(cpu, name, fields):
    ask = getattr(cpu, name)
    assert both(ask, **fields)["model"] == "llama-tied-bf16"
    assert {event["model"] for event in ask(**fields, stream=True)} == {"llama-tied-bf16"}


def test_an_unknown_url_is_not_found(cpu):
    for path in ("/", "/v1", "/v1/completions/", "/v2/models", "//v1/models", "/v1/../v1/models"):
        reply = cpu.get(path)
        assert reply.status == 404, path
        assert reply.error["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/completions", "POST"),
        ("HEAD", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models", "GET,HEAD"),
        ("POST", "/health", "GET,HEAD"),
        ("OPTIONS", "/v1/completions", "POST"),
        ("PATCH", "/tokenize", "POST"),
    ],
)
def test_a_wrong_method_gets_the_allowed_ones(cpu, method, path, allowed):
    reply = cpu.request(method, path)
    assert (reply.status, reply.headers["Allow"]) == (405, allowed)
    if method != "HEAD":
        assert method in reply.error["message"]


def test_head_answers_as_get_without_a_body(cpu):
    for path in ("/health", "/ready", "/v1/models", "/metrics", "/version", "/openapi.json"):
        head, get = cpu.request("HEAD", path), cpu.get(path)
        assert (head.status, head.body) == (get.status, b"")
        assert head.headers["Content-Type"] == get.headers["Content-Type"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"]
)
def test_wrong_content_type(cpu, kind):
    reply = cpu.post("/v1/completions", BODY, headers={"Content-Type": kind})
    assert reply.status == 415
    assert reply.error["code"] == "unsupported_media_type"


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", None])
def test_right_content_type(cpu, kind):
    headers = {} if kind is None else {"Content_Type": kind}
    lines = http_request("POST", "/v1/completions", BODY, Connection="close", **headers)
    if kind is None:
        lines = lines.replace(b"Content-Type: application/json\r\n", b"")
    assert status_of(cpu.raw(lines)) == 200


def test_compressed_body_is_refused(cpu):
    reply = cpu.post("/v1/completions", BODY, headers={"Content-Encoding": "gzip"})
    assert reply.status == 415


def test_expectation_that_aiohttp_cannot_quote(cpu):
    data = cpu.raw(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: \xff\r\n\r\n")
    assert status_of(data) == 417
    error_of(data)


def test_only_100_continue_may_be_expected(cpu):
    request = http_request("POST", "/v1/completions", BODY, Expect="100-continue")
    head, _, body = request.partition(b"\r\n\r\n")
    with cpu.connect() as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    data = cpu.raw(http_request("GET", "/health", Expect="tea", Connection="close"))
    assert status_of(data) == 417
    error_of(data)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_http_10_stream_has_no_chunk_framing(cpu, path):
    fields = {"temperature": 0, "max_tokens": 6}
    fields |= (
        {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    )
    body = json.dumps(fields | {"stream": True}).encode()
    head, sent = head_and_body(cpu.raw(http_request("POST", path, body, version="1.0")))
    assert head.startswith("HTTP/1.0 200")
    assert "chunked" not in head.lower()
    assert joined(parse_events(sent)) == whole(cpu.post(path, fields).json)


def test_a_kept_http_10_connection_ends_with_its_stream(cpu):
    """Only the closed connection marks the end of the body."""
    fields = {"prompt": "x", "max_tokens": 3, "ignore_eos": True, "stream": True}
    body = json.dumps(fields).encode()
    request = http_request("POST", "/v1/completions", body, "1.0", Connection="keep-alive")
    started = time.monotonic()
    head, sent = head_and_body(cpu.raw(request))
    assert time.monotonic() - started < 20, "the connection stayed open"
    assert "connection: keep-alive" not in head.lower()
    assert parse_events(sent)[-1]["choices"][0]["finish_reason"] == "length"


def test_http_10_plain(cpu):
    head, body = head_and_body(cpu.raw(http_request("POST", "/v1/completions", BODY, "1.0")))
    assert head.startswith("HTTP/1.0 200")
    assert json.loads(body)["choices"]


def test_connection_is_kept_and_reused_after_everything(cpu):
    connection = http.client.HTTPConnection(*cpu.address, timeout=30)
    headers = {"Content-Type": "application/json"}
    steps = [("/v1/completions", BODY, 200), ("/v1/completions", STREAM, 200)]
    steps += [("/v1/completions", b"{}", 400), ("/nowhere", BODY, 404), ("/tokenize", BODY, 400)]
    connection.connect()
    first = connection.sock.getsockname()
    for path, body, status in steps * 2:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        assert response.status == status
        response.read()
        assert connection.sock is not None, "the server closed the connection"
        assert connection.sock.getsockname() == first
    connection.close()


def test_keep_alive_outlasts_a_proxy():
    from ingle.server.connection import KEEPALIVE_S

    assert KEEPALIVE_S > 75


def test_pipelined_requests_are_answered_in_order(cpu):
    other = json.dumps({"prompt": "y", "max_tokens": 2, "temperature": 0}).encode()
    data = cpu.raw(
        http_request("POST", "/v1/completions", STREAM)
        + http_request("POST", "/v1/completions", other)
        + http_request("GET", "/version", Connection="close")
    )
    assert re.findall(rb"HTTP/1.1 (\d+)", data) == [b"200"] * 3
    order = [data.index(mark) for mark in (b"[DONE]", b'"text_completion"', b'"version"')]
    assert order[0] < data.rindex(b'"text_completion"') < order[2]


def test_chunked_request_body(cpu):
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in (BODY[:5], BODY[5:])) + b"0\r\n\r\n"
    head = http_request(
        "POST",
        "/v1/completions",
        Transfer_Encoding="chunked",
        Content_Type="application/json",
        Connection="close",
    )
    assert status_of(cpu.raw(head + chunks)) == 200


def test_health_version_models_and_metrics_answer(cpu):
    assert cpu.get("/version").json["version"]
    assert cpu.get("/ready").json == {"status": "ok"}
    assert cpu.health()["status"] == "ok"
    metrics = cpu.get("/metrics")
    assert metrics.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"vllm:num_requests_running" in metrics.body
    [card] = cpu.get("/v1/models").json["data"]
    assert (card["id"], card["max_model_len"]) == ("llama-tied-bf16", 2048)
    assert cpu.get("/v1/models/llama-tied-bf16").json == card
    assert cpu.get("/openapi.json").json["openapi"].startswith("3.")
    assert cpu.get("/version").headers["Server"] == "ingle"


def test_unknown_fields_with_warn():
    with Worker("--device", "cpu", "--unknown-fields", "warn") as worker:
        worker.complete(colour="red")
        worker.complete(colour="red")
        name = 'ingle:unknown_request_fields_total{field="colour"}'
        assert f"{name} 2" in worker.get("/metrics").body.decode()
        assert worker.errors().count("colour") == 1
        assert worker.post("/v1/completions", {"prompt": "x", "n": 0}).status == 400
        assert worker.stop() == 0
