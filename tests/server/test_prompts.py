"""Forms and lengths of prompts, and limits."""

import pytest

from server.twice import ASKED, both, counts, refused_twice
from server.worker import whole

CONTEXT = 2048
USER = {"role": "user", "content": "x"}


def text_of(answer):
    return whole(answer)[0][0]


def refused(worker, path="/v1/completions", status=400, **body):
    reply = worker.post(path, body)
    assert reply.status == status, reply.body
    return reply.error


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_prompt_starts_from_the_begin_token(cpu, stream):
    assert text_of(cpu.complete(prompt="")) == text_of(cpu.complete(prompt=[0]))
    assert text_of(cpu.complete(prompt=[""])) == text_of(cpu.complete(prompt=""))
    cpu.complete(prompt="", stream=stream)


@pytest.mark.parametrize(
    ("prompt", "add_special_tokens"),
    [
        *((prompt, True) for prompt in ([], [[]], [[], [1]], [[1], []])),
        *((prompt, False) for prompt in ("", [], [[]], [[1], []], [""], ["x", ""])),
    ],
)
def test_a_prompt_without_tokens_is_refused(cpu, prompt, add_special_tokens):
    body = {"prompt": prompt, "add_special_tokens": add_special_tokens}
    assert refused_twice(cpu, "/v1/completions", **body)["param"].startswith("prompt")


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


def test_token_ids_are_used_as_they_are(cpu):
    ids = cpu.post("/tokenize", {"prompt": "The quick brown"}).json["tokens"]
    assert ids[0] == 0
    texts = text_of(cpu.complete(prompt="The quick brown"))
    assert text_of(cpu.complete(prompt=ids)) == texts
    assert text_of(cpu.complete(prompt="The quick brown", add_special_tokens=False)) == text_of(
        cpu.complete(prompt=ids[1:])
    )
    assert cpu.complete(prompt=ids[1:])["usage"]["prompt_tokens"] == len(ids) - 1


@pytest.mark.parametrize("token", [388, 400, 511, 512, 2**31 - 1])
def test_token_ids_beyond_the_tokenizer_are_refused(cpu, token):
    assert refused(cpu, prompt=[1, token])["param"].startswith("prompt")
    assert refused(cpu, prompt="x", allowed_token_ids=[token])["param"] == "allowed_token_ids[0]"
    assert refused(cpu, prompt="x", logit_bias={str(token): 1})["param"] == "logit_bias"
    assert refused(cpu, prompt="x", stop_token_ids=[token])["param"] == "stop_token_ids[0]"
    assert refused(cpu, "/detokenize", tokens=[token])["param"] == "tokens[0]"


def test_rows_without_a_token_are_never_sampled(cpu):
    # 124 of the model's 512 rows have no token; a flat distribution would hit them soon.
    answer = cpu.complete(temperature=2, n=8, max_tokens=100, return_token_ids=True, seed=1)
    assert max(i for choice in answer["choices"] for i in choice["token_ids"]) < 388


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_zero_computes_the_prompt_only(cpu, stream):
    answer = cpu.complete(max_tokens=0, stream=stream)
    if stream:
        [choice] = [choice for event in answer for choice in event["choices"]]
        assert (choice["text"], choice["finish_reason"]) == ("", "length")
        return
    assert whole(answer) == {0: ("", ["length"])}
    assert answer["usage"]["completion_tokens"] == 0
    message = {"role": "user", "content": "x"}
    assert refused(cpu, "/v1/chat/completions", messages=[message], max_tokens=0)["param"] == (
        "max_tokens"
    )


