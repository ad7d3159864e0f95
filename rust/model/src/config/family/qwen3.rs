//! Qwen3: norms over the heads of q and k.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::QkNorm;
use crate::config::facts::{Biases, Facts, PLAIN, Windows};

pub(super) const FACTS: Facts = Facts {
    model_type: "qwen3",
    gguf: Some("qwen3"),
    class: "Qwen3",
    biases: Biases::FromConfig,
    derives_head_dim: false,
    qk_norm: QkNorm::Head,
    windows: Windows::Switched { from_layer: true },
    reads: &["attention_bias", "use_sliding_window", "max_window_layers"],
    ..PLAIN
};
