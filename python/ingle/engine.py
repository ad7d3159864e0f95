"""The public Python API: one loaded model, for use from threads or from any event loop.

Any thread. Results come through `dispatch`; nothing here touches the device.
"""

import queue
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
from msgspec import Struct

from ingle import _core
from ingle.config import Settings
from ingle.demo import missing_model
from ingle.dispatch import ABORTED, DELTA, END, ERROR, Dispatcher
from ingle.errors import (
    IngleError,
    InternalError,
    ModelError,
    OverloadedError,
    RefusedError,
    error_of_event,
)
from ingle.generation import INLINE_BYTES, GenerationRequest, Prompt, encode, is_slow_to_submit
from ingle.json_values import not_allowed, refused
from ingle.kv_events import addresses, bind_kv_events, close_all
from ingle.outputs import (
    Completion,
    Delta,
    PromptLike,
    RequestOutput,
    TokenLogprob,
    Usage,
)
from ingle.prompts import as_prompt, ids_of, params_of_each, split_prompts
from ingle.sampling import SamplingParams
from ingle.sources import local

if TYPE_CHECKING:
    # Each start of the server waits for what this file imports, but the loop comes much later.
    import asyncio


class Sharing(Struct, frozen=True):
    """What one of several models shares with the others."""

    device: _core.SharedDevice
    num_models: int
    weight: int = 1
    is_pinned: bool = False
    swaps: bool = False
    """Whether models make room for each other."""
    on_request: bool = False
    """Whether its weights are read with the first request for it, not before."""

    def options(self) -> dict[str, Any]:
        """The core's options for it."""
        options = {"num_models": self.num_models, "weight": self.weight, "pinned": self.is_pinned}
        if self.on_request:
            options["on_request"] = True
        return options | {"enable_sleep_mode": True} if self.swaps else options


