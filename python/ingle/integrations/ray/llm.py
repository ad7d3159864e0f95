"""ingle as an engine of Ray Serve LLM (`ray[llm]` 2.60): its ingress and routers, ingle's tokens.

    from ray.serve.llm import LLMConfig, build_openai_app

    config = LLMConfig(
        model_loading_config={"model_id": "llama", "model_source": "/models/llama"},
        server_cls="ingle.integrations.ray.llm.IngleServer",
        engine_kwargs={"max_num_seqs": 64, "max_model_len": 8192},
        deployment_config={"ray_actor_options": {"num_gpus": 1}},
    )
    serve.run(build_openai_app({"llm_configs": [config]}))

`engine_kwargs` are the settings of `ingle serve`, by their Python names. The engine is an
`ingle serve` process of the replica's (process.py), locked down as always; requests reach it over
HTTP. Event loop of the replica. The base classes are internal to Ray: they fit one minor version.
"""

import copy
import json
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp
from ray.llm._internal.serve.core.configs import openai_api_models as api
from ray.llm._internal.serve.core.configs.llm_config import DiskMultiplexConfig, LLMConfig
from ray.llm._internal.serve.core.engine.protocol import LLMEngine
from ray.llm._internal.serve.core.protocol import RawRequestInfo
from ray.llm._internal.serve.core.server.llm_server import LLMServer

from ingle.integrations.ray.process import IngleProcess

PASSED_ON = ("traceparent", "tracestate", "x-request-id", "x-session-id", "x-session-affinity")
"""Headers of a client that ingle looks at."""


