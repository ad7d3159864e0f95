"""What a serving process takes beside its weights and its KV: it stays small, and does not grow."""

import re

import pytest

from ingle.demo import demo_model_path
from ingle.errors import ModelError
from server.worker import Worker, wait_for

try:
    demo_model_path()
except ModelError as error:
    pytest.skip(str(error), allow_module_level=True)

MIB = 1 << 20
PROMPT = 300
KV_BYTES_PER_TOKEN = 46080
"""Of SmolLM2-135M in f32: keys and values of 30 layers of 3 heads of 64."""
MOST_BESIDE = 110 * MIB
"""With the test build, whose library is larger than the wheel's: 80 MiB were measured."""


def resident(worker):
    """Bytes of the process in memory, files that it has mapped included."""
    with open(f"/proc/{worker.process.pid}/status") as status:
        return int(re.search(r"^VmRSS:\s+(\d+) kB$", status.read(), re.M)[1]) << 10


def test_a_process_takes_little_beside_weights_and_kv():
    with Worker("--device", "cpu", "--max-model-len", "512", model="demo") as worker:
        weights = float(re.search(r"^memory +weights ([\d.]+) ", worker.summary, re.M)[1]) * MIB
        assert weights > 80 * MIB
        worker.complete("a " * PROMPT, max_tokens=8)
        worker.wait_until_idle()
        first = resident(worker)
        touched = (PROMPT + 8) * KV_BYTES_PER_TOKEN
        assert first - weights - touched < MOST_BESIDE
        # The same work again takes what is there.
        for _ in range(6):
            worker.complete("a " * PROMPT, max_tokens=8)
        wait_for(lambda: resident(worker) < first + 8 * MIB, 60, lambda: f"{resident(worker)}")
        assert worker.stop() == 0, worker.errors()
