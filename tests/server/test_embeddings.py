"""POST /v1/embeddings on the CPU: forms of input, both encodings, both poolings, refusals."""

import base64

import numpy
import openai
import pytest

TEXTS = ["The quick brown fox", "jumps over", "The quick brown fox"]


def embed(worker, text, **fields):
    """Vectors [n, hidden] and the whole answer."""
    reply = worker.post("/v1/embeddings", {"input": text} | fields)
    assert reply.status == 200, reply.body
    answer = reply.json
    assert answer["object"] == "list"
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    assert {item["object"] for item in answer["data"]} == {"embedding"}
    if fields.get("encoding_format") == "base64":
        raw = [base64.b64decode(item["embedding"], validate=True) for item in answer["data"]]
        return numpy.array([numpy.frombuffer(r, "<f4") for r in raw]), answer
    return numpy.array([item["embedding"] for item in answer["data"]], "f4"), answer


def refusal(worker, **body):
    reply = worker.post("/v1/embeddings", {"input": "x"} | body)
    assert reply.status == 400, reply.body
    return reply.error["param"]


@pytest.mark.parametrize("pooling", ["last", "mean", None])
def test_vectors_have_length_1_and_depend_on_the_text_alone(cpu, pooling):
    vectors, answer = embed(cpu, TEXTS, pooling=pooling)
    assert vectors.shape == (3, 128)
    assert numpy.allclose(numpy.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert (vectors[0] == vectors[2]).all()
    assert not numpy.allclose(vectors[0], vectors[1], atol=0.01)
    for vector, text in zip(vectors, TEXTS, strict=True):
        assert (embed(cpu, text, pooling=pooling)[0] == vector).all()
    assert answer["model"] == "llama-tied-bf16"
    usage = answer["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] > 6


def test_forms_of_input(cpu):
    ids = cpu.post("/tokenize", {"prompt": TEXTS[0]}).json["tokens"]
    by_text = embed(cpu, TEXTS[0])[0]
    for form in ([TEXTS[0]], ids, [ids]):
        assert (embed(cpu, form)[0] == by_text).all()
    assert (embed(cpu, [ids, ids[:-1]])[0][0] == by_text[0]).all()
    bare = embed(cpu, TEXTS[0], add_special_tokens=False)[0]
    assert not numpy.allclose(bare, by_text, atol=1e-3)


def test_base64_is_the_same_numbers(cpu):
    floats, _ = embed(cpu, TEXTS)
    packed, _ = embed(cpu, TEXTS, encoding_format="base64")
    assert (floats == packed).all()


def test_the_last_state_is_the_default_and_the_mean_differs(cpu):
    ids = cpu.post("/tokenize", {"prompt": TEXTS[0]}).json["tokens"]
    one = ids[:1]
    same = [embed(cpu, one, pooling=pooling)[0] for pooling in ("last", "mean")]
    assert numpy.allclose(*same, atol=1e-6)
    last, mean = (embed(cpu, ids, pooling=pooling)[0] for pooling in ("last", "mean"))
    assert not numpy.allclose(last, mean, atol=0.01)
    assert (embed(cpu, ids)[0] == last).all()
    kept = embed(cpu, ids, truncate_prompt_tokens=2)[0]
    assert (kept == embed(cpu, ids[-2:])[0]).all()


def test_a_prompt_may_fill_the_context(cpu):
    ids = [5 + i % 300 for i in range(2048)]
    for pooling in ("last", "mean"):
        vectors, answer = embed(cpu, ids, pooling=pooling)
        assert numpy.isfinite(vectors).all()
        assert answer["usage"]["prompt_tokens"] == 2048
    reply = cpu.post("/v1/embeddings", {"input": [*ids, 5]})
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert reply.error["param"] == "input"
    said = reply.error["message"]
    assert said == "the input has 2049 tokens, more than the context length of 2048"


def test_a_refused_request_names_its_field(cpu):
    assert embed(cpu, "x", dimensions=128)[0].shape == (1, 128)
    assert refusal(cpu, dimensions=32) == "dimensions"
    for bad in ("", [], [""], ["a", ""], [[]], ["a", 1], [388], [-1], [[1], "a"], 5, {"a": 1}):
        assert refusal(cpu, input=bad).split("[")[0] == "input", bad
    assert refusal(cpu, encoding_format="int8") == "encoding_format"
    assert refusal(cpu, pooling="max") == "pooling"
    for unknown in ("n", "stream", "max_tokens", "temperature"):
        assert refusal(cpu, **{unknown: 2}) == unknown
    assert cpu.post("/v1/embeddings", {}).error["param"] == "input"
    reply = cpu.post("/v1/embeddings", {"input": "x", "model": "other"})
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


def test_generations_go_on_beside_embeddings(cpu):
    before = cpu.complete(max_tokens=30)["choices"][0]["text"]
    stream = cpu.open_stream(max_tokens=300)
    embed(cpu, [f"text {i}" for i in range(40)])
    assert cpu.complete(max_tokens=30)["choices"][0]["text"] == before
    stream.close()


@pytest.mark.parametrize("encoding", [{}, {"encoding_format": "float"}])
def test_the_openai_client_reads_both_encodings(cpu, encoding):
    with openai.OpenAI(base_url=cpu.url + "/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="llama-tied-bf16", input=TEXTS, **encoding)
    got = numpy.array([item.embedding for item in answer.data], "f4")
    assert numpy.allclose(got, embed(cpu, TEXTS)[0], atol=1e-6)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens


def test_sim_has_vectors_too(sim):
    vectors, _ = embed(sim, TEXTS)
    assert numpy.allclose(numpy.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_request_id_is_echoed(sim):
    reply = sim.post("/v1/embeddings", {"input": "x", "request_id": "r1"})
    assert reply.headers["X-Request-Id"] == "r1"
