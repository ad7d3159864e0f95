//! DeepSeek V3, V3.1 and R1: latent attention, dense first layers, then experts in groups behind a sigmoid router,
//! and one network that all tokens visit. Kimi K2 has the same class.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Biases, Experts, Facts, FeedForward, PLAIN, Shared};
use crate::{GroupScore, RopeStyle, RouterScores};

pub(super) const FACTS: Facts = Facts {
    model_type: "deepseek_v3",
    class: "DeepseekV3",
    biases: Biases::FromConfig,
    has_latent: true,
    rope_style: RopeStyle::Interleaved,
    feed_forward: FeedForward::Experts(Experts {
        width: "moe_intermediate_size",
        normalises: Some("norm_topk_prob"),
        scores: RouterScores::Sigmoid,
        scale: Some("routed_scaling_factor"),
        shared: Shared::Count("n_shared_experts"),
        correction: Some("gate.e_score_correction_bias"),
        groups: Some(GroupScore::BestTwo),
        ..Experts::PLAIN
    }),
    fixed: &[
        ("moe_layer_freq", "1"),
        ("scoring_func", "\"sigmoid\""),
        ("topk_method", "\"noaux_tc\""),
    ],
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
        "first_k_dense_replace",
        "mlp_layer_types",
        "num_nextn_predict_layers",
    ],
    ..PLAIN
};

pub(super) const KIMI_K2: Facts = Facts { model_type: "kimi_k2", ..FACTS };

/// Losses, and over how many devices experts were spread.
pub(super) const TRAINING: &[&str] = &["aux_loss_alpha", "ep_size", "seq_aux"];
