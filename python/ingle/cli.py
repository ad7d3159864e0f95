"""The `ingle` command: serve, generate, chat, bench, doctor, security. Main thread.

Exit codes are in exit_codes.py.
Output for people goes to standard output, logs go to standard error.
"""

# `ingle serve` does nothing, and sheds no rights, before these imports are done. What only another
# command needs is imported by that command.
import argparse
import contextlib
import importlib
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ingle import _core
from ingle.config import Settings, add_flags, flag_name, respelled, spellings
from ingle.engine import Engine
from ingle.engines import Engines, unknown_model
from ingle.errors import ConfigError, HardeningError, IngleError, ModelError, RefusedError
from ingle.exit_codes import ExitCode
from ingle.fields import PLAIN
from ingle.model_set import add_model_flag, load_set
from ingle.outputs import PromptLike
from ingle.places import places
from ingle.sampling import SamplingParams


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    options = parser().parse_args(arguments)
    given = vars(options)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return int(run(options))
    except ConfigError as error:
        return complain(error, ExitCode.USAGE, given)
    except ModelError as error:
        return complain(error, ExitCode.MODEL, given)
    except HardeningError as error:
        return complain(error, ExitCode.HARDENING, given)
    except (IngleError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader of our output is gone. Exit without a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return int(ExitCode.OK)
        return complain(error, ExitCode.FAILED, given)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        prog="ingle",
        description="LLM inference engine with an OpenAI-compatible server",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"ingle {_core.__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> Any:
        added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.set_defaults(run=run)
        return added

    serve = command("serve", "serve a model over HTTP (OpenAI and Anthropic APIs)", run_serve)
    generate = command("generate", "continue a prompt and print the answer", run_generate)
    chat = command("chat", "chat with a model in the terminal", run_chat)
    for sub in (serve, generate, chat):
        sub.add_argument(
            "model",
            metavar="MODEL",
            nargs=None if sub is generate else "?",
            default=None,
            help="local Hugging Face folder or .gguf file, or demo (SmolLM2-135M-Instruct)",
        )
        add_flags(sub, ("engine", "server") if sub is serve else ("engine",))
        if sub is not generate:
            add_model_flag(sub)
    generate.add_argument(
        "prompt", metavar="PROMPT", help="text to continue; - reads it from standard input"
    )
    chat.add_argument("--system", metavar="TEXT", help="system message at the start of the chat")
    chat.add_argument(
        "--chat-template-name",
        metavar="NAME",
        help="one of the model's named chat templates, such as rag; default: the usual one",
    )
    for sub in (generate, chat):
        add_sampling_flags(sub)
    add_bench_flags(command("bench", "run a load test against a server", run_bench))
    doctor = command(
        "doctor", "show what this machine can run, what is missing and what that costs", run_doctor
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    add_plan_flags(command("plan", "simulate a fleet: how many workers a load takes", run_plan))
    add_security(commands)
    return top


def add_security(commands: Any) -> None:
    """`ingle security check` and `ingle security trace MODEL`."""
    text = "prove or trace the lock-down of `ingle serve`"
    security = commands.add_parser("security", help=text, description=text, allow_abbrev=False)
    actions = security.add_subparsers(required=True, metavar="ACTION")
    text = "try what the lock-down must refuse, each also without its rule; exit code 1 on surprise"
    check = actions.add_parser("check", help=text, description=text, allow_abbrev=False)
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=run_security_check)
    text = "serve, let through what the tight filter would refuse, and print it (not locked down)"
    trace = actions.add_parser("trace", help=text, description=text, allow_abbrev=False)
    trace.add_argument("model", metavar="MODEL", nargs="?", default=None, help="as for serve")
    add_flags(trace, ("engine", "server"))
    add_model_flag(trace)
    trace.set_defaults(run=run_security_trace)


def add_sampling_flags(sub: argparse.ArgumentParser) -> None:
    """Sampling flags. Absent ones take the model's defaults."""
    add = sub.add_argument
    add(
        "--max-tokens",
        type=int,
        metavar="INT",
        help="maximum length of an answer in tokens; default: the rest of the context",
    )
    for field in PLAIN.values():
        unset = "the model's" if field.from_model else f"{field.default:g}"
        add(
            "--" + flag_name(field.name),
            type=field.number(),
            metavar=field.number().__name__.upper(),
            help=f"{field.about} {field.allowed.capitalize()}; default: {unset}",
        )
    add(
        "--sampling-seed",
        type=int,
        metavar="INT",
        help="the same seed gives the same answer; default: a new seed each time",
    )
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="stop string; may be repeated",
    )


