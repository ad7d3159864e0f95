"""What the lock-down costs: start-up, throughput and CPU per token, with and without it, in pairs.

python hardening_cost.py --rounds 8     # in tests/load/: prints medians of the ratios auto / off
python hardening_cost.py --starts 30    # the starts alone

In a round both servers run and take bursts in turns, so that other work on the machine meets both;
in each round they are new processes, since where a process's memory lies makes a difference too.
"""

import argparse
import contextlib
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from load.measure import cost_of
from server.worker import Worker

MODES = ("off", "auto")
SERVER = ("--device", "sim", "--sim-speed", "4")
LENGTHS = "fixed:100:100"


def cpu_ns(pid):
    """Processor time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def started(mode):
    """A server, and the wall and processor seconds of its start."""
    begin = time.monotonic()
    worker = Worker(*SERVER, "--hardening", mode, model="demo")
    return worker, (time.monotonic() - begin, cpu_ns(worker.process.pid) / 1e9)


def burst(worker, mode, requests, seed):
    """CPU per token and tokens a second of one burst."""
    load = {"num_requests": requests, "lengths": LENGTHS, "seed": seed}
    before = cpu_ns(worker.process.pid)
    cost = cost_of(mode, worker.url, worker.process.pid, **load)
    spent = cpu_ns(worker.process.pid) - before
    return spent / (200 * requests), cost.tokens_per_s


def one_round(choose, bursts, requests):
    """Ratios of CPU per token and of throughput, and differences of the start in ms."""
    order = choose.sample(MODES, 2)
    with contextlib.ExitStack() as stack:
        workers, starts = {}, {}
        for mode in order:
            workers[mode], starts[mode] = started(mode)
            stack.enter_context(workers[mode])
        for mode in order:
            burst(workers[mode], mode, requests, 0)  # The first requests meet cold caches.
        pairs = []
        for seed in range(1, bursts + 1):
            found = {
                mode: burst(workers[mode], mode, requests, seed) for mode in choose.sample(MODES, 2)
            }
            pairs.append([a / b for a, b in zip(found["auto"], found["off"], strict=True)])
        for worker in workers.values():
            assert worker.stop() == 0, worker.errors()
    begins = [1e3 * (a - b) for a, b in zip(starts["auto"], starts["off"], strict=True)]
    return pairs, begins


def one_start(choose):
    """Differences in ms between two starts, one beside nothing else of ours."""
    starts = {}
    for mode in choose.sample(MODES, 2):
        worker, starts[mode] = started(mode)
        with worker:
            assert worker.stop() == 0, worker.errors()
    return [1e3 * (a - b) for a, b in zip(starts["auto"], starts["off"], strict=True)]


def shown(name, values):
    """The median, its standard error (by the spread of the middle half), and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    error = 1.25 * (high - low) / 1.35 / len(values) ** 0.5
    return f"{name:28} {middle:8.4f} +- {error:.4f}   quartiles {low:.4f} to {high:.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--starts", type=int, default=0)
    parser.add_argument("--bursts", type=int, default=5)
    parser.add_argument("--requests", type=int, default=400)
    options = parser.parse_args()
    choose = random.Random(1)
    pairs, begins = [], [one_start(choose) for _ in range(options.starts)]
    for _ in range(0 if options.starts else options.rounds):
        some, start = one_round(choose, options.bursts, options.requests)
        pairs += some
        begins.append(start)
    if pairs:
        print(shown("CPU per token, auto / off", [pair[0] for pair in pairs]))  # noqa: T201
        print(shown("throughput, auto / off", [pair[1] for pair in pairs]))  # noqa: T201
    print(shown("start, wall, difference ms", [start[0] for start in begins]))  # noqa: T201
    print(shown("start, CPU, difference ms", [start[1] for start in begins]))  # noqa: T201


if __name__ == "__main__":
    main()
