"""The render endpoints: what a router learns of a request is what the worker would run."""

import pytest

from server.worker import Worker


@pytest.fixture(scope="module")
def worker():
    with Worker("--device", "cpu", "--max-model-len", 200) as running:
        yield running
        assert running.stop() == 0, running.errors()


def test_rendered_completions_generate_the_same_text(worker):
    asked = {"prompt": ["The quick", "A"], "max_tokens": 6, "temperature": 0, "seed": 4}
    rendered = worker.post("/v1/completions/render", asked).json
    assert [each["request_id"][-2:] for each in rendered] == ["-0", "-1"]
    texts = [choice["text"] for choice in worker.complete(**asked)["choices"]]
    again = worker.complete([each["token_ids"] for each in rendered], max_tokens=6, seed=4)
    assert [choice["text"] for choice in again["choices"]] == texts
    params = rendered[0]["sampling_params"]
    assert (params["max_tokens"], params["temperature"], params["seed"]) == (6, 0, 4)
    assert params["top_p"] == 1.0


def test_a_rendered_chat_is_the_prompt_of_that_chat(worker):
    messages = [{"role": "user", "content": "Hello there"}]
    body = {"messages": messages, "cache_salt": "x", "priority": 3, "stream": True}
    rendered = worker.post("/v1/chat/completions/render", body).json
    assert rendered["token_ids"] == worker.post("/tokenize", {"messages": messages}).json["tokens"]
    assert (rendered["cache_salt"], rendered["priority"]) == ("x", 3)
    assert rendered["stream"] is True
    # Absent means what the context has room for.
    left = 200 - len(rendered["token_ids"])
    assert rendered["sampling_params"]["max_tokens"] == left


def test_a_truncated_prompt_is_rendered_truncated(worker):
    body = {"prompt": [5, 6, 7, 8], "truncate_prompt_tokens": 2}
    assert worker.post("/v1/completions/render", body).json[0]["token_ids"] == [7, 8]


def test_a_wrong_request_is_refused_as_it_is_elsewhere(worker):
    messages = [{"role": "user", "content": "Hello"}]
    body = {"messages": messages, "temperature": 9}
    reply = worker.post("/v1/chat/completions/render", body)
    assert reply.status == 400
    assert "temperature" in reply.json["error"]["message"]
    reply = worker.post("/v1/completions/render", {"prompt": "x", "model": "other"})
    assert reply.status == 404
    assert worker.metric("vllm:gpu_prefix_cache_queries_total") == worker.metric(
        "vllm:prefix_cache_queries_total"
    )


def test_sampling_parameters_are_rendered_as_they_were_given(worker):
    given = {
        "n": 2, "min_tokens": 1, "stop": ["x"], "stop_token_ids": [7], "bad_words": ["no"],
        "ignore_eos": True, "include_stop_str_in_output": True, "skip_special_tokens": False,
        "logit_bias": {"5": 1.5}, "allowed_token_ids": [5, 6], "logprobs": 1, "prompt_logprobs": 2,
    }  # fmt: skip
    body = {"prompt": [5, 6], "max_tokens": 4, **given}
    params = worker.post("/v1/completions/render", body).json[0]["sampling_params"]
    assert {name: params[name] for name in given} == given
    nulls = dict.fromkeys(given)
    plain = worker.post("/v1/completions/render", {"prompt": [5, 6], **nulls}).json[0]
    params = plain["sampling_params"]
    assert (params["n"], params["stop"], params["bad_words"]) == (1, [], [])
    assert (params["skip_special_tokens"], params["ignore_eos"]) == (True, False)
    assert params["logit_bias"] is params["allowed_token_ids"] is None
