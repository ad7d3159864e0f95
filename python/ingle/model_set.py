"""The models that one process runs: MODEL alone, or `--model NAME=SOURCE` and `[models.NAME]`.

Runs once, before any thread starts. Settings at the top level of the `--config` file, and flags,
hold for every model; the table of a model overrides them for that model.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ingle.config import (
    DEFAULTS,
    Settings,
    flag_name,
    load,
    names,
    read_table,
    respelled,
    spellings,
)
from ingle.errors import ConfigError
from ingle.kv_events import split_endpoint

T = TypeVar("T")
OF_THE_PROCESS = frozenset(
    {
        "allow_download",
        "cache_dir",
        "cpu_threads",
        "cublaslt_library",
        "data_parallel_size",
        "device",
        "download_cache_bytes",
        "download_dir",
        "enable_expert_parallel",
        "health_stall_s",
        "nvrtc_library",
        "served_model_name",
        "sim_speed",
        "tensor_parallel_size",
        "verify_downloads",
    }
)
"""Engine settings that the table of a model cannot have."""
NOT_WITH_SEVERAL = ("data_parallel_size", "served_model_name", "tensor_parallel_size")
"""Settings that work with one model only."""
AT_START, ON_REQUEST = "at-start", "on-request"
"""When the weights of a model are read."""
MOST_MODELS = 256
MOST_NAME = 200
MOST_WEIGHT = 1000
MOST_TIMEOUT_S = 86400


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One model: what requests call it, and its settings."""

    name: str
    aliases: tuple[str, ...] = ()
    weight: int = 1
    """Its part of the device's time while several models want it."""
    is_pinned: bool = False
    """Whether it never makes room for others."""
    on_request: bool = False
    """Whether its weights are read with the first request for it, not at the start."""
    settings: Settings


@dataclass(frozen=True)
class Memory:
    """What the models of a process may take together, where not all fit."""

    num_bytes: int
    timeout_s: int
    """How long requests wait for a model that sleeps."""


