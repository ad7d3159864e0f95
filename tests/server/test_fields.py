"""Every sampling and prompt field that issue trackers ask for: it does something, or gets a 400."""

from pathlib import Path

import pytest

from ingle.fields import API_FIELDS, PLAIN
from server.worker import whole

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"


def post(worker, path, **fields):
    body = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    body |= {"messages": [{"role": "user", "content": "Hello"}]} if path == CHAT else {}
    body |= {"prompt": "The quick"} if path == TEXT else {}
    return worker.post(path, body | fields)


def answered(worker, path, **fields):
    reply = post(worker, path, **fields)
    assert reply.status == 200, (fields, reply.body)
    answer = reply.json
    return {
        "choices": whole(answer),
        "prompt_tokens": answer["usage"]["prompt_tokens"],
        "completion_tokens": answer["usage"]["completion_tokens"],
        "keys": [sorted(choice) for choice in answer["choices"]],
        "log_probs": [choice["logprobs"] for choice in answer["choices"]],
    }


# Each changes something of an answer that would else be the same.
SHARED = [
    {"n": 2},
    {"temperature": 1, "seed": 1},
    {"temperature": 2, "seed": 1},
    {"temperature": 1.5, "seed": 1, "top_p": 0.3},
    {"temperature": 1.5, "seed": 1, "top_k": 3},
    {"temperature": 1.5, "seed": 1, "min_p": 0.5},
    {"temperature": 2, "seed": 1, "top_n_sigma": 0.5},
    {"presence_penalty": 2, "max_tokens": 60},
    {"frequency_penalty": 2, "max_tokens": 60},
    {"repetition_penalty": 1.5, "max_tokens": 60},
    {"logit_bias": {"298": 100}},
    {"allowed_token_ids": [298, 299]},
    {"stop": " "},
    {"stop": ["1", "2", "3", "4", "5", "6", " "]},
    {"stop": " ", "include_stop_str_in_output": True},
    {"return_token_ids": True},
    {"guided_choice": ["yes", "no"], "ignore_eos": False},
]
OF_TEXT = [
    {"echo": True},
    {"echo": True, "logprobs": 1},
    {"logprobs": 2},
    {"add_special_tokens": False},
    {"truncate_prompt_tokens": 2},
    {"max_tokens": 0},
    {"best_of": 2},
]
OF_CHAT = [
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 2},
    {"max_completion_tokens": 3},
    {"add_generation_prompt": False},
    {"continue_final_message": True},
]


SHOWN_ELSEWHERE = {
    "bad_words": "test_bad_words.py",
    "cache_salt": "test_life.py",
    "guided_grammar": "test_structured.py",
    "guided_json": "test_structured.py",
    "guided_regex": "test_structured.py",
    "min_tokens": "test_sampling.py",
    "priority": "test_life.py",
    "skip_special_tokens": "test_streams.py",
    "stop_token_ids": "test_streams.py",
}


def test_each_plain_sampling_field_has_a_line_that_shows_its_effect():
    assert PLAIN.keys() <= {name for fields in SHARED for name in fields}


def test_each_field_of_the_python_api_has_a_line_that_shows_its_effect():
    shown = {name for fields in (*SHARED, *OF_TEXT, *OF_CHAT) for name in fields}
    assert API_FIELDS.keys() - shown == SHOWN_ELSEWHERE.keys()
    for name, file in SHOWN_ELSEWHERE.items():
        assert name in Path(__file__).with_name(file).read_text(), (name, file)


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize("fields", SHARED, ids=str)
def test_fields_of_both_do_something(cpu, path, fields):
    base = {k: v for k, v in fields.items() if k in ("max_tokens", "temperature", "seed")}
    if len(base) == len(fields):
        base.pop("temperature")
    if fields.get("include_stop_str_in_output"):
        base["stop"] = fields["stop"]
    assert answered(cpu, path, **fields) != answered(cpu, path, **base)


@pytest.mark.parametrize("fields", OF_TEXT, ids=str)
def test_fields_of_completions_do_something(cpu, fields):
    assert answered(cpu, TEXT, **fields) != answered(cpu, TEXT)


@pytest.mark.parametrize("fields", OF_CHAT, ids=str)
def test_fields_of_chat_do_something(cpu, fields):
    assert answered(cpu, CHAT, **fields) != answered(cpu, CHAT)


OFF = [
    "n seed logit_bias allowed_token_ids min_tokens stop stop_token_ids include_stop_str_in_output "
    "skip_special_tokens truncate_prompt_tokens return_token_ids priority cache_salt bad_words "
    "stream stream_options user request_id response_format guided_json model suffix echo best_of "
    "tools tool_choice function_call functions audio modalities prediction web_search_options "
    "reasoning_effort verbosity store metadata service_tier prompt_logprobs use_beam_search"
][0].split() + [name for name in PLAIN if name != "temperature"]


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_null_equals_absent(cpu, path):
    assert answered(cpu, path, **dict.fromkeys(OFF)) == answered(cpu, path)


