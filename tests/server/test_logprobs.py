"""Log-probabilities: their shapes, their values and what they belong to."""

import math

import pytest

from server.twice import PATHS, both, refused_twice
from server.worker import whole

USER = {"role": "user", "content": "x"}


@pytest.fixture(params=PATHS)
def ask(request, cpu):
    return getattr(cpu, request.param)


def completion_logprobs(worker, **fields):
    return worker.complete(**fields)["choices"][0]["logprobs"]


def chat_logprobs(worker, **fields):
    return worker.chat(logprobs=True, **fields)["choices"][0]["logprobs"]["content"]


def test_off_is_null(cpu):
    assert completion_logprobs(cpu) is None
    assert cpu.chat()["choices"][0].get("logprobs") is None


def test_logprobs_zero_is_the_token_alone_and_not_off(cpu):
    found = both(cpu.complete, logprobs=0, max_tokens=4)["choices"][0]["logprobs"]
    one = both(cpu.complete, logprobs=1, max_tokens=4)["choices"][0]["logprobs"]
    assert found["token_logprobs"] == one["token_logprobs"]
    assert len(found["token_logprobs"]) == 4
    for fields in ({"top_logprobs": 0}, {}):
        [choice] = both(cpu.chat, logprobs=True, max_tokens=4, **fields)["choices"]
        entries = choice["logprobs"]["content"]
        assert [entry["top_logprobs"] for entry in entries] == [[]] * 4
        assert all(entry["logprob"] < 0 for entry in entries)
    assert both(cpu.chat, logprobs=False, max_tokens=4)["choices"][0].get("logprobs") is None
    assert both(cpu.complete, max_tokens=4)["choices"][0]["logprobs"] is None
    for top in (1, 2):
        for given in ({}, {"logprobs": False}):
            fields = {"messages": [USER], "top_logprobs": top} | given
            error = refused_twice(cpu, "/v1/chat/completions", **fields)
            assert error["param"] == "top_logprobs"


def test_completion_logprobs_have_the_legacy_shape(cpu):
    answer = cpu.complete(logprobs=3, max_tokens=6)
    found = answer["choices"][0]["logprobs"]
    assert set(found) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert {len(values) for values in found.values()} == {6}
    for token, value, top in zip(
        found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
    ):
        assert 3 <= len(top) <= 4
        # Greedy: the token itself is the first choice.
        assert top[token] == value == max(top.values())


def test_chat_shape_and_true_bytes(cpu):
    entries = chat_logprobs(cpu, top_logprobs=4, max_tokens=12)
    assert len(entries) == 12
    text = b"".join(bytes(entry["bytes"]) for entry in entries).decode("utf-8", "replace")
    assert text == whole(cpu.chat(max_tokens=12))[0][0]
    for entry in entries:
        tops = entry["top_logprobs"]
        assert len(tops) == 4
        assert tops[0]["bytes"] == entry["bytes"]
        values = [top["logprob"] for top in tops]
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1.0001


def test_alternatives_that_are_parts_of_characters_stay_apart(cpu):
    # 85, 179, 343: byte tokens of broken characters, among whatever comes next.
    answer = cpu.complete(temperature=2, seed=3, logprobs=20, max_tokens=50)
    for top in answer["choices"][0]["logprobs"]["top_logprobs"]:
        assert 20 <= len(top) <= 21, "equal texts must not be merged"


@pytest.mark.parametrize("stop", [None, "zzz never"])
def test_streamed_log_probs_equal_the_plain_ones(cpu, stop):
    fields = {"logprobs": True, "top_logprobs": 3, "max_tokens": 15, "stop": stop}
    plain = cpu.chat(**fields)["choices"][0]["logprobs"]["content"]
    events = cpu.chat(**fields, stream=True)
    streamed = [
        entry
        for event in events
        for entry in (event["choices"][0].get("logprobs") or {"content": []})["content"]
    ]
    assert streamed == plain
    fields = {"logprobs": 2, "max_tokens": 15, "stop": stop}
    plain = cpu.complete(**fields)["choices"][0]["logprobs"]
    parts = [e["choices"][0]["logprobs"] for e in cpu.complete(**fields, stream=True)]
    for name, values in plain.items():
        assert [v for part in parts if part for v in part[name]] == values


