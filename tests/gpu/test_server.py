"""`ingle serve` on the GPU: masks that come late, crowds that leave, and a device that is lost."""

import json
import os
import shutil
import subprocess
import threading

import pytest
from needs import missing

from ingle.demo import resolve_model
from ingle.errors import ConfigError, ModelError
from ingle.exit_codes import ExitCode
from server.worker import MODELS, Worker

DEVICE = os.environ.get("INGLE_TEST_DEVICE", "cuda")
TINY = MODELS / "llama-tied-bf16"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
LIMIT_S = 60.0


def demo_or_tiny():
    try:
        return resolve_model("demo")
    except (ConfigError, ModelError):
        return TINY


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def worker(cache_dir):
    flags = ["--device", DEVICE, "--max-model-len", 1024]
    if DEVICE == "cuda":
        flags += ["--cache-dir", cache_dir]
    with Worker(*flags, "--max-num-seqs", 16, model=demo_or_tiny()) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()


def in_threads(jobs):
    """Runs callables beside each other; their results in order."""
    results = [None] * len(jobs)

    def run(place):
        results[place] = jobs[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    return results


def test_grammars_hold_beside_free_answers(worker):
    """More choices than slots, so that rows with masks and rows without share every step."""
    bound = {"response_format": FORMAT, "max_tokens": 200}
    free = {"max_tokens": 60, "ignore_eos": True}
    jobs = []
    for seed in range(12):
        for extra in (bound, free):
            fields = {"temperature": 1, "seed": seed, **extra}
            jobs.append(lambda fields=fields: worker.chat(**fields)["choices"][0])
    answers = in_threads(jobs)
    for choice in answers[0::2]:
        assert choice["finish_reason"] == "stop", choice
        value = json.loads(choice["message"]["content"])
        assert list(value) == ["name", "age", "tags"]
        assert 0 <= value["age"] <= 150
        assert all(tag in ("a", "b") for tag in value["tags"])
    assert all(choice["finish_reason"] == "length" for choice in answers[1::2])


def test_a_crowd_that_leaves_gives_everything_back(worker):
    def leave(place):
        prompt = "x " * (5 + place)
        with worker.open_stream(prompt=prompt, max_tokens=900) as connection:
            for _ in range(place % 4):
                connection.recv(4096)

    in_threads([lambda place=place: leave(place) for place in range(40)])
    worker.wait_until_idle()
    assert worker.complete(max_tokens=3)["usage"]["completion_tokens"] == 3


@pytest.mark.skipif(DEVICE != "cuda", reason="no other device can be lost")
def test_a_lost_device_ends_every_stream_and_the_process(tmp_path, cache_dir):
    if shutil.which("cc") is None:
        missing("cc", "no C compiler on PATH")
    source = os.path.join(os.path.dirname(__file__), "trap.c")
    preloaded, trigger = tmp_path / "trap.so", tmp_path / "now"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", preloaded, source, "-ldl"], check=True)
    environment = {"LD_PRELOAD": str(preloaded), "TRAP_FILE": str(trigger)}
    flags = ["--device", "cuda", "--cache-dir", cache_dir, "--max-model-len", 1024]
    # A file sets off the trap, whose kernel is compiled late: a locked server allows neither.
    flags += ["--hardening", "off"]
    with Worker(*flags, model=TINY, environment=environment) as worker:
        connections = [worker.open_stream() for _ in range(8)]
        trigger.touch()
        for connection in connections:
            with connection:
                text = b"".join(iter(lambda c=connection: c.recv(65536), b""))
            assert b'data: {"error"' in text, text[-500:]
            assert b'"engine_dead"' in text
        assert worker.wait() == ExitCode.FATAL
        assert "CUDA_ERROR" in worker.errors()
