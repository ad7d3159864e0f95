//! Phi-3, Phi-3.5 and Phi-4: fused tensors, LongRoPE.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Facts, PLAIN, Windows};

pub(super) const FACTS: Facts = Facts {
    model_type: "phi3",
    class: "Phi3",
    windows: Windows::All { by_default: None },
    is_fused: true,
    long_rope_names: &["su", "yarn"],
    ..PLAIN
};
