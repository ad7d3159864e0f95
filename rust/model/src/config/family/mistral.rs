//! Mistral: a window in every layer.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{Facts, PLAIN, Windows};

pub(super) const FACTS: Facts = Facts {
    model_type: "mistral",
    class: "Mistral",
    windows: Windows::All { by_default: Some(4096) },
    ..PLAIN
};
