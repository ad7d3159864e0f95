#!/usr/bin/env python3
"""Makes tiny reference models and their cases: tests/golden/models and tests/golden/cases.

    make_cases.py qwen2                           rewrites the cases of a model made by this script
    make_cases.py new Qwen2 '{"rope_theta": 1e6}' makes the model `new` first

A new model has transformers' Qwen2Config with these fields over BASE, and bf16 weights that depend
on the names of model and tensor only.

A case is a prompt, the eight largest logits at each of its positions, and the greedy continuation
with each token's log-prob and its distance to the second best. transformers computes all of them
in float32 on the stored weights.

Needs torch and transformers, which no requirements file lists; run it in a venv of its own.
"""

import json
import shutil
import sys
import zlib
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

HERE = Path(__file__).parent
TOKENIZER = HERE / "models" / "llama-tied-bf16"
NUM_TOP, NUM_GREEDY = 8, 24
BASE = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def weight(model: str, name: str, shape: torch.Size) -> torch.Tensor:
    """Random, the same in every run; norms are near 1, biases near 0."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{model}/{name}".encode()))
    z = torch.randn(*shape, generator=generator)
    if len(shape) > 1:
        return z * 1.6 / shape[-1] ** 0.5
    return z * 0.2 if name.endswith("bias") else 1 + 0.2 * z


def make_model(name: str, family: str, fields: dict) -> None:
    """Writes the model's folder."""
    folder = HERE / "models" / name
    config = getattr(transformers, f"{family}Config")(**BASE | fields)
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    state = {key: weight(name, key, value.shape).bfloat16() for key, value in state.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    tensors = {key: ["bfloat16", list(value.shape)] for key, value in sorted(state.items())}
    (folder / "tensors.json").write_text(json.dumps(tensors))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / file, folder / file)


def rounded(values: torch.Tensor, places: int) -> list[float]:
    """As the files have them."""
    return [round(value, places) for value in values.tolist()]


def make_case(model: torch.nn.Module, tokenizer: Tokenizer, text: str) -> dict:
    """One prompt's answers."""
    ids = tokenizer.encode(text).ids
    with torch.no_grad():
        top = model(torch.tensor([ids])).logits[0].topk(NUM_TOP)
    answer, log_probs, gaps = [], [], []
    while len(answer) < NUM_GREEDY and model.config.eos_token_id not in answer:
        with torch.no_grad():
            logits = model(torch.tensor([ids + answer]), use_cache=False).logits[0, -1]
        best = logits.topk(2)
        answer.append(int(best.indices[0]))
        log_probs.append(logits.log_softmax(-1)[answer[-1]])
        gaps.append(best.values[0] - best.values[1])
    return {
        "text": text,
        "ids": ids,
        "top_ids": top.indices.tolist(),
        "top_logits": [rounded(row, 4) for row in top.values],
        "greedy_ids": answer,
        "greedy_logprobs": rounded(torch.stack(log_probs), 5),
        "greedy_gaps": rounded(torch.stack(gaps), 5),
        "greedy_text": tokenizer.decode(answer),
    }


def main() -> None:
    """Makes one model's files."""
    transformers.logging.set_verbosity_error()
    name, *new = sys.argv[1:]
    if new:
        make_model(name, new[0], json.loads(new[1]) if len(new) > 1 else {})
    folder = HERE / "models" / name
    config = json.loads((folder / "config.json").read_text())
    # By its own class: AutoModelForCausalLM does not know all text halves of multimodal models.
    model_class = getattr(transformers, config["architectures"][0])
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = model_class.from_pretrained(folder, **options).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    known = json.loads((HERE / "cases" / "llama-tied-bf16.json").read_text())
    texts = [case["text"] for case in known["cases"]]
    document = {
        "model": name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cases": [make_case(model, tokenizer, text) for text in texts],
    }
    (HERE / "cases" / f"{name}.json").write_text(json.dumps(document))


if __name__ == "__main__":
    main()
