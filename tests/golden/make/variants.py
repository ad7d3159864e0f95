"""Variants of the reference models: what published configurations of a family vary."""

from collections.abc import Callable
from functools import partial

import numpy as np
from four_bit import Packed, awq, gptq, w4a16
from latent_variants import deepseek_v2_grouped, deepseek_v3_plain, kimi_k2, mistral4_wrapped
from variant import Variant, default_rope, variant


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


def gemma4_unified() -> Variant:
    """As Gemma 4 12B: a multimodal file without towers, one KV head where everything is seen."""
    fields = {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "global_head_dim": 64,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 0,
        "sliding_window": 5,
        "use_double_wide_mlp": False,
        "final_logit_softcapping": 30.0,
        "rope_parameters": GEMMA4_ROPES,
    }
    made = variant(
        "gemma4_unified_text", "Gemma4UnifiedForCausalLM", fields, prefix="model.language_model."
    )
    made.unused = {
        "model.embed_vision.patch_dense.weight": (32, 48),
        "model.embed_vision.pos_embedding": (4, 2, 32),
        "model.embed_audio.embedding_projection.weight": (64, 32),
    }
    absent = {"enable_moe_block": False, "num_experts": None, "hidden_size_per_layer_input": 0}
    made.published = {
        "architectures": ["Gemma4UnifiedForConditionalGeneration"],
        "model_type": "gemma4_unified",
        "dtype": "bfloat16",
        "text_config": made.config | absent | {"use_bidirectional_attention": "vision"},
        "vision_config": {"model_type": "gemma4_unified_vision", "mm_embed_dim": 32},
        "audio_config": {"model_type": "gemma4_unified_audio", "audio_embed_dim": 32},
        "image_token_id": 380,
        "eoa_token_index": 382,
    }
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


def llama4_wrapped() -> Variant:
    """As Scout, in a multimodal file: one edge for slow and fast frequencies, two experts a token.

    The interval alone says which layers have no rope and no chunks.
    """
    rope = {
        "rope_type": "llama3",
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
    }
    fields = {
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size_mlp": 96,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_layers": [0, 1, 2],
        "no_rope_layers": [1, 0, 1],
        "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
        "attention_chunk_size": 6,
        "use_qk_norm": True,
        "attn_temperature_tuning": True,
        "floor_scale": 5,
        "attn_scale": 0.3,
        "tie_word_embeddings": False,
        "rope_parameters": rope | {"rope_theta": 5e5},
    }
    made = variant("llama4_text", "Llama4ForCausalLM", fields, prefix="language_model.model.")
    made.unused = {
        "multi_modal_projector.linear_1.weight": (64, 32),
        "vision_model.layernorm_post.weight": (32,),
    }
    text = dict(made.config) | {
        "no_rope_layers": [],
        "no_rope_layer_interval": 2,
        "interleave_moe_layer_step": 1,
        "rope_theta": 5e5,
        "rope_scaling": rope,
        "for_llm_compressor": False,
        "router_jitter_noise": 0.0,
    }
    for key in ("layer_types", "rope_parameters", "moe_layers"):
        del text[key]
    made.published = {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "torch_dtype": "bfloat16",
        "text_config": text,
        "vision_config": {"model_type": "llama4_vision_model", "hidden_size": 32},
        "boi_token_index": 380,
        "eoi_token_index": 381,
        "image_token_index": 382,
        "tie_word_embeddings": False,
    }
    return made


def llama4_interleaved() -> Variant:
    """As Maverick: experts in every second layer, no norm of heads, queries that do not grow."""
    fields = {
        "num_hidden_layers": 4,
        "intermediate_size_mlp": 96,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "moe_layers": [1, 3],
        "no_rope_layers": [1, 1, 1, 0],
        "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
        "attention_chunk_size": 7,
        "use_qk_norm": False,
        "attn_temperature_tuning": False,
        "attention_bias": False,
    } | default_rope(5e5)
    made = variant("llama4_text", "Llama4ForCausalLM", fields)
    del made.published["moe_layers"], made.published["layer_types"]
    made.published |= {"interleave_moe_layer_step": 2}
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


def glm4_moe_lite_w4a16() -> Variant:
    """Groups of 32 in every matrix of attention and of experts."""
    fields = {
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 24,
        "v_head_dim": 32,
        "intermediate_size": 64,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.8,
        "first_k_dense_replace": 1,
        "tie_word_embeddings": False,
    } | default_rope(1e6)
    made = variant("glm4_moe_lite", "Glm4MoeLiteForCausalLM", fields)
    made.pack = partial(pack_w4a16, group_size=32, act_order=False)
    del made.published["head_dim"]
    made.published |= {"num_nextn_predict_layers": 0}
    made.published["quantization_config"] = compressed(strategy="group", group_size=32)
    return made


VARIANTS = {
    "deepseek_v2-grouped": deepseek_v2_grouped(),
    "deepseek_v3-plain": deepseek_v3_plain(),
    "kimi_k2": kimi_k2(),
    "mistral4-wrapped": mistral4_wrapped(),
    "glm4_moe_lite-w4a16": glm4_moe_lite_w4a16(),
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
    "gemma4-unified": gemma4_unified(),
    "llama4-wrapped": llama4_wrapped(),
    "llama4-interleaved": llama4_interleaved(),
    "llama-gptq-act-order": llama_gptq_act_order(),
    "llama-awq-group64": llama_awq_group64(),
    "llama-w4a16-act-order": llama_w4a16_act_order(),
    "llama-w4a16-channel": llama_w4a16_channel(),
}
