# ruff: noqa: RUF001
"""Forced tool calls: what a function without parameters gets, and where an answer is cut."""

import json

import pytest

from server.test_structured import HERMES, WHOLE
from server.worker import TINY, Worker

# What the template of each format names; the tiny models know none of them.
TEMPLATES = {
    "hermes": HERMES,
    "smollm": "{# SmolLM #}" + HERMES.partition("{% endif %}")[2],
    "llama": HERMES.replace("<tool_call>", "<|python_tag|>").replace("</tool_call>", ""),
    "mistral": HERMES.replace("<tool_call>", "[TOOL_CALLS]").replace("</tool_call>", ""),
    "named": HERMES.replace("<tool_call>", "[TOOL_CALLS]f[ARGS]").replace("</tool_call>", ""),
}
# A call's name stands before its arguments.
MARKUP = {
    "qwen3_coder": HERMES.replace("<tool_call>", "<tool_call><function="),
    "glm45": HERMES.replace("<tool_call>", "<tool_call><arg_key>"),
    "glm47": HERMES.replace("<tool_call>", "<tool_call></arg_key><arg_value>"),
    "llama4_pythonic": HERMES.replace("<tool_call>", "[func_name1(params_name1=a)]").replace(
        "</tool_call>", ""
    ),
    "deepseek_v31": HERMES.replace("<tool_call>", "<｜tool▁calls▁begin｜>").replace(
        "</tool_call>", ""
    ),
}
NAMED = {"type": "function", "function": {"name": "now"}}


def started(folder, template):
    path = folder / "tools.jinja"
    path.write_text(template)
    arguments = ("--device", "cpu", "--max-num-seqs", "8", "--chat-template", path)
    with Worker(*arguments, model=TINY) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()


@pytest.fixture(scope="module", params=TEMPLATES)
def worker(request, tmp_path_factory):
    yield from started(tmp_path_factory.mktemp("template"), TEMPLATES[request.param])


@pytest.fixture(scope="module", params=MARKUP)
def markup(request, tmp_path_factory):
    yield from started(tmp_path_factory.mktemp("template"), MARKUP[request.param])


def joined(events):
    """The only choice of a stream: its message and why it ended."""
    message, finish = {"content": None}, None
    for [part] in (event["choices"] for event in events):
        delta, finish = part["delta"], part["finish_reason"]
        if "content" in delta:
            message["content"] = (message["content"] or "") + delta["content"]
        for call in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({"name": call["function"]["name"], "arguments": ""})
            calls[-1]["arguments"] += call["function"].get("arguments", "")
    return message, finish


def ask(worker, **fields):
    """Message and finish reason of the only choice, found plain and streamed."""
    fields = {"temperature": 1, "max_tokens": 200} | fields
    [choice] = worker.chat(**fields)["choices"]
    message = {"content": choice["message"]["content"]}
    if "tool_calls" in choice["message"]:
        message["tool_calls"] = [call["function"] for call in choice["message"]["tool_calls"]]
    found = message, choice["finish_reason"]
    assert joined(worker.chat(stream=True, **fields)) == found
    return found


def function(**fields):
    return {"type": "function", "function": {"name": "now", "description": "The time."} | fields}


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("fields", [{}, {"parameters": None}, {"strict": True}], ids=str)
def test_a_function_without_parameters_gets_no_arguments(worker, choice, fields):
    for seed in range(3):
        message, finish = ask(
            worker, tools=[function(**fields)], tool_choice=choice, seed=seed,
            parallel_tool_calls=False,
        )  # fmt: skip
        assert finish == "tool_calls"
        assert message == {"content": None, "tool_calls": [{"name": "now", "arguments": "{}"}]}


def test_a_call_in_markup_is_forced_too(markup):
    for seed, choice in enumerate(["required", NAMED, "required"]):
        message, finish = ask(
            markup, tools=[function()], tool_choice=choice, seed=seed, parallel_tool_calls=False
        )
        assert finish == "tool_calls"
        assert message == {"content": None, "tool_calls": [{"name": "now", "arguments": "{}"}]}


