"""Variants of the reference models with latent attention."""

from variant import Variant, default_rope, variant

SMALL = {
    "num_hidden_layers": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
}
OF_TRAINING = {"aux_loss_alpha": 0.001, "ep_size": 1, "moe_layer_freq": 1, "seq_aux": True}


def yarn(**more: object) -> dict:
    base = {"factor": 8.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
    return base | {"original_max_position_embeddings": 16} | more


def deepseek_v3_plain() -> Variant:
    """Queries straight from the residual stream, biases, halves that rotate, one group of experts.

    Three heads, widths that no vector divides, a last layer that predicts several tokens.
    """
    fields = SMALL | {
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "q_lora_rank": None,
        "kv_lora_rank": 20,
        "qk_rope_head_dim": 6,
        "qk_nope_head_dim": 10,
        "v_head_dim": 14,
        "n_shared_experts": 2,
        "n_group": 1,
        "topk_group": 1,
        "rope_interleave": False,
        "attention_bias": True,
        "num_nextn_predict_layers": 1,
    }
    made = variant("deepseek_v3", "DeepseekV3ForCausalLM", fields | default_rope(1e4))
    made.unused = {
        "model.layers.2.eh_proj.weight": (64, 128),
        "model.layers.2.enorm.weight": (64,),
        "model.layers.2.self_attn.kv_b_proj.weight": (72, 20),
        "model.layers.2.mlp.gate.e_score_correction_bias": (8,),
    }
    del made.published["rope_parameters"], made.published["head_dim"]
    made.published |= OF_TRAINING | {"rope_theta": 1e4, "rope_scaling": None}
    made.published |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    return made


def deepseek_v2_grouped() -> Variant:
    """As V2: queries from a vector of their own, groups of experts judged by their best one."""
    fields = SMALL | {
        "num_key_value_heads": 2,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
        "norm_topk_prob": False,
        "routed_scaling_factor": 4.0,
    }
    rope = yarn(mscale=0.707, mscale_all_dim=0.9)
    fields["rope_parameters"] = rope | {"rope_type": "yarn", "rope_theta": 1e4}
    made = variant("deepseek_v2", "DeepseekV2ForCausalLM", fields)
    del made.published["rope_parameters"], made.published["head_dim"]
    made.published |= OF_TRAINING | {"rope_theta": 1e4, "rope_scaling": rope | {"type": "yarn"}}
    made.published |= {"scoring_func": "softmax"}
    return made


def kimi_k2() -> Variant:
    """As Kimi K2: the class of DeepSeek V3 with one group of experts, and a sharp edge in YaRN."""
    fields = SMALL | {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 48,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "n_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
    }
    rope = yarn(beta_fast=1.0)
    fields["rope_parameters"] = rope | {"rope_type": "yarn", "rope_theta": 5e4}
    made = variant("deepseek_v3", "DeepseekV3ForCausalLM", fields)
    del made.published["rope_parameters"], made.published["head_dim"]
    made.published |= OF_TRAINING | {"rope_theta": 5e4, "rope_scaling": rope | {"type": "yarn"}}
    made.published |= {"model_type": "kimi_k2", "topk_method": "noaux_tc"}
    return made


def mistral4_wrapped() -> Variant:
    """The text half of a multimodal file, experts in two tensors a layer and in groups."""
    fields = SMALL | {
        "num_key_value_heads": 2,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 24,
        "v_head_dim": 32,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 0,
        "routed_scaling_factor": 1.0,
        "rope_interleave": True,
    }
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1}
    fields["rope_parameters"] = yarn(original_max_position_embeddings=8) | rope
    made = variant("mistral4", "Mistral4ForCausalLM", fields, prefix="language_model.model.")
    made.stacks_experts = True
    made.unused = {
        "multi_modal_projector.linear_1.weight": (64, 32),
        "vision_tower.ln_pre.weight": (32,),
    }
    text = dict(made.config)
    more = {"type": "yarn", "max_position_embeddings": 2048, "partial_rotary_factor": 0.25}
    text["rope_parameters"] = text["rope_parameters"] | more
    made.published = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": {"model_type": "pixtral", "hidden_size": 32},
        "image_token_index": 10,
        "spatial_merge_size": 2,
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "vision_feature_layer": -1,
        "tie_word_embeddings": False,
    }
    return made
