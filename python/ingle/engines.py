"""The public Python API for several models in one process: `Engines`. Any thread.

Each model has an `Engine` of its own, with its tokenizer, its KV pool and its requests.
"""

import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ingle import _core
from ingle.engine import Engine, Sharing, event_sockets
from ingle.errors import RefusedError
from ingle.kv_events import close_all
from ingle.loading import WeightsBar
from ingle.model_set import ModelEntry, ModelSet, checked_memory, set_of
from ingle.outputs import Delta, PromptLike, RequestOutput
from ingle.sampling import SamplingParams


class Engines(Mapping[str, Engine]):
    """Several loaded models, by name. Close it, or use it as a context manager."""

    def __init__(
        self,
        models: Mapping[str, str | Path | Mapping[str, Any]],
        *,
        device_memory_bytes: int | None = None,
        swap_timeout: int = 60,
        **settings: Any,
    ) -> None:
        """Loads the models one after the other; blocks until all can serve.

        Args:
            models: for each name a local Hugging Face folder, a .gguf file or demo; or a mapping
                with that as `source`, with `aliases`, a list of further names, with `weight`, its
                part of the device's time while several models want it (1 to 1000, default 1), with
                `pinned`, with `load` (at-start, or on-request: weights are read with the first
                request), and with settings of this model, such as max_model_len.
            device_memory_bytes: memory for the weights and KV caches of all models together; if
                not all fit, idle ones that are not `pinned` make room and return with the next
                request.
            swap_timeout: how many seconds requests wait for a model that is not in memory.
            settings: arguments of `ingle.Engine` that hold for every model.

        Raises:
            ConfigError: an argument is not what it must be; the message names model and argument.
            ModelError: the message names the model, and the setting or the file and the field.
        """
        tables = {
            name: {"source": each} if isinstance(each, str | Path) else each
            for name, each in models.items()
        }
        memory = None
        if device_memory_bytes is not None:
            memory = checked_memory(device_memory_bytes, swap_timeout)
        checked = set_of(tables, settings, memory)
        self._load(checked, sockets_of(checked))

    @classmethod
    def of(
        cls,
        models: ModelSet,
        sockets: Sequence[list[socket.socket]] | None = None,
        loaded: Callable[[str, Engine], None] = lambda name, engine: None,
    ) -> Self:
        """Loads checked settings and shows on a terminal how far the weights are.

        `sockets`: of `sockets_of`, bound earlier; takes them over. `loaded` hears of each model
        that has been loaded.
        """
        engines = cls.__new__(cls)
        engines._load(models, sockets_of(models) if sockets is None else sockets, loaded)
        return engines

    def _load(
        self,
        models: ModelSet,
        sockets: Sequence[list[socket.socket]],
        loaded: Callable[[str, Engine], None] | None = None,
    ) -> None:
        self.models = models
        self._engines: dict[str, Engine] = {}
        self._names = {
            name: entry.name for entry in models for name in (entry.name, *entry.aliases)
        }
        swaps = models.memory is not None
        try:
            self._device = device = device_of(models)
            for entry, own in zip(models, sockets, strict=True):
                sharing = None
                if device is not None:
                    sharing = Sharing(
                        device, len(models), entry.weight, entry.is_pinned, swaps, entry.on_request
                    )
                with WeightsBar(entry.name, shows=loaded is not None) as bar:
                    engine = Engine.with_sockets(entry.settings, own, sharing, bar.progress)
                self._engines[entry.name] = engine
                if loaded is not None:
                    loaded(entry.name, engine)
        except BaseException:
            self.close()
            for each in sockets:
                close_all(each)
            raise

    def __getitem__(self, name: str) -> Engine:
        """The model of this name or alias. Errors: KeyError."""
        return self._engines[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._engines)

    def __len__(self) -> int:
        return len(self._engines)

    def name_of(self, name: str) -> str:
        """The model's own name for a name or an alias. Errors: KeyError."""
        return self._names[name]

    def entries(self) -> list[tuple[ModelEntry, Engine]]:
        """Each model's settings beside its engine."""
        return [(entry, self._engines[entry.name]) for entry in self.models]

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        model: str,
        chat_template_name: str | None = None,
    ) -> list[RequestOutput]:
        """As `Engine.generate`, with the model of this name or alias.

        Errors: also RefusedError for a name that no model has.
        """
        return self._find(model).generate(
            prompts, sampling_params, chat_template_name=chat_template_name
        )

    def stream(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        model: str,
        chat_template_name: str | None = None,
    ) -> AsyncIterator[Delta]:
        """As `Engine.stream`, with the model of this name or alias.

        Errors: also RefusedError, at once, for a name that no model has.
        """
        return self._find(model).stream(
            prompt, sampling_params, chat_template_name=chat_template_name
        )

    def _find(self, name: str) -> Engine:
        found = self._names.get(name) if isinstance(name, str) else None
        if found is None:
            raise unknown_model(name, self._engines)
        return self._engines[found]

    def close(self) -> None:
        """Aborts all requests and frees the models. Idempotent."""
        for engine in self._engines.values():
            engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def sockets_of(models: ModelSet) -> list[list[socket.socket]]:
    """The sockets on which each model publishes KV events; none for one that does not.

    Errors: ConfigError, OSError if an address is taken.
    """
    bound: list[list[socket.socket]] = []
    try:
        for entry in models:
            bound.append(event_sockets(entry.settings))  # noqa: PERF401 # Closed on errors.
    except BaseException:
        for each in bound:
            close_all(each)
        raise
    return bound


def device_of(models: ModelSet) -> _core.SharedDevice | None:
    """What the models share; None for a single one. Errors: ModelError if there is no thread."""
    if models.memory is not None:
        return _core.SharedDevice(models.memory.num_bytes, models.memory.timeout_s)
    return _core.SharedDevice() if len(models) > 1 else None


def metrics_of(engines: Iterable[Engine], exemplars: bool = False) -> bytes:
    """Prometheus text of several models; each family is declared once."""
    return _core.metrics([engine.core for engine in engines], exemplars)


def unknown_model(name: object, known: Mapping[str, object]) -> RefusedError:
    """The error for a name that no model has; lists those that there are."""
    shown = ", ".join(repr(each) for each in known)
    given = repr(name)[:MOST_SHOWN]
    verb = "has" if len(known) == 1 else "has the models"
    message = f"the model {given} does not exist; this server {verb} {shown[:MOST_LISTED]}"
    return RefusedError(message, "model", "model_not_found", 404)


MOST_SHOWN = 200
MOST_LISTED = 4000
