"""Two engines on two GPUs: `--data-parallel-size 2`. On one GPU all but one test are skipped."""

import os
import re
import shutil
import subprocess
import threading

import pytest
from needs import missing
from test_lockdown import drive
from test_server import DEVICE, LIMIT_S, TINY, demo_or_tiny

from ingle.exit_codes import ExitCode
from security.test_late import Traced
from server.worker import Worker, wait_for

if DEVICE == "cuda":
    import torch

    NUM_GPUS = torch.cuda.device_count()
else:
    NUM_GPUS = 2  # Engines of this device are not bound to GPUs.

two_gpus = pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs two GPUs, this machine has {NUM_GPUS}")
FLAGS = ["--device", DEVICE, "--max-model-len", "2048", "--max-num-seqs", "16"]
TWO = ["--data-parallel-size", "2"]
MODEL = demo_or_tiny()
# Requests at once, and tokens of each: the cpu device is slow.
LOAD = (32, 64) if DEVICE == "cuda" else (8, 16)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    if DEVICE != "cuda":
        return FLAGS
    return [*FLAGS, "--cache-dir", tmp_path_factory.mktemp("cache")]


@pytest.fixture(scope="module")
def pair(flags):
    with Worker(*flags, *TWO, model=MODEL) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors()


def of_engines(worker, name):
    """A metric's value of each engine."""
    text = worker.get("/metrics").body.decode()
    found = re.findall(rf'^{re.escape(name)}{{engine="(\d+)"[^}}]*}} (\S+)$', text, re.M)
    assert [number for number, _ in found] == ["0", "1"], found
    return [float(value) for _, value in found]


def sessions(worker):
    """A session of each engine."""
    found = {}
    for i in range(20):
        before = of_engines(worker, "vllm:generation_tokens_total")
        headers = {"X-Session-Affinity": f"session {i}"}
        body = {"prompt": f"{i} is", "max_tokens": 2, "ignore_eos": True, "cache_salt": str(i)}
        assert worker.post("/v1/completions", body, headers=headers).status == 200
        worker.wait_until_idle()
        after = of_engines(worker, "vllm:generation_tokens_total")
        found[int(after[1] > before[1])] = headers
        if len(found) == 2:
            return [found[0], found[1]]
    raise AssertionError(f"all sessions went to engine {list(found)}")


@two_gpus
def test_both_gpus_give_the_same_bits(pair):
    first, second = sessions(pair)
    for fields in (
        {"prompt": "The quick brown fox", "temperature": 0},
        {"prompt": "Once upon a time", "temperature": 1, "seed": 7},
        {"prompt": "word " * 300, "temperature": 1, "top_p": 0.9, "seed": 8},
    ):
        # Salted, so that neither finds what the other request of this test has left behind.
        body = {"max_tokens": 24, "ignore_eos": True, "logprobs": 5, "cache_salt": "bits"} | fields
        answers = [pair.post("/v1/completions", body, headers=h) for h in (first, second)]
        assert [answer.status for answer in answers] == [200, 200], answers[0].body
        choices = [answer.json["choices"][0] for answer in answers]
        assert choices[0]["text"] == choices[1]["text"], fields
        assert choices[0]["logprobs"] == choices[1]["logprobs"], fields


@two_gpus
def test_both_gpus_share_the_work(pair):
    def ask(i):
        pair.complete(f"{i} times", max_tokens=LOAD[1], ignore_eos=True)

    before = of_engines(pair, "ingle:steps_total")
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(LOAD[0])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    steps = [
        late - early
        for early, late in zip(before, of_engines(pair, "ingle:steps_total"), strict=True)
    ]
    assert min(steps) >= LOAD[1], steps
    assert [engine["status"] for engine in pair.health()["engines"]] == ["ok", "ok"]


@two_gpus
@pytest.mark.skipif(DEVICE != "cuda", reason="no other device has graphs or kernels")
def test_the_start_prepares_both_gpus_once_and_waits_for_their_graphs(pair):
    assert re.search(r"^device +cuda:0 \(.*\), cuda:1 \(.*\); ready", pair.summary, re.M)
    compiled = [int(n) for n in re.findall(r"(\d+) kernels compiled", pair.summary)]
    assert len(compiled) == 2, pair.summary
    assert min(compiled) == 0, "the second finds what the first has compiled"
    for state, least in (("ready", 1), ("waiting", 0), ("failed", 0)):
        text = pair.get("/metrics").body.decode()
        found = re.findall(rf'^ingle:device_graphs{{.*state="{state}"}} (\d+)$', text, re.M)
        assert len(found) == 2
        assert all(int(n) >= least if least else int(n) == 0 for n in found), (state, found)


@two_gpus
def test_a_locked_server_does_all_that_it_must_on_both(flags):
    with Worker(*flags, *TWO, model=MODEL) as worker:
        on = worker.health()["hardening"]["on"]
        for layer in ("base_filter", "filter", "code", "proof", "capabilities", "memory"):
            assert layer in on, on
        drive(worker)
        wait_for(worker.is_idle, LIMIT_S, worker.errors)
        assert min(of_engines(worker, "vllm:generation_tokens_total")) > 0
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors()


@two_gpus
def test_the_list_lacks_nothing_that_two_devices_need(flags):
    with Traced(*flags, *TWO, model=MODEL) as worker:
        drive(worker)
        assert min(of_engines(worker, "vllm:generation_tokens_total")) > 0
        assert worker.stop() == 0, worker.errors()
        calls = [line for line in worker.errors().splitlines() if line.startswith("trace: ")]
    assert calls == [], f"add these to security/policy ({os.uname().release}): {calls}"


@two_gpus
@pytest.mark.skipif(DEVICE != "cuda", reason="no other device can be lost")
def test_one_lost_gpu_of_two_ends_every_stream_and_the_process(tmp_path, flags):
    if shutil.which("cc") is None:
        missing("cc", "no C compiler on PATH")
    source = os.path.join(os.path.dirname(__file__), "trap.c")
    preloaded, trigger = tmp_path / "trap.so", tmp_path / "now"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", preloaded, source, "-ldl"], check=True)
    environment = {"LD_PRELOAD": str(preloaded), "TRAP_FILE": str(trigger)}
    # A file sets off the trap, whose kernel is compiled late: a locked server allows neither.
    with Worker(*flags, *TWO, "--hardening", "off", model=TINY, environment=environment) as worker:
        connections = [worker.open_stream() for _ in range(8)]
        trigger.touch()
        texts = []
        for connection in connections:
            with connection:
                texts.append(b"".join(iter(lambda c=connection: c.recv(65536), b"")))
        # Those of the other engine may have come to their end meanwhile.
        failed = [text for text in texts if b'data: {"error"' in text]
        assert failed
        assert all(b"data: [DONE]" in text for text in texts if text not in failed), texts
        assert worker.wait() == ExitCode.FATAL
        assert re.search(r"the engine has died: engine [01]: .*CUDA_ERROR", worker.errors())


@pytest.mark.skipif(DEVICE != "cuda", reason="other devices are not counted")
def test_too_few_gpus_are_reported_before_anything_is_loaded(flags):
    with pytest.raises(AssertionError, match="no start") as error:
        Worker(*flags, "--data-parallel-size", str(NUM_GPUS + 1), model=TINY)
    text = str(error.value)
    assert f"--data-parallel-size: {NUM_GPUS + 1} engines need {NUM_GPUS + 1} GPUs" in text
    assert f"this process sees {NUM_GPUS}" in text
