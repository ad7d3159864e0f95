//! How attention is built and launched on a card. At load only.

use crate::contract::{
    ATTENTION_ROW_PAD, ATTENTION_SMALL_ROWS, ATTENTION_TAIL_BYTES, QUERY_ROWS, kv_tile,
};
use crate::limits::DeviceLimits;

/// Sizes of a launch of attention.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionLaunch {
    /// Blocks of the persistent grid.
    pub(crate) grid: u32,
    /// Dynamic shared memory of a block.
    pub(crate) shared_bytes: u32,
    /// Tiles in flight.
    pub(crate) stages: u32,
    /// Tokens a tile.
    pub(crate) kv_tile: u32,
}

impl AttentionLaunch {
    /// The most blocks an SM that shared memory allows, two at most.
    pub(crate) fn on(limits: &DeviceLimits, head_dim: u32) -> Self {
        let stages = stages(limits, head_dim);
        let shared_bytes = shared_bytes(head_dim, stages);
        let fits = limits.shared_bytes_per_sm / (shared_bytes + limits.shared_bytes_reserved);
        let per_sm = if head_dim > 128 { 1 } else { fits.clamp(1, 2) };
        Self { grid: per_sm * limits.num_sms, shared_bytes, stages, kv_tile: kv_tile(head_dim) }
    }
}

/// Tiles in flight: three on Hopper, where two blocks of three stages fit an SM and were measured the faster.
pub(crate) fn stages(limits: &DeviceLimits, head_dim: u32) -> u32 {
    if limits.compute_capability.0 == 9 && head_dim <= 128 { 3 } else { 2 }
}

/// Dynamic shared memory of a block: K and V of each stage, rows of q, and the tail.
pub(crate) const fn shared_bytes(head_dim: u32, stages: u32) -> u32 {
    // Wide heads keep all rows of q in shared memory; others keep them in registers, except for
    // small entries.
    let query_rows = if head_dim == 256 { QUERY_ROWS } else { stages * ATTENTION_SMALL_ROWS };
    let rows = stages * 2 * kv_tile(head_dim) + query_rows;
    rows * (head_dim + ATTENTION_ROW_PAD) * 2 + ATTENTION_TAIL_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the driver reports decides, and on the cards that were served before it decides as it did.
    #[test]
    fn blocks_an_sm_follow_from_its_shared_memory() {
        let h200 = DeviceLimits::assumed((9, 0), 132, 228);
        let launch = AttentionLaunch::on(&h200, 128);
        let want = AttentionLaunch { grid: 264, shared_bytes: 112_000, stages: 3, kv_tile: 64 };
        assert_eq!(launch, want);
        let small = DeviceLimits { shared_bytes_per_sm: 200 << 10, ..h200 };
        assert_eq!(AttentionLaunch::on(&small, 128).grid, 132);
        // A newer card with as much shared memory holds two blocks of the two stages that its code has.
        let newer = DeviceLimits::assumed((10, 0), 148, 228);
        let launch = AttentionLaunch::on(&newer, 128);
        assert_eq!((launch.grid, launch.stages), (296, 2));
        let old = DeviceLimits::assumed((8, 6), 84, 100);
        assert_eq!(AttentionLaunch::on(&old, 128).grid, 84);
        assert_eq!(AttentionLaunch::on(&old, 64).grid, 168);
    }
}
