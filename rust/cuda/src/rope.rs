//! How a model's layers rotate queries and keys, as kernels name it. Plain data.

use ingle_model::{ModelSpec, RopeKind, RopeSpec, RopeStyle};

use crate::contract::{ROPE_HALF_SPLIT, ROPE_INTERLEAVED};

/// Elements of a head that rotate, or are paired as if they did.
pub(crate) fn rotary_dim(rope: &RopeSpec) -> u32 {
    rope.rotary_dim
}

/// Pairs that rotate, for which a table has angles.
pub(crate) fn table_pairs(rope: &RopeSpec) -> u32 {
    match rope.kind {
        RopeKind::Proportional { pairs, .. } => pairs,
        _ => rope.rotary_dim / 2,
    }
}

/// The same of all rotations before this one.
pub(crate) fn pairs_before(spec: &ModelSpec, rope: usize) -> u64 {
    spec.ropes[..rope].iter().map(|rope| u64::from(table_pairs(rope))).sum()
}

/// The pairing, as kernels name it; the same in all layers that rotate.
pub(crate) fn style(spec: &ModelSpec) -> u32 {
    match spec.ropes.first().map(|rope| rope.style) {
        Some(RopeStyle::Interleaved) => ROPE_INTERLEAVED,
        Some(RopeStyle::HalfSplit) | None => ROPE_HALF_SPLIT,
    }
}
