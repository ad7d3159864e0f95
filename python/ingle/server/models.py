"""[1] The models of one server: which one a request names, what they show. Event loop."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from ingle.engine import Engine
from ingle.engines import Engines, metrics_of, unknown_model
from ingle.errors import RefusedError
from ingle.server.sse import Heartbeat


class ServedModel:
    """One model as handlers see it: its engine, and what they need of that at every request."""

    def __init__(self, name: str, aliases: tuple[str, ...], engine: Engine) -> None:
        self.name = name
        """In responses, whichever of its names the request had."""
        self.aliases = aliases
        self.engine = engine
        self.core = engine.core
        self.dispatcher = engine.dispatcher
        self.info = engine.info
        self.vocab_size: int = engine.info["vocab_size"]
        self.has_choice: bool = engine.info["num_engines"] > 1
        """Whether several engines share its requests."""
        self.heartbeat = Heartbeat(engine.core)

    def health(self) -> dict[str, Any]:
        """The core's own view, and the ranks of each engine."""
        health: dict[str, Any] = msgspec.json.decode(self.core.health())
        health["ranks"] = self.info["ranks"]
        return health


class Models:
    """All models of a server, by name and alias. At least one."""

    def __init__(self, engines: Engine | Engines) -> None:
        if isinstance(engines, Engines):
            self._models = [
                ServedModel(entry.name, entry.aliases, engine)
                for entry, engine in engines.entries()
            ]
        else:
            self._models = [ServedModel(engines.settings.model_name(), (), engines)]
        self._by_name: dict[str | None, ServedModel] = {
            name: model for model in self._models for name in (model.name, *model.aliases)
        }
        if len(self._models) == 1:
            # A request need not name the only model.
            self._by_name[None] = self._models[0]

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def first(self) -> ServedModel:
        """Stands for all where the device or the process is meant."""
        return self._models[0]

    def find(self, name: str | None) -> ServedModel:
        """The model of this name or alias; None is the only one.

        Errors: RefusedError 404 lists the models; 400 if there are several and none is named.
        """
        model = self._by_name.get(name)
        if model is not None:
            return model
        known = {each.name: each for each in self._models}
        if name is None:
            shown = ", ".join(map(repr, known))
            raise RefusedError(f"model: is missing; this server has the models {shown}", "model")
        raise unknown_model(name, known)

    def watch(self, loop: asyncio.AbstractEventLoop, on_fatal: Callable[[str], None]) -> None:
        """Lets the loop drain the events of all models."""
        for model in self._models:
            model.dispatcher.use_loop(loop, on_fatal)

    def leave(self) -> None:
        """Ends `watch`."""
        for model in self._models:
            model.dispatcher.leave_loop()

    def start_drain(self) -> None:
        """Every model refuses new requests from now on."""
        for model in self._models:
            model.core.start_drain()

    def shutdown(self) -> None:
        """Aborts what runs; blocks until all threads of the engines have ended."""
        for model in self._models:
            model.core.shutdown()

    def seal_devices(self) -> bool:
        """Blocks until the devices have done what they began at load: see `seal_device`."""
        sealed = [model.core.seal_device() for model in self._models]  # Each, whatever one says.
        return all(sealed)

    def reset_prefix_caches(self) -> None:
        """Forgets all cached prefixes."""
        for model in self._models:
            model.core.reset_prefix_cache()

    def deepest_sleep(self) -> int:
        """The deepest level at which all models can sleep."""
        return min(int(model.info["deepest_sleep"]) for model in self._models)

    def swap(self) -> bool:
        """Whether models make room for each other; then they do not sleep together."""
        return any(model.core.memory_state() is not None for model in self._models)

    def sleep(self, level: int) -> None:
        """Every model gives memory back; blocks.

        Errors: the first; then those that were awake are so again.
        """
        asleep: list[ServedModel] = []
        try:
            for model in self._models:
                was_awake = model.core.sleep_level() is None
                model.core.sleep(level)
                if was_awake:
                    asleep.append(model)
        except BaseException:
            for model in asleep:
                model.core.wake()
            raise

    def wake(self) -> None:
        """Every model takes its memory back; blocks. Errors: the first; that one sleeps on."""
        for model in self._models:
            model.core.wake()

    def lock_info(self) -> dict[str, Any]:
        """What the lock-down needs to know: the device, and the files that stay open."""
        files = {file for model in self._models for file in model.info["open_files"]}
        device = self.first.info["device"]
        sleeps = any(model.info["deepest_sleep"] > 0 for model in self._models)
        return {"device": device, "open_files": sorted(files), "sleeps": sleeps}

    def health(self) -> dict[str, Any]:
        """The only model's health; of several the sum, the worst status, and each one's."""
        each = {model.name: model.health() for model in self._models}
        if len(each) == 1:
            return each[self.first.name]
        several = list(each.values())
        total: dict[str, Any] = {"status": max(several, key=badness)["status"]}
        total.update({key: sum(health[key] for health in several) for key in SUMS})
        for key in ("standstill_s", "ranks"):
            total[key] = max(health[key] for health in several)
        return {**total, "models": each}

    def metrics(self, exemplars: bool = False) -> bytes:
        """Prometheus text of all models. `exemplars`: with the traces of requests."""
        if len(self._models) == 1:
            return self.first.core.metrics(exemplars)
        return metrics_of((model.engine for model in self._models), exemplars)


def badness(health: dict[str, Any]) -> int:
    """Worse ones are larger."""
    return STATUSES.index(health["status"])


STATUSES: Final = ("ok", "asleep", "draining", "stuck", "dead")
"""The core's, the worst last."""
SUMS: Final = ("steps", "running", "waiting", "in_system", "capacity")
