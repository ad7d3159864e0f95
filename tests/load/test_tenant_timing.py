"""Whether the time of an answer shows a tenant what another has asked for.

Under the simulator's clock this is counted: rust/core/tests/tenant_timing.rs.

pytest -m long tests/load/test_tenant_timing.py -s     # 10,000 pairs; prints the statistics
"""

import json
import math
import random
import statistics
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from server.worker import Worker, http_request

NUM_TOKENS = 512
MOST_T = 4.5
"""Of Welch's t, as in the test vector leakage assessment of Goodwill et al., 2011."""


class Client:
    """One connection of one tenant."""

    def __init__(self, worker, key):
        self._connection, self._key = worker.connect(), key

    def seconds(self, prompt):
        """The time of an answer of one token."""
        body = json.dumps({"prompt": prompt, "max_tokens": 1}).encode()
        data = http_request("POST", "/v1/completions", body, Authorization=f"Bearer {self._key}")
        began = time.perf_counter()
        self._connection.sendall(data)
        answer = self._connection.recv(65536)
        seconds = time.perf_counter() - began
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return seconds

    def close(self):
        self._connection.close()


def welch_t(one, other):
    variance = statistics.variance(one) / len(one) + statistics.variance(other) / len(other)
    return (statistics.fmean(one) - statistics.fmean(other)) / math.sqrt(variance)


def times_of_pairs(victim, attacker, num_pairs, seed):
    """Times of prompts that the victim has asked for before, and of such as nobody has."""
    rng = random.Random(seed)
    hits, misses = [], []
    for _ in range(num_pairs):
        known, fresh = (
            [rng.randint(1000, 40_000) for _ in range(NUM_TOKENS)] for _ in ("known", "fresh")
        )
        victim.seconds(known)
        # In random order, so that a machine that slows down slows both.
        for prompt, times in rng.sample([(known, hits), (fresh, misses)], 2):
            times.append(attacker.seconds(prompt))
    return hits, misses


def compare(num_pairs, num_control, tmp_path):
    """t between tenants, and t within one: what the comparison can see."""
    keys = tmp_path / "keys"
    keys.write_text("alice:key-a\nbob:key-b\n")
    keys.chmod(0o600)
    with Worker("--device", "sim", "--sim-speed", "2", "--api-key-file", keys, model="demo") as w:
        clients = [Client(w, "key-a"), Client(w, "key-a"), Client(w, "key-b")]
        own = welch_t(*times_of_pairs(clients[0], clients[1], num_control, 1))
        between = welch_t(*times_of_pairs(clients[0], clients[2], num_pairs, 2))
        for client in clients:
            client.close()
        assert w.stop() == 0, w.errors()
    return between, own


@pytest.mark.long
def test_ten_thousand_pairs_reveal_nothing(tmp_path):
    between, own = compare(10_000, 500, tmp_path)
    print(f"\nt between tenants {between:.2f}, within one {own:.1f}")  # noqa: T201
    assert own < -MOST_T, "the comparison sees nothing"
    assert abs(between) < MOST_T