class Engine:
    """A loaded model. Close it, or use it as a context manager, to free its memory and threads."""

    def __init__(
        self,
        # Written by tools/write_fields.py from here on.
        model: str,
        *,
        served_model_name: str | None = None,
        device: str = "auto",
        data_parallel_size: int = 1,
        tensor_parallel_size: int = 1,
        enable_expert_parallel: bool = False,
        sim_speed: float | str | None = None,
        dtype: str = "auto",
        load_format: Literal["auto", "dummy"] = "auto",
        quantization: Literal["fp8"] | None = None,
        kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3"] = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        block_size: int | None = None,
        enable_prefix_caching: bool = True,
        kv_cache_memory_bytes: int | None = None,
        kv_cache_max_memory_bytes: int | None = None,
        enable_sleep_mode: bool = False,
        allow_download: bool = False,
        download_dir: str | Path | None = None,
        download_cache_bytes: int | None = None,
        verify_downloads: bool = False,
        max_queue: int | None = None,
        seed: int | None = None,
        chat_template: str | Path | None = None,
        tool_call_parser: str = "auto",
        reasoning_parser: str = "auto",
        generation_config: Literal["auto", "none"] = "auto",
        cpu_threads: int = 0,
        cpu_precision: Literal["exact", "fast"] = "exact",
        gpu_memory_utilization: float | None = None,
        enforce_eager: bool = False,
        deterministic: bool = False,
        cache_dir: str | Path | None = None,
        nvrtc_library: str | Path | None = None,
        cublaslt_library: str | Path | None = None,
        health_stall_s: int = 30,
        kv_events_config: dict[str, Any] | str | None = None,
    ) -> None:
        """Loads the model; blocks until it can serve.

        Args:
            model: local Hugging Face folder or .gguf file, or demo.
            served_model_name: name in requests and responses; default: end of the path. A string of
                at least 1 character.
            device: auto, cpu, cuda, cuda:N, sim, or sim:FILE with a JSON profile; auto uses the GPU
                if there is one.
            data_parallel_size: number of engines that share the requests: one per GPU, from the
                device's number on; on a CPU they divide the threads; limits such as max_num_seqs
                are each engine's, max_queue is the server's. A whole number from 1 to 1024.
            tensor_parallel_size: number of ranks among which an engine divides the model; on the
                cpu device only, where one process computes all ranks, to test a division. A whole
                number from 1 to 64.
            enable_expert_parallel: with tensor_parallel_size: give each rank whole experts instead
                of a part of each.
            sim_speed: speed-up of the sim device: a number, or inf for no delay.
            dtype: type of weights; auto lets the device choose; on a GPU also bfloat16, float16,
                half.
            load_format: dummy: read no weights, take pseudo-random numbers in the shapes of
                config.json, for benchmarks; what the model then writes means nothing. "auto" or
                "dummy".
            quantization: fp8: keep the linear layers of an unquantised model in 8 bits, with a
                scale per output channel; default: weights as the model has them. "fp8".
            kv_cache_dtype: fp8: keep keys and values in 8 bits; on the cpu device only. "auto",
                "fp8" or "fp8_e4m3".
            max_model_len: maximum length of prompt plus answer, in tokens; default: the model's own
                limit. A whole number from 1 to 2147483647.
            max_num_seqs: maximum number of requests in one step; default: 256, on a CPU 32. A whole
                number from 1 to 65536.
            max_num_batched_tokens: most tokens in one step; default: 2048, on a CPU 512. A whole
                number from 1 to 16777216.
            block_size: tokens per block of the KV cache; default: 64, on a CPU 16. A whole number
                from 1 to 65536.
            enable_prefix_caching: False: do not reuse KV blocks of equal prefixes.
            kv_cache_memory_bytes: size of the KV cache in bytes; default: a quarter of the free
                memory, at most what max_num_seqs requests can fill; on a GPU, what
                gpu_memory_utilization leaves. A whole number from 1 to 9223372036854775807.
            kv_cache_max_memory_bytes: size up to which the KV cache grows while other models are
                idle. A whole number from 1 to 9223372036854775807.
            enable_sleep_mode: be able to give weights back (/sleep); see docs/OPERATIONS.md.
            allow_download: fetch a MODEL that is ORG/NAME from the Hugging Face hub, or from
                HF_ENDPOINT, into its cache; hf://ORG/NAME@REVISION and s3://BUCKET/PREFIX need no
                permission.
            download_dir: folder for fetched models; default: ~/.cache/ingle for s3://, else the
                hub's cache.
            download_cache_bytes: disk space for models from s3://; the longest unused make room. A
                whole number from 1 to 9223372036854775807.
            verify_downloads: hash the files of fetched models, also where nothing changed.
            max_queue: maximum number of waiting requests; more get 429; default: 4 x max_num_seqs
                for each engine. A whole number from 1 to 16777216.
            seed: seed for requests without their own; makes them repeatable. A whole number from 0
                to 18446744073709551615.
            chat_template: file with another chat template.
            tool_call_parser: how the model writes tool calls: auto, as its chat template shows;
                none; or a name from docs/MODELS.md, such as hermes or qwen3_coder.
            reasoning_parser: how the model marks its reasoning: auto, as its chat template shows;
                none: reasoning stays in the content; or a name from docs/MODELS.md, such as qwen3
                or openai_gptoss.
            generation_config: auto: take sampling defaults from the model's generation_config.json.
                "auto" or "none".
            cpu_threads: worker threads of the cpu device, for all engines together; 0: one per
                physical core. A whole number from 0 to 1024.
            cpu_precision: fast: the cpu device rounds activations in products to bf16 or 8 bits.
                "exact" or "fast".
            gpu_memory_utilization: share of the GPU's memory that this process may use; default:
                0.9. A number from 0.01 to 1.
            enforce_eager: launch kernels one by one, without CUDA graphs.
            deterministic: same bits whatever the batch; slower on a GPU.
            cache_dir: folder for compiled kernels and measured algorithms; default: ~/.cache/ingle.
            nvrtc_library: use this libnvrtc.so instead of searching for one.
            cublaslt_library: use this libcublasLt.so instead of searching for one.
            health_stall_s: /health returns 503 if work waits and no step has ended for this many
                seconds. A whole number from 1 to 86400.
            kv_events_config: publish which KV blocks are cached, with the token ids of prompts, for
                routers: JSON with vLLM's keys, such as {"enable_kv_cache_events": true, "endpoint":
                "tcp://10.0.0.5:5557"}; default: nothing is published.

        Raises:
            ConfigError: an argument is not what it must be; the message names it.
            ModelError: the message names the setting, or the file and the field.
        """
        # End of what tools/write_fields.py writes.
        given = {name: value for name, value in locals().items() if name != "self"}
        settings = Settings(**given)
        self._load(settings, event_sockets(settings))

    @classmethod
    def with_sockets(
        cls,
        settings: Settings,
        sockets: Sequence[socket.socket],
        sharing: Sharing | None = None,
        progress: _core.LoadProgress | None = None,
    ) -> Self:
        """Loads the model, with the sockets of `event_sockets` bound earlier; takes them over.

        For a process that can bind no address any more, and for one of several models in a process.
        `progress` sees how far the weights are. Raises what the constructor raises.
        """
        engine = cls.__new__(cls)
        engine._load(settings, sockets, sharing, progress)
        return engine

    def _load(
        self,
        settings: Settings,
        sockets: Sequence[socket.socket],
        sharing: Sharing | None = None,
        progress: _core.LoadProgress | None = None,
    ) -> None:
        self.settings = settings = local(settings)
        self._event_sockets = sockets
        try:
            descriptors = [each.fileno() for each in sockets]
            options = settings.engine_options({} if sharing is None else sharing.options())
            device = None if sharing is None else sharing.device
            core = _core.Engine(options, descriptors, device, progress)
        except BaseException as error:
            close_all(sockets)
            missing = missing_model(settings.model) if isinstance(error, ModelError) else None
            if missing is not None:
                raise ModelError(missing) from None
            raise
        self.core = core
        """The core itself, for front ends; see `_core.pyi`."""
        self.dispatcher = Dispatcher(self.core)
        self.info: dict[str, Any] = msgspec.json.decode(self.core.info())
        """What the core knows about itself: names, limits, sampling defaults, memory."""
        self.info["kv_events"] = addresses(sockets)
        self.info["ranks"] = settings.tensor_parallel_size

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template_name: str | None = None,
    ) -> list[RequestOutput]:
        """Generates answers for all prompts. Returns one output per prompt, in order.

        `sampling_params` applies to all prompts, or is a list with one entry per prompt.
        `chat_template_name` chooses one of the model's named chat templates for messages. Blocks
        until all prompts have ended. There may be more prompts than the queue holds.
        Errors: RefusedError or FailedError of the first prompt that fails; the others are aborted.
        """
        several = split_prompts(prompts)
        params = params_of_each(several, sampling_params)
        batch = _Batch(self.dispatcher, several, params, chat_template_name)
        try:
            return batch.run()
        finally:
            batch.abort()

    async def stream(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        chat_template_name: str | None = None,
    ) -> AsyncIterator[Delta]:
        """Yields the deltas of one answer. Leaving the loop early aborts the request.

        `chat_template_name` chooses one of the model's named chat templates for messages.

        Errors: RefusedError or OverloadedError before the first delta, FailedError later.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        events: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

        key = -1

        def sink(kind: int, payload: Any) -> None:
            try:
                loop.call_soon_threadsafe(events.put_nowait, (kind, payload))
            except RuntimeError:
                # The loop was closed while the stream was open. Nothing reads the rest.
                self.dispatcher.abort(key)

        [params] = params_of_each([prompt], sampling_params)
        request = params.request(as_prompt(prompt, template_name=chat_template_name))
        is_slow = is_slow_to_submit(request)
        key = await submit_async(self.dispatcher, document_of(request), sink, is_slow)
        last: Delta | None = None
        try:
            while True:
                kind, payload = await events.get()
                if kind == DELTA:
                    if last is not None:
                        yield last
                        last = None
                    delta = _delta(key, payload)
                    # A choice's last delta waits for the END that follows it and carries the usage.
                    if delta.finish_reason is None:
                        yield delta
                    else:
                        last = delta
                elif kind == END:
                    if last is not None:
                        yield msgspec.structs.replace(last, usage=_usage(payload))
                    return
                else:
                    if last is not None:
                        yield last
                    _raise_unless_aborted(kind, payload)
                    yield Delta(key, 0, "", [], finish_reason="abort")
                    return
        finally:
            self.dispatcher.abort(key)

    def abort(self, request_id: int) -> None:
        """Ends the request with this id (`Delta.request_id`). Unknown ids are ignored.

        Errors: RefusedError for what is no whole number.
        """
        if type(request_id) is not int:
            raise not_allowed("request_id", "a whole number", request_id)
        self.dispatcher.abort(request_id)

    def tokenize(
        self,
        prompt: PromptLike,
        *,
        add_special_tokens: bool = True,
        chat_template_name: str | None = None,
    ) -> list[int]:
        """Token ids of one prompt. Errors: RefusedError names the value that is wrong."""
        form = as_prompt(prompt, add_special_tokens, chat_template_name)
        return self.core.tokenize(document_of(form))

    def detokenize(self, token_ids: Iterable[int]) -> str:
        """Text of token ids, special tokens included.

        Errors: RefusedError names the entry that is no token id of this model.
        """
        ids, size = ids_of(token_ids, "token_ids"), self.info["vocab_size"]
        if ids and (min(ids) < 0 or max(ids) >= size):
            i = next(i for i, each in enumerate(ids) if not 0 <= each < size)
            reason = f"token id {ids[i]} is outside the vocabulary of {size}"
            raise refused(f"token_ids[{i}]", reason)
        return self.core.detokenize(ids)

    def sleep(self, level: int = 1) -> None:
        """Gives memory back until `wake_up`; requests get OverloadedError meanwhile. Blocks.

        `level` 0 only pauses; 1 gives back KV blocks and weights, on a GPU into host memory; 2
        keeps no copy of the weights. `info["deepest_sleep"]` is the deepest that this device can.
        Errors: RefusedError with status 409 if requests run, 501 if the level is too deep;
        OverloadedError if the device could not.
        """
        if type(level) is not int or not 0 <= level <= 2:
            raise not_allowed("level", "a whole number from 0 to 2", level)
        self.core.sleep(level)

    def wake_up(self) -> None:
        """Takes the memory back, and then requests again. Blocks.

        Errors: OverloadedError if it is not there any more, say; the engine then sleeps on.
        """
        self.core.wake()

    def is_sleeping(self) -> bool:
        """Whether `sleep` was called and no `wake_up` has ended well since."""
        return self.core.sleep_level() is not None

    def close(self) -> None:
        """Aborts all requests and frees the model. Idempotent. No effect in a forked process."""
        self.dispatcher.close()
        if not self.dispatcher.is_foreign():
            self.core.shutdown()
            close_all(self._event_sockets)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def event_sockets(settings: Settings) -> list[socket.socket]:
    """The sockets on which an engine of these settings publishes KV events; none if it does not.

    Errors: ConfigError, OSError if an address is taken.
    """
    config = settings.kv_events()
    return [] if config is None else bind_kv_events(config, settings.data_parallel_size)


async def submit_async(
    dispatcher: Dispatcher,
    document: bytes,
    sink: Any,
    is_slow: bool = False,
    in_thread: Callable[..., "asyncio.Future[int]"] | None = None,
) -> int:
    """`Dispatcher.submit` for a running loop. Slow or long requests are submitted on a thread.

    `in_thread` replaces the loop's own thread pool. If the caller is cancelled meanwhile, the
    request is aborted as soon as it has a key.
    """
    if not is_slow and len(document) <= INLINE_BYTES:
        key = dispatcher.submit_if_brief(document, sink)
        if key is not None:
            return key
    import asyncio

    if in_thread is None:
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(None, dispatcher.submit, document, sink)
    else:
        work = in_thread(dispatcher.submit, document, sink)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(lambda done: _abort_orphan(dispatcher, done))
        raise


def _abort_orphan(dispatcher: Dispatcher, done: "asyncio.Future[int]") -> None:
    if not done.cancelled() and done.exception() is None:
        dispatcher.abort(done.result())


class _Batch:
    """The prompts of one `generate` call. Keeps the queue full and collects the answers."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        prompts: list[PromptLike],
        params: list[SamplingParams],
        template_name: str | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._template_name = template_name
        self._params = params
        self._events: queue.SimpleQueue[tuple[int, int, Any]] = queue.SimpleQueue()
        self._waiting = deque(enumerate(prompts))
        self._running: dict[int, int] = {}
        self._outputs = [
            RequestOutput(prompt, [Completion(index) for index in range(each.n)])
            for prompt, each in zip(prompts, params, strict=True)
        ]

    def run(self) -> list[RequestOutput]:
        """Feeds and collects until every prompt has ended."""
        self._feed()
        while self._running:
            number, kind, payload = self._next_event()
            output = self._outputs[number]
            if kind == DELTA:
                _append(output, payload)
                continue
            del self._running[number]
            if kind == END:
                output.usage = _usage(payload)
            else:
                _raise_unless_aborted(kind, payload)
                for completion in output.outputs:
                    completion.finish_reason = completion.finish_reason or "abort"
            self._feed()
        return self._outputs

    def abort(self) -> None:
        """Aborts what is still running."""
        for key in list(self._running.values()):
            self._dispatcher.abort(key)

    def _feed(self) -> None:
        while self._waiting:
            number, prompt = self._waiting[0]
            form = as_prompt(prompt, template_name=self._template_name)
            document = document_of(self._params[number].request(form))
            try:
                self._running[number] = self._dispatcher.submit(document, self._sink(number))
            except OverloadedError:
                if not self._running:
                    raise
                return
            self._waiting.popleft()

    def _sink(self, number: int) -> Any:
        put = self._events.put
        return lambda kind, payload: put((number, kind, payload))

    def _next_event(self) -> tuple[int, int, Any]:
        # On the thread whose loop watches for events, nothing else can deliver them.
        while self._dispatcher.watched_here():
            try:
                return self._events.get_nowait()
            except queue.Empty:
                self._dispatcher.pump(timeout_s=1.0)
        return self._events.get()


