#!/usr/bin/env python3
"""Makes the tiny reference models with fp8 weights, and their cases.

    make_fp8.py [NAME ...]     one or more of MODELS; default: all

The weights start as those of make_cases.py. Linear layers are rounded to e4m3 with a scale per
tensor, per row or per block, and stored under the names that published checkpoints use. The
reference is transformers in float32 on element times scale, read back from the file: activations
are not rounded.

Needs torch and transformers, which no requirements file lists; run it in a venv of its own.
"""

import json
import sys
import tempfile
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

import torch
import transformers
from make_cases import HERE, make_case, make_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

E4M3 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Fp8:
    """How a model is made and stored."""

    family: str
    block: tuple[int, int] | None
    """Rows and columns that share a scale; 0 stands for all. None: one scale for all elements."""
    config: dict
    """quantization_config of config.json, or the whole of hf_quant_config.json."""
    fields: dict = field(default_factory=dict)
    scale_name: str = "weight_scale"
    scale_dtype: torch.dtype = torch.float32
    others: tuple[str, ...] = ()
    """Scales that published checkpoints have and that change nothing here, by their last names."""
    file: str = "config.json"


def compressed(weights: dict, activations: dict) -> dict:
    """As llm-compressor writes it."""
    plain = {"actorder": None, "block_structure": None, "dynamic": False, "group_size": None}
    plain |= {"num_bits": 8, "type": "float", "symmetric": True, "observer_kwargs": {}}
    group = {"targets": ["Linear"], "output_activations": None, "format": "float-quantized"}
    group["weights"] = plain | {"observer": "memoryless_minmax"} | weights
    group["input_activations"] = plain | {"observer": None} | activations
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "config_groups": {"group_0": group},
    }


