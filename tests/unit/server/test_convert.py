import json

import msgspec
import pytest

from ingle.errors import RefusedError
from ingle.generation import encode
from ingle.server import convert
from ingle.server.convert import Caller
from ingle.server.parse import BodyParser, UnknownFields
from ingle.server.protocol import ChatRequest, CompletionRequest

CALLER = Caller(tenant="alice", response_id="id-1", created=7, chunked=True, model="m")
PARSERS = {
    kind: BodyParser(kind, UnknownFields(warn=False)).parse
    for kind in (CompletionRequest, ChatRequest)
}


def completion(**fields):
    parsed = PARSERS[CompletionRequest](json.dumps({"prompt": "x"} | fields).encode())
    return json.loads(encode(convert.completion(parsed, CALLER)))


def chat(*messages, **fields):
    messages = messages or ({"role": "user", "content": "x"},)
    body = {"messages": list(messages)} | fields
    parsed = PARSERS[ChatRequest](json.dumps(body).encode())
    return json.loads(encode(convert.chat(parsed, CALLER)))


def messages(document):
    return document["prompts"][0]["chat"]["messages"]


def refused(make, *args, **fields):
    with pytest.raises(RefusedError) as caught:
        make(*args, **fields)
    assert caught.value.status == 400
    return caught.value.param


def test_the_smallest_completion_gets_its_defaults():
    assert completion() == {
        "prompts": [{"text": "x"}],
        "max_tokens": 16,
        "sampling": {},
        "tenant": "alice",
        "output": {"format": "completion", "response_id": "id-1", "model": "m", "created": 7},
    }


def test_every_sampling_field_arrives():
    given = {
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.0,
        "frequency_penalty": -1.0,
        "seed": -1,
        "logit_bias": {"5": -100.0},
        "allowed_token_ids": [5, 6],
    }
    assert completion(**given, logprobs=0)["sampling"] == given | {"logprobs": 0}
    assert chat(**given)["sampling"] == given


def test_every_other_field_arrives():
    given = {
        "n": 3,
        "min_tokens": 2,
        "stop": ["a", "b"],
        "stop_token_ids": [9],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "truncate_prompt_tokens": 5,
        "priority": -2,
        "cache_salt": "s",
    }
    document = completion(**given, echo=True, return_token_ids=True)
    assert {name: document[name] for name in given} == given
    assert document["output"]["echo"]
    assert document["output"]["return_token_ids"]


def test_the_session_of_the_caller_arrives():
    parsed = PARSERS[CompletionRequest](b'{"prompt": "x"}')
    caller = msgspec.structs.replace(CALLER, session="'s'")
    assert json.loads(encode(convert.completion(parsed, caller)))["session"] == "'s'"
    assert "session" not in completion(), "one engine needs none"


def test_top_k_minus_one_and_zero_are_off():
    for value in (-1, 0, 1):  # Which of them mean "off", the core's table says.
        assert completion(top_k=value)["sampling"]["top_k"] == value


def test_zero_is_a_value_and_not_absent():
    sampling = completion(temperature=0, seed=0, top_k=0, presence_penalty=0)["sampling"]
    assert sampling == {"temperature": 0.0, "seed": 0, "top_k": 0, "presence_penalty": 0.0}


def test_each_form_of_a_prompt_is_converted():
    assert completion(prompt="a")["prompts"] == [{"text": "a"}]
    assert completion(prompt=["a", "b"])["prompts"] == [{"text": "a"}, {"text": "b"}]
    assert completion(prompt=[1, 15043])["prompts"] == [{"token_ids": [1, 15043]}]
    assert completion(prompt=[[1], [2, 3]])["prompts"] == [
        {"token_ids": [1]},
        {"token_ids": [2, 3]},
    ]
    assert completion(add_special_tokens=False)["prompts"] == [
        {"text": "x", "add_special_tokens": False}
    ]


@pytest.mark.parametrize("prompt", [[], ["a", 1], [1, [2]], [[1], "a"], ["a"] * 2049])
def test_prompt_lists_that_are_none(prompt):
    assert refused(completion, prompt=prompt).split("[")[0] == "prompt"


def test_max_tokens_null_equals_absent():
    assert completion(max_tokens=None)["max_tokens"] == 16
    assert "max_tokens" not in chat(max_tokens=None)
    assert completion(max_tokens=0)["max_tokens"] == 0


def test_max_completion_tokens_wins_over_max_tokens():
    assert chat(max_completion_tokens=5)["max_tokens"] == 5
    assert chat(max_completion_tokens=5, max_tokens=9)["max_tokens"] == 5
    assert chat(max_tokens=9)["max_tokens"] == 9


def test_logprobs_zero_is_a_value_and_top_logprobs_needs_logprobs():
    assert completion(logprobs=0)["sampling"]["logprobs"] == 0
    assert chat(logprobs=True, top_logprobs=0)["sampling"]["logprobs"] == 0
    assert chat(logprobs=True)["sampling"]["logprobs"] == 0
    assert chat(logprobs=True, top_logprobs=3)["sampling"]["logprobs"] == 3
    assert chat(logprobs=False)["sampling"] == {}
    assert refused(chat, top_logprobs=2) == "top_logprobs"


def test_stream_options_need_a_stream():
    assert refused(completion, stream_options={"include_usage": True}) == "stream_options"
    output = completion(
        stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}
    )["output"]
    assert output["include_usage"]
    assert output["continuous_usage_stats"]
    assert output["chunked"]
    assert "include_usage" not in completion(stream=True, stream_options={})["output"]


def test_stop_as_text():
    assert completion(stop="a")["stop"] == ["a"]
    assert "stop" not in completion(stop=[])


