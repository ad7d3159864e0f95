"""Chat templates that do much work: on threads, never on the event loop.

The work of the event loop's thread is measured by its CPU time, which does not depend on other
work on the machine.
"""

import json
from pathlib import Path

import pytest

from server.worker import http_request, with_templates

CHAT = "/v1/chat/completions"
MOST_LOOP_S = 0.03
"""Processor time of the loop for one chat; test wheels take some times as long as others."""
NOTE = 'chat template "default" does much work even for a short chat'
LOOPS = "{% for i in range(999) %}{% for j in range(99) %}{% endfor %}{% endfor %}"
LATE = "{% if messages[0].content == 'go' %}%s{% endif %}{{ messages[0].content }}"
TEMPLATES = {
    "loops": LOOPS,
    "a long text": "{{ 'ab ' * 80000 }}",
    "combining marks": "{{ '\u0301' * 100000 }}",
    "special tokens": "{{ '<|im_start|>' * 20000 }}",
    "more than may be": "{{ 'x' * 8000000 }}",
    "lists": "{{ range(99999) | list | sort | join | length }}",
}
"""Some of these the server refuses in the end, some it answers."""


def loop_seconds(worker):
    """Processor time of the thread that runs the event loop."""
    pid = worker.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def body(path, content):
    document = {"messages": [{"role": "user", "content": content}]}
    if "tokenize" not in path:
        document["max_tokens"] = 1
    return document


@pytest.fixture
def serve(tmp_path):
    """Starts a server of the tiny model with a template."""
    with with_templates(lambda: tmp_path, "sim") as start:
        yield start


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_loop_does_not_do_a_templates_work(serve, name):
    worker = serve(LATE.replace("%s", TEMPLATES[name]))
    assert NOTE not in worker.summary, "a short chat is cheap"
    for path in (CHAT, "/tokenize", "/v1/messages", "/v1/responses", "/v1/messages/count_tokens"):
        document = body(path, "stay")
        if path == "/v1/responses":
            document = {"input": "stay", "max_output_tokens": 1}
        elif path.endswith("count_tokens"):
            del document["max_tokens"]
        assert worker.post(path, document).status == 200, path
        before = loop_seconds(worker)
        reply = worker.post(path, json.loads(json.dumps(document).replace("stay", "go")))
        assert reply.status in (200, 400), reply.body[:300]
        assert loop_seconds(worker) - before < MOST_LOOP_S, path


def test_a_template_that_is_always_costly_is_named_at_the_start_and_still_answers(serve):
    plain = serve("{{ messages[0].content }}")
    assert NOTE not in plain.summary
    worker = serve(LOOPS + "{{ messages[0].content }}")
    assert NOTE in worker.summary
    fields = {"temperature": 0, "max_tokens": 5}
    expected = plain.chat("Hello", **fields)["choices"]
    assert worker.chat("Hello", **fields)["choices"] == expected
    streamed = worker.chat("Hello", **fields, stream=True)
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in streamed)
    assert text == expected[0]["message"]["content"]
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    assert worker.post("/tokenize", chat).json == plain.post("/tokenize", chat).json


def test_a_prompt_that_grows_beyond_its_chat_is_refused(serve):
    worker = serve("{{ messages[0].content * 100 }}{{ 'y' * 200000 }}")
    chat = {"messages": [{"role": "user", "content": "x" * 10000}], "max_tokens": 1}
    reply = worker.post(CHAT, chat)
    assert (reply.status, reply.error["param"]) == (400, "messages")
    assert "bytes of text for these messages" in reply.error["message"]


def test_a_client_that_leaves_during_a_costly_rendering_leaves_nothing(serve):
    worker = serve(LOOPS + "{{ messages[0].content }}")
    for _ in range(5):
        with worker.connect() as connection:
            data = json.dumps(body(CHAT, "x") | {"max_tokens": 500, "ignore_eos": True}).encode()
            connection.sendall(http_request("POST", CHAT, data))
    worker.chat("x", max_tokens=1)
    worker.wait_until_idle()
