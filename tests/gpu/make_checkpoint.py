"""Writes a Llama checkpoint with random bf16 weights, in the Hugging Face layout.

Its text is noise, its shapes and its arithmetic are the real ones: for speed, and for log-probs
against transformers. Without a tokenizer.json of the real model one is made up in which each word
of `ingle bench` is one token, and every other id a word of four letters.

Run: python make_checkpoint.py FOLDER [--size 8b|tiny] [--tokenizer FILE] [--device cuda|cpu]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from made_up_tokenizer import write_tokenizer
from safetensors.torch import save_file


@dataclass(frozen=True)
class Size:
    """Dimensions of a model."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    shard_bytes: int = 4 << 30


SIZES = {
    "8b": Size(4096, 14336, 32, 32, 8, 128, 128256),
    "tiny": Size(128, 352, 2, 4, 2, 32, 2048, shard_bytes=1 << 20),
}


def make_checkpoint(
    folder: Path, size: str, tokenizer: Path | None = None, device: str = "cpu"
) -> Path:
    """Makes the checkpoint unless it is there; returns `folder`. Needs 16 GB of disk for 8b."""
    if (folder / "config.json").exists():
        return folder
    dims = SIZES[size]
    folder.mkdir(parents=True, exist_ok=True)
    bos, eos = write_tokenizer(folder, dims.vocab, tokenizer)
    write_weights(folder, dims, device)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": dims.hidden,
        "intermediate_size": dims.intermediate,
        "num_hidden_layers": dims.layers,
        "num_attention_heads": dims.heads,
        "num_key_value_heads": dims.kv_heads,
        "head_dim": dims.head_dim,
        "vocab_size": dims.vocab,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
        "bos_token_id": bos,
        "eos_token_id": eos,
    }
    # Last: a folder without it is begun again.
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def write_weights(folder: Path, dims: Size, device: str) -> None:
    """Normal weights of a standard deviation that keeps activations near 1, in shards."""
    generator = torch.Generator(device=device).manual_seed(8)

    def normal(*shape: int, std: float) -> torch.Tensor:
        values = torch.randn(shape, generator=generator, device=device) * std
        return values.to(torch.bfloat16).cpu()

    shards: list[dict[str, torch.Tensor]] = [{}]
    names: dict[str, int] = {}
    held = total = 0
    for name, shape, std in tensors(dims):
        tensor = normal(*shape, std=std)
        if len(shape) == 1:
            tensor += 1
        num_bytes = tensor.numel() * 2
        if held and held + num_bytes > dims.shard_bytes:
            save_shard(folder, len(shards), shards[-1])
            shards.append({})
            held = 0
        shards[-1][name] = tensor
        names[name] = len(shards)
        held += num_bytes
        total += num_bytes
    save_shard(folder, len(shards), shards[-1])
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: shard_name(number) for name, number in names.items()},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def tensors(dims: Size) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Name, shape and standard deviation of each; vectors are norms around 1."""
    hidden, wide = dims.hidden, dims.intermediate
    query, key = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    yield "model.embed_tokens.weight", (dims.vocab, hidden), 1.0
    for layer in range(dims.layers):
        prefix = f"model.layers.{layer}."
        matrices = {
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (key, hidden),
            "self_attn.v_proj": (key, hidden),
            "self_attn.o_proj": (hidden, query),
            "mlp.gate_proj": (wide, hidden),
            "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide),
        }
        for name, shape in matrices.items():
            yield f"{prefix}{name}.weight", shape, shape[1] ** -0.5
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}{name}.weight", (hidden,), 0.1
    yield "model.norm.weight", (hidden,), 0.1
    yield "lm_head.weight", (dims.vocab, hidden), hidden**-0.5


def shard_name(number: int) -> str:
    """File of the shard of this number, from 1."""
    return f"model-{number:05d}.safetensors"


def save_shard(folder: Path, number: int, shard: dict[str, torch.Tensor]) -> None:
    """Writes the shard and lets go of it."""
    save_file(shard, folder / shard_name(number), metadata={"format": "pt"})
    shard.clear()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="8b")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    print(make_checkpoint(options.folder, options.size, options.tokenizer, options.device))
