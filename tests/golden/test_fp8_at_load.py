"""`quantization="fp8"` on a plain checkpoint gives the bits of one that was quantised before.

The quantised one is written here with numpy: for each row a scale, its largest size over 448, and
for each element the e4m3 number nearest to the quotient, ties to even.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from padding import pad_model

import ingle
from ingle.errors import ConfigError

EXPONENTS, MANTISSAS = np.divmod(np.arange(127), 8)
E4M3 = np.where(
    EXPONENTS == 0,
    MANTISSAS * 2.0**-9,
    (8 + MANTISSAS) * 2.0 ** (EXPONENTS - 10),
).astype(np.float32)
"""Values of the elements 0 to 126; the sign is bit 7."""

DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head", "re:.*gate$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
        }
    },
}


def quantised(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Elements and scales of `[..., rows, cols]` f32."""
    most = np.abs(weight).max(-1, keepdims=True)
    scale = np.where(most == 0, np.float32(1), most / np.float32(448)).astype(np.float32)
    quotient = np.minimum(np.abs(weight / scale), np.float32(448))
    above = np.searchsorted(E4M3, quotient).clip(1, 126)
    low, high = quotient - E4M3[above - 1], E4M3[above] - quotient
    is_up = (high < low) | ((high == low) & (above % 2 == 0))
    element = np.where(is_up, above, above - 1).astype(np.uint8)
    return element | np.signbit(weight).astype(np.uint8) << 7, scale


def is_linear(name: str) -> bool:
    """Whether the tensor belongs to the linear layers of the model's layers."""
    parts = ("_proj", "experts.")
    return ".layers." in name and any(part in name for part in parts) and "bias" not in name


def quantise_file(path: Path) -> None:
    """Rewrites a safetensors file with fp8 linear layers."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header, data, position = {}, [], 0

    def add(name: str, dtype: str, values: np.ndarray) -> None:
        nonlocal position
        blob = values.tobytes()
        place = [position, position + len(blob)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": place}
        data.append(blob)
        position += len(blob)

    for name, info in json.loads(raw[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = (start + offset for offset in info["data_offsets"])
        stored = np.frombuffer(raw[begin:end], DTYPES[info["dtype"]]).reshape(info["shape"])
        if not is_linear(name):
            add(name, info["dtype"], stored)
            continue
        if info["dtype"] == "BF16":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        elements, scales = quantised(stored.astype(np.float32))
        add(name, "F8_E4M3", elements)
        add(f"{name}_scale", "F32", scales)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def answers(path: Path, **options: object) -> list:
    params = ingle.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=3)
    prompts = [[0, 17, 42, 99, 300, 5], [0, 7]]
    with ingle.Engine(str(path), device="cpu", max_model_len=64, **options) as engine:
        outputs = engine.generate(prompts, params)
        weight_type, notes = engine.info["weight_type"], engine.info["notes"]
    values = [
        (o.outputs[0].token_ids, [entry.logprob for entry in o.outputs[0].logprobs])
        for o in outputs
    ]
    return [values, weight_type, notes]


# bf16 with biases, f16, fused matrices, experts.
@pytest.mark.parametrize("name", ["qwen2", "llama-untied-f16", "phi3", "mixtral"])
def test_quantising_at_load_gives_the_bits_of_a_quantised_checkpoint(name, tmp_path):
    plain, stored = pad_model(name, tmp_path / "plain"), pad_model(name, tmp_path / "stored")
    quantise_file(stored / "model.safetensors")
    config = json.loads((stored / "config.json").read_text())
    config["quantization_config"] = SCHEME
    (stored / "config.json").write_text(json.dumps(config))
    at_load, weight_type, _ = answers(plain, quantization="fp8")
    before, _, _ = answers(stored)
    assert at_load == before
    assert at_load != answers(plain)[0]
    assert weight_type == ("fp8 from f16" if "f16" in name else "fp8 from bf16")
    # A checkpoint that is fp8 already is taken as it is.
    again, _, notes = answers(stored, quantization="fp8")
    assert again == before
    assert "quantization: the checkpoint's weights are fp8 already" in notes


def test_an_unknown_quantization_is_refused():
    with pytest.raises(ConfigError, match=r'^quantization: must be "fp8", not "awq"$'):
        ingle.Engine("anything", quantization="awq")
