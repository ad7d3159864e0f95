"""X-Request-Id: on every answer, the client's own where it can be repeated."""

import re

import pytest

from ingle.server.random_hex import POOLED_IDS
from ingle.server.request_id import new_id
from server.worker import http_request

BODY = {"prompt": "x", "max_tokens": 2}
PATH = "/v1/completions"
MADE = re.compile(r"req_[0-9a-f]{32}\Z")


def test_the_client_s_id_comes_back_and_is_no_key(cpu):
    headers = {"X-Request-Id": "abc-1"}
    for body in (BODY, BODY | {"stream": True}, {}):
        reply = cpu.post(PATH, body, headers=headers)
        assert reply.headers["X-Request-Id"] == "abc-1"
    assert cpu.get("/version", headers=headers).headers["X-Request-Id"] == "abc-1"
    ids = {cpu.complete(request_id="same")["id"] for _ in range(3)}
    assert len(ids) == 3
    assert "same" not in ids


@pytest.mark.parametrize("stream", [False, True])
def test_the_body_s_id_comes_back_unless_the_header_has_one(cpu, stream):
    body = BODY | {"request_id": "in-body", "stream": stream}
    assert cpu.post(PATH, body).headers["X-Request-Id"] == "in-body"
    reply = cpu.post(PATH, body, headers={"X-Request-Id": "in-head"})
    assert reply.headers.get_all("X-Request-Id") == ["in-head"]
    reply = cpu.post(PATH, body, headers={"X-Request-Id": "in head"})
    assert reply.headers["X-Request-Id"] == "in-body"


@pytest.mark.parametrize("value", ["a b", "x" * 257, "caf\xe9", "", "a\tb"])
def test_an_id_that_cannot_be_repeated_is_replaced(cpu, value):
    reply = cpu.get("/version", headers={"X-Request-Id": value})
    assert reply.status == 200
    assert MADE.match(reply.headers["X-Request-Id"])


def test_every_answer_has_an_id_of_its_own(cpu):
    replies = {
        200: [
            cpu.get("/health"),
            cpu.post(PATH, BODY),
            cpu.post(PATH, BODY | {"stream": True}),
            cpu.post("/v1/responses", {"input": "x", "max_output_tokens": 1}),
            cpu.post("/v1/responses", {"input": "x", "max_output_tokens": 1, "stream": True}),
            cpu.post("/v1/embeddings", {"input": "x"}),
            cpu.request("HEAD", "/version"),
        ],
        400: [cpu.post(PATH, b"{"), cpu.post(PATH, BODY | {"n": 0, "stream": True})],
        404: [cpu.get("/nowhere")],
        405: [cpu.get(PATH), cpu.request("OPTIONS", PATH)],
        413: [cpu.post(PATH, b"x" * (9 << 20))],
        417: [cpu.post(PATH, BODY, headers={"Expect": "a cake"})],
    }
    found = []
    for status, several in replies.items():
        for reply in several:
            assert reply.status == status
            [made] = reply.headers.get_all("X-Request-Id")
            assert MADE.match(made)
            found.append(made)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"no request\r\n\r\n",
        http_request("GET", "/" + "x" * 9000),
        http_request("GET", "/", Transfer_Encoding="gzip"),
        http_request("POST", PATH, b"{}", version="1.0", Transfer_Encoding="chunked"),
    ],
)
def test_what_the_parser_refuses_has_an_id_too(cpu, request_bytes):
    answer = cpu.raw(request_bytes)
    assert answer.startswith(b"HTTP/1.")
    assert len(re.findall(rb"\r\nX-Request-Id: req_[0-9a-f]{32}\r\n", answer)) == 1


def test_made_up_ids_do_not_come_from_a_guessable_generator(monkeypatch):
    monkeypatch.setattr("random.getrandbits", lambda bits: pytest.fail("a guessable id"))
    ids = {new_id() for _ in range(3 * POOLED_IDS)}
    assert len(ids) == 3 * POOLED_IDS
