"""Prompts, limits and log-probabilities, plain and streamed."""

import pytest

from server.reciter import Recital
from server.twice import ASKED, PATHS, both, refused_twice, text_of
from server.worker import Worker, joined

USER = {"role": "user", "content": "x"}
THINKING = (
    "{% for m in messages %}{{ m.role }}:"
    "{% set thought = m.reasoning_content or '' %}"
    "{% if thought %}<think>\n{{ thought }}\n</think>\n{% endif %}{{ m.content }}\n{% endfor %}"
    "{{ '<think>\n' }}"
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A model that thinks before it answers."""
    recital = Recital()
    recital.add("\n", "let me see, why not\n</think>\n\nYes.")
    folder = recital.save(tmp_path_factory.mktemp("thinker"), THINKING)
    with Worker("--device", "cpu", model=folder) as worker:
        worker.recital = recital
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()


@pytest.fixture(params=PATHS)
def ask(request, cpu):
    return getattr(cpu, request.param)


def test_every_form_of_a_prompt_gives_the_same_answer(cpu):
    ids = cpu.post("/tokenize", {"prompt": "The quick"}).json["tokens"]
    fields = {"max_tokens": 6, "return_token_ids": True}
    one = both(cpu.complete, "The quick", **fields)["choices"]
    two = both(cpu.complete, [5, 6], **fields)["choices"]
    assert one[0]["prompt_token_ids"] == ids
    assert two[0]["prompt_token_ids"] == [5, 6], "no start token is put in front of ids"
    assert both(cpu.complete, ids, **fields)["choices"] == one
    assert both(cpu.complete, ["The quick"], **fields)["choices"] == one
    assert both(cpu.complete, [ids], **fields)["choices"] == one
    expected = [c | {"index": i} for i, c in enumerate([*one, *two, *one])]
    answer = both(cpu.complete, [ids, [5, 6], ids], **fields)
    assert answer["choices"] == expected
    assert answer["usage"]["prompt_tokens"] == 2 * len(ids) + 2
    assert both(cpu.complete, ["x", "The quick"], **fields)["choices"][1] == one[0] | {"index": 1}


def test_choices_follow_the_order_of_prompts(cpu):
    fields = {"n": 3, "temperature": 1, "seed": 5, "max_tokens": 6}
    prompts = [[5, 6, 7], [8, 9], [10]]
    answer = both(cpu.complete, prompts, **fields)
    assert [choice["index"] for choice in answer["choices"]] == list(range(9))
    for i, prompt in enumerate(prompts):
        alone = both(cpu.complete, prompt, **fields)["choices"]
        mine = answer["choices"][3 * i : 3 * i + 3]
        assert [c["text"] for c in mine] == [c["text"] for c in alone]


@pytest.mark.parametrize("prompt", [[], [[]], [[1], []], [""], ["x", ""]])
def test_a_prompt_without_tokens_is_refused(cpu, prompt):
    body = {"prompt": prompt, "add_special_tokens": False}
    assert refused_twice(cpu, "/v1/completions", **body)["param"].startswith("prompt")


@pytest.mark.parametrize("limit", [1, 3, 6])
def test_a_limit_within_the_reasoning_ends_with_length(thinker, limit):
    answer = both(thinker.chat, max_tokens=None, max_completion_tokens=limit)
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    told = b"".join(thinker.recital.pieces["\n"][:limit]).decode()
    # White space belongs to the marker that may follow.
    assert choice["message"]["reasoning_content"] == told.rstrip()
    assert answer["usage"]["completion_tokens"] == limit


def test_the_answer_follows_the_reasoning(thinker):
    [choice] = both(thinker.chat, max_tokens=None, max_completion_tokens=200)["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("let me see, why not", "Yes.")
    assert choice["finish_reason"] == "stop"


def test_reasoning_and_reasoning_content_are_both_read(thinker):
    """Our answers say `reasoning_content`; some clients send it back as `reasoning`."""

    def prompt_tokens(**thought):
        history = [USER, {"role": "assistant", "content": "Yes."} | thought, USER]
        return both(thinker.chat, history, max_tokens=1)["usage"]["prompt_tokens"]

    without = prompt_tokens()
    thought = "because of this and that"
    with_it = prompt_tokens(reasoning_content=thought)
    assert with_it == without + len(f"<think>\n{thought}\n</think>\n")
    assert prompt_tokens(reasoning=thought) == with_it
    assert prompt_tokens(reasoning=thought, reasoning_content=None) == with_it
    assert prompt_tokens(reasoning="", reasoning_content="") == without


def test_max_completion_tokens_wins(cpu):
    for max_tokens in (None, 3, 9):
        fields = {"max_tokens": max_tokens, "max_completion_tokens": 5, "ignore_eos": True}
        answer = both(cpu.chat, **fields)
        assert answer["usage"]["completion_tokens"] == 5
        assert answer["choices"][0]["finish_reason"] == "length"
    assert both(cpu.chat, max_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3
    for value in (0, -1, 1.5, "5"):
        error = refused_twice(
            cpu, "/v1/chat/completions", messages=[USER], max_completion_tokens=value
        )
        assert error["param"] == "max_completion_tokens"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"suffix": "x"}),
        ("/v1/completions", {"logprobs": True}),
        ("/v1/completions", {"use_beam_search": True}),
        ("/v1/completions", {"max_completion_tokens": 5}),
        ("/v1/completions", {"no_such_field": 1}),
        ("/v1/chat/completions", {"suffix": "x"}),
        ("/v1/chat/completions", {"echo": True}),
        ("/v1/chat/completions", {"best_of": 2}),
        ("/v1/chat/completions", {"logprobs": 3}),
        ("/v1/chat/completions", {"store": True}),
        ("/v1/chat/completions", {"functions": [{"name": "f"}]}),
        ("/v1/chat/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"no_such_field": 1}),
    ],
)
def test_a_field_that_is_not_honoured_is_refused_by_name(cpu, path, fields):
    error = refused_twice(cpu, path, **ASKED[path] | fields)
    assert error["param"] == next(iter(fields))


def test_echo_n_and_best_of_have_their_effect(cpu):
    text = text_of(cpu.complete, "The quick")
    assert text_of(cpu.complete, "The quick", echo=True) == "The quick" + text
    assert len(both(cpu.complete, n=3)["choices"]) == 3
    best = cpu.complete(best_of=3, n=2, temperature=1, seed=1)
    assert len(best["choices"]) == 2
    reply = cpu.post("/v1/completions", {"prompt": "x", "best_of": 3, "stream": True})
    assert (reply.status, reply.error["param"]) == (400, "best_of")


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("n", [0, -1, 129, 1_000_000, 2**63, 1.5, "2", True])
def test_n_out_of_range_is_refused(cpu, path, n):
    assert refused_twice(cpu, path, **ASKED[path], n=n)["param"] == "n"


def test_prompts_times_choices_are_bounded(cpu):
    error = refused_twice(cpu, "/v1/completions", prompt=["x"] * 1000, n=128)
    assert error["param"] in ("n", "prompt")


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


def test_a_stream_has_no_usage_unless_asked(thinker):
    """Also where the parsers of reasoning stand between."""
    events = thinker.chat(stream=True, max_tokens=200)
    assert all(event["choices"] for event in events)
    assert not any(event.get("usage") for event in events)
    assert joined(events) == {0: ("Yes.", ["stop"])}
