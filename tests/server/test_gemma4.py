"""Gemma 4's calls and thoughts: chats and messages, plain and streamed."""

import json

import pytest

from server.reciter import Recital
from server.twice import both
from server.worker import Worker
from templates.tool_families import GEMMA_4

THINKING = {"chat_template_kwargs": {"enable_thinking": True}}
USER = {"role": "user", "content": "Weather in Zürich?"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
ARGUMENTS = {"city": 'Zürich "West"', "days": 2}
THOUGHT = "<|channel>thought\n{}\n<channel|>"
CALLING = (
    THOUGHT.format("Need the weather.")
    + 'I look.<|tool_call>call:get_weather{city:<|"|>Zürich "West"<|"|>,days:2}<tool_call|>'
)
ANSWERING = THOUGHT.format("Seven {7}, as <b>.") + "7 °C < 8"
LONG = {"max_tokens": 400} | THINKING


def started(folder, text):
    recital = Recital()
    # Every prompt ends with the line of the turn that begins.
    recital.add("\n", text)
    return Worker("--device", "cpu", model=recital.save(folder, GEMMA_4))


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    """A model that thinks, says what it does, and calls."""
    with started(tmp_path_factory.mktemp("caller"), CALLING) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()


@pytest.fixture(scope="module")
def answerer(tmp_path_factory):
    """A model that thinks and answers."""
    with started(tmp_path_factory.mktemp("answerer"), ANSWERING) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()


def test_thoughts_and_calls_have_their_fields(caller, answerer):
    [choice] = both(caller.chat, [USER], tools=[TOOL], **LONG)["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["reasoning_content"] == "Need the weather."
    assert message["content"] == "I look."
    [call] = message["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    [choice] = both(answerer.chat, [USER], **LONG)["choices"]
    message = choice["message"]
    assert message["reasoning_content"] == "Seven {7}, as <b>."
    assert message["content"] == "7 °C < 8"
    assert choice["finish_reason"] == "stop"


def test_messages_have_blocks_of_them(caller):
    tool = {"name": "get_weather", "input_schema": CITY}
    body = {"messages": [USER], "tools": [tool], "max_tokens": 2000, "temperature": 0}
    body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    answer = caller.post("/v1/messages", body).json
    blocks = {block["type"]: block for block in answer["content"]}
    assert blocks["thinking"]["thinking"] == "Need the weather."
    assert blocks["text"]["text"] == "I look."
    assert blocks["tool_use"]["input"] == ARGUMENTS
    streamed = caller.post("/v1/messages", body | {"stream": True}).body.decode()
    assert "<|tool_call>" not in streamed
    assert "<|channel>" not in streamed


def test_a_chat_of_many_calls_goes_on(caller):
    """Each turn of the template looks at those around it; a thousand of them are no more work."""
    [choice] = caller.chat([USER], tools=[TOOL], **LONG)["choices"]
    said = choice["message"]
    [call] = said["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "7"}
    history = [USER, *[said, result] * 500, USER]
    reply = caller.post("/tokenize", {"messages": history, "tools": [TOOL]})
    assert reply.status == 200, reply.body
    assert reply.json["count"] > 500
    [again] = caller.chat([USER, said, result, USER], tools=[TOOL], **LONG)["choices"]
    assert again["finish_reason"] == "tool_calls"
