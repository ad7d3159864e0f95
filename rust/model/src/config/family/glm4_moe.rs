//! GLM-4.5, 4.6 and 4.5-Air: dense first layers, then experts behind a sigmoid router, and one network that
//! all tokens visit.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Biases, Experts, Facts, FeedForward, PLAIN, Shared};
use crate::{QkNorm, RouterScores};

pub(super) const FACTS: Facts = Facts {
    model_type: "glm4_moe",
    class: "Glm4Moe",
    biases: Biases::QueryKeyValueFromConfig,
    qk_norm: QkNorm::Head,
    has_qk_norm: Some("use_qk_norm"),
    feed_forward: FeedForward::Experts(Experts {
        width: "moe_intermediate_size",
        normalises: Some("norm_topk_prob"),
        scores: RouterScores::Sigmoid,
        scale: Some("routed_scaling_factor"),
        shared: Shared::Count("n_shared_experts"),
        correction: Some("gate.e_score_correction_bias"),
        ..Experts::PLAIN
    }),
    default_rotary: 0.5,
    fixed: &[("n_group", "1"), ("topk_group", "1")],
    reads: &[
        "attention_bias",
        "use_qk_norm",
        "num_local_experts",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
        "routed_scaling_factor",
        "first_k_dense_replace",
        "num_nextn_predict_layers",
        "num_mtp_layers",
    ],
    ..PLAIN
};
