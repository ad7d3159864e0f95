"""The recipes of the small reference cases: the reference says what transformers says, and the
files that are here are what the recipes make.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "make"))

import four_bit  # noqa: E402
import make  # noqa: E402
import safetensors_file  # noqa: E402
from reference import Reference  # noqa: E402
from variants import VARIANTS  # noqa: E402

TRANSFORMERS = ["llama-tied-bf16", "smollm3", "gemma3", "olmo3", "glm4_moe", "qwen3-moe"]
TRANSFORMERS += ["qwen3_5", "qwen3_5_moe", "qwen3_next", "gemma4", "gemma4-e", "llama4"]
TRANSFORMERS += ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4"]
"""A model of each family that the reference knows, with cases that transformers made."""

FOUR_BIT = ["llama-awq", "llama-gptq", "llama-w4a16", "llama-w4a16-asym"]


def document(kind, name):
    return json.loads((HERE / "cases" / f"{name}.json").read_text())[kind]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_reference_agrees_with_transformers(name):
    folder = HERE / "models" / name
    weights = safetensors_file.read(folder / "model.safetensors")
    reference = Reference(json.loads((folder / "config.json").read_text()), weights)
    assert document("transformers", name)
    for case in document("cases", name)[:3]:
        logits = reference.logits(case["ids"])
        found = np.take_along_axis(logits, np.array(case["top_ids"]), -1)
        # The files have four places.
        assert np.abs(found - case["top_logits"]).max() < 1e-4
    last = reference.logits(case["ids"] + case["greedy_ids"][:-1])
    assert last[len(case["ids"]) - 1 :].argmax(-1).tolist() == case["greedy_ids"]


@pytest.mark.parametrize("name", FOUR_BIT)
def test_packed_weights_are_laid_out_as_published_tools_do(name):
    """transformers and compressed-tensors have read these files and agree with the cases."""
    folder = HERE / "models" / name
    tensors = safetensors_file.read(folder / "model.safetensors")
    weights = {key: value for key, value in tensors.items() if not is_packed(key)}
    for stem in {key.rpartition(".")[0] for key in tensors if is_packed(key)}:
        parts = {key.rpartition(".")[2]: value for key, value in tensors.items() if stem in key}
        weights[f"{stem}.weight"] = four_bit.unpacked(parts)
    reference = Reference(json.loads((folder / "config.json").read_text()), weights)
    assert document("transformers", name)
    for case in document("cases", name)[:2]:
        logits = reference.logits(case["ids"])
        found = np.take_along_axis(logits, np.array(case["top_ids"]), -1)
        assert np.abs(found - case["top_logits"]).max() < 1e-4


def is_packed(key):
    return "_proj." in key and not key.endswith("_proj.weight")


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_what_its_recipe_makes(name, tmp_path, monkeypatch):
    for folder in ("models", "cases"):
        (tmp_path / folder).mkdir()
    (tmp_path / "router_margins.json").write_text("{}")
    (tmp_path / "cases/gemma3.json").write_bytes((HERE / "cases/gemma3.json").read_bytes())
    monkeypatch.setattr(make, "GOLDEN", tmp_path)
    reference = make.build(name, VARIANTS[name])
    for file in ("model.safetensors", "config.json", "tensors.json", "tokenizer.json"):
        made = (tmp_path / "models" / name / file).read_bytes()
        assert made == (HERE / "models" / name / file).read_bytes(), file
    case = document("cases", name)[1]
    logits = reference.logits(case["ids"])
    found = np.take_along_axis(logits, np.array(case["top_ids"]), -1)
    assert np.abs(found - case["top_logits"]).max() < 1e-4
