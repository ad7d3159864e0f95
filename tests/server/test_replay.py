"""Whole answers come back as history: what the official client makes of them, sent as it is.

Each is compared with the history that says the same in OpenAI's smallest words: the prompt must be
the same, which shows in the answer at temperature 0 and in its number of tokens.
"""

import copy
import json

import openai
import pydantic
import pytest

from server.test_structured import TOOLS, WHOLE, hermes

__all__ = ["hermes"]

MODEL = "llama-tied-bf16"
USER = {"role": "user", "content": "Hello"}
STRICT = copy.deepcopy(TOOLS)
for tool in STRICT:
    tool["function"]["strict"] = True
FUNCTIONS = [{"type": "function", **tool["function"]} for tool in STRICT]
# The official client warns of its own types.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")


class Weather(pydantic.BaseModel):
    days: int = pydantic.Field(ge=1, le=9)
    sure: bool


@pytest.fixture(scope="module")
def client(hermes):
    with openai.OpenAI(base_url=hermes.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def forms(message):
    """A message of the official client in all the ways that programs send it back."""
    yield message
    yield message.model_dump()
    yield message.to_dict()
    yield message.model_dump(exclude_none=True)
    yield json.loads(message.model_dump_json())


def prompt_of(worker, *history):
    """What the model says to a history, and how long that was."""
    answer = worker.chat([USER, *history, USER], max_tokens=6, tools=STRICT, tool_choice="none")
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]


def same(client, worker, sent, smallest):
    """Both histories are the same to the model."""
    fields = {"model": MODEL, "tools": STRICT, "tool_choice": "none", "temperature": 0}
    answer = client.chat.completions.create(messages=[USER, *sent, USER], max_tokens=6, **fields)
    found = answer.choices[0].message.content, answer.usage.prompt_tokens
    assert found == prompt_of(worker, *smallest)


def test_an_answer_sent_back_in_any_form_is_the_same_prompt(client, hermes):
    fields = {"model": MODEL, "messages": [USER], "max_tokens": 80}
    fields["extra_body"] = {"guided_choice": ["Good day, friend."]}
    plain = client.chat.completions.create(**fields).choices[0].message
    with client.chat.completions.stream(**fields) as stream:
        streamed = stream.get_final_completion().choices[0].message
    smallest = {"role": "assistant", "content": plain.content}
    smallest |= {"reasoning_content": plain.reasoning_content} if "reasoning" in repr(plain) else {}
    for message in (plain, streamed):
        for sent in forms(message):
            same(client, hermes, [sent], [smallest])


@pytest.mark.parametrize("tools", [TOOLS, STRICT], ids=["free", "strict"])
def test_tool_calls_of_create_and_of_the_stream_helper(client, hermes, tools):
    fields = {"model": MODEL, "messages": [USER], "tools": tools, "tool_choice": "required"}
    fields |= {"max_tokens": WHOLE, "temperature": 1, "seed": 4, "parallel_tool_calls": False}
    plain = client.chat.completions.create(**fields).choices[0].message
    with client.chat.completions.stream(**fields) as stream:
        streamed = stream.get_final_completion().choices[0].message
    for message in (plain, streamed):
        [call] = message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "Rain."}
        made = {"name": call.function.name, "arguments": call.function.arguments}
        smallest = {
            "role": "assistant",
            "tool_calls": [{"id": call.id, "type": "function", "function": made}],
        }
        for sent in forms(message):
            same(client, hermes, [sent, result], [smallest, result])


def test_a_parsed_answer_sent_back_is_the_same_prompt(client, hermes):
    fields = {"model": MODEL, "messages": [USER], "response_format": Weather, "max_tokens": WHOLE}
    fields |= {"temperature": 1, "seed": 2}
    plain = client.chat.completions.parse(**fields).choices[0].message
    with client.chat.completions.stream(**fields) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert isinstance(plain.parsed, Weather)
    for message in (plain, streamed):
        smallest = {"role": "assistant", "content": message.content}
        for sent in forms(message):
            same(client, hermes, [sent], [smallest])


CALL = {"name": "weather", "arguments": '{"city": "Bonn", "days": 2}'}
CALLS = [{"id": "call_1", "type": "function", "function": CALL}]
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "Rain."}


