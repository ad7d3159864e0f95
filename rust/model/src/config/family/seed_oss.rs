//! Seed-OSS: biases on q, k and v alone.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Biases, Facts, PLAIN};

pub(super) const FACTS: Facts = Facts {
    model_type: "seed_oss",
    class: "SeedOss",
    biases: Biases::QueryKeyValue,
    derives_head_dim: false,
    reads: &["mlp_bias"],
    ..PLAIN
};
