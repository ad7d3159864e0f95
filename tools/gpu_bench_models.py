"""`make gpu-bench-models`: several models on one GPU, as docs/BENCHMARKS.md has them.

Eight models with pseudo-random weights (8B, 3B, three of 1B, three of SmolLM2-135M's size) on one
device: each shape alone, all of them at once, and one busy model whose KV pool grows into what the
others leave while their owners come back. Then an 8B and a 3B of which only one fits take turns in
memory. One JSON file has all figures. About four minutes on an H200; needs ingle, no checkpoint.
"""

import argparse
import asyncio
import contextlib
import datetime
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from ready import wait_until_ready

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "tests" / "published"
MAKE_SHAPE = ROOT / "tests" / "gpu" / "made_up_tokenizer.py"
START_LIMIT_S = 300.0
GIB = 1 << 30
SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}
"""SmolLM2-135M's sizes."""
TINY = {**SMALL, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 8192}


@dataclass(frozen=True)
class Model:
    """One of the models of a server."""

    name: str
    shape: str
    clients: int
    """That ask it at once, each for one answer after the other."""


MODELS = (
    Model("8b", "llama-3.1-8b", 16),
    Model("3b", "smollm3-3b", 8),
    *(Model(f"1b-{letter}", "llama-3.2-1b", 8) for letter in "abc"),
    *(Model(f"small-{letter}", "small", 4) for letter in "abc"),
)


@dataclass
class Tally:
    """What the clients of a model have seen."""

    requests: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass
class Server:
    """A running server."""

    port: int
    admin: Path


def main() -> int:
    """Runs everything; prints a summary, writes JSON; 1 if a request failed."""
    options = arguments()
    folders = {model.shape: shape_of(model.shape, options) for model in MODELS}
    figures: dict[str, Any] = {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "device": options.device,
    }
    with server(options, "eight", MODELS, folders, options.memory_gib) as target:
        figures |= asyncio.run(eight(target, options))
    pair = tuple(model for model in MODELS if model.name in ("8b", "3b"))
    with server(options, "swaps", pair, folders, options.swap_gib) as target:
        figures |= asyncio.run(swaps(target, options))
    options.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))
    return 1 if figures["failures"] else 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--device", default="cuda", help="of ingle serve; default: cuda")
    add("--work", type=Path, default=Path("/tmp/ingle-gpu-test"), help="folder for all files")
    add("--json", type=Path, help="where the figures go; default: gpu-models.json under --work")
    add("--tiny", action="store_true", help="models of two layers, to try the script on a CPU")
    add("--seconds", type=float, default=8.0, help="of each load; default: 8")
    add("--kv-gib", type=float, default=3.0, help="share of each KV pool; default: 3")
    add("--memory-gib", type=float, default=100.0, help="for all eight; default: 100")
    add("--swap-gib", type=float, default=22.0, help="for the 8B and the 3B; default: 22")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    options.json = options.json or options.work / "gpu-models.json"
    return options


def shape_of(name: str, options: argparse.Namespace) -> Path:
    """A model's config.json, and a tokenizer in which the loads' words are tokens."""
    folder: Path = options.work / f"shape-{name}{'-tiny' if options.tiny else ''}"
    config = PUBLISHED / name / "config.json"
    if options.tiny or name == "small":
        config = options.work / f"{folder.name}.json"
        config.write_text(json.dumps(TINY if options.tiny else SMALL))
    subprocess.run(
        [sys.executable, MAKE_SHAPE, folder, config], check=True, stdout=subprocess.DEVNULL
    )
    return folder