def add_bench_flags(bench: argparse.ArgumentParser) -> None:
    """Flags of `ingle bench`."""
    bench.epilog = "The API key is read from the environment variable OPENAI_API_KEY."
    add = bench.add_argument
    add("url", metavar="URL", help="http://HOST:PORT of any OpenAI-compatible server")
    add("--model", help="model name in requests; default: none, which ingle accepts")
    add("--chat", action="store_true", help="use chat completions instead of completions")
    add("--requests", type=int, default=1000, help="number of requests; default: 1000")
    add("--concurrency", type=int, default=64, help="number of concurrent connections; default: 64")
    lengths = "sharegpt (default), azure-conv, fixed:IN:OUT, or csv:FILE with ContextTokens and "
    add("--lengths", default="sharegpt", help=f"{lengths}GeneratedTokens")
    add(
        "--rate",
        type=float,
        help="requests per second (Poisson); default: all connections stay busy",
    )
    add("--seed", type=int, default=1, help="the same seed gives the same prompts; default: 1")
    add(
        "--processes", type=int, default=0, help="client processes; default: one per 50 connections"
    )
    add(
        "--timeout",
        type=float,
        default=300.0,
        help="timeout of one request in seconds; default: 300",
    )
    add("--new-connections", action="store_true", help="open a connection for each request")
    add(
        "--server-pid",
        type=int,
        help="also measure CPU and memory of this process and its children",
    )
    add(
        "--body",
        default="{}",
        metavar="JSON",
        help="JSON object with extra fields for each request",
    )
    add("--json", action="store_true", help="print one JSON object instead of text")
    add("--plot", type=Path, metavar="FILE.svg", help="plot latencies and rate to this file")


def sampling_params(options: argparse.Namespace) -> SamplingParams:
    """SamplingParams from the flags of `add_sampling_flags`."""
    return SamplingParams(
        max_tokens=options.max_tokens,
        **{name: getattr(options, name) for name in PLAIN},
        seed=options.sampling_seed,
        stop=options.stop,
    )


def run_serve(options: argparse.Namespace) -> int:
    """`ingle serve MODEL`."""
    # Only this command needs the HTTP server.
    from ingle.server.start import serve

    return serve(load_set(vars(options)), lambda text: print(text, flush=True))


def run_security_check(options: argparse.Namespace) -> int:
    """`ingle security check`: exit code 1 if a probe gave a surprise."""
    from ingle import security

    report = security.check()
    print(json.dumps(report, indent=2) if options.json else "\n".join(security.check_lines(report)))
    return ExitCode.OK if report["ok"] else ExitCode.FAILED


def run_security_trace(options: argparse.Namespace) -> int:
    """`ingle security trace MODEL`: serves, and prints what serve.toml lacks."""
    from ingle.server.start import serve

    models = load_set(vars(options))
    hardening = models.process.hardening
    if hardening != "auto":
        raise ConfigError(f"hardening: there is nothing to trace with {hardening}")
    return serve(models, lambda text: print(text, flush=True), trace=True)


def run_generate(options: argparse.Namespace) -> int:
    """`ingle generate MODEL PROMPT`."""
    import asyncio

    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    with engine_of(load_set(vars(options)).only("generate")) as engine:
        asyncio.run(show(engine, prompt, sampling_params(options)))
    return ExitCode.OK


