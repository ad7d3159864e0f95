"""The engine for Dynamo, driven as its worker drives one: no cluster.

Skipped without `ai-dynamo`. In a venv of its own: `pip install ai-dynamo==1.6.1 pytest` and ingle.
"""

import asyncio
import json
import socket
from pathlib import Path

import pytest

pytest.importorskip("dynamo.common.backend")

import ingle
from ingle.integrations.dynamo import IngleEngine, params_of

MODEL = str(Path(__file__).parents[1] / "golden/models/llama-tied-bf16")
FLAGS = [MODEL, "--device", "cpu", "--max-model-len", "256", "--namespace", "here"]
PROMPT = list(range(5, 45))


class Context:
    """A request's context as the runtime gives it."""

    def __init__(self, name):
        self.name, self.stopped = name, False

    def id(self):
        return self.name

    def is_stopped(self):
        return self.stopped


async def started(flags=FLAGS):
    engine, config = await IngleEngine.from_args(flags)
    return engine, config, await engine.start(7)


def request(**more):
    options = {"sampling_options": {"temperature": 0.0, "n": 1, "top_p": None}}
    return {"token_ids": PROMPT, "stop_conditions": {"max_tokens": 12}, **options, **more}


async def collect(engine, asked, context=None):
    return [chunk async for chunk in engine.generate(asked, context or Context("r"))]


def test_the_engine_registers_and_answers_as_the_python_api():
    async def run():
        engine, config, registered = await started()
        assert (config.namespace, config.served_model_name) == ("here", "llama-tied-bf16")
        assert registered.llm.context_length == 256
        assert registered.llm.total_kv_blocks > 0
        chunks = await collect(engine, request())
        await engine.cleanup()
        await engine.cleanup()
        return chunks

    chunks = asyncio.run(run())
    params = ingle.SamplingParams(max_tokens=12, temperature=0)
    with ingle.Engine(MODEL, device="cpu", max_model_len=256) as engine:
        [answer] = engine.generate(PROMPT, params)
    ids = [token for chunk in chunks for token in chunk["token_ids"]]
    assert ids == answer.outputs[0].token_ids
    assert [chunk.get("finish_reason") for chunk in chunks if "finish_reason" in chunk] == [
        answer.outputs[0].finish_reason
    ]
    assert chunks[-1]["completion_usage"] == {
        "prompt_tokens": 40,
        "completion_tokens": len(ids),
        "total_tokens": 40 + len(ids),
    }


def test_requests_run_beside_each_other_and_one_that_is_stopped_frees_its_place():
    async def run():
        engine, _, _ = await started([*FLAGS, "--max-num-seqs", "2"])
        long = request(stop_conditions={"max_tokens": 200, "ignore_eos": True})
        context = Context("long")
        stream = engine.generate(long, context)
        await anext(stream)
        context.stopped = True
        last = [chunk async for chunk in stream][-1]
        assert last["finish_reason"] == "cancelled"
        aborted = Context("aborted")
        stream = engine.generate(long, aborted)
        await anext(stream)
        await engine.abort(aborted)
        assert [chunk async for chunk in stream][-1]["finish_reason"] == "cancelled"
        names = [Context(str(number)) for number in range(4)]
        several = await asyncio.gather(*(collect(engine, request(), name) for name in names))
        assert [tokens(chunks) for chunks in several] == [tokens(several[0])] * 4
        await engine.cleanup()

    asyncio.run(run())


def tokens(chunks):
    return [token for chunk in chunks for token in chunk["token_ids"]]


def test_options_without_a_counterpart_are_refused_by_name():
    with pytest.raises(ingle.RefusedError, match="best_of"):
        params_of(request(sampling_options={"best_of": 3}))
    with pytest.raises(ingle.RefusedError, match=r"guided_decoding\.whitespace"):
        params_of(request(sampling_options={"guided_decoding": {"whitespace": " "}}))
    guided = {"guided_decoding": {"json": {"type": "object"}, "regex": None}}
    assert params_of(request(sampling_options=guided)).guided_json == {"type": "object"}


def test_kv_events_are_where_the_engine_publishes_them():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    events = json.dumps({"enable_kv_cache_events": True, "endpoint": endpoint, "topic": "kv"})

    async def run():
        engine, config, _ = await started([*FLAGS, "--kv-events-config", events])
        assert config.use_kv_events
        [source] = await engine.kv_event_sources()
        assert (source.endpoint, source.topic) == (endpoint, "kv")
        await engine.cleanup()

    asyncio.run(run())


def test_several_engines_with_kv_events_are_refused():
    events = '{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:5557"}'
    flags = [*FLAGS, "--kv-events-config", events, "--data-parallel-size", "2"]
    with pytest.raises(ingle.ConfigError, match="data_parallel_size must be 1"):
        asyncio.run(IngleEngine.from_args(flags))
