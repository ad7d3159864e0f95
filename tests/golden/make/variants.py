"""Variants of the reference models: what published configurations of a family vary.

`config` is what reference.py reads, in transformers 5's spelling. `published` is the config.json,
which for some variants has the spelling that published checkpoints have.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from four_bit import Packed, awq, gptq, w4a16

Shapes = dict[str, tuple[int, ...]]

SIZES = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


@dataclass
class Variant:
    """One model."""

    config: dict
    published: dict
    prefix: str = "model."
    float_type: str = "BF16"
    pack: Callable[[np.ndarray, int], Packed] | None = None
    """How linear layers are stored, given a weight and a seed; None: as floats."""
    unused: Shapes = field(default_factory=dict)
    """Tensors that the file has and the text model does without."""

    def shapes(self) -> Shapes:
        """Every tensor that the model uses."""
        config, at = self.config, self.prefix
        hidden, vocab = config["hidden_size"], config["vocab_size"]
        shapes: Shapes = {
            f"{at}embed_tokens.weight": (vocab, hidden),
            f"{at}norm.weight": (hidden,),
        }
        if not config["tie_word_embeddings"]:
            shapes[at.removesuffix("model.") + "lm_head.weight"] = (vocab, hidden)
        for layer in range(config["num_hidden_layers"]):
            shapes |= self.layer(f"{at}layers.{layer}.", layer)
        return shapes

    def layer(self, at: str, layer: int) -> Shapes:
        config = self.config
        hidden, size = config["hidden_size"], config["head_dim"]
        queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
        family = config["model_type"]
        shapes: Shapes = {
            f"{at}self_attn.q_proj.weight": (queries, hidden),
            f"{at}self_attn.k_proj.weight": (keys, hidden),
            f"{at}self_attn.v_proj.weight": (keys, hidden),
            f"{at}self_attn.o_proj.weight": (hidden, queries),
        }
        if config.get("attention_bias"):
            shapes |= {f"{at}self_attn.{name}_proj.bias": (keys,) for name in "kv"}
            shapes[f"{at}self_attn.q_proj.bias"] = (queries,)
            if family in ("llama", "smollm3"):
                shapes[f"{at}self_attn.o_proj.bias"] = (hidden,)
        if config.get("use_qk_norm", family in ("gemma3_text", "olmo3", "qwen3_moe")):
            whole = family == "olmo3"
            shapes[f"{at}self_attn.q_norm.weight"] = (queries if whole else size,)
            shapes[f"{at}self_attn.k_norm.weight"] = (keys if whole else size,)
        norms = {
            "olmo3": ("post_attention", "post_feedforward"),
            "gemma3_text": (
                *("input", "post_attention"),
                *("pre_feedforward", "post_feedforward"),
            ),
        }
        for norm in norms.get(family, ("input", "post_attention")):
            shapes[f"{at}{norm}_layernorm.weight"] = (hidden,)
        return shapes | self.feed_forward(f"{at}mlp.", layer)

    def feed_forward(self, at: str, layer: int) -> Shapes:
        config = self.config
        hidden, inner = config["hidden_size"], config["intermediate_size"]

        def gated(at: str, inner: int) -> Shapes:
            shapes: Shapes = {f"{at}{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
            shapes[f"{at}down_proj.weight"] = (hidden, inner)
            if config.get("mlp_bias"):
                shapes |= {f"{at}{name}_proj.bias": (inner,) for name in ("gate", "up")}
                shapes[f"{at}down_proj.bias"] = (hidden,)
            return shapes

        num_experts = config.get("n_routed_experts", config.get("num_experts", 0))
        dense = config.get("first_k_dense_replace", 0)
        if not num_experts or layer < dense or layer in config.get("mlp_only_layers", []):
            return gated(at, inner)
        inner = config["moe_intermediate_size"]
        shapes: Shapes = {f"{at}gate.weight": (num_experts, hidden)}
        if config["model_type"] == "glm4_moe":
            shapes[f"{at}gate.e_score_correction_bias"] = (num_experts,)
        for expert in range(num_experts):
            shapes |= gated(f"{at}experts.{expert}.", inner)
        if config.get("n_shared_experts"):
            shapes |= gated(f"{at}shared_experts.", inner * config["n_shared_experts"])
        return shapes


def default_rope(theta: float, **more: object) -> dict:
    return {"rope_parameters": {"rope_theta": theta, "rope_type": "default", **more}}


def variant(family: str, model_class: str, fields: dict, **more: object) -> Variant:
    """A model whose config.json is what the reference reads."""
    is_gemma = family == "gemma3_text"
    act = {"hidden_activation": "gelu_pytorch_tanh"} if is_gemma else {"hidden_act": "silu"}
    config = SIZES | {"model_type": family, "tie_word_embeddings": True} | act | fields
    published = {"architectures": [model_class], "dtype": "bfloat16"} | config
    return Variant(config, published, **more)


def smollm3_interval() -> Variant:
    """No rope on every second layer, by the interval alone; biases; an output layer of its own."""
    fields = {
        "num_hidden_layers": 3,
        "no_rope_layers": [1, 0, 1],
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
    } | default_rope(1e4)
    made = variant("smollm3", "SmolLM3ForCausalLM", fields)
    del made.published["no_rope_layers"], made.published["rope_parameters"]
    made.published |= {"no_rope_layer_interval": 2, "rope_theta": 1e4}
    return made


def gemma3_wrapped() -> Variant:
    """The text half of a multimodal file, in the published spelling; a pattern of 2."""
    linear = {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0}
    local = {"rope_theta": 1e4, "rope_type": "default"}
    fields = {
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "query_pre_attn_scalar": 16,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": linear, "sliding_attention": local},
    }
    prefix = "language_model.model."
    made = variant("gemma3_text", "Gemma3ForCausalLM", fields, prefix=prefix)
    made.unused = {
        "multi_modal_projector.mm_input_projection_weight": (32, 64),
        "vision_tower.vision_model.post_layernorm.weight": (32,),
    }
    text = dict(made.config) | {
        "sliding_window_pattern": 2,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    del text["layer_types"], text["rope_parameters"]
    made.published = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "text_config": text,
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 32},
        "mm_tokens_per_image": 256,
        "image_token_index": 262144,
    }
    return made


def olmo3_grouped() -> Variant:
    """Two query heads for each of two KV heads, full layers first and last, no scaling of rope."""
    fields = {
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    } | default_rope(5e5)
    return variant("olmo3", "Olmo3ForCausalLM", fields)


def glm4_moe_air() -> Variant:
    """As GLM-4.5-Air: no norm of queries and keys; two dense layers, two shared experts."""
    fields = {
        "num_hidden_layers": 3,
        "first_k_dense_replace": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 2,
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "use_qk_norm": False,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 1,
    } | default_rope(1e6, partial_rotary_factor=0.5)
    made = variant("glm4_moe", "Glm4MoeForCausalLM", fields)
    # The layer that predicts a second token.
    made.unused = {
        "model.layers.3.eh_proj.weight": (64, 128),
        "model.layers.3.enorm.weight": (64,),
        "model.layers.3.hnorm.weight": (64,),
        "model.layers.3.self_attn.o_proj.weight": (64, 64),
        "model.layers.3.shared_head.norm.weight": (64,),
    }
    rope = made.published.pop("rope_parameters")
    made.published |= {"rope_theta": rope["rope_theta"], "partial_rotary_factor": 0.5}
    return made


def qwen3_moe_dense() -> Variant:
    """A dense layer among experts, shares that do not add up to 1, an output layer of its own."""
    fields = {
        "num_hidden_layers": 3,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
        "tie_word_embeddings": False,
    } | default_rope(1e6)
    return variant("qwen3_moe", "Qwen3MoeForCausalLM", fields)


FOUR_BIT = {
    "num_hidden_layers": 2,
    "intermediate_size": 128,
} | default_rope(1e4)


def four_bit(quantization: dict, pack: Callable, float_type: str) -> Variant:
    made = variant("llama", "LlamaForCausalLM", FOUR_BIT, float_type=float_type)
    made.pack = pack
    made.published |= {"quantization_config": quantization}
    made.published["dtype"] = {"F16": "float16", "BF16": "bfloat16"}[float_type]
    return made


def llama_gptq_act_order() -> Variant:
    """Columns of a group lie anywhere; groups of 32."""
    scheme = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": True}
    scheme |= {"checkpoint_format": "gptq", "lm_head": False}
    pack = lambda values, seed: gptq(values, 32, True, seed)  # noqa: E731
    return four_bit(scheme, pack, "F16")


def llama_awq_group64() -> Variant:
    """Groups of 64."""
    scheme = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}
    scheme |= {"version": "gemm", "modules_to_not_convert": None}
    return four_bit(scheme, lambda values, seed: awq(values, 64), "F16")


def compressed(**weights: object) -> dict:
    """quantization_config of compressed-tensors."""
    scheme = {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False} | weights
    group = {"targets": ["Linear"], "weights": scheme}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


def llama_w4a16_act_order() -> Variant:
    """Groups of 32 whose columns lie anywhere."""
    scheme = compressed(strategy="group", group_size=32, actorder="group")
    pack = partial(pack_w4a16, group_size=32, act_order=True)
    return four_bit(scheme, pack, "BF16")


def llama_w4a16_channel() -> Variant:
    """A scale for each row."""
    scheme = compressed(strategy="channel", group_size=None, actorder=None)
    return four_bit(scheme, partial(pack_w4a16, group_size=None, act_order=False), "BF16")


def pack_w4a16(values: np.ndarray, seed: int, group_size: int | None, act_order: bool) -> Packed:
    return w4a16(values, group_size, act_order, seed)


VARIANTS = {
    "smollm3-interval2": smollm3_interval(),
    "gemma3-wrapped": gemma3_wrapped(),
    "olmo3-grouped": olmo3_grouped(),
    "glm4_moe-air": glm4_moe_air(),
    "qwen3-moe-dense-layer": qwen3_moe_dense(),
    "llama-gptq-act-order": llama_gptq_act_order(),
    "llama-awq-group64": llama_awq_group64(),
    "llama-w4a16-act-order": llama_w4a16_act_order(),
    "llama-w4a16-channel": llama_w4a16_channel(),
}
