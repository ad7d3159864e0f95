"""Several models behind one address: `--model NAME=SOURCE`."""

import asyncio
import concurrent.futures
import re
import subprocess
import sys

import pytest

import ingle
from server.worker import MODELS, TINY, Worker

OTHER = MODELS / "qwen3"
"""Another architecture with a vocabulary of its own."""


class Several(Worker):
    """A server of named models."""

    def command(self, model):
        return [sys.executable, "-m", "ingle", "serve", "--port", "0"]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    file = tmp_path_factory.mktemp("several") / "ingle.toml"
    file.write_text(
        f"""
        device = "cpu"
        max-num-seqs = 8
        kv-cache-memory-bytes = 4194304
        [models.llama]
        source = "{TINY}"
        aliases = ["gpt-4o-mini"]
        [models."org/qwen"]
        source = "{OTHER}"
        max-model-len = 48
        """
    )
    with Several("--config", file) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()


def alone(model, **fields):
    with Worker("--device", "cpu", "--max-num-seqs", "8", model=model) as worker:
        return worker.complete(**fields)["choices"]


def test_models_are_listed_with_names_aliases_and_limits(both):
    cards = both.get("/v1/models").json["data"]
    shown = [(card["id"], card["root"], card["status"]) for card in cards]
    assert shown == [
        ("llama", "llama", "loaded"),
        ("gpt-4o-mini", "llama", "loaded"),
        ("org/qwen", "org/qwen", "loaded"),
    ]
    assert cards[2]["max_model_len"] == 48
    assert both.get("/v1/models/org/qwen").json == cards[2]
    assert both.get("/v1/models/gpt-4o-mini").json["root"] == "llama"


@pytest.mark.parametrize(("name", "source"), [("llama", TINY), ("org/qwen", OTHER)])
def test_each_model_answers_as_it_does_alone(both, name, source):
    fields = {"prompt": "The quick brown", "max_tokens": 12, "logprobs": 3}
    assert both.complete(model=name, **fields)["choices"] == alone(source, **fields)


def test_an_alias_is_the_model_and_answers_carry_the_models_name(both):
    by_alias = both.complete(model="gpt-4o-mini")
    assert by_alias["model"] == "llama"
    assert by_alias["choices"] == both.complete(model="llama")["choices"]
    events = both.complete(model="gpt-4o-mini", stream=True)
    assert {event["model"] for event in events if event != "[DONE]"} == {"llama"}


ASKING = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/embeddings": {"input": "x"},
    "/v1/completions/render": {"prompt": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
}


@pytest.mark.parametrize("path", ASKING)
def test_a_model_that_is_not_there_is_a_404_that_lists_those_that_are(both, path):
    reply = both.post(path, ASKING[path] | {"model": "gpt-5"})
    assert reply.status == 404, reply.body
    message = reply.json["error"]["message"]
    assert "'gpt-5' does not exist" in message
    assert "'llama', 'org/qwen'" in message


@pytest.mark.parametrize("path", ASKING)
def test_with_several_models_a_request_must_name_one(both, path):
    reply = both.post(path, ASKING[path])
    assert reply.status == 400, reply.body
    assert "model: is missing" in reply.json["error"]["message"]


def test_tokens_are_those_of_the_named_model(both):
    bodies = [{"prompt": "Hello there", "model": name} for name in ("llama", "org/qwen")]
    replies = [both.post("/tokenize", body).json for body in bodies]
    assert replies[1]["max_model_len"] == 48 < replies[0]["max_model_len"]
    assert both.get("/tokenizer_info?model=org/qwen").json["model_max_length"] == 48
    assert both.get("/tokenizer_info").status == 400


def test_metrics_have_the_models_name_and_declare_each_family_once(both):
    both.complete(model="llama")
    both.complete(model="org/qwen")
    text = both.get("/metrics").body.decode()
    declared = re.findall(r"^# TYPE (\S+)", text, re.M)
    assert len(declared) == len(set(declared))
    samples = re.findall(
        r'^vllm:generation_tokens_total\{.*model_name="([^"]+)"\} (\S+)', text, re.M
    )
    assert {name for name, _ in samples} == {"llama", "org/qwen"}
    assert all(float(value) > 0 for _, value in samples)


def test_health_sums_up_and_shows_each_model(both):
    health = both.health()
    assert health["status"] == "ok"
    assert set(health["models"]) == {"llama", "org/qwen"}
    assert health["capacity"] == sum(each["capacity"] for each in health["models"].values())


def test_streams_of_both_models_at_once_are_those_of_each_alone(both):
    names = ["llama", "org/qwen"] * 4
    alone = {name: both.complete(model=name, max_tokens=30)["choices"][0] for name in names}

    def streamed(name):
        events = both.complete(model=name, max_tokens=30, stream=True)
        return "".join(event["choices"][0]["text"] for event in events)

    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        texts = list(pool.map(streamed, names))
    assert texts == [alone[name]["text"] for name in names]


def test_a_bad_model_stops_the_start_and_is_named(tmp_path):
    command = [sys.executable, "-m", "ingle", "serve", "--port", "0", "--device", "cpu"]
    models = ["--model", f"good={TINY}", "--model", f"bad={tmp_path / 'none'}"]
    done = subprocess.run([*command, *models], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert f"model {tmp_path / 'none'}: no such file or folder" in done.stderr


def test_several_models_in_python():
    sources = {"a": str(TINY), "b": {"source": OTHER, "aliases": ["c"], "max_model_len": 48}}
    params = ingle.SamplingParams(max_tokens=6, temperature=0)
    with ingle.Engines(sources, device="cpu", kv_cache_memory_bytes=1 << 22) as engines:
        assert list(engines) == ["a", "b"]
        [first] = engines.generate("Hello", params, model="a")
        [second] = engines.generate("Hello", params, model="c")
        assert engines["c"] is engines["b"]
        assert engines["b"].info["max_model_len"] == 48
        with pytest.raises(ingle.RefusedError, match=r"'d' does not exist.*'a', 'b'"):
            engines.generate("x", params, model="d")

        async def streamed():
            return "".join(
                [delta.text async for delta in engines.stream("Hello", params, model="b")]
            )

        assert asyncio.run(streamed()) == second.outputs[0].text
        assert first.outputs[0].text != second.outputs[0].text
    with pytest.raises(ingle.ConfigError, match=r"models.a: max_model_len: must be"):
        ingle.Engines({"a": {"source": "x", "max_model_len": 0}})


def test_chat_goes_on_with_another_model():
    command = [sys.executable, "-m", "ingle", "chat", "--device", "sim", "--sim-speed", "inf"]
    models = ["--model", f"a={TINY}", "--model", f"b={TINY}", "--max-tokens", "3"]
    typed = "Hello\n/model b\nHello\n/model nope\n"
    done = subprocess.run(
        [*command, *models], input=typed, capture_output=True, text=True, timeout=60, check=True
    )
    lines = done.stdout.splitlines()
    assert "/model NAME goes on with another model" in lines[0]
    assert lines.count("b of a, b") == 2
    assert "the model 'nope' does not exist" in done.stderr
