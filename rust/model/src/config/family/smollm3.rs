//! SmolLM3: Llama without a rotation in every fourth layer.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Biases, Facts, PLAIN, Ropes};

pub(super) const FACTS: Facts = Facts {
    model_type: "smollm3",
    class: "SmolLM3",
    default_theta: 2e6,
    biases: Biases::FromConfig,
    ropes: Ropes::NoneInSome,
    ties_by_default: true,
    reads: &["attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval"],
    ..PLAIN
};