NEUTRAL = {
    "n": 1,
    "logit_bias": {},
    "min_tokens": 0,
    "stop": [],
    "stop_token_ids": [],
    "bad_words": [],
    "priority": 7,
    "cache_salt": "x",
    "user": "me",
    "skip_special_tokens": True,
    "include_stop_str_in_output": False,
    "return_token_ids": False,
    "stream": False,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "echo": False,
    "best_of": 1,
}
NEUTRAL_OF_PLAIN = [(name, value) for name, field in PLAIN.items() for value in field.off_values()]


def test_a_chat_without_further_special_tokens_is_any_chat(cpu):
    assert answered(cpu, CHAT, add_special_tokens=False) == answered(cpu, CHAT)
    reply = post(cpu, CHAT, add_special_tokens=True)
    assert (reply.status, reply.error["param"]) == (400, "add_special_tokens")


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_neutral_values_change_nothing(cpu, path):
    for name, value in (*NEUTRAL.items(), *NEUTRAL_OF_PLAIN):
        assert answered(cpu, path, **{name: value}) == answered(cpu, path), name


REFUSED = [
    (TEXT, {"suffix": "x"}),
    (TEXT, {"n": 3, "best_of": 2}),
    (TEXT, {"best_of": 2, "stream": True}),
    (TEXT, {"best_of": 129}),
    (TEXT, {"logprobs": True}),
    (TEXT, {"messages": []}),
    (TEXT, {"max_completion_tokens": 3}),
    (TEXT, {"prompt_embeds": "x"}),
    (CHAT, {"best_of": 2}),
    (CHAT, {"echo": True}),
    (CHAT, {"prompt": "x"}),
    (CHAT, {"max_tokens": 0}),
    (CHAT, {"logprobs": 2}),
    (CHAT, {"top_logprobs": 2}),
    (CHAT, {"functions": [{"name": "f"}]}),
    (CHAT, {"function_call": {"name": "f"}}),
    (CHAT, {"modalities": ["text", "audio"]}),
    (CHAT, {"audio": {"voice": "x"}}),
    (CHAT, {"prediction": {"type": "content", "content": "x"}}),
    (CHAT, {"web_search_options": {}}),
    (CHAT, {"reasoning_effort": "high"}),
    (CHAT, {"verbosity": "low"}),
    (CHAT, {"store": True}),
    (CHAT, {"service_tier": "priority"}),
    (CHAT, {"chat_template": "x"}),
    (CHAT, {"documents": [{"text": "x"}]}),
    *[
        (path, fields)
        for path in (TEXT, CHAT)
        for fields in (
            {"temperature": 2.1},
            {"temperature": -0.1},
            {"top_p": 0},
            {"top_k": -2},
            {"min_p": 1.1},
            {"repetition_penalty": 0},
            {"presence_penalty": 2.1},
            {"frequency_penalty": -2.1},
            {"stop": ["a"] * 65},
            {"stop": [""]},
            {"bad_words": [""]},
            {"bad_words": ["a"] * 129},
            {"bad_words": "a"},
            {"min_tokens": 13},
            {"use_beam_search": True},
            {"length_penalty": 2},
            {"early_stopping": True},
            {"spaces_between_special_tokens": False},
            {"return_tokens_as_token_ids": True},
            {"stream_options": {"include_usage": True}},
            {"logits_processors": ["x"]},
        )
    ],
]


@pytest.mark.parametrize(("path", "fields"), REFUSED, ids=str)
def test_what_is_not_honoured_is_a_400_that_names_it(cpu, path, fields):
    reply = post(cpu, path, **fields)
    assert reply.status == 400, reply.body
    assert reply.error["param"].split("[")[0].split(".")[0] in fields


def text_of(worker, **fields):
    return worker.complete(**fields)["choices"][0]["text"]


def mean(choice):
    values = choice["logprobs"]["token_logprobs"]
    return sum(values) / len(values)


def test_best_of_returns_the_likeliest(cpu):
    fields = {"temperature": 1, "seed": 5, "max_tokens": 10, "prompt": ["The quick", "A slow"]}
    every = cpu.complete(**fields, n=6, logprobs=0)
    best = cpu.complete(**fields, n=2, best_of=6, logprobs=0)
    for prompt in range(2):
        ranked = sorted(every["choices"][6 * prompt : 6 * prompt + 6], key=mean, reverse=True)
        picked = best["choices"][2 * prompt : 2 * prompt + 2]
        assert [c["text"] for c in picked] == [c["text"] for c in ranked[:2]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
    assert best["usage"] | {"prompt_tokens_details": None} == every["usage"] | {
        "prompt_tokens_details": None
    }
    plain = cpu.complete(**fields, n=2, best_of=6)
    assert [c["text"] for c in plain["choices"]] == [c["text"] for c in best["choices"]]
    assert all(choice["logprobs"] is None for choice in plain["choices"])
    # The prompt's own log-probs say nothing about which answer is the likeliest.
    for more in ({}, {"logprobs": 0}):
        echoed = cpu.complete(**fields, n=2, best_of=6, echo=True, **more)
        texts = [choice["text"] for choice in echoed["choices"]]
        assert texts == [
            fields["prompt"][i // 2] + choice["text"] for i, choice in enumerate(best["choices"])
        ]
        assert all((c["logprobs"] is None) == (not more) for c in echoed["choices"])
    assert cpu.complete(n=2, best_of=2)["choices"][1]["text"] == text_of(cpu)
