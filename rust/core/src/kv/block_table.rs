//! The KV blocks of one request, in order of positions. Engine thread only.

use super::Parent;
use crate::BlockId;

/// Blocks of one request and how far they are known to others.
///
/// ```text
/// blocks [0, num_sent)        the executor has them in the slot's block table
/// blocks [0, num_registered)  the prefix cache has their content (in these blocks or in others)
/// ```
///
/// What every step reads stands in front.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct BlockTable {
    pub(crate) blocks: Vec<BlockId>,
    num_sent: usize,
    pub(crate) num_registered: usize,
    /// What the next registered block has as its parent; absent where nothing is registered.
    pub(crate) parent: Option<Parent>,
    /// Chain hashes of the first full blocks; a function of the tokens, so they outlive the blocks.
    pub(crate) hashes: Vec<u128>,
}

impl BlockTable {
    /// Starts with blocks whose content is already computed.
    pub(crate) fn open(&mut self, cached: &[BlockId], parent: Option<Parent>) {
        assert!(self.blocks.is_empty(), "a request that holds blocks is opened");
        self.blocks.extend_from_slice(cached);
        self.num_sent = cached.len();
        self.num_registered = cached.len();
        self.parent = parent;
    }

    /// Whether there is room for the KV of this position.
    pub(crate) fn covers(&self, position: u32, block_size: u32) -> bool {
        (position / block_size) as usize <= self.blocks.len().wrapping_sub(1)
            && !self.blocks.is_empty()
    }

    /// Blocks of the positions below `end` that the executor does not know yet; now it does. Those
    /// behind wait for their chunk, so that a step brings no more blocks than its tokens fill.
    pub(crate) fn take_unsent(&mut self, end: u32, block_size: u32) -> Vec<BlockId> {
        let num_needed = end.div_ceil(block_size) as usize;
        let unsent = self.blocks[self.num_sent..num_needed].to_vec();
        self.num_sent = num_needed;
        unsent
    }

    /// All blocks, last first: the end of a prefix is evicted before its beginning.
    pub(crate) fn close(&mut self) -> impl Iterator<Item = BlockId> {
        self.num_sent = 0;
        self.num_registered = 0;
        self.parent = None;
        std::mem::take(&mut self.blocks).into_iter().rev()
    }
}
