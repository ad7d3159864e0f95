"""Embedding checkpoints in their published forms, against transformers, over HTTP on the CPU."""

import base64
import json
import re

import numpy
import pytest

from server.worker import MODELS, Worker

EMBEDDINGS = MODELS.parent / "embeddings"
CASES = json.loads((EMBEDDINGS / "cases.json").read_text())
REASONS = {
    "qwen3-embedding": "it is a sentence-transformers model",
    "gte-qwen2": "its attention is bidirectional",
    "e5-mistral": "it is a sentence-transformers model",
    "llama-mean": "it is a sentence-transformers model",
}


@pytest.fixture(scope="module", params=sorted(REASONS))
def model(request):
    """Name and server; prompts are cut into several steps where the model lets them."""
    name = request.param
    settings = ["--max-model-len", 256, "--max-num-seqs", 8]
    if name != "gte-qwen2":
        settings += ["--max-num-batched-tokens", 24]
    with Worker("--device", "cpu", *settings, model=EMBEDDINGS / name) as worker:
        yield name, worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()


def vectors(worker, inputs, **fields):
    reply = worker.post("/v1/embeddings", {"input": inputs} | fields)
    assert reply.status == 200, reply.body
    return numpy.array([item["embedding"] for item in reply.json["data"]])


def test_vectors_are_the_reference_s(model):
    name, worker = model
    texts = [case["text"] for case in CASES[name]]
    expected = numpy.array([case["embedding"] for case in CASES[name]])
    for inputs in (texts, [case["ids"] for case in CASES[name]]):
        together = vectors(worker, inputs)
        assert numpy.abs(together - expected).max() < 2e-5
        for text, vector in zip(inputs, together, strict=True):
            assert (vectors(worker, [text])[0] == vector).all()


def test_the_request_may_ask_for_another_pooling(model):
    name, worker = model
    other = "last" if name == "llama-mean" else "mean"
    own, asked = vectors(worker, "one two three"), vectors(worker, "one two three", pooling=other)
    assert numpy.abs(own - asked).max() > 1e-3


def test_every_form_of_a_request_and_what_is_none(model):
    name, worker = model
    case = CASES[name][0]
    size = len(case["embedding"])
    packed = worker.post(
        "/v1/embeddings",
        {"input": [case["text"], case["text"]], "encoding_format": "base64", "dimensions": size},
    )
    floats = vectors(worker, case["ids"], dimensions=None, encoding_format="float", user="u")
    for item in packed.json["data"]:
        found = numpy.frombuffer(base64.b64decode(item["embedding"]), "<f4")
        assert (found == floats[0].astype("f4")).all()
    assert (vectors(worker, [case["ids"], case["ids"]]) == floats[0]).all()
    long = [5] * 257
    for wrong, param in (
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[5], []]}, "input[1]"),
        ({"input": [5, -1]}, "input[1]"),
        ({"input": [[5], [5, 2**31]]}, "input[1][1]"),
        ({"input": long}, "input"),
        ({"input": [[5], long]}, "input[1]"),
        ({"input": "x", "dimensions": size // 2}, "dimensions"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
    ):
        reply = worker.post("/v1/embeddings", wrong)
        assert (reply.status, reply.error["param"]) == (400, param), reply.body
        assert param.split("[")[0] in reply.error["message"]
    assert vectors(worker, [5] * 256).shape == (1, size)
    kept = vectors(worker, long, truncate_prompt_tokens=256)
    assert (kept == vectors(worker, [5] * 256)).all()


def test_generation_is_refused_by_name(model):
    name, worker = model
    chat = {"messages": [{"role": "user", "content": "x"}]}
    message = f"model: {name} makes embeddings only ({REASONS[name]}); use /v1/embeddings"
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/completions", {"prompt": "x", "stream": True}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0, "echo": True, "logprobs": 1}),
        ("/v1/chat/completions", chat),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", chat | {"max_tokens": 5}),
    ):
        reply = worker.post(path, body)
        assert reply.status == 400, (path, reply.body)
        assert reply.json["error"]["message"] == message, path


def test_the_start_and_the_model_s_card_say_what_it_serves(model):
    name, worker = model
    assert f"serves      embeddings only, since {REASONS[name]}\n" in worker.summary
    assert worker.get("/v1/models").json["data"][0]["tasks"] == ["embed"]


def test_a_model_that_generates_says_so(cpu):
    assert re.search(r"^serves +completions, chats \(.*\), embeddings$", cpu.summary, re.M)
    assert cpu.get("/v1/models").json["data"][0]["tasks"] == ["generate", "embed"]


def test_a_prompt_that_no_step_holds_is_refused():
    """Of a model that sees whole prompts: its context ends where a step does."""
    settings = ["--device", "cpu", "--max-num-batched-tokens", 40]
    with Worker(*settings, model=EMBEDDINGS / "gte-qwen2") as worker:
        assert "max-model-len: 40 tokens of the model's 512" in worker.summary
        assert vectors(worker, [[5] * 40]).shape == (1, 64)
        reply = worker.post("/v1/embeddings", {"input": [[5] * 41]})
        assert reply.status == 400
        assert reply.json["error"]["code"] == "context_length_exceeded"
