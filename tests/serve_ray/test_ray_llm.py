"""The engine for Ray Serve LLM, driven by Ray's own LLMServer: real protocol and request classes.

Ray takes the request classes from vLLM, else from SGLang. SGLang's are installed alone (Makefile):
its package without what it imports itself, torch among it; request_classes enters it by its folder.
"""

import asyncio
import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("ray.llm")
if not any(map(importlib.util.find_spec, ("vllm", "sglang"))):
    pytest.skip("neither vLLM nor SGLang is here", allow_module_level=True)

from ray.llm._internal.serve.core.configs import openai_api_models as api
from ray.llm._internal.serve.core.engine.protocol import LLMEngine
from ray.llm._internal.serve.core.protocol import RawRequestInfo
from ray.serve.llm import LLMConfig

from ingle.integrations.ray.llm import IngleEngine, IngleServer

MODEL = str(Path(__file__).parents[1] / "golden/models/llama-tied-bf16")
SETTINGS = {"device": "sim", "sim_speed": "inf", "max_num_seqs": 8}


def config(**more):
    return LLMConfig(
        model_loading_config={"model_id": "tiny", "model_source": MODEL},
        engine_kwargs=SETTINGS | more,
    )


def run(scenario, **settings):
    async def whole():
        server = IngleServer.sync_init(config(**settings))
        await server.start()
        try:
            await asyncio.wait_for(scenario(server), 120)
        finally:
            await server.engine.shutdown()

    asyncio.run(whole())


async def collect(answer):
    return [part async for part in await answer]


def completion(**more):
    return api.CompletionRequest(model="tiny", prompt="a b", max_tokens=6, ignore_eos=True, **more)


def chat(**more):
    messages = [{"role": "user", "content": "Hello"}]
    return api.ChatCompletionRequest(model="tiny", messages=messages, max_tokens=4, **more)


def test_the_engine_implements_the_protocol():
    assert issubclass(IngleEngine, LLMEngine)
    assert not IngleEngine.__abstractmethods__


def test_answers_are_ray_s_objects_and_streams_are_events():
    async def scenario(server):
        [whole] = await collect(server.completions(completion()))
        assert isinstance(whole, api.CompletionResponse)
        assert (whole.model, whole.usage.completion_tokens) == ("tiny", 6)
        [whole] = await collect(server.chat(chat()))
        assert isinstance(whole, api.ChatCompletionResponse)
        streamed = await collect(server.chat(chat(stream=True)))
        # The server joins events that come together.
        text = "".join(part for batch in streamed for part in batch)
        assert all(event.startswith("data: ") for event in text.strip().split("\n\n"))
        assert text.endswith("data: [DONE]\n\n")
        [vectors] = await collect(
            server.embeddings(api.EmbeddingCompletionRequest(model="tiny", input="a"))
        )
        assert isinstance(vectors, api.EmbeddingResponse)

    run(scenario)


def test_tokens_and_texts():
    async def scenario(server):
        asked = api.TokenizeCompletionRequest(model="tiny", prompt="a b")
        [tokens] = await collect(server.tokenize(asked))
        assert isinstance(tokens, api.TokenizeResponse)
        asked = api.DetokenizeRequest(model="tiny", tokens=tokens.tokens)
        [text] = await collect(server.detokenize(asked))
        assert isinstance(text, api.DetokenizeResponse)

    run(scenario)


def test_refusals_keep_their_status_and_their_field():
    async def scenario(server):
        [refused] = await collect(server.completions(completion(temperature=9.0)))
        assert isinstance(refused, api.ErrorResponse)
        assert (refused.error.code, refused.error.param) == (400, "temperature")
        headers = RawRequestInfo(headers={"X-Request-Id": "mine"})
        [whole] = await collect(server.completions(completion(), headers))
        assert whole.usage.completion_tokens == 6

    run(scenario)


def test_sleep_pause_and_the_prefix_cache():
    async def scenario(server):
        engine = server.engine
        await server.check_health()
        await engine.reset_prefix_cache()
        assert not await engine.is_sleeping()
        await engine.sleep()
        assert await engine.is_sleeping()
        [refused] = await collect(server.completions(completion()))
        assert refused.error.code == 503
        await engine.wakeup()
        await engine.pause()
        assert await engine.is_paused()
        await engine.resume()
        assert isinstance((await collect(server.chat(chat())))[0], api.ChatCompletionResponse)
        with pytest.raises(TypeError, match="tags"):
            await engine.wakeup(tags=["weights"])

    run(scenario)


def test_a_process_that_dies_in_mid_stream_ends_it_with_an_error_and_comes_back():
    async def scenario(server):
        import os
        import signal

        asked = api.CompletionRequest(
            model="tiny", prompt="a", max_tokens=100, ignore_eos=True, stream=True
        )
        stream = server.engine.completions(asked)
        parts = [await anext(stream)]
        os.kill(server.engine._process.pid, signal.SIGKILL)
        parts += [part async for part in stream]
        assert "worker_lost" in parts[-1]
        while True:
            [answer] = await collect(server.completions(completion()))
            if isinstance(answer, api.CompletionResponse):
                break
            await asyncio.sleep(0.1)

    run(scenario, sim_speed="0.2")
