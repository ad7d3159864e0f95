"""Variants of the reference models: what published configurations of a family vary.

`config` is what reference.py reads, in transformers 5's spelling. `published` is the config.json,
which for some variants has the spelling that published checkpoints have.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from four_bit import Packed, awq, gptq, w4a16
from reference import head_name

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
        layer_of = self.gemma4 if config["model_type"] == "gemma4_text" else self.layer
        for layer in range(config["num_hidden_layers"]):
            shapes |= layer_of(f"{at}layers.{layer}.", layer)
        return shapes

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
        if config["enable_moe_block"]:
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
        if config["model_type"] == "glm4_moe":
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
    is_gemma = family in ("gemma3_text", "gemma4_text")
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


def nets(keys: int, values: int, key_dim: int, value_dim: int) -> dict:
    """The sizes of a gated delta net."""
    return {
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": value_dim,
        "linear_conv_kernel_dim": 4,
    }


EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 32,
}

QUARTER = default_rope(1e7, partial_rotary_factor=0.25)


def qwen3_next_grouped() -> Variant:
    """Two value heads for each of two key heads, a dense layer, shares that do not add up to 1.

    In the published spelling.
    """
    fields = {
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "decoder_sparse_step": 1,
        "mlp_only_layers": [2],
        "norm_topk_prob": False,
        "tie_word_embeddings": False,
    }
    fields |= EXPERTS | nets(2, 4, 32, 64) | QUARTER
    made = variant("qwen3_next", "Qwen3NextForCausalLM", fields)
    del made.published["layer_types"], made.published["rope_parameters"]
    made.published |= {"full_attention_interval": 2, "rope_theta": 1e7, "rope_scaling": None}
    made.published |= {"partial_rotary_factor": 0.25, "use_sliding_window": False}
    # The layer that predicts a second token.
    made.unused = {"mtp.fc.weight": (64, 128), "mtp.layers.0.self_attn.q_proj.weight": (128, 64)}
    return made


def wrapped(made: Variant, model_type: str, model_class: str) -> Variant:
    """The text half of a multimodal file of the Qwen3.5 family."""
    made.unused = {
        "model.visual.patch_embed.proj.bias": (32,),
        "mtp.fc.weight": (64, 128),
        "mtp.norm.weight": (64,),
    }
    text = dict(made.config) | {"attn_output_gate": True, "mamba_ssm_dtype": "float32"}
    text |= {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    rope = made.config["rope_parameters"]
    text["rope_parameters"] = rope | {"mrope_interleaved": True, "mrope_section": [2, 1, 1]}
    made.published = {
        "architectures": [model_class],
        "model_type": model_type,
        "dtype": "bfloat16",
        "text_config": text,
        "tie_word_embeddings": made.config["tie_word_embeddings"],
        "vision_config": {"model_type": model_type, "hidden_size": 32},
        "image_token_id": 380,
    }
    return made


def qwen3_5_wrapped() -> Variant:
    """Three value heads for each key head; attention first; the output layer is the embedding."""
    fields = {
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
    }
    fields |= nets(2, 6, 32, 32) | QUARTER
    prefix = "model.language_model."
    made = variant("qwen3_5_text", "Qwen3_5ForCausalLM", fields, prefix=prefix)
    return wrapped(made, "qwen3_5", "Qwen3_5ForConditionalGeneration")


def qwen3_5_moe_wrapped() -> Variant:
    """As many key heads as value heads, stacked experts, an output layer of its own."""
    fields = {
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "tie_word_embeddings": False,
    }
    fields |= EXPERTS | nets(2, 2, 64, 32) | QUARTER
    prefix = "model.language_model."
    made = variant("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", fields, prefix=prefix)
    made.stacks_experts = True
    made = wrapped(made, "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration")
    del made.published["text_config"]["intermediate_size"]
    return made


GEMMA4_ROPES = {
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def gemma4_experts() -> Variant:
    """As 26B-A4B: experts beside the usual network, values that are keys; the ropes by default."""
    fields = {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "global_head_dim": 64,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 4,
        "enable_moe_block": True,
        "use_double_wide_mlp": False,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
        "final_logit_softcapping": 30.0,
        "rope_parameters": GEMMA4_ROPES,
    }
    made = variant("gemma4_text", "Gemma4ForCausalLM", fields, stacks_experts=True)
    del made.published["rope_parameters"]
    made.published |= {"use_bidirectional_attention": "vision"}
    return made


def gemma4_wrapped() -> Variant:
    """As E4B, in a multimodal file: three KV heads, networks all equally wide, no cap of logits.

    Layers that read the keys of others have tensors for their own, which nothing uses.
    """
    fields = {
        "num_hidden_layers": 5,
        "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"],
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "global_head_dim": 48,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": 3,
        "hidden_size_per_layer_input": 24,
        "vocab_size_per_layer_input": 384,
        "sliding_window": 6,
        "enable_moe_block": False,
        "use_double_wide_mlp": False,
        "rope_parameters": GEMMA4_ROPES,
    }
    prefix = "model.language_model."
    made = variant("gemma4_text", "Gemma4ForCausalLM", fields, prefix=prefix)
    of_keys = f"{prefix}layers.4.self_attn."
    made.unused = {
        f"{of_keys}k_proj.weight": (144, 64),
        f"{of_keys}v_proj.weight": (144, 64),
        f"{of_keys}k_norm.weight": (48,),
        "model.vision_tower.patch_embedder.input_proj.weight": (32, 48),
        "model.embed_vision.embedding_projection.weight": (64, 32),
        "model.audio_tower.output_proj.bias": (32,),
        "model.embed_audio.embedding_projection.weight": (64, 32),
    }
    made.published = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "dtype": "bfloat16",
        "text_config": made.config | {"num_global_key_value_heads": None},
        "vision_config": {"model_type": "gemma4_vision", "hidden_size": 32},
        "audio_config": {"model_type": "gemma4_audio", "hidden_size": 32},
        "image_token_id": 380,
        "boi_token_id": 381,
        "eoa_token_index": 382,
    }
    return made


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
    "qwen3_next-grouped": qwen3_next_grouped(),
    "qwen3_5-wrapped": qwen3_5_wrapped(),
    "qwen3_5_moe-wrapped": qwen3_5_moe_wrapped(),
    "gemma4-experts": gemma4_experts(),
    "gemma4-wrapped": gemma4_wrapped(),
    "llama-gptq-act-order": llama_gptq_act_order(),
    "llama-awq-group64": llama_awq_group64(),
    "llama-w4a16-act-order": llama_w4a16_act_order(),
    "llama-w4a16-channel": llama_w4a16_channel(),
}
