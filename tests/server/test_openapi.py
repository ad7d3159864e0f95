"""The OpenAPI document is true: real answers fit its schemas, real statuses stand in it."""

import copy
import json

import pytest

from server.fits import Schemas
from server.test_structured import FORMAT, THINKING, TOOLS
from server.worker import TINY, Worker, http_request

TEXT, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "Hello"}]
SMALLEST = {
    TEXT: {"prompt": "The quick", "max_tokens": 5, "seed": 1},
    CHAT: {"messages": HELLO, "max_tokens": 5, "seed": 1},
    RESPONSES: {"input": "Hello", "max_output_tokens": 5, "seed": 1},
    MESSAGES: {"messages": HELLO, "max_tokens": 5, "seed": 1},
}
CLIENT_TOOLS = [
    {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
    for tool in TOOLS
]
FUNCTIONS = [{"type": "function", **tool["function"]} for tool in TOOLS]
INCLUDE = ["message.output_text.logprobs"]
USAGE = {"include_usage": True, "continuous_usage_stats": True}
ASKED = [
    (TEXT, {}),
    (TEXT, {"n": 3, "logprobs": 3, "echo": True, "return_token_ids": True}),
    (TEXT, {"prompt": ["a b", "c"], "logprobs": 0, "max_tokens": 0, "echo": True}),
    (TEXT, {"n": 2, "best_of": 3}),
    (TEXT, {"stop": [" ", 5]}),
    (CHAT, {}),
    (CHAT, {"n": 3, "logprobs": True, "top_logprobs": 3, "return_token_ids": True}),
    (CHAT, {"stop": [" ", 5]}),
    (CHAT, {"response_format": FORMAT, "max_tokens": 300}),
    (CHAT, {"tools": TOOLS, "tool_choice": "required", "max_tokens": 300}),
    (RESPONSES, {}),
    (
        RESPONSES,
        {"include": INCLUDE, "top_logprobs": 2, "instructions": "Be", "metadata": {"a": "b"}},
    ),
    (RESPONSES, {"tools": FUNCTIONS, "tool_choice": "required", "max_output_tokens": 300}),
    (MESSAGES, {}),
    (MESSAGES, {"stop_sequences": [" "], "system": "Be", "max_tokens": 50}),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 12}),
    (MESSAGES, {"tools": CLIENT_TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 300}),
]
PLAIN_ONLY = [
    (TEXT, {"prompt_logprobs": 2}),
    (CHAT, {"prompt_logprobs": 2}),
    (COUNT, {"messages": HELLO, "system": "Be"}),
    ("/v1/embeddings", {"input": ["a", "b"]}),
    ("/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
    ("/v1/completions/render", {"prompt": ["a b", "c"], "cache_salt": "s"}),
    ("/v1/chat/completions/render", {"messages": HELLO, "max_tokens": 5}),
    ("/tokenize", {"prompt": "a b"}),
    ("/tokenize", {"messages": HELLO, "return_token_strs": True}),
    ("/detokenize", {"tokens": [300, 301]}),
]
GETS = [
    *("/v1/models", "/v1/models/{model}", "/tokenizer_info", "/health", "/ready", "/version"),
    "/openapi.json",
]


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A model whose answers have reasoning and calls."""
    path = tmp_path_factory.mktemp("template") / "thinking.jinja"
    path.write_text(THINKING)
    with Worker("--device", "cpu", "--chat-template", path, model=TINY) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()


@pytest.fixture(scope="module")
def document(thinker):
    return thinker.get("/openapi.json").json


def schema_of(document, path, kind="application/json", status="200"):
    [operation] = document["paths"][path].values()
    return operation["responses"][status]["content"][kind]["schema"]


def assert_fits(document, value, schema):
    assert Schemas(document).misfit(value, schema) is None


def posted(worker, path, fields):
    reply = worker.post(path, SMALLEST.get(path, {}) | fields)
    assert reply.status == 200, reply.body
    return reply


def got(worker, path):
    return worker.get(path.replace("{model}", TINY.name)).json


@pytest.mark.parametrize(("path", "fields"), ASKED + PLAIN_ONLY, ids=str)
def test_answers_fit_their_schema(thinker, document, path, fields):
    for seed in range(4):
        more = {"seed": seed} if path in SMALLEST else {}
        answer = posted(thinker, path, fields | more).json
        assert_fits(document, answer, schema_of(document, path))


@pytest.mark.parametrize(("path", "fields"), ASKED, ids=str)
@pytest.mark.parametrize("options", [{}, {"stream_options": USAGE}], ids=["", "usage"])
def test_events_fit_their_schema(thinker, document, path, fields, options):
    if path == MESSAGES:
        options = {}  # Usage is always sent.
    if "best_of" in fields:
        fields = {"n": 2}
    body = posted(thinker, path, fields | {"stream": True} | options).body
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line[:5] == b"data:"]
    events = [json.loads(line) for line in lines if line != b"[DONE]"]
    assert events
    schema = schema_of(document, path, "text/event-stream")["properties"]["data"]
    assert (b"[DONE]" in lines) == ("anyOf" in schema)
    payload = schema["anyOf"][1] if "anyOf" in schema else schema
    for event in events:
        assert_fits(document, event, payload["contentSchema"])


@pytest.mark.parametrize("path", GETS)
def test_answers_to_get_fit(cpu, document, path):
    assert_fits(document, got(cpu, path), schema_of(document, path))


def test_errors_fit_their_schema(cpu, document):
    for path in (*SMALLEST, COUNT, "/v1/embeddings", "/tokenize", "/detokenize"):
        reply = cpu.post(path, {"model": "other"} | SMALLEST.get(path, {}))
        assert_fits(document, reply.json, schema_of(document, path, status=str(reply.status)))


def cuts(value, place=()):
    """Where an answer has keys that must be there; what has keys of any name is left whole."""
    if isinstance(value, list):
        for i, entry in enumerate(value[:1]):
            yield from cuts(entry, (*place, i))
    if isinstance(value, dict):
        for name, entry in value.items():
            if name not in OPTIONAL:
                yield (*place, name)
            if name not in ANY_NAMES:
                yield from cuts(entry, (*place, name))


OPTIONAL = {
    *("token_ids", "prompt_token_ids", "prompt_logprobs", "reasoning_content", "tool_calls"),
    "completed_at",
}
ANY_NAMES = {
    "input",
    *("top_logprobs", "prompt_logprobs", "metadata", "tools", "tool_choice"),
    *("info", "paths", "components", "security", "on", "missing"),
}


@pytest.mark.parametrize(
    ("path", "fields"), [*ASKED, *PLAIN_ONLY, *((path, None) for path in GETS)], ids=str
)
def test_an_answer_without_one_of_its_keys_does_not_fit(thinker, document, path, fields):
    answer = got(thinker, path) if fields is None else posted(thinker, path, fields).json
    places = list(cuts(answer))
    assert places
    for place in places:
        *above, name = place
        less = copy.deepcopy(answer)
        parent = less
        for step in above:
            parent = parent[step]
        del parent[name]
        assert Schemas(document).misfit(less, schema_of(document, path)) is not None, place


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (400, {"Host": "a b"}),
        (417, {"Expect": "tea", "Connection": "close"}),
        (431, {"X": "x" * 9000}),
    ],
)
def test_statuses_of_bad_heads_are_documented(cpu, document, status, headers):
    for path, operations in document["paths"].items():
        [method] = operations
        target = path.replace("{model}", TINY.name)
        head = http_request(method.upper(), target, b"{}" if method == "post" else b"", **headers)
        if "Host" in headers:
            head = head.replace(b"Host: test\r\n", b"")
        answer = cpu.raw(head)
        assert answer.split(b" ", 2)[1] == b"%d" % status, (path, answer)
        body = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert_fits(document, body, schema_of(document, path, status=str(status)))


def test_each_operation_has_the_statuses_that_it_can_answer(document):
    def statuses(path):
        [operation] = document["paths"][path].values()
        return set(operation["responses"])

    for path in document["paths"]:
        assert {"200", "400", "417", "431", "500"} <= statuses(path), path
        assert "405" not in statuses(path), "a method that is documented is allowed"
        is_post = "post" in document["paths"][path]
        assert is_post == ({"408", "413", "415"} <= statuses(path)), path
        assert ("401" in statuses(path)) == (path not in ("/health", "/ready")), path
        is_queued = is_post and path.startswith("/v1/") and path != COUNT
        assert ("429" in statuses(path)) == is_queued, path
        assert (is_queued and {"503", "529"} & statuses(path) != set()) == is_queued, path
    assert "408" not in statuses("/v1/models")
    assert "404" in statuses("/v1/models/{model}")
    assert "404" not in statuses("/version")
