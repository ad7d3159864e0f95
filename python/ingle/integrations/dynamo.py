"""ingle as a worker of NVIDIA Dynamo: an engine of its Python base class (`ai-dynamo` 1.6).

    python -m ingle.integrations.dynamo /models/llama --device cuda --namespace dynamo

Takes the engine's flags of `ingle serve` and the place of the worker in Dynamo. Dynamo's frontend
tokenizes, detokenizes and reads tool calls; the engine gets token ids and gives token ids. The
process is Dynamo's, so it has no lock-down. Event loop; docs/SCALING.md says what is mapped.
"""

import argparse
import os
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.publisher import KvEventSource, ZmqSource
from dynamo.common.backend.run import run

from ingle.config import Settings, add_flags, load
from ingle.engine import Engine, event_sockets
from ingle.errors import ConfigError, RefusedError
from ingle.sampling import SamplingParams


class IngleEngine(LLMEngine):  # type: ignore[misc] # Dynamo's classes have no types here.
    """One model behind Dynamo's engine interface."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine: Engine | None = None
        self._running: dict[str, int | None] = {}
        """By Dynamo's request id: ours, None before the first token."""

    @classmethod
    async def from_args(cls, argv: Sequence[str] | None = None) -> tuple["IngleEngine", Any]:
        """Errors: ConfigError names the flag; SystemExit for an unknown one."""
        parser = argparse.ArgumentParser("ingle.integrations.dynamo", allow_abbrev=False)
        parser.add_argument("model", nargs="?")
        add_flags(parser, ("engine",))
        place = parser.add_argument_group("place in Dynamo")
        place.add_argument("--namespace", default=os.environ.get("DYN_NAMESPACE", "dynamo"))
        place.add_argument("--component", default="backend")
        place.add_argument("--endpoint", default="generate")
        place.add_argument("--discovery-backend", default="etcd")
        given = vars(parser.parse_args(argv))
        names = ("namespace", "component", "endpoint", "discovery_backend")
        where = {name: given.pop(name) for name in names}
        settings = load(given)
        if settings.kv_events() is not None and settings.data_parallel_size not in (None, 1):
            raise ConfigError(
                "kv_events_config: Dynamo sees one engine in a worker, so with KV events "
                "data_parallel_size must be 1; start more workers"
            )
        config = WorkerConfig(
            model_name=str(settings.model),
            served_model_name=settings.model_name(),
            use_kv_events=settings.kv_events() is not None,
            **where,
        )
        return cls(settings), config

    async def start(self, worker_id: int) -> EngineConfig:
        """Loads the model; blocks the loop, which has nothing else to do before."""
        sockets = event_sockets(self._settings)
        self._engine = Engine.with_sockets(self._settings, sockets)
        info, limits = self._engine.info, self._engine.info["limits"]
        return EngineConfig(
            model=str(self._settings.model),
            served_model_name=info["model"],
            llm=LlmRegistration(
                context_length=info["max_model_len"],
                kv_cache_block_size=limits["block_size"],
                total_kv_blocks=limits["num_blocks"] * info["num_engines"],
                max_num_seqs=limits["max_num_seqs"] * info["num_engines"],
                max_num_batched_tokens=limits["max_num_batched_tokens"] * info["num_engines"],
            ),
        )

    async def generate(self, request: Any, context: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Token ids as they come; the last chunk has the reason and the counts."""
        name = context.id()
        params = params_of(request)
        self._running[name] = None
        try:
            async for delta in self._loaded.stream(list(request["token_ids"]), params):
                self._running[name] = delta.request_id
                chunk: dict[str, Any] = {"token_ids": delta.token_ids, "index": 0}
                if delta.logprobs is not None:
                    chunk["log_probs"] = [entry.logprob for entry in delta.logprobs]
                is_cancelled = context.is_stopped()
                if delta.finish_reason is not None or is_cancelled:
                    reason = "cancelled" if is_cancelled else delta.finish_reason
                    chunk["finish_reason"] = REASONS.get(str(reason), reason)
                if delta.usage is not None:
                    usage = delta.usage
                    chunk["completion_usage"] = {
                        "prompt_tokens": usage.prompt_tokens,
                        "completion_tokens": usage.completion_tokens,
                        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                    }
                yield chunk
                if is_cancelled:
                    return  # Leaving the stream aborts the request.
        finally:
            self._running.pop(name, None)

    async def abort(self, context: Any) -> None:
        """Ends a request whose client has left."""
        request_id = self._running.get(context.id())
        if request_id is not None:
            self._loaded.abort(request_id)

    async def kv_event_sources(self) -> list[KvEventSource]:
        """Where the worker publishes its KV events; none without `--kv-events-config`."""
        config = self._settings.kv_events()
        addresses = self._loaded.info["kv_events"]
        return [] if config is None else [ZmqSource(addresses[0], config.topic, 0)]

    async def cleanup(self) -> None:
        """Frees the model. Also after a start that failed, and twice."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    @property
    def _loaded(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the engine has not started")
        return self._engine


def params_of(request: Any) -> SamplingParams:
    """Dynamo's options as ours. Errors: RefusedError names an option that has no counterpart."""
    values: dict[str, Any] = {"max_tokens": None, "temperature": None}
    for group in ("sampling_options", "stop_conditions", "output_options"):
        for name, value in (request.get(group) or {}).items():
            if value is None or value is False or value == []:
                continue
            if name == "guided_decoding":
                values.update(guided(value))
            elif name in SAME:
                values[SAME[name]] = value
            elif name not in NO_EFFECT and (name, value) != ("n", 1):
                raise RefusedError(f"{name}: ingle has no such option", name)
    return SamplingParams(**values)


def guided(options: Any) -> dict[str, Any]:
    """Dynamo's `guided_decoding`."""
    found = {f"guided_{name}": value for name, value in options.items() if value is not None}
    unknown = set(found) - {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}
    if unknown:
        name = min(unknown).removeprefix("guided_")
        raise RefusedError(f"guided_decoding.{name}: ingle has no such option", "guided_decoding")
    return found


SAME = {
    name: name
    for name in (
        *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "stop"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos", "logprobs"),
        *("logit_bias", "include_stop_str_in_output"),
    )
} | {"stop_token_ids_hidden": "stop_token_ids", "stop_token_ids": "stop_token_ids"}
NO_EFFECT = {"skip_special_tokens", "formatted_prompt", "return_tokens_as_token_ids"}
"""For the frontend, which makes the text."""
REASONS = {"abort": "cancelled", "content_filter": "stop"}


if __name__ == "__main__":
    run(IngleEngine)
