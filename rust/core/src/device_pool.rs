//! A model's KV pool as part of a device's memory that several models share. Plain data.

use crate::Micros;

/// The sizes of a pool that grows and shrinks. All 0: it does not, and is part of the model's other bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolMemory {
    /// Bytes that the model can count on whenever it is awake.
    pub share: u64,
    /// Bytes that it may have while others leave memory.
    pub most: u64,
    /// Bytes that it keeps while it has nothing to do.
    pub floor: u64,
    /// It grows and shrinks by multiples of this.
    pub piece: u64,
}

/// Where a pool is between its sizes.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) memory: PoolMemory,
    /// What it has. While it grows, what it will have.
    pub(crate) bytes: u64,
    /// What it would make use of; 0 while it wants nothing.
    pub(crate) wants: u64,
    pub(crate) resizes: Resizes,
    /// The device has refused to change it, whatever the sums say: not again before this.
    pub(crate) again_at: Micros,
}

/// Whether the caller works on a new size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resizes {
    No,
    Grows,
    /// By so many bytes.
    Shrinks(u64),
}

impl Pool {
    /// A pool that has its share.
    pub(crate) fn new(memory: PoolMemory) -> Self {
        let (bytes, again_at) = (memory.share, Micros(0));
        Self { memory, bytes, wants: 0, resizes: Resizes::No, again_at }
    }

    /// The model leaves: it comes back with no more than its share.
    pub(crate) fn leave(&mut self) {
        self.bytes = self.bytes.min(self.memory.share);
        self.wants = 0;
        self.resizes = Resizes::No;
    }

    /// The size in whole pieces that holds `bytes`, within what the pool may have.
    pub(crate) fn whole(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.memory.piece.max(1)).min(self.memory.most)
    }

    /// Bytes beyond the share.
    pub(crate) fn surplus(&self) -> u64 {
        self.bytes.saturating_sub(self.memory.share)
    }
}
