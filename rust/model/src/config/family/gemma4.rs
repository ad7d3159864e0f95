//! Gemma 4: layers with a window and layers with wider heads, whose values may be their keys; norms of values; a number
//! by which each layer multiplies the residual stream. Small sizes give each layer an embedding of the token and share
//! keys among the last layers; one size has experts beside the usual network. Published with towers for images and sound.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use super::gemma2;
use crate::QkNorm;
use crate::config::facts::{
    Biases, Experts, Facts, FeedForward, Heads, PLAIN, Ropes, Shared, Windows, Wrapper,
};

pub(super) const FACTS: Facts = Facts {
    model_type: "gemma4_text",
    class: "Gemma4",
    default_theta: 1e6,
    biases: Biases::FromConfig,
    activation: "hidden_activation",
    qk_norm: QkNorm::Head,
    attention_scale: Some(1.0),
    has_value_norm: true,
    windows: Windows::Pattern { every: 6 },
    heads: Heads::ByWindow,
    ropes: Ropes::ByWindow { local: Some(("rope_local_base_freq", 1e4)) },
    feed_forward: FeedForward::Experts(Experts {
        switch: Some("enable_moe_block"),
        chosen: "top_k_experts",
        width: "moe_intermediate_size",
        shared: Shared::Usual,
        router: "router",
        ..Experts::PLAIN
    }),
    norms: gemma2::NORMS,
    scales_embedding: true,
    scales_layers: true,
    has_token_input: true,
    ties_by_default: true,
    defaults: &[
        ("vocab_size", "262144"),
        ("hidden_size", "2304"),
        ("intermediate_size", "9216"),
        ("num_hidden_layers", "30"),
        ("num_attention_heads", "8"),
        ("num_key_value_heads", "4"),
        ("head_dim", "256"),
        ("global_head_dim", "512"),
        ("hidden_activation", "\"gelu_pytorch_tanh\""),
        ("max_position_embeddings", "131072"),
        ("rms_norm_eps", "1e-6"),
        ("sliding_window", "512"),
        ("vocab_size_per_layer_input", "262144"),
        ("hidden_size_per_layer_input", "256"),
        ROPES,
    ],
    // Images alone are seen in both directions; "all" would let text be.
    fixed: &[("use_bidirectional_attention", "\"vision\"")],
    reads: &[
        "attention_bias",
        "attention_k_eq_v",
        "enable_moe_block",
        "final_logit_softcapping",
        "global_head_dim",
        "hidden_size_per_layer_input",
        "moe_intermediate_size",
        "num_experts",
        "num_global_key_value_heads",
        "num_kv_shared_layers",
        "per_layer_config",
        "top_k_experts",
        "use_double_wide_mlp",
        "vocab_size_per_layer_input",
    ],
    ..PLAIN
};

/// Gemma 4 12B, whose images and sound need no towers. Its text model has neither experts nor embeddings of layers.
pub(super) const UNIFIED: Facts = Facts {
    model_type: "gemma4_unified_text",
    class: "Gemma4Unified",
    feed_forward: FeedForward::Dense,
    has_token_input: false,
    defaults: &[
        ("vocab_size", "262144"),
        ("hidden_size", "2304"),
        ("intermediate_size", "9216"),
        ("num_hidden_layers", "30"),
        ("num_attention_heads", "8"),
        ("num_key_value_heads", "4"),
        ("head_dim", "256"),
        ("global_head_dim", "512"),
        ("hidden_activation", "\"gelu_pytorch_tanh\""),
        ("max_position_embeddings", "262144"),
        ("rms_norm_eps", "1e-6"),
        ("sliding_window", "1024"),
        ROPES,
    ],
    // Of Gemma 4's experts and embeddings of layers, which this class does not have.
    fixed: &[
        ("enable_moe_block", "false"),
        ("hidden_size_per_layer_input", "0"),
        ("use_bidirectional_attention", "\"vision\""),
    ],
    ignores: &["vocab_size_per_layer_input"],
    reads: &[
        "attention_bias",
        "attention_k_eq_v",
        "final_logit_softcapping",
        "global_head_dim",
        "num_global_key_value_heads",
        "num_kv_shared_layers",
        "per_layer_config",
        "use_double_wide_mlp",
    ],
    ..FACTS
};

const ROPES: (&str, &str) = (
    "rope_parameters",
    "{\"full_attention\": {\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.25, \"rope_theta\": 1e6}, \
     \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1e4}}",
);

pub(super) const UNIFIED_WRAPPER: Wrapper = Wrapper {
    model_type: "gemma4_unified",
    class: "Gemma4Unified",
    texts: &["gemma4_unified_text"],
    ignores: WRAPPER.ignores,
    towers: &["embed_vision.", "vision_embedder.", "embed_audio."],
};

pub(super) const WRAPPER: Wrapper = Wrapper {
    model_type: "gemma4",
    class: "Gemma4",
    texts: &["gemma4_text"],
    ignores: &["audio_config", "eoa_token_index", "vision_soft_tokens_per_image"],
    towers: &["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio."],
};
