"""What the front adds to a request's time: `make test-ray-latency`, on an idle machine alone.

Requests to the worker, through the front, and through Ray's HAProxy and the front take turns: what
the machine does in the meantime meets all of them. Two ways to the worker say how much that is.
"""

import http.client
import json
import os
import statistics
import time

import pytest

pytest.importorskip("ray")

from serve_ray.cluster import FRONT, HAPROXY, deploy, everywhere, report, wait_until_it_answers

pytestmark = pytest.mark.skipif(
    os.environ.get("INGLE_RAY_LATENCY") != "1", reason="needs an idle machine: INGLE_RAY_LATENCY=1"
)

NUM_WARM, NUM_ROUNDS = 50, 600
MOST_ADDED_MS = 3.0
MOST_NOISE_MS = 0.5


def test_the_front_adds_at_most_three_milliseconds(cluster):
    handle = deploy(min_workers=1, max_workers=1, sim_speed="inf")
    [base] = everywhere(handle, "url", 1)
    wait_until_it_answers(HAPROXY, "/v1/models")
    places = {"direct": base, "again": base, "front": FRONT[0], "haproxy": HAPROXY}
    connections = {name: connection_to(place) for name, place in places.items()}
    took = {name: [] for name in places}
    order = list(places)
    for number in range(NUM_WARM + NUM_ROUNDS):
        # Each comes first equally often.
        first = number % len(order)
        for name in order[first:] + order[:first]:
            elapsed_ms = time_of(connections[name])
            if number >= NUM_WARM:
                took[name].append(elapsed_ms)
    p50 = {name: statistics.median(each) for name, each in took.items()}
    noise = abs(p50["direct"] - p50["again"])
    worker = min(p50["direct"], p50["again"])
    report(f"p50 of {NUM_ROUNDS}, ms: {p50}; load {os.getloadavg()[0]:.1f}")
    assert noise <= MOST_NOISE_MS, "two ways to one worker differ: this machine is not idle"
    for name in ("front", "haproxy"):
        assert p50[name] - worker <= MOST_ADDED_MS, name


def connection_to(base):
    return http.client.HTTPConnection(base.removeprefix("http://"), timeout=60)


def time_of(connection):
    """Milliseconds that one short request takes."""
    began = time.perf_counter()
    body = json.dumps({"prompt": "a", "max_tokens": 1})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.read()
    assert answer.status == 200
    return 1e3 * (time.perf_counter() - began)
