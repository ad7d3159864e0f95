"""The HTTP calls of clients too large to install here: lm-eval, guidellm and open-webui.

Each test makes the calls that the client's source makes (lm-eval 0.4.13, guidellm 0.7.3,
open-webui's router for OpenAI's API) and reads of the answers what the client reads.
docs/COMPATIBILITY.md says what was run for real.
"""

import json

import jinja2
import pytest

from server.test_structured import TOOLS
from server.worker import http_request, parse_events

MODEL = "llama-tied-bf16"
NO_KEY = {"Authorization": "Bearer "}
"""What all three send where no key is set."""


class RemoteTokenizer:
    """lm-eval's tokenizer of the kind `remote`."""

    def __init__(self, worker):
        self._worker = worker
        self.info = self._answer(worker.get("/tokenizer_info", headers=NO_KEY))

    def encode(self, text):
        body = {"prompt": text, "add_special_tokens": False}
        return self._answer(self._worker.post("/tokenize", body, headers=NO_KEY))["tokens"]

    def decode(self, tokens):
        body = {"tokens": tokens}
        return self._answer(self._worker.post("/detokenize", body, headers=NO_KEY))["prompt"]

    @staticmethod
    def _answer(reply):
        assert reply.status == 200, reply.body
        return reply.json


def test_lm_eval_takes_the_server_for_a_remote_tokenizer(cpu):
    tokenizer = RemoteTokenizer(cpu)
    assert "eos_token" in tokenizer.info, "else lm-eval falls back to Hugging Face"
    assert isinstance(tokenizer.encode("test"), list)


def test_lm_eval_s_remote_tokenizer(cpu):
    tokenizer = RemoteTokenizer(cpu)
    for name in ("bos_token", "eos_token"):
        [token_id] = tokenizer.encode(tokenizer.info[name])
        assert tokenizer.decode([token_id]) == tokenizer.info[name]
    ids = tokenizer.encode("The quick brown fox")
    assert tokenizer.decode(ids) == "The quick brown fox"
    # apply_chat_template renders here, not on the server.
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(tokenizer.info["chat_template"])
    messages = [{"role": "user", "content": "Hello"}]
    rendered = template.render(messages=messages, add_generation_prompt=True)
    assert (
        tokenizer.encode(rendered) == cpu.post("/tokenize", {"messages": messages}).json["tokens"]
    )


@pytest.mark.parametrize("batch_size", [1, 2])
def test_lm_eval_s_loglikelihoods(cpu, batch_size):
    tokenizer = RemoteTokenizer(cpu)
    context, continuation = tokenizer.encode("The quick"), tokenizer.encode(" brown fox")
    body = {
        "model": MODEL, "prompt": [context + continuation] * batch_size, "temperature": 0,
        "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True,
    }  # fmt: skip
    reply = cpu.post("/v1/completions", body, headers=NO_KEY)
    assert reply.status == 200, reply.body
    choices = sorted(reply.json["choices"], key=lambda choice: choice["index"])
    assert len(choices) == batch_size
    for choice in choices:
        logprobs = choice["logprobs"]
        # The last entry is the token that was generated.
        of_continuation = logprobs["token_logprobs"][len(context) : -1]
        tops = logprobs["top_logprobs"][len(context) : -1]
        assert len(of_continuation) == len(tops) == len(continuation)
        for value, top in zip(of_continuation, tops, strict=True):
            assert value <= max(top.values()) <= 0
    assert len({sum(c["logprobs"]["token_logprobs"][1:]) for c in choices}) == 1


def test_lm_eval_s_generations(cpu):
    tokenizer = RemoteTokenizer(cpu)
    prompt = tokenizer.encode("The quick")
    body = {
        "prompt": [prompt], "model": MODEL, "max_tokens": 8, "temperature": 0,
        "stop": ["\n", tokenizer.info["eos_token"]], "seed": 1234,
    }  # fmt: skip
    [choice] = cpu.post("/v1/completions", body, headers=NO_KEY).json["choices"]
    assert choice["index"] == 0
    assert choice["text"] == cpu.complete(prompt, stop=["\n"])["choices"][0]["text"]


@pytest.mark.parametrize("stop", [[], ["\n\n", "Q:", "</s>", "<|im_end|>"]])
def test_lm_eval_s_chats(cpu, stop):
    messages = [{"role": "user", "content": "Hello", "type": "text"}]
    body = {
        "messages": messages, "model": MODEL, "max_tokens": 8, "temperature": 0, "stop": stop,
        "seed": 1234,
    }  # fmt: skip
    [choice] = cpu.post("/v1/chat/completions", body, headers=NO_KEY).json["choices"]
    expected = cpu.chat("Hello", max_tokens=8)["choices"][0]["message"]["content"]
    assert choice["message"]["content"] == expected


