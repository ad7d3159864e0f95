"""A Llama-3.1-8B-shaped model with random weights against transformers on the same device.

The log-prob of every prompt token given its prefix, 64 prompts of 16 to 3,000 tokens. The engine
and transformers in bf16 each err against transformers in f32; ours may err little more than theirs.

INGLE_TEST_CHECKPOINT: folder of the checkpoint, made there if it is missing (16 GB).
INGLE_TEST_SIZE: 8b or tiny; INGLE_TEST_MAX_TOKENS: longest prompt.
"""

import gc
import json
import os
import random
from pathlib import Path

import pytest
import torch
import transformers
from forced import score, summary
from make_checkpoint import make_checkpoint

import ingle

DEVICE = os.environ.get("INGLE_TEST_DEVICE", "cuda")
SIZE = os.environ.get("INGLE_TEST_SIZE", "8b" if DEVICE == "cuda" else "tiny")
FOLDER = Path(os.environ.get("INGLE_TEST_CHECKPOINT", f"/tmp/ingle-gpu-test/llama-{SIZE}"))
MAX_TOKENS = int(os.environ.get("INGLE_TEST_MAX_TOKENS", "3000" if SIZE == "8b" else "300"))
NUM_PROMPTS = 64
# nat, against transformers in bf16
MEAN_LIMIT, P99_LIMIT = 0.06, 0.20
# Our mean error against f32, in units of bf16 transformers' own.
ERROR_RATIO = 1.15


@pytest.fixture(scope="module")
def checkpoint():
    return make_checkpoint(FOLDER, SIZE, device=DEVICE)


@pytest.fixture(scope="module")
def prompts(checkpoint):
    vocab_size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    rng = random.Random(5)
    # Lengths are spread evenly over their logarithm; shortest and longest are both there.
    lengths = [round(16 * (MAX_TOKENS / 16) ** (i / (NUM_PROMPTS - 1))) for i in range(NUM_PROMPTS)]
    rng.shuffle(lengths)
    return [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def ours(checkpoint, prompts, tmp_path_factory):
    options = {"max_model_len": 4096, "kv_cache_memory_bytes": 4 << 30}
    if DEVICE == "cuda":
        options["cache_dir"] = tmp_path_factory.mktemp("cache")
    else:
        options["kv_cache_memory_bytes"] = 64 << 20
    with ingle.Engine(str(checkpoint), device=DEVICE, **options) as engine:
        return [[e.logprob for e in entries] for entries in score(engine, prompts, top=0)]


def test_deterministic_scores_have_the_same_bits_alone_and_in_a_batch(
    checkpoint, prompts, tmp_path_factory
):
    options = {"max_model_len": 4096, "kv_cache_memory_bytes": 4 << 30, "deterministic": True}
    if DEVICE == "cuda":
        options["cache_dir"] = tmp_path_factory.mktemp("cache")
    else:
        options["kv_cache_memory_bytes"] = 64 << 20
    some = prompts[:16]
    with ingle.Engine(str(checkpoint), device=DEVICE, **options) as engine:
        alone = [score(engine, [prompt], top=0)[0] for prompt in some]
        assert score(engine, some, top=0) == alone


def theirs(folder: Path, prompts: list[list[int]], dtype: torch.dtype) -> list[list[float]]:
    """transformers' log-probs, one prompt at a time, logits in f32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    # Not `.to(dtype)`: that would round the rotary frequencies too.
    name = "dtype" if version >= (4, 56) else "torch_dtype"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **{name: dtype})
    assert model.lm_head.weight.dtype == dtype
    model = model.to(DEVICE).eval()
    results = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt], device=DEVICE)
            logits = model(ids, use_cache=False).logits[0, :-1].float()
            log_probs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])
            results.append(log_probs[:, 0].tolist())
    del model
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    return results


def differences(one: list[list[float]], other: list[list[float]]) -> tuple[float, float]:
    pairs = zip(one, other, strict=True)
    return summary([abs(a - b) for x, y in pairs for a, b in zip(x, y, strict=True)])


def test_log_probs_are_those_of_transformers(checkpoint, prompts, ours, figure):
    in_bf16 = theirs(checkpoint, prompts, torch.bfloat16)
    in_f32 = theirs(checkpoint, prompts, torch.float32)
    mean, p99 = differences(ours, in_bf16)
    our_error, our_p99 = differences(ours, in_f32)
    their_error, their_p99 = differences(in_bf16, in_f32)
    figure(
        f"log-probs of {sum(map(len, prompts))} tokens, transformers {transformers.__version__}, "
        "mean and p99 in nat",
        f"against bf16 {mean:.4f} {p99:.4f}, against f32 {our_error:.4f} {our_p99:.4f}, "
        f"theirs {their_error:.4f} {their_p99:.4f}",
    )
    assert mean <= MEAN_LIMIT
    assert p99 <= P99_LIMIT
    assert our_error <= ERROR_RATIO * their_error