@contextlib.contextmanager
def server(
    options: argparse.Namespace,
    name: str,
    models: tuple[Model, ...],
    folders: dict[str, Path],
    memory_gib: float,
) -> Iterator[Server]:
    """Starts `ingle serve` with these models and ends it; its output goes to models-NAME.log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    admin = options.work / f"models-{name}.sock"
    command = [sys.executable, "-m", "ingle", "serve", "--device", options.device]
    command += ["--port", str(port), "--admin-uds", str(admin), "--load-format", "dummy"]
    command += ["--device-memory-bytes", str(round(memory_gib * GIB))]
    command += ["--kv-cache-memory-bytes", str(round(options.kv_gib * GIB))]
    command += ["--kv-cache-max-memory-bytes", str(round(max(memory_gib, options.kv_gib) * GIB))]
    command += ["--max-model-len", "4096"]
    if options.device.startswith("cuda"):
        cache = options.work / "cache-models"
        if name == "eight":
            shutil.rmtree(cache, ignore_errors=True)
        command += ["--cache-dir", str(cache)]
    for model in models:
        command += ["--model", f"{model.name}={folders[model.shape]}"]
    log = options.work / f"models-{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            wait_until_ready(process, port, limit_s=START_LIMIT_S, hint=f"; see {log}")
            yield Server(port, admin)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait()
    if code != 0:
        sys.exit(f"ingle serve ended with exit code {code}; see {log}")


async def eight(target: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Each shape alone, all at once, and a pool that grows and gives back."""
    async with session(target) as client:
        alone: dict[str, float] = {}
        failures: list[str] = []
        for model in MODELS:
            if model.shape not in alone:
                found = await rates(client, (model,), options.seconds, failures)
                alone[model.shape] = found[model.name]
        together = await rates(client, MODELS, options.seconds, failures)
        shares = {model.name: together[model.name] / alone[model.shape] for model in MODELS}
        grown = await balloon(client, options, failures)
    return {
        "alone_tok_s": alone,
        "mix_tok_s": together,
        "sum_of_shares": round(sum(shares.values()), 3),
        "shares": {name: round(share, 3) for name, share in shares.items()},
        "balloon": grown,
        "failures": failures,
    }


async def balloon(
    client: aiohttp.ClientSession, options: argparse.Namespace, failures: list[str]
) -> dict[str, Any]:
    """The 8B alone with more requests than its share holds; then all others come back."""
    big = MODELS[0]
    before = await blocks(client)
    many = asyncio.ensure_future(load(client, {big: 128}, 3 * options.seconds, (1500, 200)))
    await asyncio.sleep(1.5 * options.seconds)
    grown = await blocks(client)
    others = dict.fromkeys(MODELS[1:], 16)
    back = await load(client, others, options.seconds, (1500, 200))
    shared = await blocks(client)
    tallies = {**back, **await many}
    for tally in tallies.values():
        failures += tally.failures
    text = await metrics(client)
    return {
        "blocks_of_8b_before_grown_shared": [each["8b"] for each in (before, grown, shared)],
        "requests": sum(tally.requests for tally in tallies.values()),
        "preemptions": total(text, "vllm:num_preemptions_total"),
        "give_backs": total(text, "ingle:kv_give_back_seconds_count"),
        "give_backs_in_100_ms": total(text, "ingle:kv_give_back_seconds_bucket", 'le="0.1"'),
        "give_back_mean_ms": mean_ms(text, "ingle:kv_give_back_seconds"),
    }


async def swaps(target: Server, options: argparse.Namespace) -> dict[str, Any]:
    """From a request for a model that sleeps to its first token."""
    del options
    seconds: dict[str, list[float]] = {"8b": [], "3b": []}
    answers: dict[str, set[str]] = {"8b": set(), "3b": set()}
    async with session(target) as client:
        for _ in range(5):
            for name in seconds:
                # Longer than a model stays that has just come.
                await asyncio.sleep(2.0)
                began = time.perf_counter()
                reply = await complete(client, name, 16, 1)
                seconds[name].append(round(time.perf_counter() - began, 3))
                longer = await complete(client, name, 16, 16)
                answers[name].add(longer["choices"][0]["text"])
                assert reply["usage"]["completion_tokens"] == 1, reply
        returns = total(await metrics(client), "ingle:model_returns_total")
    same = all(len(each) == 1 for each in answers.values())
    return {"swap_first_token_s": seconds, "returns": returns, "answers_are_the_same": same}


