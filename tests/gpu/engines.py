"""Engines of the reference models for tests of whole models, and the counters that those read."""

from __future__ import annotations

import json
import os
import re
import time
from functools import cache
from pathlib import Path

import pytest
from needs import missing

import ingle
from ingle.demo import resolve_model
from ingle.errors import ConfigError, ModelError
from ingle.places import PREBUILT_KERNELS

DEVICE = os.environ.get("INGLE_TEST_DEVICE", "cuda")
CASES = Path(__file__).resolve().parents[1] / "golden" / "cases"
SMOLLM2 = "smollm2-135m-instruct-q4_1"
# A GPU also rounds activations where weights are fp8, and 4-bit weights once more: test_fp8.py and
# test_four_bit.py have the limits for that. Latents and heads of 48 (gemma4-wrapped) are refused.
REFUSED = ["gemma4-wrapped", "deepseek", "glm4_moe_lite", "kimi", "mistral4"]
LEFT_OUT = ["fp8", "w4a16", "awq", "gptq", "mxfp4", *REFUSED] if DEVICE == "cuda" else []
TINY = sorted(
    path.stem
    for path in CASES.glob("*.json")
    if path.stem != SMOLLM2 and not any(part in path.stem for part in LEFT_OUT)
)
# Ahead of time, kernels for layers that differ are built in the widths of published models alone.
NOT_AHEAD = {"gemma4-e", "gemma4-experts", "gemma4-unified"} | {
    *("llama4", "llama4-interleaved", "llama4-wrapped")
}
PIECE_BYTES = 32 << 20  # the KV pool of a GPU grows by this much
LIMIT_S = 60.0

# Enough for the cases; few row counts, so that little has to be measured at each start.
SMALL = {
    "max_model_len": 512,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 256,
    "kv_cache_memory_bytes": 4 * PIECE_BYTES,
}


@cache
def cases(name: str) -> list[dict]:
    """The reference's prompts and answers."""
    return json.loads((CASES / f"{name}.json").read_text())["cases"]


def start(name: str, models: dict[str, str], cache_dir: Path, **options) -> ingle.Engine:
    """An engine of a reference model on the device under test."""
    path = models.get(name) or demo_model()
    if "nvrtc_library" in options:
        if DEVICE != "cuda":
            pytest.skip("needs a GPU")
        if name in NOT_AHEAD:
            pytest.skip("the wheel has its kernels in the widths of published models alone")
        if not PREBUILT_KERNELS.is_dir():
            missing("wheel-kernels", f"no kernels in {PREBUILT_KERNELS}: not made by make wheel")
    settings = SMALL | options
    if DEVICE == "cuda":
        settings["cache_dir"] = cache_dir
    else:
        settings.pop("enforce_eager", None)  # The device has no graphs, and refuses the word.
    engine = ingle.Engine(path, device=DEVICE, **settings)
    notes = " ".join(engine.info["notes"])
    assert ("kernels built ahead" in notes) == ("nvrtc_library" in options), notes
    return engine


def demo_model() -> str:
    """Where SmolLM2 lies."""
    try:
        return resolve_model("demo")
    except (ConfigError, ModelError) as error:
        missing("demo", str(error))


def metric(engine: ingle.Engine, name: str, label: str = "") -> float:
    """Sum of the metric's lines that have `label`, such as state="ready"."""
    lines = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", engine.core.metrics().decode(), re.M)
    values = [float(value) for labels, value in lines if label in labels]
    assert values, f"no {name} with {label}"
    return sum(values)


def graphs(engine: ingle.Engine, state: str) -> int:
    """Graphs that are `ready`, `waiting` or `failed`."""
    return int(metric(engine, "ingle:device_graphs", f'state="{state}"'))


def steps(engine: ingle.Engine, launch: str) -> int:
    """Steps that ran from a `graph` or from `plain` launches."""
    return int(metric(engine, "ingle:device_steps_total", f'launch="{launch}"'))


def wait_for_graphs(engine: ingle.Engine) -> None:
    """Until every graph that was asked for is captured; none may have failed."""
    deadline = time.monotonic() + LIMIT_S
    while graphs(engine, "waiting") > 0:
        assert time.monotonic() < deadline, f"graphs wait after {LIMIT_S:.0f} s"
        time.sleep(0.005)
    assert graphs(engine, "failed") == 0