def test_any_object_fits_an_empty_schema(worker):
    fields = {"tools": [function(parameters={})], "tool_choice": NAMED}
    found = [ask(worker, **fields, seed=seed) for seed in range(6)]
    arguments = [call["arguments"] for message, _ in found for call in message["tool_calls"]]
    assert all(text.startswith("{") for text in arguments), arguments
    assert len(set(arguments)) > 1, arguments


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_forced_call_that_is_cut_before_its_name_is_no_content(worker, choice):
    fields = {"tools": [function()], "tool_choice": choice}
    for max_tokens in (1, 2):
        assert ask(worker, **fields, max_tokens=max_tokens) == ({"content": None}, "length")
    # One token more at a time: first nothing, then a call, never content.
    found = [ask(worker, **fields, seed=1, max_tokens=end)[0] for end in range(3, 60, 4)]
    assert all(message["content"] is None for message in found), found
    assert "tool_calls" not in found[0] or found[0]["tool_calls"][0]["name"] == "now"
    assert found[-1]["tool_calls"][0] == {"name": "now", "arguments": "{}"}


def test_responses_of_a_forced_call_that_is_cut_have_no_text(worker):
    tool = {"type": "function", "name": "now"}
    body = {"input": "Now?", "tools": [tool], "tool_choice": "required", "max_output_tokens": 1}
    plain = worker.post("/v1/responses", body).json
    events = worker.post("/v1/responses", body | {"stream": True}).body.splitlines()
    last = json.loads([line for line in events if line.startswith(b"data: ")][-1][6:])
    for answer in (plain, last["response"]):
        assert answer["status"] == "incomplete"
        # An answer of nothing at all is an empty message.
        [item] = answer["output"]
        assert [part["text"] for part in item["content"]] == [""]


ANSWER = {
    "type": "object",
    "properties": {
        "name": {"enum": ["now", "Ann"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": ANSWER}}


def assert_call_or_person(message, finish):
    if "tool_calls" in message:
        assert finish == "tool_calls"
        assert message["content"] is None
        [call] = message["tool_calls"]
        assert (call["name"], json.loads(call["arguments"])) == ("now", {})
        return
    assert finish == "stop"
    person = json.loads(message["content"])
    assert list(person) == ["name", "age"]
    assert person["name"] in ("now", "Ann")
    assert person["age"] <= 9


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}], ids=["absent", "auto"])
def test_tools_beside_a_schema(worker, choice):
    fields = {"tools": [function(strict=True)], "response_format": FORMAT, **choice}
    fields |= {"parallel_tool_calls": False, "max_tokens": WHOLE}
    for seed in range(12):
        assert_call_or_person(*ask(worker, **fields, seed=seed))


def test_tools_beside_a_json_object(worker):
    fields = {"tools": [function()], "response_format": {"type": "json_object"}}
    for seed in range(4):
        message, _ = ask(worker, **fields, seed=seed)
        assert message["content"] is None or message["content"].startswith(("{", "<", "["))
        assert (message["content"] is None) == ("tool_calls" in message)


def test_responses_with_tools_beside_a_schema(worker):
    tool = {"type": "function", "name": "now", "strict": True}
    body = {"input": "Now?", "tools": [tool], "max_output_tokens": WHOLE, "temperature": 1}
    body |= {"parallel_tool_calls": False}
    body |= {"text": {"format": {"type": "json_schema", "name": "person", "schema": ANSWER}}}
    for seed in range(6):
        answer = worker.post("/v1/responses", body | {"seed": seed}).json
        assert answer["status"] == "completed", answer
        [item, *more] = answer["output"]
        if item["type"] == "function_call":
            assert (item["name"], json.loads(item["arguments"])) == ("now", {})
            assert {each["type"] for each in more} <= {"function_call"}
        else:
            [part] = item["content"]
            assert_call_or_person({"content": part["text"]}, "stop")
            assert not more
    reply = worker.post("/v1/responses", body | {"tool_choice": "required"})
    assert (reply.status, reply.error["param"]) == (400, "text.format")


def test_a_schema_beside_forced_tools_is_refused(worker):
    fields = {"messages": [{"role": "user", "content": "x"}], "tools": [function()]}
    for choice in ("required", NAMED):
        body = fields | {"tool_choice": choice, "response_format": FORMAT}
        reply = worker.post("/v1/chat/completions", body)
        assert (reply.status, reply.error["param"]) == (400, "response_format")
    reply = worker.post("/v1/chat/completions", fields | {"guided_regex": "a+"})
    assert (reply.status, reply.error["param"]) == (400, "guided_regex")
    worker.chat(**fields | {"tool_choice": "none", "response_format": FORMAT}, max_tokens=3)
