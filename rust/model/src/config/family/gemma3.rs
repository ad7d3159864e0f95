//! Gemma 3: a window in five of six layers, which rotate with a base of their own; norms over the heads
//! of q and k; no caps. Larger sizes are published with a vision tower around the text model.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use super::gemma2;
use crate::QkNorm;
use crate::config::facts::{Biases, Facts, IMAGE_TOWERS, PLAIN, Ropes, Windows, Wrapper};

pub(super) const FACTS: Facts = Facts {
    model_type: "gemma3_text",
    class: "Gemma3",
    default_theta: 1e6,
    biases: Biases::FromConfig,
    activation: "hidden_activation",
    qk_norm: QkNorm::Head,
    windows: Windows::Pattern { every: 6 },
    ropes: Ropes::ByWindow { local: Some(("rope_local_base_freq", 1e4)) },
    norms: gemma2::NORMS,
    is_gemma: true,
    ties_by_default: true,
    // The files around a vision tower state little more than width, depth and window.
    defaults: &[
        ("vocab_size", "262208"),
        ("num_attention_heads", "8"),
        ("num_key_value_heads", "4"),
        ("head_dim", "256"),
        ("hidden_activation", "\"gelu_pytorch_tanh\""),
        ("max_position_embeddings", "131072"),
        ("rms_norm_eps", "1e-6"),
        ("query_pre_attn_scalar", "256"),
        ("sliding_window", "4096"),
    ],
    reads: &[
        "attention_bias",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "sliding_window_pattern",
        "rope_local_base_freq",
    ],
    ..PLAIN
};

pub(super) const WRAPPER: Wrapper = Wrapper {
    model_type: "gemma3",
    class: "Gemma3",
    texts: &["gemma3_text"],
    ignores: &["boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image"],
    towers: IMAGE_TOWERS,
};