@contextlib.asynccontextmanager
async def session(target: Server) -> Any:
    """A client without a limit of connections or time."""
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{target.port}",
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
    ) as client:
        yield client


async def load(
    client: aiohttp.ClientSession,
    clients: dict[Model, int],
    seconds: float,
    lengths: tuple[int, int] = (128, 128),
) -> dict[Model, Tally]:
    """So many clients of each model, each with one request at a time, until the time is over."""
    end = time.perf_counter() + seconds
    tallies = {model: Tally() for model in clients}
    serial = iter(range(1 << 30))

    async def ask(model: Model) -> None:
        tally = tallies[model]
        while time.perf_counter() < end:
            try:
                await complete(client, model.name, lengths[0], lengths[1], next(serial))
            except (aiohttp.ClientError, ValueError) as error:
                tally.failures.append(f"{model.name}: {error}"[:200])
                await asyncio.sleep(0.05)
                continue
            tally.requests += 1

    await asyncio.gather(*(ask(model) for model, count in clients.items() for _ in range(count)))
    return tallies


async def complete(
    client: aiohttp.ClientSession, model: str, num_in: int, num_out: int, serial: int = 0
) -> dict[str, Any]:
    """One greedy answer of exactly `num_out` tokens. Errors: ValueError with what came instead."""
    # Ids that every vocabulary has; the first ones tell prompts apart, so that none is cached.
    prompt = [10 + serial % 4000, 10 + serial // 4000 % 4000]
    prompt += [10 + (serial + place) % 4000 for place in range(num_in - 2)]
    body = {"model": model, "prompt": prompt, "max_tokens": num_out, "temperature": 0}
    async with client.post("/v1/completions", json=body | {"ignore_eos": True}) as response:
        text = await response.text()
        if response.status != 200:
            raise ValueError(f"{response.status}: {text}")
    reply: dict[str, Any] = json.loads(text)
    return reply


async def rates(
    client: aiohttp.ClientSession, models: tuple[Model, ...], seconds: float, failures: list[str]
) -> dict[str, float]:
    """Tokens a second of each model while its clients and those of the others ask it."""
    asking = asyncio.ensure_future(load(client, {each: each.clients for each in models}, seconds))
    await asyncio.sleep(seconds / 4)  # Until all of them are in their steady state.
    began, before = time.perf_counter(), generated(await metrics(client))
    await asyncio.sleep(seconds * 0.7)
    after, ended = generated(await metrics(client)), time.perf_counter()
    for tally in (await asking).values():
        failures += tally.failures
    return {
        each.name: round((after[each.name] - before[each.name]) / (ended - began), 1)
        for each in models
    }


def generated(text: str) -> dict[str, float]:
    """Tokens that each model has generated."""
    return by_model(text, "vllm:generation_tokens_total")


async def metrics(client: aiohttp.ClientSession) -> str:
    """All of `/metrics`."""
    async with client.get("/metrics") as response:
        return await response.text()


async def blocks(client: aiohttp.ClientSession) -> dict[str, int]:
    """KV blocks that each model's pool has now."""
    found = by_model(await metrics(client), "ingle:kv_cache_blocks")
    return {name: int(value) for name, value in found.items()}


def by_model(text: str, name: str) -> dict[str, float]:
    """A family's sample of each model."""
    pattern = rf'^{re.escape(name)}\{{[^}}]*model_name="([^"]*)"[^}}]*\}} (\S+)$'
    return {model: float(value) for model, value in re.findall(pattern, text, re.M)}


def total(text: str, name: str, label: str = "") -> float:
    """A family's samples with this label, summed over models."""
    rows = re.findall(rf"^{re.escape(name)}(?:\{{([^}}]*)\}})? (\S+)$", text, re.M)
    return sum(float(value) for labels, value in rows if label in labels)


def mean_ms(text: str, name: str) -> float | None:
    """The mean of a histogram of seconds."""
    count = total(text, f"{name}_count")
    return round(1000 * total(text, f"{name}_sum") / count, 1) if count else None


if __name__ == "__main__":
    sys.exit(main())
