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

import make  # noqa: E402
import safetensors_file  # noqa: E402
from reference import Reference  # noqa: E402
from variants import VARIANTS  # noqa: E402

TRANSFORMERS = ["llama-tied-bf16", "smollm3", "gemma3", "olmo3", "glm4_moe", "qwen3-moe"]
"""A model of each family that the reference knows, with cases that transformers made."""


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
