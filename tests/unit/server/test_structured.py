"""Structured output and tools in the core's document."""

import json

import pytest

from ingle.errors import RefusedError
from ingle.generation import encode, is_slow_to_submit
from ingle.server import convert
from ingle.server.convert import Caller
from ingle.server.parse import BodyParser, UnknownFields
from ingle.server.protocol import ChatRequest, CompletionRequest

CALLER = Caller(tenant="t", response_id="id-1", created=7, chunked=True, model="m")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


def document(**fields):
    body = {"messages": [{"role": "user", "content": "x"}]} | fields
    parser = BodyParser(ChatRequest, UnknownFields(warn=False))
    return convert.chat(parser.parse(json.dumps(body).encode()), CALLER)


def made(**fields):
    return json.loads(encode(document(**fields)))


def refused(**fields):
    with pytest.raises(RefusedError) as caught:
        document(**fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None}, None),
        (
            {"response_format": {"type": "json_object"}},
            {"kind": "json_object", "field": "response_format"},
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            {"kind": "json_schema", "field": "response_format", "schema": SCHEMA},
        ),
        (
            {"guided_json": SCHEMA},
            {"kind": "json_schema", "field": "guided_json", "schema": SCHEMA},
        ),
        (
            {"guided_json": json.dumps(SCHEMA)},
            {"kind": "json_schema", "field": "guided_json", "schema": SCHEMA},
        ),
        ({"guided_json": {}}, {"kind": "json_schema", "field": "guided_json", "schema": {}}),
        ({"guided_regex": "a+"}, {"kind": "regex", "field": "guided_regex", "regex": "a+"}),
        ({"regex": "a+"}, {"kind": "regex", "field": "regex", "regex": "a+"}),
        (
            {"guided_choice": ["a", "b"]},
            {"kind": "choice", "field": "guided_choice", "choices": ["a", "b"]},
        ),
        ({"guided_grammar": "g"}, {"kind": "lark", "field": "guided_grammar", "lark": "g"}),
        (
            {"structured_outputs": {"choice": ["a"]}},
            {"kind": "choice", "field": "structured_outputs", "choices": ["a"]},
        ),
        (
            {"structured_outputs": {"json_object": True}},
            {"kind": "json_object", "field": "structured_outputs"},
        ),
        (
            {"structured_outputs": {"json": SCHEMA}},
            {"kind": "json_schema", "field": "structured_outputs", "schema": SCHEMA},
        ),
        (
            {"structured_outputs": {"grammar": "g"}},
            {"kind": "lark", "field": "structured_outputs", "lark": "g"},
        ),
        (
            {"structured_outputs": {"regex": "a"}},
            {"kind": "regex", "field": "structured_outputs", "regex": "a"},
        ),
    ],
)
def test_every_form_becomes_one_grammar(fields, grammar):
    assert made(**fields).get("grammar") == grammar
    assert is_slow_to_submit(document(**fields)) == (grammar is not None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"tools": [{"type": "code"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ],
)
def test_wrong_forms_are_refused_by_name(fields, param):
    assert refused(**fields).param == param


def test_tools_reach_the_core_in_their_own_form():
    chat = made(tools=[TOOL])["prompts"][0]["chat"]
    assert chat["tools"] == [{"function": {"name": "f", "parameters": SCHEMA}}]
    assert "tool_choice" not in chat
    assert "parallel_tool_calls" not in chat
    function = {"name": "g", "description": "Says g.", "strict": True}
    named = {"type": "function", "function": {"name": "g"}}
    chat = made(
        tools=[{"type": "function", "function": function}],
        tool_choice=named,
        parallel_tool_calls=False,
    )["prompts"][0]["chat"]
    assert chat["tools"] == [{"function": function}]
    assert chat["tool_choice"] == {"function": "g"}
    assert chat["parallel_tool_calls"] is False
    for choice in ("auto", "none", "required"):
        chat = made(tools=[TOOL], tool_choice=choice)["prompts"][0]["chat"]
        assert chat["tool_choice"] == choice
    assert is_slow_to_submit(document(tools=[TOOL]))
    assert not is_slow_to_submit(document())
    assert "tools" not in made(tools=[])["prompts"][0]["chat"]


def test_completions_take_grammars_and_no_tools():
    parser = BodyParser(CompletionRequest, UnknownFields(warn=False))
    body = {"prompt": "x", "response_format": {"type": "json_object"}}
    request = convert.completion(parser.parse(json.dumps(body).encode()), CALLER)
    assert json.loads(encode(request))["grammar"]["kind"] == "json_object"
    with pytest.raises(RefusedError) as caught:
        parser.parse(json.dumps({"prompt": "x", "tools": [TOOL]}).encode())
    assert caught.value.param == "tools"
