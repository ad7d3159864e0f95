"""`kv_cache_dtype="fp8"`: keys and values in e4m3, against the numpy reference with such a cache.

The reference rounds in float64 and the engine in float32, so that now and then a number near the
middle between two elements goes to the other one. That moves few log-probs, and by little; so the
middle of all differences is looked at closely and the largest one loosely.
"""

import json
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from padding import pad_model
from test_fp8_at_load import E4M3

import ingle
from ingle.errors import ConfigError, ModelError

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "make"))

import safetensors_file  # noqa: E402
from reference import Reference  # noqa: E402

SCALED = "qwen3-fp8-modelopt"
"""Its checkpoint states the scales of the cache."""
MODELS = [SCALED, "llama-tied-bf16", "gemma3", "qwen3_5", "gemma4-e", "qwen3-moe"]
MODELS += ["deepseek_v3", "glm4_moe_lite"]


def rounded(x: np.ndarray, scale: float) -> np.ndarray:
    """What the cache gives back: `scale` times the e4m3 number nearest to `x / scale`."""
    size = np.minimum(np.abs(x / scale), 448)
    above = np.searchsorted(E4M3, size).clip(1, 126)
    low, high = size - E4M3[above - 1], E4M3[above] - size
    is_up = (high < low) | ((high == low) & (above % 2 == 0))
    return np.copysign(np.where(is_up, E4M3[above], E4M3[above - 1]), x) * scale


class WithFp8Cache(Reference):
    scales: dict[str, float]

    def kept(self, k, v, layer):
        at = f"model.layers.{layer}.self_attn."
        scales = [self.scales.get(f"{at}{part}_proj.{part}_scale", 1.0) for part in "kv"]
        return rounded(k, scales[0]), rounded(v, scales[1])

    def kept_latent(self, latent, turning, layer):
        return rounded(latent, 1.0), rounded(turning, 1.0)


@cache
def reference(name: str) -> WithFp8Cache:
    folder = HERE / "models" / name
    tensors = safetensors_file.read(folder / "model.safetensors")
    weights = {}
    for key, value in tensors.items():
        if f"{key}_scale" in tensors:
            value = decoded(value) * tensors[f"{key}_scale"]
        if not key.endswith("_scale"):
            weights[key] = value
    model = WithFp8Cache(json.loads((folder / "config.json").read_text()), weights)
    model.scales = {key: float(value) for key, value in tensors.items() if key.endswith("_scale")}
    return model


def decoded(elements: np.ndarray) -> np.ndarray:
    return np.where(elements >> 7, -1, 1) * E4M3[elements & 0x7F].astype(np.float64)


def expected(name: str, ids: list[int]) -> np.ndarray:
    logits = reference(name).logits(ids)[:-1]
    top = logits.max(-1, keepdims=True)
    logits = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    return logits[np.arange(len(ids) - 1), ids[1:]]


def log_probs(engine: ingle.Engine, prompts: list[list[int]]) -> list[np.ndarray]:
    params = ingle.SamplingParams(temperature=0, max_tokens=0, logprobs=0, echo=True)
    outputs = engine.generate(prompts, params)
    return [np.array([e.logprob for e in o.outputs[0].logprobs[1:]]) for o in outputs]


def prompts_of(name: str) -> list[list[int]]:
    cases = json.loads((HERE / "cases" / f"{name}.json").read_text())["cases"]
    return [case["ids"] for case in cases if len(case["ids"]) > 1][:3]


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_keys_and_values_in_8_bits(name, tmp_path):
    """The same bits in other blocks and in chunks, and after the prompts were cached."""
    path, prompts = pad_model(name, tmp_path), prompts_of(name)
    want = [expected(name, ids) for ids in prompts]
    variants = [{}, {"block_size": 4}, {"max_num_batched_tokens": 5, "max_num_seqs": 4}]
    found = []
    for options in variants:
        with ingle.Engine(
            str(path), device="cpu", max_model_len=512, kv_cache_dtype="fp8", **options
        ) as engine:
            assert engine.info["kv_cache_dtype"] == "fp8"
            found += [log_probs(engine, prompts), log_probs(engine, prompts[:1])]
    for ours in found[1:]:
        assert all((a == b).all() for a, b in zip(found[0], ours, strict=False))
    off = np.concatenate([np.abs(a - b) for a, b in zip(found[0], want, strict=True)])
    assert np.median(off) < 1e-3, np.median(off)
    assert off.max() < 0.1, off.max()
    with ingle.Engine(str(path), device="cpu", max_model_len=512) as engine:
        plain = log_probs(engine, prompts)
    rounding = np.concatenate([np.abs(a - b) for a, b in zip(plain, want, strict=True)])
    assert np.median(rounding) > 4 * np.median(off)


def test_the_notes_say_when_a_checkpoint_has_no_scales(tmp_path):
    for name, is_noted in ((SCALED, False), ("llama-tied-bf16", True)):
        path = str(pad_model(name, tmp_path))
        with ingle.Engine(path, device="cpu", kv_cache_dtype="fp8_e4m3") as engine:
            assert any("has no scales" in note for note in engine.info["notes"]) == is_noted


def test_a_block_takes_a_quarter_of_the_memory(tmp_path):
    path, blocks = str(pad_model("llama-tied-bf16", tmp_path)), []
    for dtype in ("auto", "fp8"):
        options = {"kv_cache_dtype": dtype, "kv_cache_memory_bytes": 1 << 19}
        with ingle.Engine(path, device="cpu", max_model_len=128, **options) as engine:
            blocks.append(engine.info["limits"]["num_blocks"])
    assert blocks[1] == 4 * blocks[0]


def test_other_formats_and_devices_without_it_are_refused():
    with pytest.raises(ConfigError, match="kv_cache_dtype"):
        ingle.Engine("anything", kv_cache_dtype="fp8_e5m2")
    model = str(HERE / "models" / "llama-tied-bf16")
    with pytest.raises(ModelError, match="kv_cache_dtype: only the cpu device"):
        ingle.Engine(model, device="sim", kv_cache_dtype="fp8")


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_not_above_zero_is_refused_by_name(scale, tmp_path):
    path = pad_model(SCALED, tmp_path)
    file = path / "model.safetensors"
    raw = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    name = "model.layers.1.self_attn.k_proj.k_scale"
    begin, end = json.loads(raw[8:start])[name]["data_offsets"]
    raw[start + begin : start + end] = np.float32(scale).tobytes()
    file.unlink()
    file.write_bytes(raw)
    with pytest.raises(ModelError, match=f"{name}.*a scale of the KV cache"):
        ingle.Engine(str(path), device="cpu", kv_cache_dtype="fp8")
    with ingle.Engine(str(path), device="cpu", max_model_len=64):
        """Without such a cache the scale has no effect."""
