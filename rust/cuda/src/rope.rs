//! How a model's layers rotate queries and keys, as kernels name it. Plain data.

use ingle_model::{ModelSpec, RopeStyle};

use crate::contract::{ROPE_HALF_SPLIT, ROPE_INTERLEAVED};

/// Elements of a head that rotate, the same in all layers that rotate (`check_supported`).
pub(crate) fn rotary_dim(spec: &ModelSpec) -> u32 {
    spec.ropes.first().map_or(0, |rope| rope.rotary_dim)
}

/// The pairing, as kernels name it; the same in all layers that rotate.
pub(crate) fn style(spec: &ModelSpec) -> u32 {
    match spec.ropes.first().map(|rope| rope.style) {
        Some(RopeStyle::Interleaved) => ROPE_INTERLEAVED,
        Some(RopeStyle::HalfSplit) | None => ROPE_HALF_SPLIT,
    }
}