def run_chat(options: argparse.Namespace) -> int:
    """`ingle chat MODEL`: one line per turn. Ctrl-C ends an answer or a line, Ctrl-D the chat."""
    import asyncio

    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # Gives `input` line editing and the arrow keys.
    params = sampling_params(options)
    start = [{"role": "system", "content": options.system}] if options.system else []
    history = list(start)
    is_terminal = sys.stdin.isatty()
    with Engines.of(load_set(vars(options))) as engines:
        name = next(iter(engines))
        more = ", /model NAME goes on with another model" if len(engines) > 1 else ""
        print(f"{name}: /reset forgets the chat{more}, Ctrl-D ends it.", flush=True)
        while True:
            line = typed_line(is_terminal)
            if line is None:
                return ExitCode.OK
            if line.strip() == "/reset":
                history = list(start)
                continue
            if len(engines) > 1 and (line + " ").startswith("/model "):
                name = chosen_model(engines, line.removeprefix("/model").strip(), name)
                continue
            if not line.strip():
                continue
            history.append({"role": "user", "content": line})
            engine = engines[name]
            try:
                answer = asyncio.run(show(engine, history, params, options.chat_template_name))
            except KeyboardInterrupt:
                print("[stopped]", flush=True)
                history.pop()
                continue
            except IngleError as error:
                print(f"ingle: {error}", file=sys.stderr)
                history.pop()
                continue
            history.append({"role": "assistant", "content": answer})


def typed_line(is_terminal: bool) -> str | None:
    """A line of the chat; None at its end."""
    try:
        return input("> " if is_terminal else "")
    except EOFError:
        if is_terminal:
            print(flush=True)  # The shell's prompt starts a line.
        return None
    except KeyboardInterrupt:
        if not is_terminal:
            raise
        print(flush=True)
        return ""


def chosen_model(engines: Engines, wanted: str, current: str) -> str:
    """The model that `/model` names, else the current one; prints which it is."""
    if wanted in engines:
        current = engines.name_of(wanted)
    elif wanted:
        print(f"ingle: {unknown_model(wanted, engines)}", file=sys.stderr)
    print(f"{current} of {', '.join(engines)}", flush=True)
    return current


async def show(
    engine: Engine, prompt: PromptLike, params: SamplingParams, template_name: str | None = None
) -> str:
    """Prints an answer while it is generated; returns its text."""
    parts = []
    async for delta in engine.stream(prompt, params, chat_template_name=template_name):
        parts.append(delta.text)
        print(delta.text, end="", flush=True)
    print(flush=True)
    return "".join(parts)


def run_bench(options: argparse.Namespace) -> int:
    """`ingle bench URL`: exit code 1 if a request failed."""
    # Only this command needs a client.
    from ingle.bench import BenchError, BenchOptions, WorkloadError, run

    check_bench(options)
    load_options = BenchOptions(
        # Clients' base URLs end in /v1.
        options.url.rstrip("/").removesuffix("/v1"),
        model=options.model,
        api_key=os.environ.get("OPENAI_API_KEY"),
        chat=options.chat,
        num_requests=options.requests,
        concurrency=options.concurrency,
        lengths=options.lengths,
        rate=options.rate,
        seed=options.seed,
        processes=options.processes,
        timeout_s=options.timeout,
        new_connections=options.new_connections,
        server_pid=options.server_pid,
        extra_body=json_object("body", options.body),
    )
    try:
        return run(load_options, options.json, options.plot)
    except WorkloadError as error:
        raise ConfigError(str(error)) from error
    except BenchError as error:
        return complain(error, ExitCode.FAILED, vars(options))


def check_bench(options: argparse.Namespace) -> None:
    """Errors: ConfigError names the flag of `ingle bench` with a wrong value."""
    if not options.url.startswith(("http://", "https://")):
        raise ConfigError(f"url: must start with http:// or https://, not {options.url!r}")
    for name in ("requests", "concurrency"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name}: must be at least 1, not {getattr(options, name)}")
    for name in ("rate", "timeout"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"--{name}: must be above 0, not {value:g}")
    if options.processes < 0:
        raise ConfigError(f"--processes: must be at least 0, not {options.processes}")
    if options.server_pid is not None and not Path(f"/proc/{options.server_pid}").exists():
        raise ConfigError(f"--server-pid: no process {options.server_pid}")
    if options.plot is not None and not options.plot.parent.is_dir():
        raise ConfigError(f"--plot: no folder {options.plot.parent}")


