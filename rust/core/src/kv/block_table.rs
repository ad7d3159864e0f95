//! The KV blocks of one request, in order of positions, for each group of layers. Engine thread only.

use std::ops::Range;

use super::Parent;
use crate::BlockId;
use crate::counts::count;

/// The first group's blocks of one request, and how far all groups' are known to others.
///
/// ```text
/// blocks [0, num_passed)      not held (any more): the group's window has passed them
/// blocks [0, num_sent)        the executor has them in the slot's block tables
/// blocks [0, num_registered)  the prefix cache has their content (in these blocks or in others)
/// ```
///
/// What every step reads stands in front.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct BlockTable {
    pub(crate) blocks: Vec<BlockId>,
    num_sent: u32,
    pub(crate) num_passed: u32,
    pub(crate) num_registered: usize,
    /// What the next registered block has as its parent; absent where nothing is registered.
    pub(crate) parent: Option<Parent>,
    /// Chain hashes of the first full blocks; a function of the tokens, so they outlive the blocks.
    pub(crate) hashes: Vec<u128>,
}

/// Another group's blocks.
#[derive(Debug, Default)]
pub(crate) struct GroupBlocks {
    pub(crate) blocks: Vec<BlockId>,
    /// As `BlockTable::num_passed`.
    pub(crate) num_passed: u32,
}

impl BlockTable {
    /// Starts with blocks whose content is already computed, of which the first `num_passed` are not held.
    pub(crate) fn open(&mut self, cached: &[BlockId], num_passed: u32, parent: Option<Parent>) {
        assert!(self.blocks.is_empty(), "a request that holds blocks is opened");
        self.blocks.extend_from_slice(cached);
        self.num_sent = count(cached.len());
        self.num_passed = num_passed;
        self.num_registered = cached.len();
        self.parent = parent;
    }

    /// Whether there is room for the KV of this position.
    pub(crate) fn covers(&self, position: u32, block_size: u32) -> bool {
        (position / block_size) as usize <= self.blocks.len().wrapping_sub(1)
            && !self.blocks.is_empty()
    }

    /// Places of the positions below `end` that the executor does not know yet; now it does. Those behind
    /// wait for their chunk, so that a step brings no more blocks than its tokens fill.
    pub(crate) fn take_unsent(&mut self, end: u32, block_size: u32) -> Range<usize> {
        let num_needed = end.div_ceil(block_size);
        let first = std::mem::replace(&mut self.num_sent, num_needed);
        first as usize..num_needed as usize
    }

    /// The blocks that are held, last first: the end of a prefix is evicted before its beginning.
    pub(crate) fn close(&mut self) -> impl Iterator<Item = BlockId> + use<> {
        self.num_sent = 0;
        self.num_registered = 0;
        self.parent = None;
        let num_held = self.blocks.len() - std::mem::take(&mut self.num_passed) as usize;
        std::mem::take(&mut self.blocks).into_iter().rev().take(num_held)
    }
}

impl GroupBlocks {
    /// As `BlockTable::close`.
    pub(crate) fn close(self) -> impl Iterator<Item = BlockId> + use<> {
        let num_held = self.blocks.len() - self.num_passed as usize;
        self.blocks.into_iter().rev().take(num_held)
    }
}
