//! Checkpoints with fp8 weights: what their config says of the scales (config.rs), and which scale belongs
//! to which rows of a matrix (scheme.rs). mark.rs is for checkpoints without: `--quantization fp8`.
//!
//! Which matrices are fp8 is seen from their type in the file. So lists of modules that are not quantised
//! need no reading, and scales of activations and of the KV cache have no effect: activations and the cache
//! are not quantised with numbers from the file.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod config;
mod mark;
mod scheme;

pub(crate) use config::read;
pub(crate) use scheme::{Layout, Scheme, scale_names};

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
