//! Qwen3-Next: the layers of `qwen3_5_moe` with fused projections of the gated delta nets.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Experts, Facts, FeedForward, Shared};

use super::qwen3_5;

pub(super) const FACTS: Facts = Facts {
    model_type: "qwen3_next",
    class: "Qwen3Next",
    fuses_delta_nets: true,
    feed_forward: FeedForward::Experts(Experts {
        width: "moe_intermediate_size",
        normalises: Some("norm_topk_prob"),
        shared: Shared::Scored { width: "shared_expert_intermediate_size" },
        ..Experts::PLAIN
    }),
    reads: &[
        "num_local_experts",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
        "shared_expert_intermediate_size",
        "decoder_sparse_step",
        "mlp_only_layers",
    ],
    ..qwen3_5::FACTS
};
