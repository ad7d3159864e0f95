#!/usr/bin/env python3
"""Makes the small reference models of variants.py, and their cases.

    make.py [NAME ...]     one or more of VARIANTS; default: all

Writes tests/golden/models/NAME, tests/golden/cases/NAME.json and, for experts, the model's entry
in tests/golden/router_margins.json. The numbers come from reference.py, which needs numpy only,
and are the same in every run. They are what transformers gives for the base models:
tests/golden/test_recipes.py.
"""

import json
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import safetensors_file
from reference import Reference
from tokenizers import Tokenizer
from variant import Variant
from variants import VARIANTS

HERE = Path(__file__).parent
GOLDEN = HERE.parent
BASE = GOLDEN / "models" / "gemma3"
"""Its tokenizer has as many ids as the variants have rows: 384."""
NUM_TOP, NUM_GREEDY = 8, 16
PROMPTS = 3
"""So many of the base model's prompts, with 1 to 24 tokens."""
TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "I32": "int32", "I64": "int64"}


def weight(model: str, name: str, shape: tuple[int, ...], plus_one: bool) -> np.ndarray:
    """Random, the same in every run; norms are near 1, biases near 0."""
    z = np.random.default_rng(zlib.crc32(f"{model}/{name}".encode())).standard_normal(shape)
    if len(shape) > 1:
        return z * 1.6 / shape[-1] ** 0.5
    if name.endswith("bias"):
        return z * 0.2
    if name.endswith("A_log"):
        # Slow enough that a state still holds what it took in 20 tokens ago.
        return z * 0.5 - 2
    is_plain = not plus_one or name.endswith("linear_attn.norm.weight")
    return z * 0.2 + (1 if is_plain else 0)


def build(name: str, variant: Variant) -> Reference:
    """Writes the model's folder; the reference computes with what was stored."""
    folder = GOLDEN / "models" / name
    folder.mkdir(exist_ok=True)
    reference = Reference(variant.config, {}, variant.prefix)
    stored: dict[str, tuple[str, np.ndarray]] = {}
    for tensor, shape in variant.shapes().items():
        values = weight(name, tensor, shape, reference.family.norm_plus_one)
        stem = tensor.removesuffix(".weight")
        if variant.pack and tensor.endswith("_proj.weight"):
            seed = zlib.crc32(stem.encode())
            parts, meant = variant.pack(values, seed)
            stored |= {f"{stem}.{suffix}": part for suffix, part in parts.items()}
        else:
            kind = variant.float_type
            stored[tensor] = (kind, values)
            meant = rounded(values, kind)
        reference.weights[tensor] = np.asarray(meant, np.float64)
    if variant.stacks_experts:
        stored = stacked(stored)
    table = {key: [TYPES[kind], list(v.shape)] for key, (kind, v) in sorted(stored.items())}
    for tensor, shape in variant.unused.items():
        stored[tensor] = (variant.float_type, weight(name, tensor, shape, False))
    safetensors_file.write(folder / "model.safetensors", stored)
    (folder / "tensors.json").write_text(json.dumps(table))
    (folder / "config.json").write_text(json.dumps(variant.published, indent=1) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(BASE / file, folder / file)
    return reference


def stacked(tensors: dict[str, tuple[str, np.ndarray]]) -> dict[str, tuple[str, np.ndarray]]:
    """Experts of a layer in two tensors: gate above up [experts, 2 * width, hidden], and down."""
    found: dict[str, tuple[str, np.ndarray]] = {}
    parts: dict[str, dict[str, list[np.ndarray]]] = {}
    for name, (kind, values) in tensors.items():
        block, is_expert, rest = name.partition(".experts.")
        if is_expert:
            parts.setdefault(block, {}).setdefault(rest.split(".")[1], []).append(values)
        else:
            found[name] = (kind, values)
    for block, lists in parts.items():
        gate, up, down = (np.stack(lists[f"{part}_proj"]) for part in ("gate", "up", "down"))
        found[f"{block}.experts.gate_up_proj"] = (kind, np.concatenate([gate, up], axis=1))
        found[f"{block}.experts.down_proj"] = (kind, down)
    return found


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "BF16":
        return safetensors_file.widened(safetensors_file.bf16(values))
    return values.astype(safetensors_file.TYPES[kind])


def make_case(reference: Reference, tokenizer: Tokenizer, text: str) -> tuple[dict, list[float]]:
    """One prompt's answers, and how near each position's routers are to a tie."""
    ids = tokenizer.encode(text).ids
    logits = reference.logits(ids)
    top = np.argsort(-logits, axis=-1, kind="stable")[:, :NUM_TOP]
    answer: list[int] = []
    log_probs, gaps = [], []
    while len(answer) < NUM_GREEDY and reference.config["eos_token_id"] not in answer:
        last = reference.logits(ids + answer)[-1]
        first, second = np.argsort(-last, kind="stable")[:2]
        answer.append(int(first))
        total = np.log(np.exp(last - last.max()).sum()) + last.max()
        log_probs.append(float(last[first] - total))
        gaps.append(float(last[first] - last[second]))
    reference.logits(ids + answer)
    margins = np.min(reference.margins, axis=0) if reference.margins else np.array([])
    case = {
        "text": text,
        "ids": ids,
        "top_ids": top.tolist(),
        "top_logits": np.take_along_axis(logits, top, -1).round(4).tolist(),
        "greedy_ids": answer,
        "greedy_logprobs": [round(value, 5) for value in log_probs],
        "greedy_gaps": [round(value, 5) for value in gaps],
        "greedy_text": tokenizer.decode(answer),
    }
    return case, margins.round(4).tolist()


def main() -> None:
    """Makes the files of each model named."""
    tokenizer = Tokenizer.from_file(str(BASE / "tokenizer.json"))
    known = json.loads((GOLDEN / "cases" / "gemma3.json").read_text())["cases"]
    for name in sys.argv[1:] or VARIANTS:
        reference = build(name, VARIANTS[name])
        made = [make_case(reference, tokenizer, case["text"]) for case in known[:PROMPTS]]
        document = {"model": name, "numpy": np.__version__, "cases": [case for case, _ in made]}
        (GOLDEN / "cases" / f"{name}.json").write_text(json.dumps(document))
        if any(margins for _, margins in made):
            path = GOLDEN / "router_margins.json"
            margins = json.loads(path.read_text()) | {name: [each for _, each in made]}
            lines = ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in margins.items())
            path.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
