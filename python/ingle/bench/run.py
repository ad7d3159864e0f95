"""Runs a load from several client processes and gathers what they saw."""

import asyncio
import json
import math
import multiprocessing
import queue
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

from ingle.bench import usage
from ingle.bench.client import Outcome, Target, drive
from ingle.bench.plot import svg
from ingle.bench.report import Report, as_text, summarise
from ingle.bench.workload import Request, requests

# Seconds from when the last client process is ready to the first request.
_LEAD_S = 0.2
_CONNECTIONS_PER_PROCESS = 50
_MAX_PROCESSES = 8
_PROGRESS_EVERY_S = 0.5
_READY_EVERY_S = 0.02


class BenchError(RuntimeError):
    """The run itself failed; the server's own failures are figures of the report."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """One run.

    `rate` is requests per second with Poisson arrivals; None keeps all connections busy.
    """

    url: str
    model: str | None = None
    api_key: str | None = None
    chat: bool = False
    num_requests: int = 1000
    concurrency: int = 64
    lengths: str = "sharegpt"
    rate: float | None = None
    seed: int = 1
    processes: int = 0
    timeout_s: float = 300.0
    new_connections: bool = False
    server_pid: int | None = None
    extra_body: dict[str, object] = field(default_factory=dict)

    def num_processes(self) -> int:
        """One per 50 connections, at most 8, unless set."""
        wanted = self.processes or math.ceil(self.concurrency / _CONNECTIONS_PER_PROCESS)
        return max(1, min(wanted, _MAX_PROCESSES, self.concurrency))


@dataclass(frozen=True, slots=True)
class Channel:
    """What the parent shares with its client processes."""

    results: "Queue[list[Outcome]]"
    done: "Synchronized[int]"
    ready: "Synchronized[int]"
    """Processes that have loaded their modules."""
    start_at: "Synchronized[float]"
    """When to begin, in seconds of `time.time`; 0 until all are ready."""
    go: Event

    def count_one(self) -> None:
        """Notes one more request that has ended."""
        with self.done.get_lock():
            self.done.value += 1

    def wait_for_start(self) -> None:
        """Says that this process is ready, and returns when all may begin."""
        with self.ready.get_lock():
            self.ready.value += 1
        self.go.wait()
        time.sleep(max(0.0, self.start_at.value - time.time()))


def _due_times(options: BenchOptions) -> Iterator[float]:
    """Seconds after the start at which each request is due."""
    rng = random.Random(options.seed)  # noqa: S311 - load, not secrets
    now_s = 0.0
    while True:
        yield now_s
        if options.rate is not None:
            now_s += rng.expovariate(options.rate)


def _child(
    target: Target,
    work: list[tuple[float, Request]],
    concurrency: int,
    channel: "Channel",
) -> None:
    channel.wait_for_start()
    outcomes = asyncio.run(drive(target, work, concurrency, channel.count_one))
    channel.results.put(outcomes)


def _gather(
    processes: list[SpawnProcess], channel: "Channel", total: int, progress: bool
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    waiting, started = len(processes), time.monotonic()
    while waiting:
        try:
            outcomes += channel.results.get(timeout=_PROGRESS_EVERY_S)
            waiting -= 1
        except queue.Empty:
            _check_alive(processes)
        if progress:
            done = channel.done.value
            bar = "#" * (30 * done // total)
            elapsed_s = time.monotonic() - started
            sys.stderr.write(f"\r[{bar:<30}] {done}/{total} requests, {elapsed_s:.0f} s ")
            sys.stderr.flush()
    if progress:
        sys.stderr.write("\n")
    return outcomes


def _start(processes: list[SpawnProcess], channel: "Channel") -> None:
    """Waits until every process is ready, and returns when they begin: none starts late."""
    while channel.ready.value < len(processes):
        _check_alive(processes)
        time.sleep(_READY_EVERY_S)
    channel.start_at.value = time.time() + _LEAD_S
    channel.go.set()
    time.sleep(max(0.0, channel.start_at.value - time.time()))


def _check_alive(processes: list[SpawnProcess]) -> None:
    dead = [process.exitcode for process in processes if process.exitcode]
    if dead:
        raise BenchError(f"a load process ended with exit code {dead[0]}")


def measure(options: BenchOptions, progress: bool = False) -> tuple[Report, list[Outcome]]:
    """Runs the load; raises BenchError if a client process dies, WorkloadError for bad lengths."""
    work = list(
        zip(
            _due_times(options),
            requests(options.lengths, options.num_requests, options.seed),
            strict=False,
        )
    )
    target = Target(
        options.url.rstrip("/"),
        options.model,
        options.api_key,
        options.chat,
        options.timeout_s,
        options.new_connections,
        options.extra_body,
    )
    count = options.num_processes()
    context = multiprocessing.get_context("spawn")
    channel = Channel(
        context.Queue(),
        context.Value("q", 0),
        context.Value("q", 0),
        context.Value("d", 0.0),
        context.Event(),
    )
    processes = []
    for i in range(count):
        share = options.concurrency // count + (i < options.concurrency % count)
        arguments = (target, work[i::count], share, channel)
        processes.append(context.Process(target=_child, args=arguments, daemon=True))
    for process in processes:
        process.start()
    _start(processes, channel)
    pid = options.server_pid
    cpu_before_s = usage.cpu_s(pid) if pid is not None else None
    started = time.perf_counter()
    outcomes = _gather(processes, channel, len(work), progress)
    wall_s = time.perf_counter() - started
    cpu_s = (
        usage.cpu_s(pid) - cpu_before_s if pid is not None and cpu_before_s is not None else None
    )
    memory = usage.rss_mib(pid) if pid is not None else None
    for process in processes:
        process.join()
    return summarise(outcomes, wall_s, cpu_s, memory), outcomes


def run(options: BenchOptions, json_output: bool, plot: Path | None) -> int:
    """Runs, prints, and draws; 1 if any request failed."""
    report, outcomes = measure(options, progress=sys.stderr.isatty())
    document = {"lengths": options.lengths, "concurrency": options.concurrency, **report.as_dict()}
    sys.stdout.write((json.dumps(document) if json_output else as_text(report)) + "\n")
    if plot is not None:
        plot.write_text(svg(outcomes, f"{options.url} {options.lengths} x {options.concurrency}"))
    return 1 if report.requests_failed else 0
