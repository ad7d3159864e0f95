"""All settings of a worker: their names, defaults, flags and checks.

A setting comes from its flag, else from the TOML file of `--config`, else from its default. The
file's keys are the settings' names, with `-` or `_`, at its top level. Relative paths in it start
at the working directory. Unknown settings are refused by name. Runs once, before any thread starts.
"""

import argparse
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from ingle.demo import DEMO, SAMPLING_DEFAULTS, resolve_model
from ingle.errors import ConfigError
from ingle.faults import fault_of
from ingle.kv_events import KvEventsConfig, parse_kv_events
from ingle.model_name import name_of
from ingle.origins import parse_origins
from ingle.places import default_cache_dir, may_use_gpu, places
from ingle.setting_values import check_text, check_url, parse_sim_speed, read_text


def about(group: str, text: str, **extra: Any) -> dict[str, Any]:
    """Metadata of a setting: `group` is its reader, `text` the flag's help."""
    return {"group": group, "help": text, **extra}


NOTHING: Mapping[str, Any] = {}
OF_DOWNLOADS = ("allow_download", "download_dir", "download_cache_bytes", "verify_downloads")
OF_ALL_MODELS = ("models", "device_memory_bytes", "swap_timeout")
"""Keys of a settings file that model_set.py reads."""
SEED = f"a whole number from 0 to {2**64 - 1}"
Seed = Annotated[int, Meta(ge=0, extra={"allowed": SEED})]
"""msgspec has no bound beyond 63 bits: `Settings` checks the upper one."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of `ingle serve`; `ingle.Engine` takes those of the group `engine`.

    Names are vLLM's where the meaning is the same.
    """

    model: Annotated[str, Meta(min_length=1)]
    served_model_name: Annotated[str, Meta(min_length=1)] | None = field(
        default=None,
        metadata=about("engine", "name in requests and responses; default: end of the path"),
    )
    device: str = field(
        default="auto",
        metadata=about(
            "engine",
            "auto, cpu, cuda, cuda:N, sim, or sim:FILE with a JSON profile; auto uses the GPU if "
            "there is one",
            metavar="DEVICE",
        ),
    )
    data_parallel_size: Annotated[int, Meta(ge=1, le=1024)] = field(
        default=1,
        metadata=about(
            "engine",
            "number of engines that share the requests: one per GPU, from the device's number on; "
            "on a CPU they divide the threads; limits such as max-num-seqs are each engine's, "
            "max-queue is the server's",
        ),
    )
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=64)] = field(
        default=1,
        metadata=about(
            "engine",
            "number of ranks among which an engine divides the model; on the cpu device only, "
            "where one process computes all ranks, to test a division",
        ),
    )
    enable_expert_parallel: bool = field(
        default=False,
        metadata=about(
            "engine",
            "with tensor-parallel-size: give each rank whole experts instead of a part of each",
        ),
    )
    sim_speed: str | None = field(
        default=None,
        metadata=about(
            "engine", "speed-up of the sim device: a number, or inf for no delay", metavar="X"
        ),
    )
    dtype: str = field(
        default="auto",
        metadata=about(
            "engine",
            "type of weights; auto lets the device choose; on a GPU also bfloat16, float16, half",
        ),
    )
    load_format: Literal["auto", "dummy"] = field(
        default="auto",
        metadata=about(
            "engine",
            "dummy: read no weights, take pseudo-random numbers in the shapes of config.json, for "
            "benchmarks; what the model then writes means nothing",
        ),
    )
    quantization: Literal["fp8"] | None = field(
        default=None,
        metadata=about(
            "engine",
            "fp8: keep the linear layers of an unquantised model in 8 bits, with a scale per "
            "output channel; default: weights as the model has them",
        ),
    )
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3"] = field(
        default="auto",
        metadata=about("engine", "fp8: keep keys and values in 8 bits; on the cpu device only"),
    )
    max_model_len: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = field(
        default=None,
        metadata=about(
            "engine",
            "maximum length of prompt plus answer, in tokens; default: the model's own limit",
        ),
    )
    max_num_seqs: Annotated[int, Meta(ge=1, le=2**16)] | None = field(
        default=None,
        metadata=about(
            "engine", "maximum number of requests in one step; default: 256, on a CPU 32"
        ),
    )
    max_num_batched_tokens: Annotated[int, Meta(ge=1, le=2**24)] | None = field(
        default=None,
        metadata=about("engine", "most tokens in one step; default: 2048, on a CPU 512"),
    )
    block_size: Annotated[int, Meta(ge=1, le=2**16)] | None = field(
        default=None,
        metadata=about("engine", "tokens per block of the KV cache; default: 64, on a CPU 16"),
    )
    enable_prefix_caching: bool = field(
        default=True, metadata=about("engine", "do not reuse KV blocks of equal prefixes")
    )
    kv_cache_memory_bytes: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = field(
        default=None,
        metadata=about(
            "engine",
            "size of the KV cache in bytes; default: a quarter of the free memory, at most what "
            "max-num-seqs requests can fill; on a GPU, what gpu-memory-utilization leaves",
        ),
    )
    kv_cache_max_memory_bytes: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = field(
        default=None,
        metadata=about("engine", "size up to which the KV cache grows while other models are idle"),
    )
    enable_sleep_mode: bool = field(
        default=False,
        metadata=about("engine", "be able to give weights back (/sleep); see docs/OPERATIONS.md"),
    )
    allow_download: bool = field(
        default=False,
        metadata=about(
            "engine",
            "fetch a MODEL that is ORG/NAME from the Hugging Face hub, or from HF_ENDPOINT, into "
            "its cache; hf://ORG/NAME@REVISION and s3://BUCKET/PREFIX need no permission",
        ),
    )
    download_dir: Path | None = field(
        default=None,
        metadata=about(
            "engine",
            "folder for fetched models; default: ~/.cache/ingle for s3://, else the hub's cache",
            metavar="DIR",
        ),
    )
    download_cache_bytes: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = field(
        default=None,
        metadata=about("engine", "disk space for models from s3://; the longest unused make room"),
    )
    verify_downloads: bool = field(
        default=False,
        metadata=about("engine", "hash the files of fetched models, also where nothing changed"),
    )
    max_queue: Annotated[int, Meta(ge=1, le=2**24)] | None = field(
        default=None,
        metadata=about(
            "engine",
            "maximum number of waiting requests; more get 429; default: 4 x max-num-seqs for each "
            "engine",
        ),
    )
    seed: Seed | None = field(
        default=None,
        metadata=about("engine", "seed for requests without their own; makes them repeatable"),
    )
    chat_template: Path | None = field(
        default=None,
        metadata=about("engine", "file with another chat template", metavar="FILE"),
    )
    tool_call_parser: str = field(
        default="auto",
        metadata=about(
            "engine",
            "how the model writes tool calls: auto, as its chat template shows; none; or a name "
            "from docs/MODELS.md, such as hermes or qwen3_coder",
            metavar="NAME",
        ),
    )
    reasoning_parser: str = field(
        default="auto",
        metadata=about(
            "engine",
            "how the model marks its reasoning: auto, as its chat template shows; none: reasoning "
            "stays in the content; or a name from docs/MODELS.md, such as qwen3 or openai_gptoss",
            metavar="NAME",
        ),
    )
    generation_config: Literal["auto", "none"] = field(
        default="auto",
        metadata=about(
            "engine", "auto: take sampling defaults from the model's generation_config.json"
        ),
    )
    cpu_threads: Annotated[int, Meta(ge=0, le=1024)] = field(
        default=0,
        metadata=about(
            "engine",
            "worker threads of the cpu device, for all engines together; 0: one per physical core",
        ),
    )
    cpu_precision: Literal["exact", "fast"] = field(
        default="exact",
        metadata=about(
            "engine", "fast: the cpu device rounds activations in products to bf16 or 8 bits"
        ),
    )
    gpu_memory_utilization: Annotated[float, Meta(ge=0.01, le=1)] | None = field(
        default=None,
        metadata=about(
            "engine", "share of the GPU's memory that this process may use; default: 0.9"
        ),
    )
    enforce_eager: bool = field(
        default=False, metadata=about("engine", "launch kernels one by one, without CUDA graphs")
    )
    deterministic: bool = field(
        default=False, metadata=about("engine", "same bits whatever the batch; slower on a GPU")
    )
    cache_dir: Path | None = field(
        default=None,
        metadata=about(
            "engine",
            "folder for compiled kernels and measured algorithms; default: ~/.cache/ingle",
            metavar="DIR",
        ),
    )
    nvrtc_library: Path | None = field(
        default=None,
        metadata=about(
            "engine", "use this libnvrtc.so instead of searching for one", metavar="FILE"
        ),
    )
    cublaslt_library: Path | None = field(
        default=None,
        metadata=about(
            "engine", "use this libcublasLt.so instead of searching for one", metavar="FILE"
        ),
    )
    health_stall_s: Annotated[int, Meta(ge=1, le=86400)] = field(
        default=30,
        metadata=about(
            "engine",
            "/health returns 503 if work waits and no step has ended for this many seconds",
        ),
    )
    kv_events_config: str | None = field(
        default=None,
        metadata=about(
            "engine",
            "publish which KV blocks are cached, with the token ids of prompts, for routers: JSON "
            'with vLLM\'s keys, such as {"enable_kv_cache_events": true, "endpoint": '
            '"tcp://10.0.0.5:5557"}; default: nothing is published',
            metavar="JSON",
        ),
    )
    host: str = field(default="127.0.0.1", metadata=about("server", "address to listen on"))
    port: Annotated[int, Meta(ge=0, le=65535)] = field(
        default=8000, metadata=about("server", "TCP port to listen on; 0: any free port")
    )
    uds: Path | None = field(
        default=None,
        metadata=about(
            "server", "Unix socket to listen on instead of host and port", metavar="PATH"
        ),
    )
    admin_uds: Path | None = field(
        default=None,
        metadata=about(
            "server",
            "Unix socket for operators: /sleep, /wake_up, /is_sleeping and /reset_prefix_cache",
            metavar="PATH",
        ),
    )
    api_key_file: Path | None = field(
        default=None,
        metadata=about(
            "server",
            "file of `tenant:key` lines; all routes but /health and /ready then need a key, and "
            "/metrics needs the key of a line `tenant:key admin`; SIGHUP reloads the file",
            metavar="FILE",
        ),
    )
    allowed_origins: str | None = field(
        default=None,
        metadata=about(
            "server",
            "origins of web pages that may use the server from a browser, separated by commas, "
            "such as https://chat.example; * allows all; default: none",
            metavar="ORIGINS",
        ),
    )
    hardening: Literal["auto", "strict", "off"] = field(
        default="auto",
        metadata=about(
            "server",
            "lock the process down before it takes requests: auto, as far as this machine can; "
            "strict, refuse to start if anything is missing; off, not at all",
        ),
    )
    user: str | None = field(
        default=None,
        metadata=about(
            "server", "user to become when root starts the server", metavar="USER[:GROUP]"
        ),
    )
    otlp_traces_endpoint: str | None = field(
        default=None,
        metadata=about(
            "server",
            "send a span of each request to this OpenTelemetry collector (OTLP over HTTP), such as "
            "http://127.0.0.1:4318/v1/traces; needs the extra `otel`; default: none",
            metavar="URL",
        ),
    )
    trace_sample_ratio: Annotated[float, Meta(ge=0, le=1)] = field(
        default=1.0,
        metadata=about(
            "server", "share of requests without a traceparent header that get a span; 0 to 1"
        ),
    )
    startup_trace: Path | None = field(
        default=None,
        metadata=about("server", "write a Chrome trace of the start here", metavar="FILE"),
    )
    unknown_fields: Literal["refuse", "warn"] = field(
        default="refuse",
        metadata=about("server", "refuse unknown request fields, or accept, log and count them"),
    )
    max_body_bytes: Annotated[int, Meta(ge=1024, le=1 << 30)] = field(
        default=8 << 20,
        metadata=about("server", "maximum size of a request body; larger ones get 413"),
    )
    shutdown_timeout: Annotated[float, Meta(ge=0, le=86400)] = field(
        default=30.0,
        metadata=about("server", "seconds that running requests may take to finish after SIGTERM"),
    )

    def __post_init__(self) -> None:
        """Checks each value against its annotation; raises ConfigError by name."""
        for each in dataclasses.fields(self):
            value = coerce(each.name, each.type, getattr(self, each.name))
            object.__setattr__(self, each.name, value)
        if self.seed is not None and self.seed >= 2**64:
            raise ConfigError(f"seed: must be {SEED}, not {self.seed}")
        if self.sim_speed is not None:
            parse_sim_speed(self.sim_speed)
        if self.allowed_origins is not None:
            parse_origins(self.allowed_origins)
        if self.otlp_traces_endpoint is not None:
            check_url("otlp_traces_endpoint", self.otlp_traces_endpoint)
        if self.kv_events() is not None and not self.enable_prefix_caching:
            raise ConfigError("kv_events_config: there are no events without prefix caching")

    def engine_values(self) -> dict[str, Any]:
        """The engine settings that differ from their defaults, as arguments of `ingle.Engine`."""
        values = {name: getattr(self, name) for name in names("engine")}
        return {k: v for k, v in values.items() if v != DEFAULTS[k]}

    def engine_options(self, sharing: Mapping[str, Any] = NOTHING) -> bytes:
        """The JSON document that starts the core. Reads the chat template, resolves `demo`.

        `sharing`: options of one of several models.

        Errors: ConfigError for a file that cannot be read, ModelError where demo is missing.
        """
        options = self.engine_values()
        options["model"] = resolve_model(self.model)
        options["served_model_name"] = self.model_name()
        options.update(sharing)
        if self.model == DEMO:
            options["sampling_defaults"] = SAMPLING_DEFAULTS
        if self.sim_speed is not None:
            options["sim_speed"] = parse_sim_speed(self.sim_speed)
        if self.chat_template is not None:
            options["chat_template"] = read_text("chat_template", self.chat_template)
        compiles = may_use_gpu(self.device)
        cache_dir = options.pop("cache_dir", None) or (default_cache_dir() if compiles else None)
        options.pop("kv_events_config", None)
        for name in OF_DOWNLOADS:
            options.pop(name, None)
        events = self.kv_events()
        if events is not None:
            options["kv_events"] = events.options()
        libraries = (options.pop("nvrtc_library", None), options.pop("cublaslt_library", None))
        options["places"] = places(*libraries, cache_dir=cache_dir, kernels=compiles)
        return json.dumps(options).encode()

    def kv_events(self) -> KvEventsConfig | None:
        """What KV events to publish; None for none. Errors: ConfigError."""
        if self.kv_events_config is None:
            return None
        found = parse_kv_events(self.kv_events_config)
        return found if found.is_on else None

    def model_name(self) -> str:
        """The name that requests use."""
        if self.served_model_name is not None or self.model == DEMO:
            return self.served_model_name or DEMO
        return name_of(Path(self.model)) or self.model


