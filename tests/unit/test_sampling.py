import json

import pytest

from ingle.errors import RefusedError
from ingle.generation import TextPrompt, encode
from ingle.sampling import SamplingParams


def test_every_parameter_reaches_the_document():
    params = SamplingParams(
        n=2,
        max_tokens=None,
        min_tokens=1,
        temperature=0.0,
        top_k=-1,
        seed=0,
        stop=["a"],
        stop_token_ids=[1],
        include_stop_str_in_output=True,
        ignore_eos=True,
        skip_special_tokens=False,
        logit_bias={5: 1.0},
        logprobs=0,
        echo=True,
        truncate_prompt_tokens=3,
        priority=-1,
        cache_salt="s",
    )
    assert json.loads(encode(params.request(TextPrompt("x")))) == {
        "prompts": [{"text": "x"}],
        "n": 2,
        "min_tokens": 1,
        "sampling": {
            "temperature": 0.0,
            "top_k": -1,
            "seed": 0,
            "logit_bias": {"5": 1.0},
            "logprobs": 0,
        },
        "stop": ["a"],
        "stop_token_ids": [1],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "truncate_prompt_tokens": 3,
        "priority": -1,
        "cache_salt": "s",
        "output": {"format": "delta", "stream": True, "echo": True, "return_token_ids": True},
    }


def test_one_stop_string_may_stand_alone():
    assert json.loads(encode(SamplingParams(stop="a").request(TextPrompt("x"))))["stop"] == ["a"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "hot"), ("priority", 1.5), ("stop", [1]), ("logit_bias", {"a": 1.0})],
)
def test_a_wrong_type_is_named(name, value):
    with pytest.raises(RefusedError) as refused:
        SamplingParams(**{name: value})
    assert refused.value.param.split("[")[0] == name
    assert refused.value.message.startswith(f"{refused.value.param}: ")


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        (
            {"guided_json": {"type": "object"}},
            {"kind": "json_schema", "schema": {"type": "object"}},
        ),
        ({"guided_json": '{"a":1}'}, {"kind": "json_schema", "schema": {"a": 1}}),
        ({"guided_regex": "a+"}, {"kind": "regex", "regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"kind": "choice", "choices": ["a", "b"]}),
        ({"guided_grammar": "start: x"}, {"kind": "lark", "lark": "start: x"}),
    ],
)
def test_what_binds_the_answers_reaches_the_document(fields, grammar):
    document = json.loads(encode(SamplingParams(**fields).request(TextPrompt("x"))))
    assert document["grammar"] == grammar | {"field": next(iter(fields))}


def test_bad_words_go_along_with_a_grammar():
    fields = {"bad_words": ["a b"], "guided_regex": "a+"}
    document = json.loads(encode(SamplingParams(**fields).request(TextPrompt("x"))))
    assert document["bad_words"] == ["a b"]
    assert document["grammar"]["field"] == "guided_regex"
    nothing = json.loads(encode(SamplingParams().request(TextPrompt("x"))))
    assert not {"grammar", "bad_words"} & set(nothing)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("guided_json", {"guided_json": "[1]"}),
        ("guided_json", {"guided_json": "{"}),
        ("guided_regex", {"guided_json": {}, "guided_regex": "a"}),
    ],
)
def test_what_cannot_bind_the_answers_is_named(name, fields):
    with pytest.raises(RefusedError) as refused:
        SamplingParams(**fields).request(TextPrompt("x"))
    assert refused.value.param == name