@dataclass(frozen=True)
class ModelSet:
    """The models of a process, at least one; no name or alias is there twice."""

    entries: tuple[ModelEntry, ...]
    memory: Memory | None = None
    """None if all models stay in memory."""

    def __iter__(self) -> Iterator[ModelEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def process(self) -> Settings:
        """Settings of the process, such as the address; those of models are the first one's."""
        return self.entries[0].settings

    def only(self, command: str) -> Settings:
        """The settings of the one model. Errors: ConfigError if there are several."""
        if len(self.entries) > 1:
            shown = ", ".join(entry.name for entry in self)
            raise ConfigError(f"models: {command} takes one model, not {shown}")
        return self.process


def add_model_flag(parser: argparse.ArgumentParser) -> None:
    """Adds `--model NAME=SOURCE`."""
    parser.add_argument(
        "--model",
        dest="models",
        action="append",
        metavar="NAME=SOURCE",
        help="one of several models, and its name in requests; may be repeated; instead of MODEL",
    )
    parser.add_argument(
        "--device-memory-bytes",
        type=int,
        metavar="INT",
        help="memory for the weights and KV caches of several models together; if not all fit, "
        "idle ones make room and return with the next request; default: all stay in memory",
    )
    parser.add_argument(
        "--swap-timeout",
        type=int,
        metavar="SECONDS",
        help="how long requests wait for a model that is not in memory; default: 60",
    )


def load_set(arguments: Mapping[str, Any]) -> ModelSet:
    """The models and their settings, from parsed flags. See `ingle.config.load`.

    Errors: ConfigError names the flag, or file, model and key.
    """
    file = arguments.get("config")
    top = read_table(file) if file else {}
    tables = tables_of(file, top) if file else {}
    memory = spelled_as_flags(memory_of, top, arguments)
    named: set[str] = set()
    for text in arguments.get("models") or ():
        name, equals, source = text.partition("=")
        if not equals or not name or not source:
            raise ConfigError(f"--model: must be NAME=SOURCE, not {text!r}")
        if name in named:
            raise ConfigError(f"--model: {name!r} has two sources")
        named.add(name)
        tables[name] = {**tables.get(name, {}), "source": source}
    if not tables:
        if memory is not None:
            raise ConfigError("--device-memory-bytes: is for several models")
        settings = load(arguments)
        return ModelSet((ModelEntry(name=settings.model_name(), settings=settings),))
    if arguments.get("model") is not None or "model" in top:
        raise ConfigError("model: give one MODEL, or --model NAME=SOURCE and models, not both")
    # The models' own sources replace this one.
    common = load({**arguments, "model": "-"})
    shared = {name: getattr(common, name) for name in DEFAULTS if name != "model"}
    try:
        return set_of(tables, shared, memory)
    except ConfigError as error:
        where = f"{file}: " if file and str(error).startswith("models.") else ""
        raise ConfigError(where + respelled(str(error), spellings(arguments))) from None


def memory_of(table: Mapping[str, Any], arguments: Mapping[str, Any]) -> Memory | None:
    """The models' common memory, from a settings file and flags. Errors: ConfigError."""
    given = {key.replace("-", "_"): value for key, value in table.items()}
    given.update({key: value for key, value in arguments.items() if value is not None})
    num_bytes, timeout_s = given.get("device_memory_bytes"), given.get("swap_timeout")
    if num_bytes is None:
        if timeout_s is not None:
            raise ConfigError("swap_timeout: has no effect without device_memory_bytes")
        return None
    return checked_memory(num_bytes, 60 if timeout_s is None else timeout_s)


def spelled_as_flags(
    read: Callable[[Mapping[str, Any], Mapping[str, Any]], T], *given: Mapping[str, Any]
) -> T:
    """What `read` gives. Errors: its ConfigError, with the flags of `add_model_flag`."""
    try:
        return read(*given)
    except ConfigError as error:
        text = str(error)
        for name in ("device_memory_bytes", "swap_timeout"):
            text = text.replace(name, "--" + flag_name(name))
        raise ConfigError(text) from None


def checked_memory(num_bytes: Any, timeout_s: Any) -> Memory:
    """Errors: ConfigError names what is no size or no time."""
    if type(num_bytes) is not int or not 1 <= num_bytes < 2**63:
        raise ConfigError(f"device_memory_bytes: must be a number of bytes, not {num_bytes!r}")
    if type(timeout_s) is not int or not 1 <= timeout_s <= MOST_TIMEOUT_S:
        allowed = f"a whole number of seconds from 1 to {MOST_TIMEOUT_S}"
        raise ConfigError(f"swap_timeout: must be {allowed}, not {timeout_s!r}")
    return Memory(num_bytes, timeout_s)


def set_of(
    tables: Mapping[str, Mapping[str, Any]],
    shared: Mapping[str, Any],
    memory: Memory | None = None,
) -> ModelSet:
    """The models of these tables, by name; `shared` holds for each of them.

    Errors: ConfigError names model and key.
    """
    if not 1 <= len(tables) <= MOST_MODELS:
        raise ConfigError(f"models: must be 1 to {MOST_MODELS} models, not {len(tables)}")
    for name in NOT_WITH_SEVERAL:
        if shared.get(name, DEFAULTS[name]) != DEFAULTS[name]:
            raise ConfigError(f"{name}: works with one model only, not with named ones")
    if shared.get("kv_events_config") is not None and len(tables) > 1:
        where = "kv-events-config in its table [models.NAME], with an endpoint of its own"
        raise ConfigError(f"kv_events_config: is not for several models; each may have {where}")
    entries = tuple(entry_of(name, table, shared) for name, table in tables.items())
    check_names(entries)
    check_endpoints(entries)
    if memory is None and any(entry.is_pinned for entry in entries):
        raise ConfigError("models: pinned has no effect without device_memory_bytes")
    for entry in entries:
        if memory is None and entry.on_request:
            raise ConfigError(f"models.{entry.name}: load: {ON_REQUEST} needs device_memory_bytes")
    return ModelSet(entries, memory)


def entry_of(name: str, table: Mapping[str, Any], shared: Mapping[str, Any]) -> ModelEntry:
    """One model's table, checked."""
    where = f"models.{name}"
    if not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        raise ConfigError(f"models: a name has 1 to {MOST_NAME} printable characters, not {name!r}")
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: must be a table with a source")
    values = dict(table)
    source, aliases = values.pop("source", None), values.pop("aliases", ())
    weight, is_pinned = values.pop("weight", 1), values.pop("pinned", False)
    when = values.pop("load", AT_START)
    if not isinstance(source, str | Path) or not str(source):
        raise ConfigError(f"{where}: source: must be a folder, a .gguf file or demo")
    if not is_list_of_names(aliases):
        raise ConfigError(f"{where}: aliases: must be a list of names")
    if type(weight) is not int or not 1 <= weight <= MOST_WEIGHT:
        raise ConfigError(f"{where}: weight: must be a whole number from 1 to {MOST_WEIGHT}")
    if type(is_pinned) is not bool:
        raise ConfigError(f"{where}: pinned: must be true or false")
    if when not in (AT_START, ON_REQUEST):
        raise ConfigError(f"{where}: load: must be {AT_START} or {ON_REQUEST}, not {when!r}")
    own = {key.replace("-", "_"): value for key, value in values.items()}
    for key, given in zip(own, values, strict=True):
        check_key(where, key, given)
    try:
        settings = Settings(**{**shared, **own, "model": str(source), "served_model_name": name})
    except ConfigError as error:
        raise ConfigError(f"{where}: {spelled_as_given(str(error), values)}") from None
    return ModelEntry(
        name=name,
        aliases=tuple(aliases),
        weight=weight,
        is_pinned=is_pinned,
        on_request=when == ON_REQUEST,
        settings=settings,
    )


def check_key(where: str, key: str, given: str) -> None:
    """Errors: ConfigError unless a model's table may have this setting."""
    if key in names("engine") and key not in OF_THE_PROCESS:
        return
    if key in DEFAULTS:
        raise ConfigError(f"{where}: {given}: is a setting of the whole process, not of one model")
    raise ConfigError(f"{where}: unknown setting {given!r}")


def spelled_as_given(text: str, values: Mapping[str, Any]) -> str:
    """The message with the setting's name as the table has it."""
    for key in values:
        name = key.replace("-", "_")
        if text.startswith(f"{name}:"):
            return key + text.removeprefix(name)
    return text


def is_list_of_names(value: Any) -> bool:
    """Whether these can be names of a model."""
    return isinstance(value, list | tuple) and all(
        isinstance(each, str) and 1 <= len(each) <= MOST_NAME and each.isprintable()
        for each in value
    )


def check_names(entries: tuple[ModelEntry, ...]) -> None:
    """Errors: ConfigError for a name or alias that two models have."""
    owners: dict[str, str] = {}
    for entry in entries:
        for name in (entry.name, *entry.aliases):
            other = owners.setdefault(name, entry.name)
            if other != entry.name or (name in entry.aliases and name == entry.name):
                raise ConfigError(f"models.{entry.name}: {name!r} is already a name of {other!r}")


def check_endpoints(entries: tuple[ModelEntry, ...]) -> None:
    """Errors: ConfigError for an address at which two of the models would publish KV events."""
    owners: dict[tuple[str, int], str] = {}
    for entry in entries:
        events = entry.settings.kv_events()
        for endpoint in events.endpoints() if events is not None else ():
            host, port = split_endpoint(endpoint)
            # Port 0 is any free one.
            other = owners.setdefault((host, port), entry.name) if port else entry.name
            if other != entry.name:
                message = f"KV events: {endpoint} is already an endpoint of {other!r}"
                raise ConfigError(f"models.{entry.name}: {message}")


def tables_of(file: Path, top: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables `[models.NAME]` of a settings file. Errors: ConfigError."""
    tables = top.get("models", {})
    if not isinstance(tables, dict):
        raise ConfigError(f"config: {file}: models: must be tables [models.NAME]")
    return dict(tables)