def names(group: str) -> list[str]:
    """Names of the settings that `group` reads."""
    return [f.name for f in dataclasses.fields(Settings) if f.metadata.get("group") == group]


DEFAULTS = {f.name: f.default for f in dataclasses.fields(Settings)}


def flag_name(name: str) -> str:
    """`max_model_len` as the user knows it: `max-model-len`."""
    return name.replace("_", "-")


def with_flags(text: str) -> str:
    """A message with the names of settings written as flags."""
    return respelled(text, {})


def respelled(text: str, spellings: Mapping[str, str]) -> str:
    """A message with the names of settings as the user wrote them, else as flags.

    A one-word name counts as a setting only at the start of the message.
    """
    text = LEADING_NAME.sub(lambda found: spellings.get(found[0], shown_flag(found[0])), text)
    return SETTING_NAME.sub(
        lambda found: spellings.get(found[0], shown_flag(found[0])).rpartition(": ")[2], text
    )


def shown_flag(name: str) -> str:
    """The flag that sets `name`: `--max-model-len`."""
    return f"--no-{flag_name(name)}" if DEFAULTS.get(name) is True else f"--{flag_name(name)}"


LEADING_NAME = re.compile(
    rf"^({'|'.join(name for name in (*DEFAULTS, 'config') if name != 'model')})(?=: )"
)
SETTING_NAME = re.compile(
    rf"(?<![\w/.-])({'|'.join(name for name in DEFAULTS if '_' in name)})(?![\w/-])"
)