def test_max_tokens_null_equals_absent(cpu):
    answer = both(cpu.complete, max_tokens=None, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("max_tokens", [None, 1, 100])
def test_a_prompt_beyond_the_context_is_400_with_the_numbers(cpu, path, max_tokens, stream):
    body = {"stream": stream}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if path == "/v1/completions":
        body["prompt"] = [5] * (CONTEXT + 1)
    else:
        body["messages"] = [{"role": "user", "content": "x " * CONTEXT}]
    error = refused(cpu, path, **body)
    assert error["code"] == "context_length_exceeded"
    assert str(CONTEXT) in error["message"]
    assert "-" not in error["message"].replace("x-", ""), "no negative numbers"


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_and_answer_may_just_fill_the_context(cpu, stream):
    assert refused(cpu, prompt=[5] * CONTEXT, stream=stream)["code"] == "context_length_exceeded"
    one_left = {"prompt": [5] * (CONTEXT - 1), "ignore_eos": True, "stream": stream}
    assert refused(cpu, **one_left, max_tokens=2)["code"] == "context_length_exceeded"
    answer = cpu.complete(**one_left, max_tokens=1)
    if not stream:
        assert answer["usage"]["completion_tokens"] == 1
        assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_the_one_of_several_prompts_that_is_too_long_is_named(cpu, stream):
    long = [5] * CONTEXT
    error = refused(cpu, prompt=[[5], long], max_tokens=1, stream=stream)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt[1]")
    assert f"but prompt[1] has {CONTEXT} tokens" in error["message"]
    error = refused(cpu, prompt=[[5], long[1:]], max_tokens=2, stream=stream)
    assert f"({CONTEXT - 1} in prompt[1], 2 for the answer)" in error["message"]
    error = refused(cpu, prompt=[[5], [6], [*long, 5]], max_tokens=0, echo=True, stream=stream)
    assert error["param"] == "prompt[2]"
    assert f"prompt[2] has {CONTEXT + 1} tokens" in error["message"]


def test_chat_without_max_tokens_takes_the_rest_of_the_context(sim):
    answer = both(sim.chat, "x", max_tokens=None, ignore_eos=True)
    assert answer["usage"]["total_tokens"] == CONTEXT
    assert answer["choices"][0]["finish_reason"] == "length"


def test_no_prompt_is_cut_unless_asked(cpu):
    path, long = "/v1/completions", [5] * CONTEXT + [6, 7]
    error = refused_twice(cpu, path, prompt=long, max_tokens=4)
    assert error["code"] == "context_length_exceeded"
    cut = both(cpu.complete, long, max_tokens=4, truncate_prompt_tokens=2)
    assert cut["usage"]["prompt_tokens"] == 2
    assert text_of(cut) == text_of(cpu.complete(prompt=[6, 7], max_tokens=4))
    fits = both(cpu.complete, long, max_tokens=4, truncate_prompt_tokens=-1)
    assert fits["usage"]["prompt_tokens"] == CONTEXT - 4
    error = refused_twice(cpu, path, prompt=[1], truncate_prompt_tokens=0)
    assert error["param"] == "truncate_prompt_tokens"


def test_no_message_is_dropped_unless_asked(cpu):
    question = {"role": "user", "content": "Why?"}
    messages = [{"role": "user", "content": "x " * CONTEXT}, question]
    error = refused_twice(cpu, "/v1/chat/completions", messages=messages, max_tokens=4)
    assert error["code"] == "context_length_exceeded"
    alone = both(cpu.chat, [question], max_tokens=4)
    asked = {"max_tokens": 4, "truncate_prompt_tokens": alone["usage"]["prompt_tokens"]}
    cut = both(cpu.chat, messages, **asked)
    assert counts(cut["usage"]) == counts(alone["usage"])
    assert text_of(cut) == text_of(alone)


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
        ("/v1/completions", {"tools": [{"type": "function"}]}),
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
    text = text_of(both(cpu.complete, "The quick"))
    assert text_of(both(cpu.complete, "The quick", echo=True)) == "The quick" + text
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


def test_echo_puts_the_prompt_before_the_answer(cpu):
    plain = cpu.complete()
    assert text_of(cpu.complete(echo=True)) == "The quick" + text_of(plain)
    assert text_of(cpu.complete(echo=True, max_tokens=0)) == "The quick"
    events = cpu.complete(echo=True, stream=True)
    assert "".join(e["choices"][0]["text"] for e in events) == "The quick" + text_of(plain)


def test_tokenize_and_detokenize(cpu):
    text = "Hello there, 12 🙂!"
    reply = cpu.post("/tokenize", {"prompt": text, "return_token_strs": True}).json
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"])
    assert reply["max_model_len"] == CONTEXT
    bare = cpu.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json
    assert bare["tokens"] == reply["tokens"][1:]
    assert bare["token_strs"] is None
    assert cpu.post("/detokenize", {"tokens": bare["tokens"]}).json == {"prompt": text}
    messages = [{"role": "user", "content": "Hi"}]
    chat = cpu.post("/tokenize", {"messages": messages}).json
    assert chat["count"] == cpu.chat(messages)["usage"]["prompt_tokens"]
    assert cpu.post("/detokenize", {"tokens": chat["tokens"]}).json["prompt"] == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tokenize_errors_name_the_field(cpu):
    assert refused(cpu, "/tokenize")["param"] == "prompt"
    assert refused(cpu, "/tokenize", messages=[])["param"] == "messages"
    assert refused(cpu, "/tokenize", prompt="x", nonsense=1)["param"] == "nonsense"
    assert refused(cpu, "/tokenize", prompt="x", model="y", status=404)["param"] == "model"
    assert refused(cpu, "/detokenize", tokens=[-1])["param"].startswith("tokens")
    # A string that looks like the other form's key is still a string.
    assert cpu.post("/tokenize", {"prompt": '"messages": []'}).status == 200


@pytest.mark.parametrize("filler", ["a", " ", "\u0301", "🙂"])
def test_tokenising_a_long_run_of_one_character_is_linear(cpu, filler):
    text = filler * (1_000_000 // len(filler.encode()))
    reply = cpu.post("/v1/completions", {"prompt": text})
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded"
