//! How attention is built and launched on a card. At load only.

use crate::contract::{attention_shared_bytes, attention_tile};
use crate::dtypes::KvDtype;
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
    pub(crate) fn on(limits: &DeviceLimits, head_dim: u32, kv: KvDtype) -> Self {
        let stages = stages(limits, head_dim);
        let shared_bytes = attention_shared_bytes(head_dim, stages, kv.bytes());
        let fits = limits.shared_bytes_per_sm / (shared_bytes + limits.shared_bytes_reserved);
        let per_sm = if head_dim > 128 { 1 } else { fits.clamp(1, 2) };
        let kv_tile = attention_tile(head_dim);
        Self { grid: per_sm * limits.num_sms, shared_bytes, stages, kv_tile }
    }
}

/// Tiles in flight: three on Hopper, where two blocks of three stages fit an SM and were measured the faster.
pub(crate) fn stages(limits: &DeviceLimits, head_dim: u32) -> u32 {
    if limits.compute_capability.0 == 9 && head_dim <= 128 { 3 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the driver reports decides, and on the cards that were served before it decides as it did.
    #[test]
    fn blocks_an_sm_follow_from_its_shared_memory() {
        let h200 = DeviceLimits::assumed((9, 0), 132, 228);
        let launch = AttentionLaunch::on(&h200, 128, KvDtype::Bf16);
        let want = AttentionLaunch { grid: 264, shared_bytes: 112_000, stages: 3, kv_tile: 64 };
        assert_eq!(launch, want);
        let small = DeviceLimits { shared_bytes_per_sm: 200 << 10, ..h200 };
        assert_eq!(AttentionLaunch::on(&small, 128, KvDtype::Bf16).grid, 132);
        // A newer card with as much shared memory holds two blocks of the two stages that its code has.
        let newer = DeviceLimits::assumed((10, 0), 148, 228);
        let launch = AttentionLaunch::on(&newer, 128, KvDtype::Bf16);
        assert_eq!((launch.grid, launch.stages), (296, 2));
        let old = DeviceLimits::assumed((8, 6), 84, 100);
        assert_eq!(AttentionLaunch::on(&old, 128, KvDtype::Bf16).grid, 84);
        assert_eq!(AttentionLaunch::on(&old, 64, KvDtype::Bf16).grid, 168);
    }
}