def coerce(name: str, kind: Any, value: Any) -> Any:
    """`value` as type `kind`; a flag and a TOML value with the same meaning become equal."""
    if name == "allowed_origins" and type(value) is list:
        value = json.dumps(value)  # A list of the TOML file.
    if name == "kv_events_config" and type(value) is dict:
        value = json.dumps(value)  # A table of the TOML file, or a dict of Python's.
    if name == "sim_speed" and type(value) in (int, float):
        value = str(value)
    if isinstance(value, str | Path):
        check_text(name, str(value))
    try:
        return msgspec.convert(value, kind, dec_hook=path_of)
    except msgspec.ValidationError as error:
        raise ConfigError(fault_of(error, kind, value, name).message()) from None


def path_of(kind: type, value: Any) -> Path:
    """A path from a text, for msgspec. Errors: TypeError for anything else."""
    if kind is not Path or not isinstance(value, str | Path):
        raise TypeError
    return Path(value)


def read_table(path: Path) -> dict[str, Any]:
    """A TOML file. Errors: ConfigError."""
    import tomllib  # Starts without such a file do not wait for it.

    try:
        return tomllib.loads(read_text("config", path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"config: {path}: {error}") from error


def read_file(path: Path) -> dict[str, tuple[str, Any]]:
    """The settings of a TOML file by field name, each with the key that it has there.

    Without what is of all models, see model_set.py. Errors: ConfigError names an unknown key.
    """
    values = {}
    for key, value in read_table(path).items():
        name = key.replace("-", "_")
        if name in OF_ALL_MODELS:
            continue
        if name not in DEFAULTS:
            raise ConfigError(f"config: {path}: unknown setting {key!r}")
        values[name] = (key, value)
    return values


def add_flags(parser: argparse.ArgumentParser, groups: Sequence[str]) -> None:
    """Adds one flag for each setting of `groups`, and --config."""
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help=CONFIG_HELP)
    for each in dataclasses.fields(Settings):
        if each.metadata.get("group") not in groups:
            continue
        kind = plain_type(each.type)
        options: dict[str, Any] = {
            "dest": each.name,
            "default": argparse.SUPPRESS,
            "help": help_text(each.metadata["help"], each.default),
        }
        if kind is bool:
            # A flag without a value sets the opposite of the default.
            if each.default is True:
                parser.add_argument("--no-" + flag_name(each.name), action="store_false", **options)
            else:
                parser.add_argument("--" + flag_name(each.name), action="store_true", **options)
            continue
        if get_origin(kind) is Literal:
            options["choices"] = get_args(kind)
        else:
            options["type"] = kind
            options["metavar"] = each.metadata.get("metavar", kind.__name__.upper())
        parser.add_argument("--" + flag_name(each.name), **options)


