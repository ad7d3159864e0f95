"""Forms and lengths of prompts, and limits."""

import pytest

from server.twice import both, counts, refused_twice
from server.worker import whole

CONTEXT = 2048


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [[], [[]], [[], [1]], [[1], []]])
def test_a_prompt_without_tokens_is_refused(cpu, prompt, stream):
    assert refused(cpu, prompt=prompt, stream=stream)["param"].startswith("prompt")


def test_an_empty_prompt_without_a_begin_token_is_refused(cpu):
    assert refused(cpu, prompt="", add_special_tokens=False)["param"].startswith("prompt")


def test_token_ids_are_used_as_they_are(cpu):
    ids = cpu.post("/tokenize", {"prompt": "The quick brown"}).json["tokens"]
    assert ids[0] == 0
    texts = text_of(cpu.complete(prompt="The quick brown"))
    assert text_of(cpu.complete(prompt=ids)) == texts
    assert text_of(cpu.complete(prompt="The quick brown", add_special_tokens=False)) == text_of(
        cpu.complete(prompt=ids[1:])
    )
    assert cpu.complete(prompt=ids[1:])["usage"]["prompt_tokens"] == len(ids) - 1


def test_choices_come_in_the_order_of_prompts(cpu):
    alone = [text_of(cpu.complete(prompt=p)) for p in ("one", "two", [5, 6])]
    assert [c["text"] for c in cpu.complete(prompt=["one", "two"])["choices"]] == alone[:2]
    assert cpu.complete(prompt=[[5, 6], [5, 6]])["choices"][1]["text"] == alone[2]


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


def test_max_completion_tokens_wins_over_max_tokens(cpu):
    fields = {"max_tokens": None, "ignore_eos": True}
    assert cpu.chat(**fields, max_completion_tokens=5)["usage"]["completion_tokens"] == 5
    fields["max_tokens"] = 9
    assert cpu.chat(**fields, max_completion_tokens=5)["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"suffix": "x"},
        {"logprobs": True},
        {"tools": [{"type": "function"}]},
        {"use_beam_search": True},
        {"no_such_field": 1},
    ],
)
def test_a_field_that_is_not_honoured_is_refused_by_name(cpu, fields):
    assert refused(cpu, prompt="x", **fields)["param"] == next(iter(fields))


@pytest.mark.parametrize("n", [0, -1, 129, 1_000_000])
def test_n_out_of_range_is_refused(cpu, n):
    assert refused(cpu, prompt="x", n=n)["param"] == "n"


def test_prompts_times_choices_are_bounded(cpu):
    assert refused(cpu, prompt=["x"] * 1000, n=128)["param"] in ("n", "prompt")


def test_echo(cpu):
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


def test_tokenize_errors(cpu):
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