def document_of(request: Prompt | GenerationRequest) -> bytes:
    """The core's document. Errors: RefusedError for values that JSON cannot represent."""
    try:
        return encode(request)
    except UnicodeEncodeError:
        # `os.fsdecode` and JSON with lone escapes make such strings.
        raise RefusedError(
            "a text contains half of a surrogate pair, which is not a character"
        ) from None
    except RecursionError:
        # In a mapping from the caller: a schema or a message.
        raise RefusedError("a value is nested too deeply or contains itself") from None


def _delta(key: int, payload: Any) -> Delta:
    """A delta from the core's tuple (choice, text, ids, log-probs, finish reason, stop reason)."""
    index, text, token_ids, logprobs, finish_reason, stop_reason = payload
    if logprobs is not None:
        logprobs = [TokenLogprob(*entry) for entry in logprobs]
    return Delta(key, index, text, token_ids, logprobs, finish_reason, stop_reason)


def _append(output: RequestOutput, payload: Any) -> None:
    delta = _delta(0, payload)
    completion = output.outputs[delta.index]
    completion.text += delta.text
    completion.token_ids += delta.token_ids
    if delta.logprobs is not None:
        completion.logprobs = (completion.logprobs or []) + delta.logprobs
    if delta.finish_reason is not None:
        completion.finish_reason = delta.finish_reason
        completion.stop_reason = delta.stop_reason


def _usage(payload: Any) -> Usage | None:
    return Usage(*payload) if isinstance(payload, tuple) else None


def _raise_unless_aborted(kind: int, payload: Any) -> None:
    if kind == ABORTED:
        return
    if kind != ERROR or not isinstance(payload, bytes):
        raise InternalError(f"unexpected event kind {kind}")
    error: IngleError = error_of_event(payload)
    raise error
