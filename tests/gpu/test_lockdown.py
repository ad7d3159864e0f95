"""`ingle serve` on the GPU is locked down, serves every kind of step, and lacks no system call."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_server import DEVICE, FORMAT, LIMIT_S, demo_or_tiny

from security.test_late import Traced
from server.worker import Worker, wait_for

LOAD_S = float(os.environ.get("INGLE_TEST_LOAD_S", "10"))
"""How long the last test drives its servers; 300 for the figure of docs/OPERATIONS.md."""
FLAGS = ["--device", DEVICE, "--max-model-len", "1024", "--max-num-seqs", "16"]


@pytest.fixture
def flags(tmp_path):
    return [*FLAGS, "--cache-dir", tmp_path] if DEVICE == "cuda" else FLAGS


def drive(worker):
    """Steps of all kinds: prompts long and short, one request and many, masks, echo, embeddings."""
    jobs = [
        lambda: worker.complete(max_tokens=32),
        lambda: worker.complete("word " * 200, max_tokens=32),
        lambda: worker.complete(max_tokens=32, stream=True),
        lambda: worker.complete(max_tokens=4, n=4, temperature=1),
        lambda: worker.complete(max_tokens=2, echo=True, logprobs=2),
        lambda: worker.chat(response_format=FORMAT, max_tokens=100),
        lambda: worker.post("/v1/embeddings", {"input": "a text"}),
    ]
    for _ in range(3):
        with ThreadPoolExecutor(len(jobs) * 3) as pool:
            for answer in [pool.submit(job) for job in jobs * 3]:
                answer.result(LIMIT_S)
        jobs[0]()


def graphs(worker, state):
    """How many graphs are in this state."""
    text = worker.get("/metrics").body.decode()
    found = re.search(rf'^ingle:device_graphs{{.*state="{state}"}} (\d+)$', text, re.M)
    assert found, text
    return int(found[1])


def test_a_locked_server_does_all_that_it_must(flags):
    with Worker(*flags, model=demo_or_tiny()) as worker:
        hardening = worker.health()["hardening"]
        for layer in ("base_filter", "filter", "code", "proof", "capabilities", "memory"):
            assert layer in hardening["on"], hardening
        if DEVICE == "cuda":
            assert "device_calls" in hardening["on"], hardening
        drive(worker)
        if DEVICE == "cuda":
            wait_for(lambda: graphs(worker, "waiting") == 0, LIMIT_S, worker.errors)
            assert graphs(worker, "failed") == 0
            assert graphs(worker, "ready") > 0

            def calls():
                return worker.health()["hardening"]["on"]["device_calls"]

            wait_for(lambda: "recorded" not in calls(), LIMIT_S, calls)
        # The probes run beside a process that holds a GPU.
        check = [sys.executable, "-m", "ingle", "security", "check", "--json"]
        done = subprocess.run(check, capture_output=True, text=True, timeout=120)
        report = json.loads(done.stdout)
        failed = [each for each in report["probes"] if each["verdict"] == "failed"]
        assert done.returncode == 0, failed
        drive(worker)
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors()


def test_the_list_lacks_nothing_that_the_device_needs(flags):
    with Traced(*flags, model=demo_or_tiny()) as worker:
        drive(worker)
        assert worker.stop() == 0, worker.errors()
        calls = [line for line in worker.errors().splitlines() if line.startswith("trace: ")]
    assert calls == [], f"add these to security/policy ({os.uname().release}): {calls}"


def drive_for(worker, seconds, failures):
    """Steps of all kinds until the time is over."""
    ends = time.monotonic() + seconds
    try:
        while time.monotonic() < ends:
            drive(worker)
    except BaseException as error:  # noqa: BLE001 # Another thread's: the test reports it.
        failures.append(repr(error))


def test_a_load_that_goes_on_needs_no_other_call(flags, tmp_path):
    """Two servers at once: one has the list enforced, the other says what is not on it."""
    more = tmp_path / "traced"
    sizes = ["--kv-cache-memory-bytes", str(1 << 30)]
    traced_flags = [more if flag == tmp_path else flag for flag in flags]
    failures = []
    with (
        Worker(*flags, *sizes, model=demo_or_tiny()) as locked,
        Traced(*traced_flags, *sizes, model=demo_or_tiny()) as traced,
    ):
        threads = [
            threading.Thread(target=drive_for, args=(worker, LOAD_S, failures))
            for worker in (locked, traced)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LOAD_S + 2 * LIMIT_S)
            assert not thread.is_alive()
        assert failures == []
        assert "filter" in locked.health()["hardening"]["on"]
        if DEVICE == "cuda":
            assert graphs(locked, "failed") == 0
        assert locked.stop() == traced.stop() == 0, locked.errors() + traced.errors()
        assert "not permitted" not in locked.errors(), locked.errors()
        calls = [line for line in traced.errors().splitlines() if line.startswith("trace: ")]
    assert calls == []
