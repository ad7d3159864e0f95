"""A variant of a reference model: its configuration, and which tensors it has.

`config` is what reference.py reads, in transformers 5's spelling. `published` is the config.json,
which for some variants has the spelling that published checkpoints have.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from four_bit import Packed
from reference import LATENT, SIGMOID, head_name

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

GEMMA4 = ("gemma4_text", "gemma4_unified_text")

HYBRIDS = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")

NORMS_OF_HEADS = ("gemma3_text", "olmo3", "qwen3_moe", *HYBRIDS)
"""Families with a norm of queries and keys, unless `use_qk_norm` says otherwise."""

NORMS = {
    "olmo3": ("post_attention", "post_feedforward"),
    "gemma3_text": ("input", "post_attention", "pre_feedforward", "post_feedforward"),
    "gemma4_text": ("input", "post_attention", "pre_feedforward", "post_feedforward"),
}
"""Of families that do not have the usual two."""


@dataclass
class Variant:
    """One model."""

    config: dict
    published: dict
    prefix: str = "model."
    float_type: str = "BF16"
    pack: Callable[[np.ndarray, int], Packed] | None = None
    """How linear layers are stored, given a weight and a seed; None: as floats."""
    stacks_experts: bool = False
    """Experts of a layer are stored in two tensors."""
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
            shapes[head_name(at)] = (vocab, hidden)
        size = config.get("hidden_size_per_layer_input")
        if size:
            width = size * config["num_hidden_layers"]
            shapes[f"{at}embed_tokens_per_layer.weight"] = (vocab, width)
            shapes[f"{at}per_layer_model_projection.weight"] = (width, hidden)
            shapes[f"{at}per_layer_projection_norm.weight"] = (size,)
        layer_of = self.gemma4 if config["model_type"] in GEMMA4 else self.layer
        layer_of = self.llama4 if config["model_type"] == "llama4_text" else layer_of
        layer_of = self.latent if config["model_type"] in LATENT else layer_of
        for layer in range(config["num_hidden_layers"]):
            shapes |= layer_of(f"{at}layers.{layer}.", layer)
        return shapes

    def llama4(self, at: str, layer: int) -> Shapes:
        config = self.config
        hidden, size, inner = (
            config[key] for key in ("hidden_size", "head_dim", "intermediate_size")
        )
        queries, keys = (config[f"num_{key}_heads"] * size for key in ("attention", "key_value"))
        shapes: Shapes = {
            f"{at}input_layernorm.weight": (hidden,),
            f"{at}post_attention_layernorm.weight": (hidden,),
            f"{at}self_attn.q_proj.weight": (queries, hidden),
            f"{at}self_attn.k_proj.weight": (keys, hidden),
            f"{at}self_attn.v_proj.weight": (keys, hidden),
            f"{at}self_attn.o_proj.weight": (hidden, queries),
        }
        block = f"{at}feed_forward."
        if layer not in config["moe_layers"]:
            return shapes | gated(block, hidden, config["intermediate_size_mlp"])
        experts = config["num_local_experts"]
        shapes[f"{block}router.weight"] = (experts, hidden)
        shapes[f"{block}experts.gate_up_proj"] = (experts, hidden, 2 * inner)
        shapes[f"{block}experts.down_proj"] = (experts, inner, hidden)
        return shapes | gated(f"{block}shared_expert.", hidden, inner)

    def latent(self, at: str, layer: int) -> Shapes:
        config = self.config
        hidden, heads, rank = (
            config[key] for key in ("hidden_size", "num_attention_heads", "kv_lora_rank")
        )
        turning, plain = config["qk_rope_head_dim"], config["qk_nope_head_dim"]
        width, queries = config["v_head_dim"], heads * (plain + turning)
        inner = config.get("q_lora_rank")
        shapes: Shapes = {
            f"{at}input_layernorm.weight": (hidden,),
            f"{at}post_attention_layernorm.weight": (hidden,),
            f"{at}self_attn.kv_a_proj_with_mqa.weight": (rank + turning, hidden),
            f"{at}self_attn.kv_a_layernorm.weight": (rank,),
            f"{at}self_attn.kv_b_proj.weight": (heads * (plain + width), rank),
            f"{at}self_attn.o_proj.weight": (hidden, heads * width),
        }
        if inner:
            shapes[f"{at}self_attn.q_a_proj.weight"] = (inner, hidden)
            shapes[f"{at}self_attn.q_a_layernorm.weight"] = (inner,)
            shapes[f"{at}self_attn.q_b_proj.weight"] = (queries, inner)
        else:
            shapes[f"{at}self_attn.q_proj.weight"] = (queries, hidden)
        if config.get("attention_bias"):
            shapes[f"{at}self_attn.kv_a_proj_with_mqa.bias"] = (rank + turning,)
            shapes[f"{at}self_attn.o_proj.bias"] = (hidden,)
            if inner:
                shapes[f"{at}self_attn.q_a_proj.bias"] = (inner,)
        return shapes | self.feed_forward(f"{at}mlp.", layer)

    def gemma4(self, at: str, layer: int) -> Shapes:
        config = self.config
        hidden, size = config["hidden_size"], config["head_dim"]
        kv_heads, is_full = config["num_key_value_heads"], config["layer_types"][layer][0] == "f"
        if is_full:
            size = config["global_head_dim"]
            kv_heads = config.get("num_global_key_value_heads") or kv_heads
        queries, keys = config["num_attention_heads"] * size, kv_heads * size
        norms = NORMS["gemma4_text"]
        shapes: Shapes = {f"{at}{norm}_layernorm.weight": (hidden,) for norm in norms}
        shapes |= {f"{at}layer_scalar": (1,), f"{at}self_attn.q_norm.weight": (size,)}
        shapes[f"{at}self_attn.q_proj.weight"] = (queries, hidden)
        shapes[f"{at}self_attn.o_proj.weight"] = (hidden, queries)
        shares = layer >= config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0)
        if not shares:
            shapes[f"{at}self_attn.k_norm.weight"] = (size,)
            shapes[f"{at}self_attn.k_proj.weight"] = (keys, hidden)
            if not (is_full and config["attention_k_eq_v"]):
                shapes[f"{at}self_attn.v_proj.weight"] = (keys, hidden)
        inner = config["intermediate_size"]
        shapes |= gated(
            f"{at}mlp.", hidden, inner * (1 + (shares and config["use_double_wide_mlp"]))
        )
        if config.get("enable_moe_block"):
            for norm in ("post_feedforward_layernorm_1", "pre_feedforward_layernorm_2"):
                shapes[f"{at}{norm}.weight"] = (hidden,)
            shapes[f"{at}post_feedforward_layernorm_2.weight"] = (hidden,)
            shapes[f"{at}router.scale"] = (hidden,)
            shapes[f"{at}router.per_expert_scale"] = (config["num_experts"],)
            shapes[f"{at}router.proj.weight"] = (config["num_experts"], hidden)
            for expert in range(config["num_experts"]):
                shapes |= gated(f"{at}experts.{expert}.", hidden, config["moe_intermediate_size"])
        token = config.get("hidden_size_per_layer_input")
        if token:
            shapes[f"{at}per_layer_input_gate.weight"] = (token, hidden)
            shapes[f"{at}per_layer_projection.weight"] = (hidden, token)
            shapes[f"{at}post_per_layer_input_norm.weight"] = (hidden,)
        return shapes

    def layer(self, at: str, layer: int) -> Shapes:
        config = self.config
        hidden, size = config["hidden_size"], config["head_dim"]
        queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
        family = config["model_type"]
        norm_names = NORMS.get(family, ("input", "post_attention"))
        norms: Shapes = {f"{at}{norm}_layernorm.weight": (hidden,) for norm in norm_names}
        if config.get("layer_types", [""] * (layer + 1))[layer] == "linear_attention":
            return (
                norms | self.delta_net(f"{at}linear_attn.") | self.feed_forward(f"{at}mlp.", layer)
            )
        gates = queries if family in HYBRIDS else 0
        shapes: Shapes = {
            f"{at}self_attn.q_proj.weight": (queries + gates, hidden),
            f"{at}self_attn.k_proj.weight": (keys, hidden),
            f"{at}self_attn.v_proj.weight": (keys, hidden),
            f"{at}self_attn.o_proj.weight": (hidden, queries),
        }
        if config.get("attention_bias"):
            shapes |= {f"{at}self_attn.{name}_proj.bias": (keys,) for name in "kv"}
            shapes[f"{at}self_attn.q_proj.bias"] = (queries,)
            if family in ("llama", "smollm3"):
                shapes[f"{at}self_attn.o_proj.bias"] = (hidden,)
        if config.get("use_qk_norm", family in NORMS_OF_HEADS):
            whole = family == "olmo3"
            shapes[f"{at}self_attn.q_norm.weight"] = (queries if whole else size,)
            shapes[f"{at}self_attn.k_norm.weight"] = (keys if whole else size,)
        return shapes | norms | self.feed_forward(f"{at}mlp.", layer)

    def delta_net(self, at: str) -> Shapes:
        config = self.config
        hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        values = heads * config["linear_value_head_dim"]
        if config["model_type"] == "qwen3_next":
            projections = {"qkvz": 2 * keys + 2 * values, "ba": 2 * heads}
        else:
            projections = {"qkv": 2 * keys + values, "z": values, "b": heads, "a": heads}
        shapes: Shapes = {f"{at}in_proj_{p}.weight": (n, hidden) for p, n in projections.items()}
        return shapes | {
            f"{at}conv1d.weight": (2 * keys + values, 1, config["linear_conv_kernel_dim"]),
            f"{at}A_log": (heads,),
            f"{at}dt_bias": (heads,),
            f"{at}norm.weight": (config["linear_value_head_dim"],),
            f"{at}out_proj.weight": (hidden, values),
        }

    def feed_forward(self, at: str, layer: int) -> Shapes:
        config = self.config
        hidden, inner = config["hidden_size"], config["intermediate_size"]

        def network(at: str, inner: int) -> Shapes:
            shapes = gated(at, hidden, inner)
            if config.get("mlp_bias"):
                shapes |= {f"{at}{name}_proj.bias": (inner,) for name in ("gate", "up")}
                shapes[f"{at}down_proj.bias"] = (hidden,)
            return shapes

        num_experts = config.get("n_routed_experts", config.get("num_experts", 0))
        dense = config.get("first_k_dense_replace", 0)
        if not num_experts or layer < dense or layer in config.get("mlp_only_layers", []):
            return network(at, inner)
        inner = config["moe_intermediate_size"]
        shapes: Shapes = {f"{at}gate.weight": (num_experts, hidden)}
        if config["model_type"] in SIGMOID:
            shapes[f"{at}gate.e_score_correction_bias"] = (num_experts,)
        for expert in range(num_experts):
            shapes |= network(f"{at}experts.{expert}.", inner)
        if config.get("n_shared_experts"):
            shapes |= network(f"{at}shared_experts.", inner * config["n_shared_experts"])
        if config.get("shared_expert_intermediate_size"):
            shapes |= network(f"{at}shared_expert.", config["shared_expert_intermediate_size"])
            shapes[f"{at}shared_expert_gate.weight"] = (1, hidden)
        return shapes


def gated(at: str, hidden: int, inner: int) -> Shapes:
    """A network with a gate, without biases."""
    shapes: Shapes = {f"{at}{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    shapes[f"{at}down_proj.weight"] = (hidden, inner)
    return shapes


def default_rope(theta: float, **more: object) -> dict:
    return {"rope_parameters": {"rope_theta": theta, "rope_type": "default", **more}}


def variant(family: str, model_class: str, fields: dict, **more: object) -> Variant:
    """A model whose config.json is what the reference reads."""
    is_gemma = family in ("gemma3_text", *GEMMA4)
    act = {"hidden_activation": "gelu_pytorch_tanh"} if is_gemma else {"hidden_act": "silu"}
    config = SIZES | {"model_type": family, "tie_word_embeddings": True} | act | fields
    published = {"architectures": [model_class], "dtype": "bfloat16"} | config
    return Variant(config, published, **more)
