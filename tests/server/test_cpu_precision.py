"""`--cpu-precision fast`: named, the same whatever the batch, close to exact, refused elsewhere."""

import concurrent.futures
import json

import pytest

import ingle
from ingle import _core
from server.worker import TINY, Worker

FAST = ("--cpu-precision", "fast")
PROMPTS = [f"{i} times the quick brown fox" * (1 + i % 3) for i in range(6)]


def works_here():
    """Whether the processor has what fast needs, as `ingle doctor` says."""
    found = json.loads(_core.doctor(b"{}"))["cpu"]["cpu_precision"]
    return "fast" in (found["value"] if isinstance(found, dict) else found)


def test_fast_is_named_and_does_not_depend_on_the_batch():
    if not works_here():
        with pytest.raises(AssertionError, match="--cpu-precision: fast needs AVX-512"):
            Worker("--device", "cpu", *FAST)
        return
    with Worker("--device", "cpu", *FAST) as worker:
        assert "avx512, fast (activations in bf16 or 8 bits)" in worker.summary

        def answer(prompt):
            return worker.complete(prompt, temperature=0, logprobs=2)["choices"]

        alone = [answer(prompt) for prompt in PROMPTS]
        with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
            assert list(pool.map(answer, PROMPTS)) == alone
        assert worker.stop() == 0, worker.errors()


def test_another_path_than_avx512_refuses_fast():
    with pytest.raises(AssertionError, match="no start") as error:
        Worker("--device", "cpu", *FAST, environment={"INGLE_CPU_PATH": "portable"})
    assert "cpu-precision: fast needs AVX-512 with BF16 and VNNI" in str(error.value)


def test_another_device_refuses_fast():
    with pytest.raises(AssertionError, match="no start") as error:
        Worker("--device", "sim", *FAST)
    assert "cpu-precision: only the cpu device has this setting" in str(error.value)


def test_rounding_moves_log_probs_a_little_and_exact_is_the_default():
    params = ingle.SamplingParams(temperature=0, max_tokens=0, logprobs=0, echo=True)

    def log_probs(**options):
        with ingle.Engine(str(TINY), device="cpu", **options) as engine:
            outputs = engine.generate(PROMPTS, params)
        return [e.logprob for output in outputs for e in output.outputs[0].logprobs[1:]]

    exact = log_probs()
    assert exact == log_probs(cpu_precision="exact")
    if not works_here():
        with pytest.raises(ingle.ModelError, match="cpu_precision: fast needs AVX-512"):
            log_probs(cpu_precision="fast")
        return
    moved = [abs(a - b) for a, b in zip(exact, log_probs(cpu_precision="fast"), strict=True)]
    assert 1e-6 < max(moved) < 0.1
