//! Qwen2 and Qwen2.5: biases on q, k and v.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Biases, Facts, PLAIN, Windows};

pub(super) const FACTS: Facts = Facts {
    model_type: "qwen2",
    gguf: Some("qwen2"),
    class: "Qwen2",
    biases: Biases::QueryKeyValue,
    windows: Windows::Switched { from_layer: true },
    reads: &["use_sliding_window", "max_window_layers"],
    ..PLAIN
};
