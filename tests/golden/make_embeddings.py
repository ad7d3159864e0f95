#!/usr/bin/env python3
"""Makes the reference cases of embedding checkpoints: tests/golden/embeddings.

Four tiny models in the forms in which Qwen3-Embedding, gte-Qwen2, e5-mistral and a mean-pooled
Llama are published (names of tensors, classes, sentence-transformers files), and what transformers
computes on them: the final hidden states in float32 on the stored weights, pooled and scaled as the
files say. A model without causality gets a mask that hides nothing.

Needs torch and transformers; run it in the repository's root.
"""

import json
import shutil
import zlib
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

OUT = Path(__file__).parent / "embeddings"
TOKENIZER = Path(__file__).parent / "models" / "llama-tied-bf16"
BASE = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
# Name: family, fields, architectures, pooling, whether vectors are normalised.
MODELS = {
    "qwen3-embedding": ("Qwen3", {"tie_word_embeddings": True}, "ForCausalLM", "lasttoken", True),
    "gte-qwen2": ("Qwen2", {"is_causal": False}, "ForCausalLM", "lasttoken", True),
    "e5-mistral": ("Mistral", {"sliding_window": 16}, "Model", "lasttoken", True),
    "llama-mean": ("Llama", {}, "Model", "mean_tokens", False),
}
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "a",
    "one two three four five six seven eight nine ten " * 9,
    "Zürich, naïve café — 日本語 🙂",
]
MODES = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")


def weight(model: str, name: str, shape: torch.Size) -> torch.Tensor:
    """Random, the same in every run."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{model}/{name}".encode()))
    z = torch.randn(*shape, generator=generator)
    if len(shape) > 1:
        return z * 1.6 / shape[-1] ** 0.5
    return z * 0.2 if name.endswith("bias") else 1 + 0.2 * z


def make(name: str) -> list[dict]:
    """Writes one model; returns its cases."""
    family, fields, kind, pooling, normalise = MODELS[name]
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    config = getattr(transformers, f"{family}Config")(**BASE, **fields)
    model = getattr(transformers, f"{family}Model")(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    state = {key: weight(name, key, value.shape).bfloat16() for key, value in state.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    written["architectures"] = [family + kind]
    (folder / "config.json").write_text(json.dumps(written, indent=1) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / file, folder / file)
    modules = ["Transformer", "Pooling", *["Normalize"] * normalise]
    paths = ["", "1_Pooling", "2_Normalize"]
    listed = [
        {"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.models.{m}"}
        for i, (m, p) in enumerate(zip(modules, paths, strict=False))
    ]
    (folder / "modules.json").write_text(json.dumps(listed, indent=1) + "\n")
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in MODES}
    (folder / "1_Pooling").mkdir()
    text = json.dumps({"word_embedding_dimension": BASE["hidden_size"], **modes}, indent=1)
    (folder / "1_Pooling" / "config.json").write_text(text + "\n")

    reference = (
        type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    cases = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        n = len(ids)
        options = (
            {} if fields.get("is_causal", True) else {"attention_mask": torch.zeros(1, 1, n, n)}
        )
        with torch.no_grad():
            hidden = reference(torch.tensor([ids]), use_cache=False, **options)
        hidden = hidden.last_hidden_state[0]
        vector = hidden[-1] if pooling == "lasttoken" else hidden.mean(0)
        vector = vector / vector.norm() if normalise else vector
        rounded = [round(value, 6) for value in vector.tolist()]
        cases.append({"text": text, "ids": ids, "embedding": rounded})
    return cases


def main() -> None:
    transformers.logging.set_verbosity_error()
    cases = {name: make(name) for name in MODELS}
    made_with = {"torch": torch.__version__, "transformers": transformers.__version__}
    lines = [f' "made_with": {json.dumps(made_with)}']
    for name, each in cases.items():
        listed = ",\n  ".join(json.dumps(case, ensure_ascii=False) for case in each)
        lines.append(f' "{name}": [\n  {listed}\n ]')
    (OUT / "cases.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
