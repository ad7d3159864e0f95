//! Llama and the many models that use its class.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Biases, Facts, PLAIN};

pub(super) const FACTS: Facts = Facts {
    model_type: "llama",
    gguf: Some("llama"),
    class: "Llama",
    biases: Biases::FromConfig,
    reads: &["attention_bias", "mlp_bias"],
    ..PLAIN
};
