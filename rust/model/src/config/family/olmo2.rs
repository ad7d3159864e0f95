//! OLMo 2: norms after attention and the feed-forward part alone, and norms over all heads of q and of k.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::QkNorm;
use crate::config::facts::{Biases, Facts, Norms, PLAIN};

pub(super) const FACTS: Facts = Facts {
    model_type: "olmo2",
    class: "Olmo2",
    biases: Biases::FromConfig,
    qk_norm: QkNorm::Full,
    norms: Norms {
        before: None,
        after: Some(["post_attention_layernorm", "post_feedforward_layernorm"]),
    },
    reads: &["attention_bias"],
    ..PLAIN
};
