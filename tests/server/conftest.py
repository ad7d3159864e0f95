"""Fixtures of the server tests: two servers for all tests of a run, started when first used."""

import pytest

from server.worker import Worker


@pytest.fixture(scope="session")
def cpu_worker():
    with Worker("--device", "cpu", "--max-num-seqs", "16", "--max-num-batched-tokens", "64") as w:
        yield w
        assert w.stop() == 0, w.errors()
        assert "Traceback" not in w.errors(), w.errors()


@pytest.fixture(scope="session")
def sim_worker():
    with Worker("--device", "sim", "--sim-speed", "inf") as w:
        yield w
        assert w.stop() == 0, w.errors()
        assert "Traceback" not in w.errors(), w.errors()


@pytest.fixture
def cpu(cpu_worker):
    """A tiny Llama on the CPU. After each test it must be idle and well."""
    yield cpu_worker
    cpu_worker.wait_until_idle()
    assert cpu_worker.complete(max_tokens=1)["choices"][0]["finish_reason"] == "length"


@pytest.fixture
def sim(sim_worker):
    """The same model's tokenizer, answers of natural English, steps that take no time."""
    yield sim_worker
    sim_worker.wait_until_idle()
    assert sim_worker.complete(max_tokens=1)["choices"][0]["finish_reason"] == "length"
