"""`make gpu-bench`: start-up and speed of `ingle serve` on a GPU, as tables of docs/BENCHMARKS.md.

Makes a Llama-3.1-8B-shaped checkpoint with random weights unless it is there, starts the server as
RUNS says, first with an empty cache, and puts the loads of docs/BENCHMARKS.md on it. One JSON file
has all figures. About 7 minutes on an H200. Needs ingle; torch and safetensors where the checkpoint
has to be made.
"""

import argparse
import contextlib
import datetime
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ingle.bench.run import BenchOptions, measure

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "tests" / "published"
MAKE_SHAPE = ROOT / "tests" / "gpu" / "made_up_tokenizer.py"
MAKE_CHECKPOINT = ROOT / "tests" / "gpu" / "make_checkpoint.py"
START_LIMIT_S = 600.0


@dataclass(frozen=True)
class Load:
    """What clients do."""

    name: str
    lengths: str
    concurrency: int
    num_requests: int


ONE = Load("128 in 256 out, 1 at once", "fixed:128:256", 1, 16)
SIXTEEN = Load("128 in 256 out, 16 at once", "fixed:128:256", 16, 128)
SIXTY_FOUR = Load("128 in 256 out, 64 at once", "fixed:128:256", 64, 512)
LONG = Load("8,000 in 8 out, 1 at once", "fixed:8000:8", 1, 10)
LONG_SIXTEEN = Load("8,000 in 200 out, 16 at once", "fixed:8000:200", 16, 64)
SHAREGPT = Load("sharegpt, {requests} x 200 at once", "sharegpt", 200, 4000)
AZURE = Load("azure-conv, {requests} x 200 at once", "azure-conv", 200, 1000)
HALF = replace(SHAREGPT, num_requests=2000)
DOUBLE = Load("sharegpt, {requests} x 400 at once", "sharegpt", 400, 8000)


@dataclass(frozen=True)
class Run:
    """One start of the server and the loads on it."""

    name: str
    loads: tuple[Load, ...]
    flags: tuple[str, ...] = ()
    cores: str | None = None
    """Of the server; None for all."""
    shape: str | None = None
    """A folder of tests/published, with pseudo-random weights; None for the checkpoint."""


RUNS = (
    Run("empty cache", ()),
    Run("bf16", (ONE, SIXTEEN, SIXTY_FOUR, LONG, LONG_SIXTEEN, SHAREGPT, AZURE)),
    Run("bf16, one core for the server", (HALF,), cores="0"),
    Run("bf16, --deterministic", (HALF,), flags=("--deterministic",)),
    Run("fp8", (ONE, SIXTEEN, SIXTY_FOUR, LONG, HALF, AZURE), flags=("--quantization", "fp8")),
)
"""Later ones find the kernels that earlier ones compiled, and algorithms of the same products."""
HEADS = (
    "load",
    "req/s",
    "out tok/s",
    "in + out tok/s",
    "TTFT p50 / p99 ms",
    "ITL p50 / p99 ms",
    "mean TPOT ms",
    "CPU %",
    "CPU us per in + out token",
)


@dataclass
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    first_token_s: float
    """From exec to the first token's bytes at the client."""


def main() -> int:
    """Runs everything; prints tables, writes JSON; 1 if a request failed."""
    options = arguments()
    if not options.shapes:
        make_checkpoint(options)
    cache = options.work / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    document: dict[str, Any] = {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "model": str(options.model),
        "starts": {},
        "runs": {},
    }
    runs = (*RUNS, engines_on(options.gpus)) if options.gpus > 1 else RUNS
    if options.shapes:
        runs = tuple(dummy(name) for name in options.shapes.split(","))
    for run in runs:
        with server(options, cache, run) as target:
            document["device"] = served_device(target.log)
            document["starts"][run.name] = target.first_token_s
            with without_core(0) if run.cores else contextlib.nullcontext():
                document["runs"][run.name] = loads(target, run, options)
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(tables(document))
    failed = [row for rows in document["runs"].values() for row in rows if row["requests_failed"]]
    return 1 if failed else 0


def engines_on(num_gpus: int) -> Run:
    """The weights on each of several GPUs."""
    flags = ("--data-parallel-size", str(num_gpus))
    return Run(f"bf16, {num_gpus} engines", (ONE, SIXTY_FOUR, SHAREGPT, DOUBLE), flags=flags)


def dummy(shape: str) -> Run:
    """Pseudo-random weights in the shape of a published model."""
    flags = ("--load-format", "dummy")
    return Run(f"{shape}, dummy weights", (ONE, SIXTY_FOUR, LONG), flags=flags, shape=shape)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--model", type=Path, help="default: a random one of --size, made under --work")
    add("--size", default="8b", choices=("8b", "tiny"), help="of the random model; default: 8b")
    add("--shapes", help="instead: these folders of tests/published, with commas between them")
    add("--tokenizer", type=Path, help="tokenizer.json of Llama 3; default: one is made up")
    add("--device", default="cuda", help="of ingle serve; default: cuda")
    add("--work", type=Path, default=Path("/tmp/ingle-gpu-test"), help="folder for all files")
    add("--gpus", type=int, default=1, help="also an engine on each of so many GPUs; default: 1")
    add("--scale", type=float, default=1.0, help="share of each load's requests; default: 1")
    add("--port", type=int, default=18433)
    add("--json", type=Path, help="where the figures go; default: gpu-bench.json under --work")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    options.json = options.json or options.work / "gpu-bench.json"
    if options.model is None:
        named = f"{options.tokenizer.stem}-" if options.tokenizer else ""
        options.model = options.work / f"llama-{named}{options.size}"
    return options


