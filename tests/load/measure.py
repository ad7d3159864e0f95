"""Measures CPU per token and per request of ingle and of the comparison programs, under one load.

python measure.py --requests 2000     # in tests/: prints the table for docs/BENCHMARKS.md
"""

import argparse
import contextlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ingle.bench.run import BenchOptions, measure
from server.worker import Worker

BASELINES = Path(__file__).with_name("baselines.py")
NUM_STREAMS = 200


@dataclass
class Cost:
    """What one server cost under one load."""

    name: str
    us_per_token: float
    us_per_request: float
    tokens_per_s: float
    tpot_ms: float

    def row(self, floor):
        ratio = self.us_per_token / floor.us_per_token
        return (
            f"| {self.name} | {self.tokens_per_s:,.0f} | {self.tpot_ms:.1f} | "
            f"{self.us_per_token:.2f} | {ratio:.2f} |"
        )


def cost_of(name, url, pid, **load):
    """Drives `load`; every request must end well and in full."""
    options = BenchOptions(
        url, server_pid=pid, **({"concurrency": NUM_STREAMS, "processes": 1} | load)
    )
    report, _ = measure(options)
    assert report.requests_failed == report.short_outputs == 0, (name, report)
    tokens = report.prompt_tokens + report.output_tokens
    cpu_us = report.cpu_us_per_token * tokens
    return Cost(
        name,
        report.cpu_us_per_token,
        cpu_us / report.requests_ok,
        report.total_tokens_per_s,
        report.tpot_ms_mean or 0.0,
    )


@contextlib.contextmanager
def baseline(kind, *flags):
    """One of the programs of baselines.py: its port and its process id."""
    command = [sys.executable, str(BASELINES), kind, *map(str, flags)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


def baseline_cost(kind, step_ms, **load):
    with baseline(kind, "--step-ms", step_ms) as (port, pid):
        return cost_of(kind, f"http://127.0.0.1:{port}", pid, **load)


def ingle_cost(speed, **load):
    with Worker("--device", "sim", "--sim-speed", speed, model="demo") as worker:
        cost = cost_of("ingle", worker.url, worker.process.pid, **load)
        assert worker.stop() == 0, worker.errors()
        return cost


def streams(speed, kinds, num_requests, seed=1):
    """ingle at a pace, then each of `kinds` with events at the pace that ingle had."""
    load = {"num_requests": num_requests, "seed": seed}
    costs = [ingle_cost(speed, **load)]
    return costs + [baseline_cost(kind, costs[0].tpot_ms, **load) for kind in kinds]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--speed", type=float, nargs="*", default=[1.0, 0.5])
    options = parser.parse_args()
    for speed in options.speed:
        costs = streams(speed, ["aiohttp", "raw"], options.requests)
        print(f"\npace {speed}, {options.requests} requests, {NUM_STREAMS} streams\n")  # noqa: T201
        print("| | in + out tok/s | mean TPOT ms | us per token | ratio |\n|---|---|---|---|---|")  # noqa: T201
        for cost in costs:
            print(cost.row(costs[-1]))  # noqa: T201


if __name__ == "__main__":
    main()
