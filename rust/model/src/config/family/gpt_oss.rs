//! gpt-oss with experts in bf16 or f32: sinks, a window in every other layer, biases everywhere, a clamped
//! gate.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Biases, Experts, Facts, FeedForward, PLAIN, Windows};

pub(super) const FACTS: Facts = Facts {
    model_type: "gpt_oss",
    class: "GptOss",
    default_theta: 150_000.0,
    biases: Biases::FromConfig,
    derives_head_dim: false,
    windows: Windows::Pattern { every: 2 },
    feed_forward: FeedForward::Experts(Experts {
        router: "router",
        has_biases: true,
        ..Experts::PLAIN
    }),
    has_sinks: true,
    clamps_gate: true,
    defaults: &[("attention_bias", "true"), ("swiglu_limit", "7.0"), ("swiglu_alpha", "1.702")],
    fixed: &[("swiglu_alpha", "1.702")],
    // The length of training once more: the rope object has it.
    ignores: &["initial_context_length"],
    reads: &[
        "attention_bias",
        "num_local_experts",
        "num_experts",
        "num_experts_per_tok",
        "experts_per_token",
        "swiglu_limit",
    ],
    ..PLAIN
};
