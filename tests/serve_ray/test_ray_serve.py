"""ingle on a real local Ray cluster: `make test-ray`, in a venv of its own.

Each test deploys what it needs. The sim device takes the time of a card and none of the machine's.
"""

import inspect
import json
import os
import signal
import threading
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("ray")

from ray import serve

from ingle.integrations.ray import app
from serve_ray.cluster import (
    FRONT,
    LIMIT_S,
    MODEL,
    ask,
    deploy,
    everywhere,
    metric,
    open_url,
    report,
    wait_until,
)

ROUND_ROBIN = "ray.serve.experimental.round_robin_router.RoundRobinRouter"


def test_answers_are_the_workers_own(cluster):
    handle = deploy(min_workers=2, max_workers=2, sim_speed="inf")
    base = everywhere(handle, "url", 2)[0]
    body = {"prompt": "a b", "max_tokens": 8, "temperature": 0}
    through, direct = (json.loads(ask("/v1/completions", body, base=at)) for at in (FRONT[0], base))
    assert through["choices"] == direct["choices"]
    streamed = ask("/v1/completions", body | {"stream": True}).decode()
    assert streamed.endswith("data: [DONE]\n\n")
    assert json.loads(ask("/v1/models"))["data"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask("/v1/completions", {"prompt": "x", "temperature": 9})
    assert refused.value.code == 400
    assert b"temperature" in refused.value.read()


def test_a_rayservice_s_arguments_make_the_application(cluster):
    # Serve calls what an import_path names with one dict.
    text = (Path(__file__).parents[2] / "deploy/rayservice.yaml").read_text()
    assert "import_path: ingle.integrations.ray:app\n" in text
    made = app({"model": MODEL, "min_workers": 1, "max_workers": 4, "device": "sim"})
    assert isinstance(made, serve.Application)
    assert len(inspect.signature(app).parameters) == 1


def test_a_dead_worker_ends_its_own_streams_and_comes_back(cluster):
    handle = deploy(min_workers=2, max_workers=2, sim_speed="0.2")
    ends, started = [], threading.Semaphore(0)

    def stream(number):
        body = {"prompt": f"{number} and", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with open_url(FRONT[0] + "/v1/completions", body) as answer:
            first = answer.readline()
            started.release()
            ends.append((first + answer.read())[-300:].decode())

    with ThreadPoolExecutor(16) as pool:
        for number in range(16):
            pool.submit(stream, number)
        for _ in range(16):
            assert started.acquire(timeout=LIMIT_S)
        pids = everywhere(handle, "pid", 2)
        os.kill(pids[0], signal.SIGKILL)
    lost = [end for end in ends if "worker_lost" in end]
    whole = [end for end in ends if end.endswith("data: [DONE]\n\n")]
    report(f"of 16 streams {len(lost)} ended with an error event, {len(whole)} whole")
    assert len(lost) + len(whole) == 16
    assert 0 < len(lost) < 16
    wait_until(lambda: set(everywhere(handle, "pid")) != set(pids), "the worker comes back")
    assert json.loads(ask("/v1/completions", {"prompt": "x", "max_tokens": 2}))["choices"]


def hit_rate(**options):
    handle = deploy(min_workers=4, max_workers=4, sim_speed="inf", block_size=16, **options)

    def talk(number):
        text = f"conversation {number}: " + "word " * 120
        for turn in range(4):
            text += f"turn {turn} of {number} " + "says " * 20
            ask("/v1/completions", {"prompt": text, "max_tokens": 1})

    # Seven at once: a multiple of the workers would bring turns back to a worker by itself.
    with ThreadPoolExecutor(7) as pool:
        list(pool.map(talk, range(28)))
    bases = everywhere(handle, "url", 4)
    hits, queries = (
        sum(metric(base, f"vllm:prefix_cache_{name}_total") for base in bases)
        for name in ("hits", "queries")
    )
    return hits / queries


def test_conversations_find_their_prefixes_twice_as_often_as_round_robin(cluster):
    by_prefix = hit_rate()
    serve.delete("ingle")
    in_turn = hit_rate(router=ROUND_ROBIN)
    serve.delete("ingle")
    report(f"hit rate by prefix {by_prefix:.3f}, round robin {in_turn:.3f}")
    assert by_prefix >= 2 * in_turn


def test_workers_follow_the_load_up_and_down(cluster):
    handle = deploy(
        min_workers=1,
        max_workers=4,
        sim_speed="0.05",
        # Half of what makes four, so that requests between two answers do not count.
        requests_per_worker=2,
        scale_up_delay_s=1.0,
        scale_down_delay_s=10.0,
    )
    stop, sizes = threading.Event(), []

    def busy(number):
        while not stop.is_set():
            ask("/v1/completions", {"prompt": f"{number}", "max_tokens": 60, "ignore_eos": True})

    def size():
        sizes.append(len(everywhere(handle, "pid")))
        return sizes[-1]

    with ThreadPoolExecutor(16) as pool:
        for number in range(16):
            pool.submit(busy, number)
        try:
            wait_until(lambda: size() == 4, "four workers under load")
        finally:
            stop.set()
    wait_until(lambda: size() == 1, "one worker without load")
    report(f"workers: {sizes}")
