"""prompt_logprobs, vLLM's field: what echo with logprobs says, in vLLM's shape, also for chats."""

import pytest

PROMPT = "The quick brown fox"
MESSAGES = [{"role": "user", "content": "Hello there"}]


def echoed(worker, prompt, top):
    """Log-probs of a prompt's tokens, in OpenAI's own form."""
    answer = worker.complete(prompt, echo=True, max_tokens=0, logprobs=top, return_token_ids=True)
    return answer["choices"][0]


def assert_same(entries, choice, top):
    """Both say the same of each token."""
    ids, values = choice["prompt_token_ids"], choice["logprobs"]["token_logprobs"]
    assert len(entries) == len(ids) == len(values)
    assert entries[0] is values[0] is None
    for entry, token, value in zip(entries[1:], ids[1:], values[1:], strict=True):
        own = entry[str(token)]
        assert next(iter(entry)) == str(token), "the prompt's own token comes first"
        assert own["logprob"] == value
        assert len(entry) in (max(1, top), top + 1)
        assert set(own) == {"logprob", "rank", "decoded_token"}
        others = [each for key, each in entry.items() if key != str(token)]
        ranks = [each["rank"] for each in others]
        assert ranks == sorted(ranks)
        assert all((each["logprob"] >= own["logprob"]) == (each["rank"] < own["rank"])
                   for each in others)  # fmt: skip
        # As many tokens are likelier as the rank says.
        assert own["rank"] > top or own["rank"] == 1 + sum(rank < own["rank"] for rank in ranks)


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_completions_give_the_values_of_an_echo(cpu, top):
    answer = cpu.complete(PROMPT, prompt_logprobs=top, n=2, max_tokens=3)
    plain = cpu.complete(PROMPT, n=2, max_tokens=3)
    for choice, other in zip(answer["choices"], plain["choices"], strict=True):
        assert_same(choice.pop("prompt_logprobs"), echoed(cpu, PROMPT, top), top)
        assert choice == other


def test_chats_give_them_beside_the_choices(cpu):
    answer = cpu.chat(MESSAGES, prompt_logprobs=3, return_token_ids=True, logprobs=True)
    ids = answer["prompt_token_ids"]
    assert_same(answer["prompt_logprobs"], echoed(cpu, ids, 3), 3)
    assert len(answer["choices"][0]["logprobs"]["content"]) == 8
    assert "prompt_logprobs" not in cpu.chat(MESSAGES)


def test_each_prompt_has_its_own(cpu):
    prompts = ["The quick", "A slow brown bear"]
    answer = cpu.complete(prompts, prompt_logprobs=2, max_tokens=1)
    for choice, prompt in zip(answer["choices"], prompts, strict=True):
        assert_same(choice["prompt_logprobs"], echoed(cpu, prompt, 2), 2)


def test_a_prompt_in_the_cache_and_a_long_one_have_them_too(cpu):
    # Longer than one step of this server takes.
    prompt = "the lazy dog and " * 30
    for _ in range(2):
        answer = cpu.complete(prompt, prompt_logprobs=1, max_tokens=1)
        assert_same(answer["choices"][0]["prompt_logprobs"], echoed(cpu, prompt, 1), 1)
        cpu.complete(prompt, max_tokens=1)


def test_a_prompt_of_one_token(cpu):
    answer = cpu.complete([5], prompt_logprobs=1, max_tokens=1)
    assert answer["choices"][0]["prompt_logprobs"] == [None]
    answer = cpu.complete([5], echo=True, logprobs=1, max_tokens=1)
    assert answer["choices"][0]["logprobs"]["token_logprobs"][0] is None
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_logprobs": 1, "stream": True},
        {"prompt_logprobs": 0, "stream": True},
        {"prompt_logprobs": -1},
        {"prompt_logprobs": 21},
        {"prompt_logprobs": True},
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_by_name(cpu, fields):
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
    ):
        reply = cpu.post(path, body | fields)
        assert (reply.status, reply.error["param"]) == (400, "prompt_logprobs")


def test_the_number_of_entries_is_bounded(sim):
    long = [[7] * 200] * 100
    body = {"prompt": long, "prompt_logprobs": 20, "max_tokens": 1, "n": 3}
    reply = sim.post("/v1/completions", body)
    assert (reply.status, reply.error["param"]) == (400, "prompt_logprobs")
    assert "at most 1048576 in one request" in reply.error["message"]