@pytest.mark.parametrize("make", [completion, chat])
def test_token_ids_in_stop_are_added_to_the_others(make):
    document = make(stop=["a", 7, "b", 9, 7], stop_token_ids=[9, 3])
    assert (document["stop"], document["stop_token_ids"]) == (["a", "b"], [9, 3, 7])
    assert make(stop=[0])["stop_token_ids"] == [0]
    assert "stop" not in make(stop=[0])


@pytest.mark.parametrize("make", [completion, chat])
def test_stop_has_as_many_texts_and_ids_as_the_core_takes(make):
    texts, ids = [f"s{i}" for i in range(64)], list(range(128))
    assert len(make(stop=texts + ids)["stop_token_ids"]) == 128
    assert len(make(stop=ids, stop_token_ids=ids)["stop_token_ids"]) == 128
    assert refused(make, stop=[*texts, "x"]) == "stop"
    assert refused(make, stop=[*ids, 128]) == "stop[128]"
    assert refused(make, stop=["a", 500], stop_token_ids=ids) == "stop[1]"
    assert refused(make, stop_token_ids=[*ids, 128]) == "stop_token_ids"


def test_an_id_in_stop_is_one_of_the_vocabulary():
    parsed = PARSERS[CompletionRequest](b'{"prompt":"x","stop":["a",399,400]}')
    with pytest.raises(RefusedError) as caught:
        convert.completion(parsed, msgspec.structs.replace(CALLER, vocab_size=400))
    assert caught.value.param == "stop[2]"
    assert caught.value.message == "stop[2]: token id 400 is outside the vocabulary of 400"


def test_an_assistants_content_may_be_empty_or_missing():
    for message in (
        {"role": "assistant", "content": ""},
        {"role": "assistant"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": []},
    ):
        assert messages(chat(message)) == [{"role": "assistant", "content": ""}]
    assert messages(chat({"role": "user", "content": ""}))[0]["content"] == ""
    assert refused(chat, {"role": "user"}) == "messages[0].content"
    assert refused(chat, {"role": "system", "content": None}) == "messages[0].content"


def test_text_parts_are_joined_by_line_feeds():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("user", "system", "tool", "assistant"):
        assert messages(chat({"role": role, "content": parts}))[0]["content"] == "a\nb"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"city":"Oslo"}', {"city": "Oslo"}),
        ({"city": "Oslo"}, {"city": "Oslo"}),
        ("not json", "not json"),
        ("[1]", "[1]"),
        ("", ""),
        ('{"city":"\\ud800"}', '{"city":"\\ud800"}'),
        ('{"x":NaN}', '{"x":NaN}'),
        ("[" * 10_000, "[" * 10_000),
    ],
)
def test_tool_arguments_reach_the_template_as_a_mapping(given, expected):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    made = messages(chat(message))[0]
    assert made["content"] == ""
    assert made["tool_calls"][0]["function"] == {"name": "f", "arguments": expected}


def test_the_developer_role_is_system():
    assert messages(chat({"role": "developer", "content": "x"}))[0]["role"] == "system"


def test_add_generation_prompt_and_continue_final_message_are_converted():
    def flags(**fields):
        made = chat(**fields)["prompts"][0]["chat"]
        return made.get("add_generation_prompt", True), made.get("continue_final_message", False)

    assert flags() == (True, False)
    assert flags(add_generation_prompt=False) == (False, False)
    assert flags(continue_final_message=True) == (False, True)
    assert flags(continue_final_message=True, add_generation_prompt=False) == (False, True)
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert refused(chat, **both) == "continue_final_message"


def test_chat_template_kwargs_cannot_take_reserved_names():
    made = chat(chat_template_kwargs={"enable_thinking": False})["prompts"][0]["chat"]
    assert made["template_kwargs"] == {"enable_thinking": False}
    for name in ("tokenize", "messages", "chat_template", "add_generation_prompt", "tools"):
        assert refused(chat, chat_template_kwargs={name: 1}) == f"chat_template_kwargs.{name}"


def test_reasoning_effort_none_turns_reasoning_off():
    made = chat(reasoning_effort="none", chat_template_kwargs={"x": 1})["prompts"][0]["chat"]
    assert made["reasoning_off"] is True
    assert made["template_kwargs"] == {"x": 1, "enable_thinking": False, "thinking": False}
    assert "reasoning_off" not in chat(reasoning_effort=None)["prompts"][0]["chat"]
    same = chat(reasoning_effort="none", chat_template_kwargs={"thinking": False})
    assert same["prompts"][0]["chat"]["template_kwargs"]["enable_thinking"] is False
    for name in ("thinking", "enable_thinking"):
        fields = {"reasoning_effort": "none", "chat_template_kwargs": {name: True}}
        assert refused(chat, **fields) == f"chat_template_kwargs.{name}"


def test_reasoning_effort_goes_to_the_template():
    made = chat(reasoning_effort="high")["prompts"][0]["chat"]
    assert made["reasoning_effort"] == "high"
    assert "reasoning_off" not in made
    fields = {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"}}
    assert refused(chat, **fields) == "chat_template_kwargs.reasoning_effort"


def test_reasoning_and_reasoning_content_are_both_read():
    for name in ("reasoning_content", "reasoning"):
        made = messages(chat({"role": "assistant", "content": "x", name: "because"}))
        assert made[0]["reasoning_content"] == "because"


def test_the_name_of_a_message_goes_to_the_template():
    assert messages(chat({"role": "user", "content": "x", "name": "ann"})) == [
        {"role": "user", "content": "x", "name": "ann"}
    ]
