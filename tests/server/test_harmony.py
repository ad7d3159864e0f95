"""gpt-oss's harmony format: chats, responses and messages, plain and streamed."""

import json

import pytest

from ingle import Engine
from ingle.errors import ModelError
from server.named_events import named_events
from server.reciter import Recital
from server.twice import both
from server.worker import TINY, Worker

USER = {"role": "user", "content": "Weather in Zürich?"}
TEMPLATE = (
    "{{ '<|start|>system<|message|>Reasoning: ' ~ (reasoning_effort or 'medium') ~ '<|end|>' }}"
    "{% if tools %}{{ '<|start|>developer<|message|>' ~ tools | tojson ~ '<|end|>' }}{% endif %}"
    "{% for m in messages %}"
    "{% if m.tool_calls %}"
    "{% if m.thinking and m.content %}{{ raise_exception('both') }}{% endif %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' ~ m.thinking ~ '<|end|>' }}"
    "{{ '<|start|>assistant to=functions.' ~ m.tool_calls[0].function.name }}"
    "{{ '<|channel|>commentary json<|message|>' ~ m.tool_calls[0].function.arguments | tojson }}"
    "{{ '<|call|>' }}"
    "{% else %}{{ '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ARGUMENTS = '{"city": "Zürich"}'
CALLING = (
    "<|channel|>analysis<|message|>Need the weather.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + ARGUMENTS
)
ANSWERING = (
    "<|channel|>analysis<|message|>Seven.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>7 °C < 8"
)
LONG = {"max_tokens": 400}


def started(folder, text):
    recital = Recital()
    # Every prompt ends with the word `assistant`.
    recital.add("t", text)
    return Worker("--device", "cpu", model=recital.save(folder, TEMPLATE))


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    """A model that reasons, says what it does, and calls."""
    with started(tmp_path_factory.mktemp("caller"), CALLING) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()


@pytest.fixture(scope="module")
def answerer(tmp_path_factory):
    """A model that reasons and answers."""
    with started(tmp_path_factory.mktemp("answerer"), ANSWERING) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()


def test_channels_become_reasoning_content_and_calls(caller, answerer):
    [choice] = both(caller.chat, [USER], tools=[TOOL], **LONG)["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["reasoning_content"] == "Need the weather."
    assert message["content"] == "I look."
    [call] = message["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": ARGUMENTS}
    [choice] = both(answerer.chat, [USER], **LONG)["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("Seven.", "7 °C < 8")
    assert choice["finish_reason"] == "stop"


def test_responses_have_an_item_for_each_channel(caller):
    tool = {"type": "function"} | TOOL["function"]
    body = {"input": "Weather?", "tools": [tool], "max_output_tokens": 400, "temperature": 0}
    plain = caller.post("/v1/responses", body).json
    events = named_events(caller.post("/v1/responses", body | {"stream": True}).body)
    streamed = list(events)[-1]["response"]
    for answer in (plain, streamed):
        kinds = {item["type"]: item for item in answer["output"]}
        assert set(kinds) == {"reasoning", "message", "function_call"}
        assert kinds["reasoning"]["content"][0]["text"] == "Need the weather."
        assert kinds["message"]["content"][0]["text"] == "I look."
        assert kinds["function_call"]["arguments"] == ARGUMENTS


def test_messages_have_a_block_for_each_channel(caller):
    tool = {"name": "get_weather", "input_schema": TOOL["function"]["parameters"]}
    body = {"messages": [USER], "tools": [tool], "max_tokens": 400, "temperature": 0}
    answer = caller.post("/v1/messages", body).json
    blocks = {block["type"]: block for block in answer["content"]}
    assert blocks["thinking"]["thinking"] == "Need the weather."
    assert blocks["text"]["text"] == "I look."
    assert blocks["tool_use"]["input"] == json.loads(ARGUMENTS)
    assert answer["stop_reason"] == "tool_use"
    streamed = caller.post("/v1/messages", body | {"stream": True}).body.decode()
    assert "<|" not in streamed
    assert streamed.count("thinking_delta") > 1


def test_an_answer_can_be_sent_back_as_it_came(caller):
    """The template takes one call a message, and a text or a thought beside it."""
    [choice] = caller.chat([USER], tools=[TOOL], **LONG)["choices"]
    [call] = choice["message"]["tool_calls"]
    both_called = choice["message"] | {"tool_calls": [call, call | {"id": "other"}]}
    for answer in (choice["message"], both_called):
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "7"}
            for call in answer["tool_calls"]
        ]
        [again] = caller.chat([USER, answer, *results], tools=[TOOL], **LONG)["choices"]
        assert again["finish_reason"] == "tool_calls"
    reply = caller.post("/tokenize", {"messages": [USER, both_called, *results]})
    assert reply.status == 200, reply.body


def test_reasoning_effort_reaches_the_template(answerer):
    def prompt_tokens(**fields):
        return both(answerer.chat, [USER], **LONG, **fields)["usage"]["prompt_tokens"]

    usual = prompt_tokens()
    assert prompt_tokens(reasoning_effort="medium") == usual
    assert prompt_tokens(reasoning_effort="high") == usual + len("high") - len("medium")
    body = {"input": "x", "reasoning": {"effort": "low"}, "max_output_tokens": 1}
    assert answerer.post("/v1/responses", body).status == 200
    error = answerer.post(
        "/v1/chat/completions", {"messages": [USER], "reasoning_effort": "none"}
    ).error
    assert error["param"] == "reasoning_effort"
    assert "always reasons" in error["message"]


def test_bad_words_may_stand_in_headers_and_reasoning(answerer):
    words = ["final", "analysis", "Seven", "message"]
    [choice] = both(answerer.chat, [USER], bad_words=words, **LONG)["choices"]
    assert choice["message"]["reasoning_content"] == "Seven."
    assert choice["message"]["content"] == "7 °C < 8"
    [choice] = both(answerer.chat, [USER], bad_words=["°C"], **LONG)["choices"]
    assert "°C" not in (choice["message"]["content"] or "")


def test_a_schema_binds_the_final_message(answerer):
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [7]}}}
    [choice] = both(answerer.chat, [USER], response_format=schema, **LONG)["choices"]
    assert choice["message"]["reasoning_content"] == "Seven."
    assert choice["message"]["content"].strip() == "7"


def test_settings_name_the_formats(tmp_path):
    recital = Recital()
    recital.add("t", "hm</think>Yes.")
    folder = recital.save(tmp_path, "{{ messages[0].content }}{{ 'assistant<think>t' }}")
    flags = ("--device", "cpu", "--reasoning-parser", "none", "--tool-call-parser", "hermes")
    with Worker(*flags, model=folder) as worker:
        [choice] = both(worker.chat, [USER], **LONG)["choices"]
        assert choice["message"]["content"] == "hm</think>Yes."
        assert "reasoning_content" not in choice["message"]
        [choice] = both(worker.chat, [USER], tools=[TOOL], **LONG)["choices"]
        assert choice["finish_reason"] == "stop"
        assert worker.stop() == 0, worker.errors()
        assert "tool calls: hermes, reasoning: none" in worker.summary


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tool_call_parser": "x"}, 'tool_call_parser: must be auto, none, .*hermes.*; not "x"'),
        ({"reasoning_parser": "x"}, 'reasoning_parser: must be auto, none, .*qwen3.*; not "x"'),
        ({"tool_call_parser": "openai"}, "openai needs reasoning_parser openai_gptoss"),
    ],
)
def test_an_unknown_format_is_refused_with_the_list(settings, message):
    with pytest.raises(ModelError, match=message):
        Engine(str(TINY), device="cpu", **settings)