def plain_type(kind: Any) -> Any:
    """The type of a setting's values, without None and without a range."""
    if get_origin(kind) is Annotated:
        return plain_type(get_args(kind)[0])
    if type(None) in get_args(kind):
        return plain_type(next(each for each in get_args(kind) if each is not type(None)))
    return kind


CONFIG_HELP = "TOML file of settings; keys are flag names; a flag wins over the file"


def help_text(text: str, default: Any) -> str:
    """A flag's help with its default, unless there is none or the text has it."""
    shown = default is None or isinstance(default, bool) or "default:" in text
    return text if shown else f"{text}; default: {default}"


def load(arguments: Mapping[str, Any]) -> Settings:
    """Settings from parsed flags. Flags win over the file, the file over the defaults.

    Errors: ConfigError names a setting as the user wrote it: a flag, or a key of the file.
    """
    file = arguments.get("config")
    try:
        values = {name: value for name, (_, value) in read_file(file).items()} if file else {}
        values.update({k: v for k, v in arguments.items() if k in DEFAULTS and v is not None})
        if "model" not in values:
            raise ConfigError("model: no model given")
        return Settings(**values)
    except ConfigError as error:
        raise ConfigError(respelled(str(error), spellings(arguments))) from None


def spellings(arguments: Mapping[str, Any]) -> dict[str, str]:
    """How the user spelled the settings that come from the --config file."""
    file = arguments.get("config")
    try:
        found = read_file(file) if file else {}
    except ConfigError:
        return {}
    return {
        name: f"{file}: {key}" for name, (key, _) in found.items() if arguments.get(name) is None
    }
