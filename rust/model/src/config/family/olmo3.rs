//! OLMo 3: norms after attention and the feed-forward part alone, norms over all heads of q and of k, a
//! window in three of four layers, and a scaled rope in the others.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::QkNorm;
use crate::config::facts::{Biases, Facts, Norms, PLAIN, Ropes, Windows};

pub(super) const FACTS: Facts = Facts {
    model_type: "olmo3",
    class: "Olmo3",
    default_theta: 5e5,
    biases: Biases::FromConfig,
    qk_norm: QkNorm::Full,
    windows: Windows::Pattern { every: 4 },
    ropes: Ropes::ByWindow { local: None },
    norms: Norms {
        before: None,
        after: Some(["post_attention_layernorm", "post_feedforward_layernorm"]),
    },
    reads: &["attention_bias"],
    ..PLAIN
};