STREAMED = {
    "model": MODEL,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
TEXT_PARTS = [{"type": "text", "text": "Hello"}]


def guidellm_usage(events):
    """What guidellm keeps: the last usage that comes by."""
    return [event["usage"] for event in events if event.get("usage")][-1]


def test_guidellm_looks_at_health_and_models(cpu):
    assert cpu.get("/health").status == 200
    assert [item["id"] for item in cpu.get("/v1/models", headers=NO_KEY).json["data"]] == [MODEL]


def test_guidellm_s_streams_have_exactly_the_tokens_asked_for(cpu):
    body = STREAMED | {"max_tokens": 12, "ignore_eos": True, "prompt": "The quick"}
    events = parse_events(cpu.post("/v1/completions", body).body)
    assert guidellm_usage(events)["completion_tokens"] == 12
    assert any(event["choices"] and event["choices"][0].get("text") for event in events)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT_PARTS}]
    body = STREAMED | {"max_completion_tokens": 12, "ignore_eos": True, "messages": messages}
    events = parse_events(cpu.post("/v1/chat/completions", body).body)
    usage = guidellm_usage(events)
    assert usage["completion_tokens"] == 12
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0
    assert all(event["id"] == events[0]["id"] for event in events)


def test_guidellm_s_tool_calls(hermes):
    messages = [{"role": "user", "content": TEXT_PARTS}]
    fields = {"messages": messages, "tools": TOOLS, "tool_choice": "required", "seed": 4}
    events = parse_events(hermes.post("/v1/chat/completions", STREAMED | fields).body)
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or []]
    assert calls[0]["id"]
    assert calls[0]["function"]["name"] in ("weather", "news")
    first = [call for call in calls if call["index"] == 0]
    json.loads("".join(call["function"].get("arguments") or "" for call in first))


def test_guidellm_s_responses_and_embeddings(cpu):
    content = [{"type": "input_text", "text": "Hello"}]
    body = {
        "model": MODEL, "stream": True, "max_output_tokens": 12, "ignore_eos": True,
        "instructions": "Be brief.", "input": [{"role": "user", "content": content}],
    }  # fmt: skip
    lines = cpu.post("/v1/responses", body).body.split(b"\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
    assert events[-1]["response"]["usage"]["output_tokens"] == 12
    for given in ("a b", ["a b", "c"]):
        answer = cpu.post("/v1/embeddings", {"model": MODEL, "input": given}).json
        assert answer["usage"]["prompt_tokens"] > 0
        assert answer["data"][0]["embedding"]


def test_open_webui_lists_models_and_chats(cpu):
    assert cpu.get("/v1/models", headers=NO_KEY).json["data"][0]["id"] == MODEL
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    body = {
        "stream": True, "model": MODEL, "messages": messages,
        "stream_options": {"include_usage": True},
        "temperature": 0.8, "top_p": 0.9, "max_tokens": 12, "frequency_penalty": 0.1, "seed": 1,
        "presence_penalty": 0.1, "top_k": 40, "min_p": 0.05, "stop": ["###"],
        "logit_bias": {"5": -1},
    }  # fmt: skip
    headers = NO_KEY | {"X-OpenWebUI-User-Name": "Jo%20Doe", "X-OpenWebUI-Chat-Id": "c-1"}
    reply = cpu.post("/v1/chat/completions", body, headers=headers)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert parse_events(reply.body)[-1]["usage"]["completion_tokens"] <= 12


def test_open_webui_s_titles_and_documents(cpu):
    messages = [{"role": "user", "content": "### Task:\nGenerate a title."}]
    for limit in ("max_completion_tokens", "max_tokens"):
        body = {"model": MODEL, "messages": messages, "stream": False, limit: 5}
        body["temperature"] = 0  # Of its own, the noise model ends some answers at once.
        reply = cpu.post("/v1/chat/completions", body, headers=NO_KEY)
        assert reply.json["choices"][0]["message"]["content"]
    body = {"input": ["a b", "c"], "model": MODEL}
    data = cpu.post("/v1/embeddings", body, headers=NO_KEY).json["data"]
    assert [len(item["embedding"]) for item in data] == [len(data[0]["embedding"])] * 2


def test_open_webui_stops_a_chat_by_closing_the_connection(cpu):
    body = {"stream": True, "model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
    with cpu.connect() as connection:
        sent = json.dumps(body | {"max_tokens": 1500}).encode()
        connection.sendall(http_request("POST", "/v1/chat/completions", sent))
        assert connection.recv(65536)
    cpu.wait_until_idle()
