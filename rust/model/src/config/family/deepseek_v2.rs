//! DeepSeek V2 and V2-Lite: the attention of `deepseek_v3`, and experts whose scores are a softmax, in groups or not.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Biases, Experts, Facts, FeedForward, PLAIN, Shared};
use crate::{GroupScore, RopeStyle};

use super::deepseek_v3::TRAINING;

pub(super) const FACTS: Facts = Facts {
    model_type: "deepseek_v2",
    class: "DeepseekV2",
    biases: Biases::FromConfig,
    has_latent: true,
    rope_style: RopeStyle::Interleaved,
    feed_forward: FeedForward::Experts(Experts {
        width: "moe_intermediate_size",
        normalises: Some("norm_topk_prob"),
        scale: Some("routed_scaling_factor"),
        shared: Shared::Count("n_shared_experts"),
        groups: Some(GroupScore::Best),
        ..Experts::PLAIN
    }),
    // Its class does not read norm_topk_prob, and other programs disagree about what true means.
    fixed: &[
        ("moe_layer_freq", "1"),
        ("norm_topk_prob", "false"),
        ("rope_interleave", "true"),
        ("scoring_func", "\"softmax\""),
    ],
    defaults: &[("norm_topk_prob", "false")],
    ignores: TRAINING,
    reads: &[
        "attention_bias",
        "num_local_experts",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
        "routed_scaling_factor",
        "n_group",
        "topk_group",
        "topk_method",
        "first_k_dense_replace",
        "mlp_layer_types",
    ],
    ..PLAIN
};