class IngleEngine(LLMEngine):  # type: ignore[misc] # Ray has no types.
    """One model behind Ray's engine interface."""

    def __init__(self, llm_config: LLMConfig) -> None:
        """Errors: ValueError for adapters, which ingle does not have."""
        if llm_config.lora_config is not None:
            raise ValueError("lora_config: ingle has no LoRA adapters")
        loading = llm_config.model_loading_config
        self._folder = tempfile.TemporaryDirectory(prefix="ingle-")
        self._admin = str(Path(self._folder.name) / "admin.sock")
        settings = {
            "served_model_name": llm_config.model_id,
            "admin_uds": self._admin,
            **llm_config.engine_kwargs,
        }
        model = str(loading.model_source or loading.model_id)
        self._process = IngleProcess(model, "127.0.0.1", DRAIN_S, settings)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Errors: RuntimeError with what the process said instead of starting."""
        await self._process.start()
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, connect=5))

    def routing_stats(self) -> dict[str, Any]:
        """Nothing: Ray's KV-aware routers ask for vLLM's own endpoints."""
        return {}

    async def resolve_lora(self, lora_model: DiskMultiplexConfig) -> None:
        """Errors: ValueError always."""
        raise ValueError("ingle has no LoRA adapters")

    async def chat(
        self, request: Any, raw_request_info: RawRequestInfo | None = None
    ) -> AsyncGenerator[Any, None]:
        """SSE events as they come, or one ChatCompletionResponse, or one ErrorResponse."""
        kind = api.ChatCompletionResponse
        async for part in self._answer("/v1/chat/completions", request, kind, raw_request_info):
            yield part

    async def completions(
        self, request: Any, raw_request_info: RawRequestInfo | None = None
    ) -> AsyncGenerator[Any, None]:
        """SSE events as they come, or one CompletionResponse, or one ErrorResponse."""
        kind = api.CompletionResponse
        async for part in self._answer("/v1/completions", request, kind, raw_request_info):
            yield part

    async def embeddings(
        self, request: Any, raw_request_info: RawRequestInfo | None = None
    ) -> AsyncGenerator[Any, None]:
        """One EmbeddingResponse or ErrorResponse."""
        kind = api.EmbeddingResponse
        async for part in self._answer("/v1/embeddings", request, kind, raw_request_info):
            yield part

    async def transcriptions(
        self, request: Any, raw_request_info: RawRequestInfo | None = None
    ) -> AsyncGenerator[Any, None]:
        """One ErrorResponse: ingle reads no audio."""
        yield failure(501, "ingle has no models for audio", "not_implemented")

    async def tokenize(
        self, request: Any, raw_request_info: RawRequestInfo | None = None
    ) -> AsyncGenerator[Any, None]:
        """One TokenizeResponse or ErrorResponse."""
        kind = api.TokenizeResponse
        async for part in self._answer("/tokenize", request, kind, raw_request_info):
            yield part

    async def detokenize(
        self, request: Any, raw_request_info: RawRequestInfo | None = None
    ) -> AsyncGenerator[Any, None]:
        """One DetokenizeResponse or ErrorResponse."""
        kind = DetokenizedText
        async for part in self._answer("/detokenize", request, kind, raw_request_info):
            yield part

    async def check_health(self) -> None:
        """Errors: RuntimeError or OSError if the process is not well; Ray then replaces it."""
        await self._process.check()

    async def reset_prefix_cache(self) -> None:
        """Later requests find no prefix of earlier ones."""
        await self._operate("POST", "/reset_prefix_cache")

    async def sleep(self, level: int = 1, **options: Any) -> None:
        """See docs/OPERATIONS.md. Errors: RuntimeError with ingle's reason; TypeError by name."""
        if options:
            raise TypeError(f"sleep: ingle knows only level, not {', '.join(sorted(options))}")
        await self._operate("POST", f"/sleep?level={level}")

    async def wakeup(self, **options: Any) -> None:
        """Errors: as `sleep`."""
        if options:
            raise TypeError(f"wakeup: ingle wakes as a whole, not {', '.join(sorted(options))}")
        await self._operate("POST", "/wake_up")

    async def is_sleeping(self) -> bool:
        """Whether the worker is asleep or paused."""
        return bool((await self._operate("GET", "/is_sleeping"))["is_sleeping"])

    async def pause(self, **options: Any) -> None:
        """New requests wait outside; the weights stay."""
        await self.sleep(0, **options)

    async def resume(self, **options: Any) -> None:
        """Takes requests again."""
        await self.wakeup(**options)

    async def is_paused(self) -> bool:
        """The same as `is_sleeping`: a pause is a sleep of level 0."""
        return await self.is_sleeping()

    async def shutdown(self) -> None:
        """Drains and ends the process."""
        await self._process.stop()
        if self._session is not None:
            await self._session.close()
        self._folder.cleanup()

    async def _answer(
        self, path: str, request: Any, kind: Any, info: RawRequestInfo | None
    ) -> AsyncGenerator[Any, None]:
        """What the process answers: events, one `kind`, or one error."""
        session = self._running()
        headers = {
            name: value
            for name, value in ({} if info is None else info.headers).items()
            if name.lower() in PASSED_ON
        }
        # Only what the client has set: the rest are defaults of another engine's.
        body = request.model_dump(mode="json", exclude_unset=True)
        try:
            async with session.post(
                self._process.url + path, json=body, headers=headers
            ) as response:
                if response.status != 200:
                    yield error_of(response.status, await response.read())
                elif response.content_type == "text/event-stream":
                    async for event in events(response.content):
                        yield event
                else:
                    yield kind.model_validate(await response.json())
        except aiohttp.ClientError as error:
            lost = failure(500, f"the worker has died: {type(error).__name__}", "worker_lost")
            if body.get("stream"):
                yield f"data: {lost.model_dump_json()}\n\n"
            else:
                yield lost

    async def _operate(self, method: str, path: str) -> dict[str, Any]:
        """A call of the admin socket. Errors: RuntimeError with ingle's reason."""
        connector = aiohttp.UnixConnector(self._admin)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, "http://ingle" + path) as response,
        ):
            found = await response.read()
            if response.status != 200:
                raise RuntimeError(error_of(response.status, found).error.message)
            answer: dict[str, Any] = json.loads(found or b"{}")
            return answer

    def _running(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the engine has not started")
        return self._session


class IngleServer(LLMServer):  # type: ignore[misc] # Ray has no types.
    """Ray's server of one model with ingle in it: the `server_cls` of an LLMConfig.

    Ray's own asks vLLM to read `engine_kwargs` and to say which devices its processes take.
    """

    _default_engine_cls = IngleEngine

    @classmethod
    def get_deployment_options(cls, llm_config: LLMConfig) -> dict[str, Any]:
        """Serve's options for a replica: `deployment_config`, in the environment `runtime_env`.

        Errors: ValueError for what places vLLM's processes.
        """
        for name in ("accelerator_type", "placement_group_config"):
            if getattr(llm_config, name) is not None:
                raise ValueError(
                    f"{name}: ingle is one process; say what it takes in deployment_config, "
                    'as {"ray_actor_options": {"num_gpus": 1}}'
                )
        options: dict[str, Any] = copy.deepcopy(llm_config.deployment_config)
        if llm_config.runtime_env is not None:
            actor = options.setdefault("ray_actor_options", {})
            actor["runtime_env"] = {**actor.get("runtime_env", {}), **llm_config.runtime_env}
        return options


class DetokenizedText:
    """Makes Ray's answer of ingle's: vLLM calls the text `prompt`, SGLang `text`."""

    @staticmethod
    def model_validate(answer: dict[str, Any]) -> Any:
        """A DetokenizeResponse."""
        kind = api.DetokenizeResponse
        names = [name for name in ("prompt", "text") if name in kind.model_fields]
        return kind.model_validate(dict.fromkeys(names, answer["prompt"]))


async def events(content: aiohttp.StreamReader) -> AsyncGenerator[str, None]:
    """Whole SSE events, however the bytes come."""
    held = b""
    async for part in content.iter_any():
        *whole, held = (held + part).split(b"\n\n")
        for event in whole:
            yield event.decode() + "\n\n"


def error_of(status: int, body: bytes) -> Any:
    """The ErrorResponse for an error of ingle's."""
    try:
        error = json.loads(body)["error"]
        return failure(status, error["message"], error["type"], error.get("param"))
    except (ValueError, KeyError, TypeError):
        return failure(status, f"the worker answered {status}", "server_error")


def failure(status: int, message: str, kind: str, param: str | None = None) -> Any:
    """An ErrorResponse."""
    info = api.ErrorInfo(message=message, type=kind, param=param, code=status)
    return api.ErrorResponse(error=info)


DRAIN_S = 30.0
