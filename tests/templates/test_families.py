"""Templates that behave like published families' render as in jinja2, on 20 conversations each."""

import json

import pytest

from ingle._core import render_template
from templates.families import TURNS
from templates.oracle import by_jinja2, by_us, differences
from templates.tool_families import TOOLS
from templates.whole_families import WHOLE

FAMILIES = TURNS | WHOLE | TOOLS


def said(*turns, **more):
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    messages = [{"role": roles[turn[0]], "content": turn[1:]} for turn in turns]
    return {"messages": messages, "add_generation_prompt": True} | more


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city <now>, in °C & 'F",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where"},
                "days": {"type": "integer", "default": 1, "enum": [1, 2.5, None, True]},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {}}}


def called(*calls, content=""):
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {"id": f"call0000{at}", "type": "function", "function": {"name": n, "arguments": a}}
            for at, (n, a) in enumerate(calls)
        ],
    }


def with_tools(*messages, **more):
    return {
        "messages": list(messages),
        "tools": [WEATHER, CLOCK],
        "add_generation_prompt": True,
    } | more


ASK = {"role": "user", "content": "Weather in Zürich?"}
CALL = called(("get_weather", {"city": "Zürich", "days": 2}))
THINKING_CALL = CALL | {"thinking": "look it up", "reasoning_content": "look it up"}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call00000", "content": '{"t": 7}'}
THOUGHT = {"role": "assistant", "content": "4", "reasoning_content": "2 and 2\n"}

CONVERSATIONS = [
    said("uHi"),
    said("sBe brief.", "uHi"),
    said("uHi", "aHello", "u  What's\n\n<that>? \n"),
    said("sBe\nbrief. ", "uHi", "aHello", "uBye", add_generation_prompt=False),
    said("uHi", "uagain"),
    said("aI begin", "uHi"),
    said("uHi", "sNow a system message", "uon"),
    said("sOnly a system message"),
    said("u"),
    said("u日本語 🔥 ünï", "aß", "u</s>[INST]<|im_end|>"),
    said("u2+2?", "a<think>\nsum\n</think>\n\n4", "u3+3?"),
    said("u2+2?", enable_thinking=False, thinking=False, thinking_budget=0),
    said("u2+2?", enable_thinking=True, tools=[], reasoning_effort="high", thinking_budget=512),
    {"messages": [ASK, THOUGHT, ASK], "add_generation_prompt": True},
    with_tools(ASK),
    with_tools({"role": "system", "content": "Use tools."}, ASK, THINKING_CALL, RESULT),
    with_tools(ASK, THINKING_CALL, RESULT, {"role": "assistant", "content": "7 °C"}, ASK),
    with_tools(ASK, called(("get_weather", {}), ("clock", {"z": [1, None]})), RESULT, RESULT),
    with_tools(ASK, called(("clock", '{"as": "text"}'), content=None), RESULT),
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "part"}]}]},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def test_gpt_oss_keeps_the_reasoning_of_calls_until_there_is_an_answer():
    thought = "<|channel|>analysis<|message|>look it up"
    open_turn = with_tools(ASK, THINKING_CALL, RESULT)
    answered = with_tools(ASK, THINKING_CALL, RESULT, {"role": "assistant", "content": "7"}, ASK)
    assert thought in by_us(FAMILIES["gpt-oss"], open_turn | TOKENS).text
    assert thought not in by_us(FAMILIES["gpt-oss"], answered | TOKENS).text


def test_a_hundred_families_are_compared():
    assert len(FAMILIES) >= 100
    # Some families share one: plain ChatML, for instance.
    assert len(set(FAMILIES.values())) >= 90
    assert len(CONVERSATIONS) == 20


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_s_template_renders_as_jinja2_does(family):
    cases = [(FAMILIES[family], conversation | TOKENS) for conversation in CONVERSATIONS]
    wrong = differences(cases)
    assert not wrong, wrong[0]
    kinds = [by_jinja2(*case).kind for case in cases]
    assert kinds.count("text") >= 8, kinds
    assert "broken" not in kinds


def brief_chats():
    """Chats of at most 16 KiB that give a template much to do."""
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": "hi"} for i in range(400)]
    words = [{"role": roles[i % 2], "content": "word " * 40} for i in range(65)]
    chats = [{"messages": messages, "add_generation_prompt": True} for messages in (turns, words)]
    assert all(len(json.dumps(chat)) <= 16 << 10 for chat in chats)
    return chats


HEAVY = "Gemma 4"
"""Its template makes three namespaces a turn: 250 turns are as much work as 400 of others."""


@pytest.mark.parametrize("family", FAMILIES)
def test_short_chats_are_within_the_work_of_an_event_loop(family):
    for conversation in CONVERSATIONS + brief_chats():
        if family == HEAVY:
            conversation = conversation | {"messages": conversation["messages"][:250]}
        source, variables = FAMILIES[family], json.dumps(conversation | TOKENS).encode()
        if by_jinja2(source, conversation | TOKENS).kind == "text":
            # An error, if it were more.
            render_template(source, variables, brief=True)


def test_a_template_that_looks_back_at_each_turn_takes_any_number_of_them():
    """Gemma 4's: what jinja2 does for it grows with the square of the number of turns."""
    chat = brief_chats()[0]
    chat["messages"] *= 5
    variables = json.dumps(chat | TOKENS).encode()
    assert render_template(FAMILIES[HEAVY], variables).count("hi<turn|>") == 2000