def make_checkpoint(options: argparse.Namespace) -> None:
    """A process of its own: torch takes 3 s and gigabytes that the clients should not carry."""
    if (options.model / "config.json").exists():
        return
    command = [sys.executable, MAKE_CHECKPOINT, options.model, "--size", options.size]
    command += ["--device", "cuda" if options.device.startswith("cuda") else "cpu"]
    if options.tokenizer is not None:
        command += ["--tokenizer", options.tokenizer]
    subprocess.run(command, check=True)


def shape_of(name: str, options: argparse.Namespace) -> Path:
    """A published model's config.json, and a tokenizer in which the loads' words are tokens."""
    folder = options.work / f"shape-{name}"
    command = [sys.executable, MAKE_SHAPE, folder, PUBLISHED / name / "config.json"]
    if options.tokenizer is not None:
        command += ["--tokenizer", options.tokenizer]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


@contextlib.contextmanager
def server(options: argparse.Namespace, cache: Path, run: Run) -> Iterator[Server]:
    """Starts `ingle serve` and ends it; its output goes to serve-NAME.log."""
    command = ["taskset", "-c", run.cores] if run.cores is not None else []
    model = shape_of(run.shape, options) if run.shape else options.model
    command += [sys.executable, "-m", "ingle", "serve", str(model)]
    command += ["--device", options.device, "--port", str(options.port)]
    command += ["--served-model-name", "bench", "--max-model-len", "8400"]
    command += run.flags
    if options.device.startswith("cuda"):
        command += ["--cache-dir", str(cache)]
    path = options.work / f"serve-{re.sub('[^a-z0-9]+', '-', run.name)}.log"
    with path.open("wb") as log:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            first_token(process, options.port)
            yield Server(process, options.port, path, round(time.perf_counter() - started, 3))
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait()
    if code != 0:
        sys.exit(f"ingle serve ended with exit code {code}; see {path}")


def first_token(process: subprocess.Popen[bytes], port: int) -> None:
    """Asks until the server answers with a token."""
    body = {"prompt": "fire", "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True}
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"ingle serve ended with exit code {process.returncode} before it was ready")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), JSON_HEADERS)
            response = connection.getresponse()
            if response.status == 200 and response.readline().startswith(b"data: {"):
                return
        except OSError:
            pass  # Not listening yet.
        finally:
            connection.close()
        time.sleep(0.02)
    sys.exit(f"ingle serve gave no token within {START_LIMIT_S:.0f} s")


def loads(target: Server, run: Run, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every load, one after the other; figures as `ingle bench --json` has them."""
    rows = []
    for number, load in enumerate(run.loads, start=1):
        requests = max(load.concurrency, round(load.num_requests * options.scale))
        report, _ = measure(
            BenchOptions(
                f"http://127.0.0.1:{target.port}",
                num_requests=requests,
                concurrency=load.concurrency,
                lengths=load.lengths,
                # Of its own, or the prefix cache would know its prompts.
                seed=number,
                server_pid=target.process.pid,
            ),
            progress=sys.stderr.isatty(),
        )
        label = load.name.format(requests=f"{requests:,}")
        print(f"{run.name}, {label}: {report.requests_per_s} req/s", file=sys.stderr, flush=True)
        rows.append({"load": label, **report.as_dict()})
    return rows


@contextlib.contextmanager
def without_core(core: int) -> Iterator[None]:
    """Keeps the clients off the server's core, where there is another one."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before - {core} or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def served_device(log: Path) -> str:
    """The line of the server's start that names the device."""
    lines = log.read_text(errors="replace").splitlines()
    return next((line.strip() for line in lines if "device" in line), "unknown")


def tables(document: dict[str, Any]) -> str:
    """As they stand in docs/BENCHMARKS.md."""
    lines = [f"{document['date']}, {document['model']}, {document['device']}"]
    for title, rows in document["runs"].items():
        if not rows:
            continue
        lines += ["", f"{title}:", "", row_of(HEADS), "|" + "---|" * len(HEADS)]
        lines += [row_of(figures(row)) for row in rows]
        lines += ["", f"Host memory {max(row['rss_mib'] for row in rows)} MiB."]
    lines += ["", "Exec to first token over HTTP, s:"]
    lines += [f"- {name}: {seconds:.2f}" for name, seconds in document["starts"].items()]
    return "\n".join(lines)


def figures(row: dict[str, Any]) -> tuple[str, ...]:
    """One load's columns."""
    ttft, itl = row["ttft_ms"], row["itl_ms"]
    return (
        row["load"],
        f"{row['requests_per_s']:.1f}",
        f"{row['output_tokens_per_s']:,.0f}",
        f"{row['total_tokens_per_s']:,.0f}",
        f"{ttft['p50']:.0f} / {ttft['p99']:.0f}" if ttft else "-",
        f"{itl['p50']:.2f} / {itl['p99']:.1f}" if itl else "-",
        f"{row['tpot_ms_mean']:.2f}" if row["tpot_ms_mean"] is not None else "-",
        f"{row['cpu_percent']:.1f}",
        f"{row['cpu_us_per_token']:.1f}" if row["cpu_us_per_token"] is not None else "-",
    )


def row_of(cells: tuple[str, ...]) -> str:
    """A table's line."""
    return "| " + " | ".join(cells) + " |"


JSON_HEADERS = {"Content-Type": "application/json"}

if __name__ == "__main__":
    sys.exit(main())
