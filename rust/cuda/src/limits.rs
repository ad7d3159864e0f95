//! The hardware limits of a card that determine builds and launches. Plain data: queried from the
//! driver for the card that is present, stated by `prebuilt.rs` for the cards that kernels are
//! built for ahead of time.

/// Sizes of one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceLimits {
    /// Major, minor.
    pub(crate) compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub(crate) num_sms: u32,
    /// Shared memory of one SM, bytes.
    pub(crate) shared_bytes_per_sm: u32,
    /// Most dynamic shared memory of one block, bytes.
    pub(crate) shared_bytes_per_block: u32,
    /// What the driver itself takes of an SM's shared memory for each block, bytes.
    pub(crate) shared_bytes_reserved: u32,
}

impl DeviceLimits {
    /// A card with `kib` KiB of shared memory an SM of which the driver takes 1 KiB a block, as all cards from
    /// 8.0 to 9.0 have it.
    pub(crate) const fn assumed(compute_capability: (u32, u32), num_sms: u32, kib: u32) -> Self {
        Self {
            compute_capability,
            num_sms,
            shared_bytes_per_sm: kib << 10,
            shared_bytes_per_block: (kib - 1) << 10,
            shared_bytes_reserved: 1 << 10,
        }
    }
}