@pytest.mark.parametrize(
    ("sent", "smallest"),
    [
        ({"content": "Hi", "type": "text"}, {"content": "Hi"}),
        ({"content": "Hi", "type": "message", "id": "msg_1"}, {"content": "Hi"}),
        ({"content": None, "refusal": "No."}, {"content": "No."}),
        ({"refusal": "No."}, {"content": "No."}),
        ({"content": "Hi", "refusal": "No."}, {"content": "Hi"}),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, {"content": "No."}),
        (
            {"content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
            {"content": "Hi"},
        ),
        (
            {"content": [{"type": "text", "text": "Hi", "annotations": [], "index": 0}]},
            {"content": "Hi"},
        ),
        ({"content": "Hi", "cache_control": {"type": "ephemeral"}}, {"content": "Hi"}),
        ({"content": "Hi", "annotations": [{"type": "url_citation"}]}, {"content": "Hi"}),
        ({"content": "Hi", "provider_specific_fields": {"a": 1}}, {"content": "Hi"}),
        ({"content": "Hi", "thinking_blocks": [{"thinking": "Hm"}]}, {"content": "Hi"}),
        ({"content": "Hi", "audio": None, "name": None, "tool_calls": []}, {"content": "Hi"}),
        (
            {"content": "Hi", "reasoning": "Hm", "reasoning_details": [{"text": "Hm"}]},
            {"content": "Hi", "reasoning_content": "Hm"},
        ),
        ({"content": None, "function_call": CALL}, {"content": None, "tool_calls": CALLS}),
        (
            {"tool_calls": [CALLS[0] | {"index": 0, "provider_specific_fields": {"a": 1}}]},
            {"tool_calls": CALLS},
        ),
        (
            {"tool_calls": [CALLS[0] | {"function": CALL | {"arguments": None}}]},
            {"tool_calls": [CALLS[0] | {"function": CALL | {"arguments": ""}}]},
        ),
    ],
    ids=str,
)
def test_what_others_send_back(hermes, sent, smallest):
    after = [RESULT] if "calls" in str(smallest) else []
    expected = prompt_of(hermes, {"role": "assistant"} | smallest, *after)
    assert prompt_of(hermes, {"role": "assistant"} | sent, *after) == expected


def test_a_functions_message_is_a_tools(hermes):
    call = {"role": "assistant", "tool_calls": CALLS}
    older = {"role": "function", "name": "weather", "content": "Rain."}
    assert prompt_of(hermes, call, older) == prompt_of(hermes, call, RESULT)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"audio": {"id": "audio_1"}}, "audio"),
        ({"colour": 1}, "colour"),
        ({"tool_cals": CALLS}, "tool_cals"),
        ({"prefix": True}, "prefix"),
        ({"refusal": 5, "content": None}, "refusal"),
        ({"tool_calls": [{"type": "custom", "custom": {"name": "f"}}]}, "tool_calls[0].type"),
        ({"function_call": {"name": "f", "arguments": 5}}, "function_call.arguments"),
    ],
    ids=str,
)
def test_what_would_be_lost_is_refused(hermes, fields, param):
    message = {"role": "assistant", "content": "Hi"} | fields
    reply = hermes.post("/v1/chat/completions", {"messages": [USER, message, USER]})
    assert (reply.status, reply.error["param"]) == (400, f"messages[1].{param}")


def response_forms(items):
    yield items
    yield [item.model_dump() for item in items]
    yield [item.to_dict() for item in items]
    yield [json.loads(item.model_dump_json(exclude_none=True)) for item in items]


def test_items_of_responses(client, hermes):
    fields = {"model": MODEL, "input": [USER], "temperature": 1, "store": False}
    fields |= {"include": ["reasoning.encrypted_content"], "extra_body": {"seed": 3}}
    plain = client.responses.create(**fields, max_output_tokens=8)
    with client.responses.stream(**fields, max_output_tokens=WHOLE, text_format=Weather) as stream:
        streamed = stream.until_done().get_final_response()
    parsed = client.responses.parse(
        **fields, max_output_tokens=WHOLE, text_format=Weather, top_logprobs=0
    )
    # One call: of several the last one could be cut, however many tokens there are.
    fields |= {"tools": FUNCTIONS, "tool_choice": "required", "parallel_tool_calls": False}
    called = client.responses.create(**fields, max_output_tokens=WHOLE)
    helped = client.responses.parse(**fields, max_output_tokens=WHOLE)
    assert isinstance(parsed.output_parsed, Weather)
    for response in (plain, streamed, parsed, called, helped):
        calls = [item for item in response.output if item.type == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
            for call in calls
        ]
        lengths = set()
        for sent in response_forms(response.output):
            answer = client.responses.create(
                model=MODEL, input=[USER, *sent, *results, USER], max_output_tokens=3, store=False
            )
            lengths.add(answer.usage.input_tokens)
        assert len(lengths) == 1
        assert bool(calls) == (response in (called, helped))


def test_items_that_say_something_else_are_refused(hermes):
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    for item, param in (
        (reasoning | {"encrypted_content": "gAAA"}, "input[0].encrypted_content"),
        (reasoning | {"colour": 1}, "input[0].colour"),
        ({"type": "function_call", "call_id": "c", "name": "f", "async": True}, "input[0].async"),
    ):
        reply = hermes.post("/v1/responses", {"input": [item, USER]})
        assert (reply.status, reply.error["param"]) == (400, param), reply.body
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    plain = {"role": "assistant", "content": "No."}
    lengths = {
        hermes.post("/v1/responses", {"input": [USER, item, USER], "max_output_tokens": 1}).json[
            "usage"
        ]["input_tokens"]
        for item in (refusal, plain)
    }
    assert len(lengths) == 1
