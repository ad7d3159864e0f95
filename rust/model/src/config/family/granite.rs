//! Granite 3, dense: Llama with four multipliers.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Biases, Facts, Multipliers, PLAIN};

pub(super) const FACTS: Facts = Facts {
    model_type: "granite",
    class: "Granite",
    biases: Biases::FromConfig,
    multipliers: Some(Multipliers {
        embedding: "embedding_multiplier",
        attention: "attention_multiplier",
        residual: "residual_multiplier",
        logits: "logits_scaling",
    }),
    reads: &[
        "attention_bias",
        "mlp_bias",
        "embedding_multiplier",
        "attention_multiplier",
        "residual_multiplier",
        "logits_scaling",
    ],
    ..PLAIN
};
