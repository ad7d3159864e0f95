"""Models with 4-bit weights against the cpu device, whose numbers are the definition. A GPU keeps
the codes, or widens them to bf16 or f16 where it has no products of them.
"""

import pytest
from engines import DEVICE, SMALL, cases
from forced import score, summary
from padding import pad_model

import ingle

EXPERTS = "gpt-oss-mxfp4"
MODELS = ["llama-w4a16", "llama-w4a16-asym", "llama-awq", "llama-gptq", EXPERTS]
# Activations are rounded to bf16, widened weights too. With weights that are bf16 already,
# transformers in bf16 differs from float32 by 0.04 to 0.15 at the 99th percentile (dense models).
DENSE_MEAN, DENSE_P99, EXPERTS_MEAN = 0.06, 0.2, 0.1
WAYS = {
    "few rows": {"max_num_batched_tokens": 8, "max_num_seqs": 4},
    "many rows": {},
    "deterministic": {"deterministic": True},
    "float16": {"dtype": "float16"},
    "widened": {},
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Paths of the models by name."""
    folder = tmp_path_factory.mktemp("stored")
    return {name: str(pad_model(name, folder)) for name in MODELS}


@pytest.fixture(scope="module")
def expected(stored):
    """What the cpu device says of each model's cases."""
    scores = {}
    for name, path in stored.items():
        with ingle.Engine(path, device="cpu") as engine:
            scores[name] = score(engine, whole(name))
    return scores


def whole(name):
    """Prompts with their answers."""
    return [case["ids"] + case["greedy_ids"] for case in cases(name)]


@pytest.mark.skipif(DEVICE != "cuda", reason="compares with the cpu device")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_says_what_the_cpu_says(
    stored, expected, tmp_path_factory, figure, monkeypatch, name, way
):
    monkeypatch.setenv("INGLE_CUDA_FOUR_BIT", "widened" if way == "widened" else "packed")
    cache_dir = tmp_path_factory.getbasetemp() / "four-bit-cache"
    options = {"cache_dir": cache_dir, **SMALL, **WAYS[way]}
    with ingle.Engine(stored[name], device=DEVICE, **options) as engine:
        notes = " ".join(engine.info["notes"])
        keeps = way.endswith("rows") or (way == "deterministic" and name == EXPERTS)
        assert ("4-bit tensors run as" in notes) != keeps, notes
        scored = score(engine, whole(name))
    pairs = zip(scored, expected[name], strict=True)
    differences = [abs(a.logprob - b.logprob) for x, y in pairs for a, b in zip(x, y, strict=True)]
    mean, p99 = summary(differences)
    figure(f"4-bit weights against the cpu, {name}", f"{way} {mean:.4f} {p99:.4f}")
    if name == EXPERTS:
        assert mean < EXPERTS_MEAN
    else:
        assert mean < DENSE_MEAN
        assert p99 < DENSE_P99
