//! MiniMax-M2: norms over all heads of q and of k, half of a head rotates, experts behind a sigmoid router.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Experts, Facts, FeedForward, PLAIN};
use crate::{QkNorm, RouterScores};

pub(super) const FACTS: Facts = Facts {
    model_type: "minimax_m2",
    class: "MiniMaxM2",
    default_theta: 5e6,
    derives_head_dim: false,
    qk_norm: QkNorm::Full,
    feed_forward: FeedForward::Experts(Experts {
        scores: RouterScores::Sigmoid,
        correction: Some("e_score_correction_bias"),
        ..Experts::PLAIN
    }),
    fixed: &[
        ("attn_type_list", "1"),
        ("layernorm_full_attention_beta", "1.0"),
        ("layernorm_linear_attention_beta", "1.0"),
        ("layernorm_mlp_beta", "1.0"),
        ("qk_norm_type", "\"per_layer\""),
        ("scoring_func", "\"sigmoid\""),
        ("shared_intermediate_size", "0"),
        ("use_routing_bias", "true"),
    ],
    // Of the layers that predict several tokens, and of a shared expert, which has no width.
    ignores: &[
        "mlp_intermediate_size",
        "mtp_transformer_layers",
        "num_mtp_modules",
        "shared_moe_mode",
        "use_mtp",
    ],
    reads: &["num_local_experts", "num_experts", "num_experts_per_tok", "rotary_dim"],
    ..PLAIN
};