def json_object(name: str, text: str) -> dict[str, Any]:
    """The object that the flag `name` gives as JSON. Errors: ConfigError names it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--{name}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"--{name}: must be a JSON object")
    return value


def add_plan_flags(plan: argparse.ArgumentParser) -> None:
    """Flags of `ingle plan`."""

    def flag(name: str, kind: Callable[[str], Any], text: str, **extra: Any) -> None:
        plan.add_argument(f"--{name}", type=kind, help=text, **extra)

    flag("trace", Path, "CSV: time, prompt tokens, answer tokens; after a header line",
         metavar="FILE", required=True)  # fmt: skip
    flag("profile", Path, "JSON profile of model and GPU, as of --device sim:FILE; default: "
         "Llama-3.1-8B on one H200", metavar="FILE")  # fmt: skip
    flag("workers", positive, "workers of the fleet; default: the fewest that meet the objective")
    flag("rate", positive_number, "requests a second; default: as in the trace")
    flag("copies", positive, "so many copies of each request, for large fleets", default=1)
    flag("limit", positive, "use only so many requests of the trace")
    flag("groups", positive, "groups of workers with a router each; default: one for each 100")
    flag("slo-ttft-ms", positive_number, "objective: time to first token, in ms")
    flag("slo-tpot-ms", positive_number, "objective: time per later token, in ms")
    flag("attainment", share, "share of requests that must meet the objective", default=0.99)
    flag("max-num-seqs", positive, "as of ingle serve", default=256)
    flag("max-num-batched-tokens", positive, "as of ingle serve", default=2048)
    flag("max-model-len", positive, "as of ingle serve; longer requests are cut", default=32768)
    flag("seed", positive, "of copies and groups", default=1)
    plan.add_argument("--json", action="store_true", help="print JSON")


def positive(text: str) -> int:
    """A whole number above 0."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def positive_number(text: str) -> float:
    """A number above 0."""
    if not 0 < float(text) < math.inf:
        raise ValueError
    return float(text)


def share(text: str) -> float:
    """A number above 0, and at most 1."""
    if not 0 < float(text) <= 1:
        raise ValueError
    return float(text)


def run_plan(options: argparse.Namespace) -> int:
    """`ingle plan`: a fleet in virtual time."""
    from ingle.plan import Load, arrivals_of, plan_lines, simulate

    given = vars(options)
    load = Load(**{name: given[name] for name in ("trace", "rate", "copies", "limit", "seed")})
    if options.workers is None and options.slo_ttft_ms is None and options.slo_tpot_ms is None:
        raise ConfigError("workers: give a number, or an objective (slo-ttft-ms, slo-tpot-ms)")
    arrivals = arrivals_of(load)
    names = (
        *("workers", "groups", "slo_ttft_ms", "slo_tpot_ms", "attainment", "seed"),
        *("max_num_seqs", "max_num_batched_tokens", "max_model_len"),
    )
    profile = None if options.profile is None else str(options.profile)
    found = simulate(arrivals, profile=profile, **{name: given[name] for name in names})
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(plan_lines(found, len(arrivals) / max(arrivals[-1][0], 1e-9))))
    return ExitCode.OK


def run_doctor(options: argparse.Namespace) -> int:
    """`ingle doctor`: one line per finding, and what each missing part costs."""
    from ingle.doctor import doctor_lines

    hardening = json.loads(_core.hardening_survey())  # First: it needs a process of one thread.
    report: dict[str, Any] = json.loads(_core.doctor(json.dumps(places()).encode()))
    report["hardening"] = hardening
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(doctor_lines(report)))
    return ExitCode.OK


def engine_of(settings: Settings) -> Engine:
    """An engine with these settings."""
    return Engine(settings.model, **settings.engine_values())


def complain(error: Exception, code: ExitCode, given: Mapping[str, Any]) -> int:
    """Prints one line on standard error, with fields and settings named as the user wrote them."""
    text = str(error)
    name = (error.param or "").split("[")[0] if isinstance(error, RefusedError) else ""
    if name in SAMPLING_FLAGS and text.startswith(name):
        text = SAMPLING_FLAGS[name] + text.removeprefix(name)
    print(f"ingle: {respelled(text, spellings(given))}", file=sys.stderr)
    return int(code)


SAMPLING_FLAGS = {
    **{name: "--" + flag_name(name) for name in (*PLAIN, "max_tokens", "stop")},
    "seed": "--sampling-seed",
}
"""Flags of `add_sampling_flags` by the fields that they set."""
