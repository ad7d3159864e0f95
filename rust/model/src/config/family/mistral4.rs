//! Mistral Small 4: the attention of `deepseek_v3` with queries that grow with their position, and experts whose scores
//! are a softmax. Published with the vision tower of `mistral3`.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::GroupScore;
use crate::config::facts::{Experts, Facts, FeedForward, Shared};

use super::deepseek_v3;

pub(super) const FACTS: Facts = Facts {
    model_type: "mistral4",
    class: "Mistral4",
    feed_forward: FeedForward::Experts(Experts {
        width: "moe_intermediate_size",
        normalises: Some("norm_topk_prob"),
        scale: Some("routed_scaling_factor"),
        shared: Shared::Count("n_shared_experts"),
        groups: Some(GroupScore::BestTwo),
        ..Experts::PLAIN
    }),
    scales_queries: true,
    fixed: &[],
    // In its rope's fields too.
    ignores: &["max_position_embeddings"],
    ..deepseek_v3::FACTS
};
