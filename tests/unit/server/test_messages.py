"""A request of /v1/messages and the chat that asks the same make one prompt."""

import json
import time

import msgspec
import pytest

from ingle.generation import encode
from ingle.server import convert, messages, messages_turns
from ingle.server.protocol import ChatRequest
from ingle.server.protocol_anthropic import CountTokensRequest

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
HELLO = [{"role": "user", "content": "Hello"}]


def decoded(kind, document):
    return msgspec.json.decode(json.dumps(document), type=kind)


def prompt(request):
    return json.loads(encode(convert.chat_prompt(request)))


def assert_same_prompt(asked, chat):
    request = decoded(CountTokensRequest, {"messages": HELLO} | asked)
    expected = decoded(ChatRequest, {"messages": HELLO} | chat)
    assert prompt(messages.prompt_request(request)) == prompt(expected)


def test_turns_and_blocks():
    turns = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Bonn"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "content": [{"type": "text", "text": "Rain."}, {"type": "text", "text": "A"}],
                },
                {"type": "text", "text": "So?"},
                {"type": "tool_result", "tool_use_id": "call_2"},
            ],
        },
        {"role": "user", "content": "Well?"},
        {"role": "user", "content": [{"type": "text", "text": "Now?"}]},
        {"role": "assistant", "content": "One."},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "No."}]},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": []},
    ]
    function = {"name": "weather", "arguments": {"city": "Bonn"}}
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain.\nA"},
        {"role": "user", "content": "So?"},
        {"role": "tool", "tool_call_id": "call_2", "content": ""},
        {"role": "user", "content": "Well?\nNow?"},
        {"role": "assistant", "content": "One.", "reasoning_content": "No."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": ""},
    ]
    assert_same_prompt({"system": "Be brief.", "messages": turns}, {"messages": chat})


@pytest.mark.parametrize(
    ("choice", "of_chat", "parallel"),
    [
        (None, None, None),
        ({"type": "auto"}, None, None),
        ({"type": "auto", "disable_parallel_tool_use": True}, None, False),
        ({"type": "any", "disable_parallel_tool_use": False}, "required", True),
        ({"type": "none"}, "none", None),
        (
            {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            {"type": "function", "function": {"name": "f"}},
            False,
        ),
    ],
)
def test_tools_and_tool_choice(choice, of_chat, parallel):
    tool = {"name": "f", "description": "Does it.", "input_schema": PARAMETERS, "strict": True}
    function = {"name": "f", "description": "Does it.", "parameters": PARAMETERS, "strict": True}
    assert_same_prompt(
        {"tools": [tool | {"cache_control": {"type": "ephemeral"}}], "tool_choice": choice},
        {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": of_chat,
            "parallel_tool_calls": parallel,
        },
    )


@pytest.mark.parametrize(
    ("thinking", "own", "kwargs"),
    [
        (None, None, None),
        (None, {"a": 1}, {"a": 1}),
        ({"type": "disabled"}, None, {"enable_thinking": False, "thinking": False}),
        ({"type": "adaptive"}, None, {"enable_thinking": True, "thinking": True}),
        (
            {"type": "enabled", "budget_tokens": 1024},
            {"a": 1, "thinking": "x"},
            {"enable_thinking": True, "thinking": "x", "thinking_budget": 1024, "a": 1},
        ),
    ],
)
def test_thinking_sets_the_template_s_variables(thinking, own, kwargs):
    assert_same_prompt(
        {"thinking": thinking, "chat_template_kwargs": own}, {"chat_template_kwargs": kwargs}
    )


def test_effort_is_a_variable_of_the_template():
    assert_same_prompt(
        {"output_config": {"effort": "low"}, "thinking": {"type": "adaptive"}},
        {
            "chat_template_kwargs": {
                "enable_thinking": True,
                "thinking": True,
                "reasoning_effort": "low",
            }
        },
    )


@pytest.mark.parametrize(
    "turns",
    [
        [{"role": "user", "content": "x" * 100}] * 16_000,
        [{"role": "user", "content": [{"type": "text", "text": "x" * 100}] * 16_000}],
    ],
    ids=["messages", "blocks"],
)
def test_many_turns_of_one_role_are_joined_once(turns):
    request = decoded(CountTokensRequest, {"messages": turns})
    before = time.process_time()
    [message] = messages_turns.messages(request)
    # Joined one by one they would be copied some 13 GB.
    assert time.process_time() - before < 1.0
    assert len(message.content) == 16_000 * 102 - 2 + 2


def test_a_last_assistant_message_is_gone_on_with_unless_it_calls():
    open_turn = [*HELLO, {"role": "assistant", "content": "Well"}]
    assert_same_prompt(
        {"messages": open_turn}, {"messages": open_turn, "continue_final_message": True}
    )
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    function = {"name": "f", "arguments": {}}
    assert_same_prompt(
        {"messages": [*HELLO, {"role": "assistant", "content": [call]}]},
        {
            "messages": [
                *HELLO,
                {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]},
            ]
        },
    )


@pytest.mark.parametrize(
    ("finish_reason", "cause", "reason", "sequence"),
    [
        ("stop", None, "end_turn", None),
        ("stop", 5, "end_turn", None),
        ("stop", "###", "stop_sequence", "###"),
        ("length", None, "max_tokens", None),
        ("tool_calls", None, "tool_use", None),
        ("content_filter", None, "refusal", None),
    ],
)
def test_finish_reasons_become_stop_reasons(finish_reason, cause, reason, sequence):
    shape = messages.Shape(convert.Caller("", "msg_1", 0, True, "m"))
    expected = {"stop_reason": reason, "stop_sequence": sequence}
    assert shape.stop(finish_reason, cause) == expected
    shape.fills_context = True
    if reason == "max_tokens":
        expected["stop_reason"] = "model_context_window_exceeded"
    assert shape.stop(finish_reason, cause) == expected


@pytest.mark.parametrize(
    ("arguments", "value"), [('{"a": 1}', {"a": 1}), ("", {}), ('{"a": ', {}), ("[1]", [1])]
)
def test_input_of_a_call(arguments, value):
    assert json.loads(encode(messages.input_of(arguments))) == value
