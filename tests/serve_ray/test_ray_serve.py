"""ingle on a real local Ray cluster: `make test-ray`, in a venv of its own.

One cluster and its workers serve all tests, since a start takes long; each test deploys what it
needs. The sim device takes the time of a card and none of the machine's.
"""

import http.client
import inspect
import json
import os
import signal
import statistics
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")

from ray import serve  # noqa: E402

from ingle.integrations.ray import app, build_app  # noqa: E402

MODEL = str(Path(__file__).parents[1] / "golden/models/llama-tied-bf16")
PORTS = range(30000, 30100)
"""Of replicas that take connections themselves. Ray's proxy does not start then."""
ROUND_ROBIN = "ray.serve.experimental.round_robin_router.RoundRobinRouter"
LIMIT_S = 300.0
MOST_ADDED_MS = 3.0


@pytest.fixture(scope="module")
def cluster():
    # For the cluster, not for this process: the front's replica takes connections itself.
    os.environ |= {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_worker_niceness": "0"}
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    for attempt in range(5):
        try:
            serve.start(http_options={"host": "127.0.0.1"})
            break
        except Exception:
            # On a busy machine the proxy takes longer than Serve waits for it.
            if attempt == 4:
                raise
    yield
    serve.shutdown()
    ray.shutdown()


def deploy(**options):
    settings = {"device": "sim", "max_num_seqs": 64} | options
    serve.run(build_app(MODEL, **settings), name="ingle")
    find_front()
    return serve.get_deployment_handle("IngleWorker", "ingle")


def find_front():
    """Where the front of the last deployment listens: the one port that answers as ingle does."""

    def is_found():
        for port in PORTS:
            base = f"http://127.0.0.1:{port}"
            try:
                with urllib.request.urlopen(base + "/version", timeout=10) as answer:
                    assert "version" in json.loads(answer.read())
            except OSError:
                continue
            FRONT[0] = base
            return True
        return False

    wait_until(is_found, "the front")


def open_url(url, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json"} | (headers or {})
    return urllib.request.urlopen(urllib.request.Request(url, data, sent), timeout=LIMIT_S)


def ask(path, body=None, base=None, **headers):
    with open_url((base or FRONT[0]) + path, body, headers) as answer:
        return answer.read()


def everywhere(handle, method, count=None):
    """What each worker says; waits until there are `count`."""
    found = []

    def is_enough():
        found[:] = handle.broadcast(method).results(timeout_s=LIMIT_S)
        return count is None or len(found) == count

    wait_until(is_enough, f"{count} workers")
    return found


def metric(base, name):
    lines = ask("/metrics", base=base).decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


def wait_until(is_true, what):
    deadline = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


def test_answers_are_the_workers_own_and_little_later(cluster):
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
    direct, through = (
        http.client.HTTPConnection(at.removeprefix("http://")) for at in (base, FRONT[0])
    )
    added = []
    for number in range(20 + 200):
        first, second = (direct, through) if number % 2 else (through, direct)
        took = {each: time_of(each) for each in (first, second)}
        added.append(1e3 * (took[through] - took[direct]))
    added = statistics.median(added[20:])
    report(f"latency that the front adds, p50 ms: {added:.2f}, load {os.getloadavg()[0]:.1f}")
    assert added <= MOST_ADDED_MS or os.getloadavg()[0] > os.cpu_count(), added


def time_of(connection):
    """Seconds that one short request takes."""
    began = time.perf_counter()
    body = json.dumps({"prompt": "a", "max_tokens": 1})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    assert connection.getresponse().read()
    return time.perf_counter() - began


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


def report(text):
    """A figure for a document."""
    with open(os.environ.get("INGLE_RAY_FIGURES", os.devnull), "a") as file:
        file.write(text + "\n")


FRONT = [""]
"""Its address; each deployment has another one."""
