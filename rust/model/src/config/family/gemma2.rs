//! Gemma 2: a window in every other layer, norms around both parts, capped logits.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Biases, Facts, Norms, PLAIN, Windows};

pub(super) const FACTS: Facts = Facts {
    model_type: "gemma2",
    class: "Gemma2",
    biases: Biases::FromConfig,
    activation: "hidden_activation",
    derives_head_dim: false,
    windows: Windows::Pattern { every: 2 },
    norms: NORMS,
    is_gemma: true,
    ties_by_default: true,
    reads: &[
        "attention_bias",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "sliding_window_pattern",
    ],
    ..PLAIN
};

/// Of all generations since the second.
pub(super) const NORMS: Norms = Norms {
    before: Some(["input_layernorm", "pre_feedforward_layernorm"]),
    after: Some(["post_attention_layernorm", "post_feedforward_layernorm"]),
};
