//! Qwen3.5, 3.6 and 3.8 with experts: the layers of `qwen3_5`, and in each of them experts beside a network that
//! every token visits, scaled by a score of its own.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Experts, Facts, FeedForward, IMAGE_TOWERS, Shared, Wrapper};

use super::qwen3_5;

pub(super) const FACTS: Facts = Facts {
    model_type: "qwen3_5_moe_text",
    class: "Qwen3_5Moe",
    feed_forward: FeedForward::Experts(Experts {
        width: "moe_intermediate_size",
        shared: Shared::Scored { width: "shared_expert_intermediate_size" },
        ..Experts::PLAIN
    }),
    // Its class scales the chosen weights to sum to 1 whatever the file says.
    fixed: &[
        ("attn_output_gate", "true"),
        ("mamba_ssm_dtype", "\"float32\""),
        ("output_gate_type", "\"swish\""),
        ("norm_topk_prob", "true"),
        ("decoder_sparse_step", "1"),
    ],
    reads: &[
        "num_local_experts",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
    ],
    ..qwen3_5::FACTS
};

pub(super) const WRAPPER: Wrapper = Wrapper {
    model_type: "qwen3_5_moe",
    class: "Qwen3_5Moe",
    texts: &["qwen3_5_moe_text"],
    ignores: &[],
    towers: IMAGE_TOWERS,
};