def values_of(answer):
    found = answer["choices"][0]["logprobs"]
    return found["content"] if "content" in found else list(zip(*found.values(), strict=True))


CHANGES = [
    {"temperature": 0.1}, {"temperature": 1.5}, {"top_p": 0.01, "temperature": 1}, {"min_p": 1},
    {"presence_penalty": 2}, {"frequency_penalty": -2}, {"repetition_penalty": 3},
    {"logit_bias": {"298": 50, "300": 90}}, {"top_k": 1, "temperature": 2},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_log_probs_are_the_models_own_whatever_the_sampling(cpu, ask, change):
    logged = {"logprobs": True, "top_logprobs": 3} if ask == cpu.chat else {"logprobs": 3}
    fields = {"allowed_token_ids": [298], "max_tokens": 3} | logged
    reference = values_of(both(ask, **fields))
    assert len(reference) == 3
    assert values_of(both(ask, **fields | change)) == reference


@pytest.mark.parametrize("stream", [False, True])
def test_the_first_echoed_token_has_no_log_prob(cpu, stream):
    fields = {"prompt": "The quick brown", "echo": True, "logprobs": 1, "max_tokens": 2}
    ids = cpu.post("/tokenize", {"prompt": "The quick brown"}).json["tokens"]
    answer = cpu.complete(**fields, stream=stream)
    parts = answer if stream else [answer]
    parts = [part["choices"][0]["logprobs"] for part in parts]
    values = [v for part in parts if part for v in part["token_logprobs"]]
    tops = [v for part in parts if part for v in part["top_logprobs"]]
    assert len(values) == len(ids) + 2
    assert values[0] is None
    assert tops[0] is None
    assert all(value < 0 for value in values[1:])
    assert (parts[0]["token_logprobs"][0], len(parts[0]["tokens"]) >= len(ids)) == (None, True)


def test_lm_eval_form(cpu):
    # lm-eval: ids, echo, max_tokens 0 or 1, logprobs; sum over the continuation's tokens.
    ids = [[0, 5, 6, 7], [0, 8, 9]]
    for max_tokens in (0, 1):
        answer = cpu.complete(prompt=ids, echo=True, max_tokens=max_tokens, logprobs=1, seed=1)
        for prompt, choice in zip(ids, answer["choices"], strict=True):
            found = choice["logprobs"]
            assert len(found["tokens"]) == len(prompt) + max_tokens
            assert found["token_logprobs"][0] is None
            assert {len(v) for v in found.values()} == {len(prompt) + max_tokens}


def test_each_log_prob_entry_is_its_own_token(cpu):
    prompt = "\n1 2 3 🙂 abc"
    answer = cpu.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=0)
    found = answer["choices"][0]["logprobs"]
    bare = found["tokens"][1:]
    whole_tokens = [token for token in bare if not token.startswith("bytes:")]
    assert all(token in prompt for token in whole_tokens)
    offsets = found["text_offset"]
    assert offsets == sorted(offsets)
    for token, offset in zip(bare, offsets[1:], strict=True):
        if not token.startswith("bytes:"):
            assert prompt[offset : offset + len(token)] == token


def test_echoed_prompts_have_a_bound_that_evaluations_keep(sim):
    fields = {"max_tokens": 0, "echo": True, "temperature": 0}
    reply = sim.post("/v1/completions", {"prompt": [[5] * 500] * 100, "logprobs": 20, **fields})
    assert (reply.status, reply.error["param"]) == (400, "logprobs")
    assert "have 1050000 log-probs, at most 1048576" in reply.error["message"]
    # A batch as lm-eval sends it: 128 prompts, the likeliest token beside each of theirs.
    answer = sim.complete([[5] * 500] * 128, logprobs=1, max_tokens=1, echo=True)
    assert all(len(c["logprobs"]["tokens"]) == 501 for c in answer["choices"])
