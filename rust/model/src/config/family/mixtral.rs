//! Mixtral: experts in every layer.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Experts, Facts, FeedForward, PLAIN, Windows};

pub(super) const FACTS: Facts = Facts {
    model_type: "mixtral",
    class: "Mixtral",
    default_theta: 1e6,
    windows: Windows::All { by_default: None },
    feed_forward: FeedForward::Experts(Experts::PLAIN),
    reads: &["num_local_experts", "num_experts", "num_experts_per_tok"],
    ..PLAIN
};
