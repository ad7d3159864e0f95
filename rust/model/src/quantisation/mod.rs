//! Quantised checkpoints: what their config says (config.rs, and four_bit.rs for 4-bit weights), and which
//! scale of an fp8 matrix belongs to which of its rows (scheme.rs). mark.rs is for checkpoints that are not
//! quantised: `--quantization fp8`.
//!
//! Which matrices are quantised is seen from their tensors' types and names. So lists of modules that are
//! not quantised need no reading, and scales of activations and of the KV cache have no effect: activations
//! and the cache are not quantised with numbers from the file.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod checks;
mod config;
mod four_bit;
mod mark;
mod scheme;

pub(crate) use config::{Quantisation, read};
pub(crate) use four_bit::{FourBit, LinearForm};
pub(crate) use scheme::{Layout, scale_names};

/// Tensors with one number that change nothing here: static scales of activations and of the KV cache.
pub(crate) fn is_without_effect(name: &str, shape: &[u64]) -> bool {
    const ENDS: [&str; 7] = [
        ".input_scale",
        ".activation_scale",
        ".output_scale",
        ".q_scale",
        ".k_scale",
        ".v_scale",
        ".prob_scale",
    ];
    ENDS.iter().any(|end| name.ends_with(end)) && shape.iter().all(|dimension| *dimension == 1)
}
