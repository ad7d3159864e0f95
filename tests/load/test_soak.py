"""A server under all kinds of requests for long: nothing of it grows.

pytest -m long tests/load/test_soak.py -s     # twenty minutes; prints the figures
"""

import json
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from server.worker import Worker, http_request, wait_for

NUM_CLIENTS = 8
REQUESTS_A_ROUND = 120
MOST_GROWTH = 1.01
"""Of resident memory, from the second quarter of the time to the last."""
WORDS = ["fire", "wood", "stone", "wind", "rain"]
SCHEMAS = [
    {"type": "object", "properties": {f"key{n}": {"type": "integer"}, "b": {"enum": [n, "x"]}}}
    for n in range(12)
]


def text(rng, least=1, most=60):
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))


def post(path, statuses, make):
    """A request whose answer is read whole."""

    def act(worker, rng):
        reply = worker.post(path, make(rng))
        assert reply.status in statuses, (path, reply.status, reply.body[:300])

    return act


def leave(worker, rng):
    """A client that leaves in the middle of a stream."""
    body = {"prompt": text(rng), "stream": True, "ignore_eos": True, "max_tokens": 1500}
    with worker.connect() as connection:
        connection.sendall(http_request("POST", "/v1/completions", json.dumps(body).encode()))
        for _ in range(rng.randint(0, 3)):
            connection.recv(4096)


def half_head(worker, rng):
    with worker.connect() as connection:
        connection.sendall(http_request("POST", "/v1/completions", b"{}")[: rng.randint(1, 60)])


def completion(**fields):
    return lambda rng: {"prompt": text(rng), "max_tokens": rng.randint(1, 40)} | fields


def chat(**fields):
    def make(rng):
        messages = [{"role": "user", "content": text(rng)}]
        return {"messages": messages, "max_tokens": rng.randint(1, 40)} | fields

    return make


OK = (200, 429)
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
ACTS = [
    post(COMPLETIONS, OK, completion()),
    post(COMPLETIONS, OK, completion(stream=True)),
    post(COMPLETIONS, OK, completion(n=4, temperature=1, logprobs=3)),
    post(COMPLETIONS, OK, completion(echo=True, logprobs=1)),
    post(COMPLETIONS, OK, completion(stop=["fire", "on"])),
    post(CHATS, OK, chat(stream=True)),
    post(CHATS, OK, chat(guided_regex="[a-f]{1,30}")),
    post(CHATS, (200, 429), lambda rng: chat(guided_json=rng.choice(SCHEMAS))(rng)),
    post("/v1/embeddings", OK, lambda rng: {"input": [text(rng), text(rng)]}),
    post("/v1/messages", (200, 429, 529), lambda rng: chat(stream=rng.random() < 0.5)(rng)),
    post("/v1/responses", OK, lambda rng: {"input": text(rng), "max_output_tokens": 5}),
    post("/tokenize", (200,), lambda rng: {"prompt": text(rng)}),
    post(COMPLETIONS, (400,), completion(temperature=-1)),
    post(COMPLETIONS, (400,), lambda rng: {"prompt": "word " * 9000, "max_tokens": 1}),
    post(CHATS, (400,), chat(guided_regex="(a{1,900}){1,900}(")),
    post("/v1/nothing", (404,), completion()),
    leave,
    leave,
    half_head,
]


def blocks_in_use(worker):
    return worker.metric("vllm:kv_cache_usage_perc")


def state(worker):
    """Descriptors and threads of the process, and its resident memory in KiB."""
    folder = Path(f"/proc/{worker.process.pid}")
    status = (folder / "status").read_text().splitlines()
    resident = int(next(line for line in status if line.startswith("VmRSS")).split()[1])
    return len(os.listdir(folder / "fd")), len(os.listdir(folder / "task")), resident


def soak(seconds, seed):
    """Rounds of requests, each to its end; the resident memory after each, in KiB."""
    rng = random.Random(seed)
    resident = []
    with (
        Worker("--device", "sim", "--sim-speed", "8", model="demo") as worker,
        ThreadPoolExecutor(NUM_CLIENTS) as clients,
    ):
        fds, threads, _ = state(worker)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends or len(resident) < 4:
            jobs = [(rng.choice(ACTS), rng.random()) for _ in range(REQUESTS_A_ROUND)]
            # Each has its own numbers, so that the order of threads changes nothing.
            done = [clients.submit(act, worker, random.Random(own)) for act, own in jobs]
            for each in done:
                each.result()
            worker.wait_until_idle()
            # A request that was aborted holds its blocks until the step that names them is done.
            wait_for(lambda: blocks_in_use(worker) == 0, 5, lambda: f"seed {seed}: blocks are held")
            wait_for(lambda: state(worker)[0] <= fds, 10, lambda: f"{state(worker)}, {fds}")
            assert state(worker)[:2] == (fds, threads), f"seed {seed}"
            resident.append(state(worker)[2])
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()
    return resident


def growth(resident):
    quarter = len(resident) // 4
    return max(resident[-quarter:]) / max(resident[quarter : 2 * quarter])


def test_nothing_is_left_after_each_of_some_rounds():
    resident = soak(4, seed=1)
    # Too short for caches to be full; a leak of a round is more than this in a few of them.
    assert growth(resident) < 1.1, resident


@pytest.mark.long
def test_twenty_minutes_of_everything():
    resident = soak(20 * 60, seed=2)
    print(f"\n{len(resident)} rounds, memory x {growth(resident):.4f}, {resident[-1]} KiB")  # noqa: T201
    assert growth(resident) <= MOST_GROWTH, resident
