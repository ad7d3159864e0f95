//! Qwen3-MoE: experts in every layer, or as the file selects.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::QkNorm;
use crate::config::facts::{Biases, Experts, Facts, FeedForward, PLAIN, Windows};

pub(super) const FACTS: Facts = Facts {
    model_type: "qwen3_moe",
    gguf: Some("qwen3moe"),
    class: "Qwen3Moe",
    biases: Biases::FromConfig,
    qk_norm: QkNorm::Head,
    windows: Windows::Switched { from_layer: false },
    feed_forward: FeedForward::Experts(Experts {
        width: "moe_intermediate_size",
        normalises: Some("norm_topk_prob"),
        ..Experts::PLAIN
    }),
    reads: &[
        "attention_bias",
        "use_sliding_window",
        "num_local_experts",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
        "decoder_sparse_step",
        "mlp_only_layers",
    ],
    ..PLAIN
};
