"""What tests ask of a local Ray cluster and of the workers on it."""

import json
import os
import time
import urllib.request
from pathlib import Path

from ray import serve

from ingle.integrations.ray import build_app

MODEL = str(Path(__file__).parents[1] / "golden/models/llama-tied-bf16")
PORTS = range(30000, 30100)
"""Of replicas that take connections themselves. Ray's proxy does not start then."""
HAPROXY = "http://127.0.0.1:8000"
"""Ray's HAProxy, which finds the replicas of the application that is deployed."""
LIMIT_S = 300.0


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


def wait_until_it_answers(base, path):
    def is_up():
        try:
            ask(path, base=base)
        except OSError:
            return False
        return True

    wait_until(is_up, base)


def report(text):
    """A figure for a document."""
    with open(os.environ.get("INGLE_RAY_FIGURES", os.devnull), "a") as file:
        file.write(text + "\n")


FRONT = [""]
"""Its address; each deployment has another one."""
