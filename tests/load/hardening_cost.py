"""What the lock-down costs: start-up, throughput and CPU per token, with and without it, in turns.

python hardening_cost.py --rounds 5     # in tests/load/: prints medians; needs a quiet machine
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from load.measure import cost_of
from server.worker import Worker

MODES = ("off", "auto")
FIGURES = ("start_s", "tokens_per_s", "us_per_token")
SERVER = ("--device", "sim", "--sim-speed", "4")
LENGTHS = "fixed:100:100"


def one_round(mode, requests):
    """Starts a server, drives it, stops it: the three figures."""
    begin = time.monotonic()
    with Worker(*SERVER, "--hardening", mode, model="demo") as worker:
        start_s = time.monotonic() - begin
        # The first requests meet cold caches.
        cost_of(mode, worker.url, worker.process.pid, num_requests=200, lengths=LENGTHS)
        cost = cost_of(mode, worker.url, worker.process.pid, num_requests=requests, lengths=LENGTHS)
        assert worker.stop() == 0, worker.errors()
    return start_s, cost.tokens_per_s, cost.us_per_token


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=2000)
    options = parser.parse_args()
    found = {mode: [] for mode in MODES}
    for _ in range(options.rounds):
        for mode in MODES:
            found[mode].append(one_round(mode, options.requests))
    medians = {
        mode: [statistics.median(column) for column in zip(*rows, strict=True)]
        for mode, rows in found.items()
    }
    for name, off, auto in zip(FIGURES, medians["off"], medians["auto"], strict=True):
        print(f"{name:14} off {off:11.3f}  auto {auto:11.3f}  {100 * (auto / off - 1):+.2f} %")  # noqa: T201
    extra_ms = 1000 * (medians["auto"][0] - medians["off"][0])
    print(f"start-up: {extra_ms:+.1f} ms")  # noqa: T201


if __name__ == "__main__":
    main()