BLOCKS = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"],
}
MODELS = {
    "llama-fp8-channel": Fp8(
        "Llama",
        (1, 0),
        compressed({"strategy": "channel"}, {"strategy": "token", "dynamic": True}),
        scale_dtype=torch.bfloat16,
    ),
    # One and a half blocks of columns, half a block of k rows, two and a half of gate rows.
    "llama-fp8-block-tied": Fp8(
        "Llama",
        (128, 128),
        BLOCKS,
        {"hidden_size": 192, "num_attention_heads": 3, "num_key_value_heads": 1}
        | {"intermediate_size": 320, "tie_word_embeddings": True},
        scale_name="weight_scale_inv",
    ),
    "mistral-fp8-static": Fp8(
        "Mistral",
        None,
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
        | {"dequantize": False, "modules_to_not_convert": ["lm_head"]},
        {"sliding_window": None},
        scale_name="weight_scale_inv",
        scale_dtype=torch.bfloat16,
        others=("activation_scale",),
    ),
    "qwen3-fp8-modelopt": Fp8(
        "Qwen3",
        None,
        {
            "producer": {"name": "modelopt", "version": "0.37.0"},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
            | {"exclude_modules": ["lm_head"]},
        },
        others=("input_scale", "k_scale", "v_scale"),
        file="hf_quant_config.json",
    ),
    # Query, key and value are fused, and so are gate and up.
    "phi3-fp8-block": Fp8(
        "Phi3",
        (128, 128),
        compressed(
            {"strategy": "block", "block_structure": [128, 128]},
            {"strategy": "group", "group_size": 128, "dynamic": True},
        ),
        {"num_key_value_heads": 2},
        scale_dtype=torch.bfloat16,
    ),
    "qwen3-moe-fp8-block": Fp8(
        "Qwen3Moe",
        (128, 128),
        BLOCKS,
        {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        | {"norm_topk_prob": True},
        scale_name="weight_scale_inv",
    ),
    # Of each head 24 rows of keys and 36 of values: blocks of scales begin anywhere in it.
    "deepseek_v3-fp8-block": Fp8(
        "DeepseekV3",
        (128, 128),
        BLOCKS,
        {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "q_lora_rank": 160}
        | {"kv_lora_rank": 136, "qk_rope_head_dim": 16, "qk_nope_head_dim": 24, "v_head_dim": 36}
        | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
        scale_name="weight_scale_inv",
    ),
}


def spread(scale: torch.Tensor, block: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    """The scale of each element."""
    rows = scale.repeat_interleave(block[0], 0)[: shape[0]]
    return rows.repeat_interleave(block[1], 1)[:, : shape[1]]


def block_of(model: Fp8, shape: torch.Size) -> tuple[int, int]:
    """Rows and columns of a block of a matrix."""
    rows, cols = model.block or (0, 0)
    return rows or shape[0], cols or shape[1]


def quantise(weight: torch.Tensor, model: Fp8) -> tuple[torch.Tensor, torch.Tensor]:
    """Elements, and scales `[blocks of rows, blocks of columns]`."""
    rows, cols = block_of(model, weight.shape)
    scale = torch.stack(
        [
            torch.stack([part.abs().max() / 448 for part in band.split(cols, 1)])
            for band in weight.split(rows, 0)
        ]
    ).to(model.scale_dtype)
    assert list(scale.shape) == [ceil(weight.shape[0] / rows), ceil(weight.shape[1] / cols)]
    full = spread(scale.float(), (rows, cols), weight.shape)
    return (weight / full).clamp(-448, 448).to(E4M3), scale


def store(folder: Path, model: Fp8) -> None:
    """Rewrites a plain model of `make_model` with fp8 linear layers."""
    state = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if not name.endswith(("_proj.weight", "_proj_with_mqa.weight")):
            state[name] = weight
            continue
        module = name.removesuffix(".weight")
        state[name], scale = quantise(weight.float(), model)
        state[f"{module}.{model.scale_name}"] = scale if model.block else scale[0, 0]
        for other in model.others:
            is_cache = other in ("k_scale", "v_scale")
            if not is_cache or module.endswith(f"{other[0]}_proj"):
                state[f"{module}.{other}"] = torch.tensor(0.0375)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    tensors = {
        key: [str(value.dtype).removeprefix("torch."), list(value.shape)]
        for key, value in sorted(state.items())
    }
    (folder / "tensors.json").write_text(json.dumps(tensors))
    path = folder / model.file
    config = model.config
    if model.file == "config.json":
        config = json.loads(path.read_text()) | {"quantization_config": config}
    path.write_text(json.dumps(config, indent=2) + "\n")


def reference(folder: Path) -> torch.nn.Module:
    """transformers in float32 on the weights that the file stands for."""
    model = MODELS[folder.name]
    stored = load_file(folder / "model.safetensors")
    state = {}
    for name, tensor in stored.items():
        if name.endswith("_scale") or name.endswith(model.scale_name):
            continue
        state[name] = tensor.float()
        if tensor.dtype == E4M3:
            scale = stored[f"{name.removesuffix('weight')}{model.scale_name}"].float()
            shape = tensor.shape
            state[name] *= spread(
                scale.reshape(-1, scale.shape[-1]) if model.block else scale.reshape(1, 1),
                block_of(model, shape),
                shape,
            )
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config", None)
    with tempfile.TemporaryDirectory() as plain:
        (Path(plain) / "config.json").write_text(json.dumps(config))
        save_file(state, Path(plain) / "model.safetensors", metadata={"format": "pt"})
        return transformers.AutoModelForCausalLM.from_pretrained(
            plain, dtype=torch.float32, attn_implementation="eager"
        ).eval()


def main() -> None:
    """Makes the named models."""
    transformers.logging.set_verbosity_error()
    known = json.loads((HERE / "cases" / "llama-tied-bf16.json").read_text())
    for name in sys.argv[1:] or MODELS:
        model = MODELS[name]
        make_model(name, model.family, model.fields)
        folder = HERE / "models" / name
        store(folder, model)
        answers = reference(folder)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        document = {
            "model": name,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cases": [make_case(answers, tokenizer, case["text"]) for case in known["cases"]],
        }
        (HERE / "cases" / f"{name}.json").write_text(json.dumps(document))


if __name__ == "__main__":
    main()
