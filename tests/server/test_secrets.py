"""Prompts and keys stay out of logs, errors and what other processes can see of the worker."""

import json
from pathlib import Path

import pytest

from server.worker import Worker, http_request

KEY = "key-zebra-7f3a91"
PROMPT = "zebra quagga 51c7"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(f"alice:{KEY} admin\n")
    file.chmod(0o600)
    with Worker("--device", "cpu", "--api-key-file", file) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()


def send(worker, path, body, key=KEY):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return worker.request("POST", path, data, headers={"Authorization": f"Bearer {key}"})


def chat(content=PROMPT, **fields):
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 3} | fields


LONG = PROMPT * 2000
WHOLE = json.dumps({"prompt": PROMPT}).encode()
REFUSED = {
    "too long": ("/v1/completions", {"prompt": LONG}),
    "too long a chat": ("/v1/chat/completions", chat(LONG)),
    "another field is wrong": ("/v1/completions", {"prompt": PROMPT, "temperature": 9}),
    "an unknown field": ("/v1/completions", {"prompt": PROMPT, "zzz": 1}),
    "a prompt of the wrong type": ("/v1/completions", {"prompt": {"text": PROMPT}}),
    "a prompt of mixed types": ("/v1/completions", {"prompt": [PROMPT, 5]}),
    "cut short": ("/v1/completions", WHOLE[:-2]),
    "a text with a control character": ("/v1/completions", WHOLE.replace(b"quagga", b"\x01")),
    "not UTF-8": ("/v1/completions", WHOLE.replace(b"quagga", b"\xff\xfe")),
    "a role that is none": ("/v1/chat/completions", {"messages": [{"role": 5, "content": PROMPT}]}),
    "content of the wrong type": ("/v1/chat/completions", chat({"text": PROMPT})),
    "a part of an unknown type": ("/v1/chat/completions", chat([{"type": "x", "text": PROMPT}])),
    "a grammar that is none": ("/v1/chat/completions", chat(guided_regex="(")),
    "a template that is none": ("/v1/chat/completions", chat(chat_template_name="none")),
    "another model": ("/v1/chat/completions", chat(model="another")),
    "an embedding of nothing": ("/v1/embeddings", {"input": [PROMPT, ""], "dimensions": 5}),
    "a message of Anthropic's": ("/v1/messages", chat(max_tokens=0)),
    "a response": ("/v1/responses", {"input": PROMPT, "temperature": 9}),
    "tokens": ("/tokenize", {"prompt": PROMPT, "zzz": 1}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_does_not_quote_the_prompt(keyed, name):
    path, body = REFUSED[name]
    reply = send(keyed, path, body)
    assert 400 <= reply.status < 500, reply.body
    assert b"zebra" not in reply.body, reply.body


def test_no_prompt_and_no_key_reaches_the_log(keyed):
    for path, body in REFUSED.values():
        send(keyed, path, body)
    assert send(keyed, "/v1/chat/completions", chat()).status == 200
    assert send(keyed, "/v1/completions", {"prompt": PROMPT}, key=KEY + "x").status == 401
    # A client that leaves in the middle of a stream and one in the middle of a body.
    stream = json.dumps({"prompt": PROMPT, "stream": True, "max_tokens": 500}).encode()
    head = http_request("POST", "/v1/completions", stream, Authorization=f"Bearer {KEY}")
    for data, reads in ((head, True), (head[:-5], False)):
        with keyed.connect() as connection:
            connection.sendall(data)
            assert not reads or connection.recv(100)
    wait = send(keyed, "/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert wait.status == 200
    log = keyed.errors() + keyed.summary
    assert "zebra" not in log, log


def test_no_key_is_in_what_other_processes_can_see(keyed):
    process = Path(f"/proc/{keyed.process.pid}")
    for name in ("cmdline", "comm"):
        assert KEY.encode() not in (process / name).read_bytes()
    try:
        environment = (process / "environ").read_bytes()
    except PermissionError:
        return  # The worker is not dumpable: its environment is closed to others altogether.
    assert KEY.encode() not in environment
