//! KV blocks: their owners, and which of them hold a known prefix. Engine thread only.
//!
//! ```text
//! free -> held -> leaving -> free      a block that cannot be found again
//!              -> leaving -> cached    a block that the prefix cache can find; oldest evicted first
//! ```
//! A block is *leaving* while its only owners have ended but a submitted step still names them. Blocks beyond the
//! pool's end are *absent* once they have no owner: another model may have their memory.

mod block_pool;
mod block_table;
mod chain_hash;
mod groups;
mod link;
mod prefix_cache;
mod snapshots;
#[cfg(test)]
mod tests;

pub(crate) use block_pool::BlockPool;
pub(crate) use block_table::{BlockTable, GroupBlocks};
pub use chain_hash::{ChainHasher, Parent};
pub use groups::{KvGroups, MAX_KV_GROUPS};
pub(crate) use link::Link;
pub(crate) use prefix_cache::PrefixCache;
pub use prefix_cache::{CachedBlock, PrefixWatcher};
pub(crate) use snapshots::Snapshots;

use crate::{BlockId, StepId};

/// The pool and the cache over it, kept in step.
#[derive(Debug)]
pub(crate) struct KvCache {
    pub(crate) pool: BlockPool,
    pub(crate) prefix: PrefixCache,
}

impl KvCache {
    pub(crate) fn new(num_blocks: u32, block_size: u32, secret: u64) -> Self {
        Self {
            pool: BlockPool::new(num_blocks),
            prefix: PrefixCache::new(num_blocks, block_size, secret),
        }
    }

    /// A block for one owner: a free one, or else the one whose cached prefix was used longest ago.
    pub(crate) fn allocate(&mut self) -> Option<BlockId> {
        if let Some(block) = self.pool.allocate() {
            return Some(block);
        }
        let oldest = self.pool.oldest_cached()?;
        self.forget(oldest);
        self.pool.allocate()
    }

    /// Blocks that `allocate` can return before it fails.
    pub(crate) fn num_available(&self) -> u32 {
        self.pool.num_free() + self.pool.num_cached()
    }

    /// Makes a full block findable. Returns the parent that the next block of the chain has: if the
    /// same content is already findable in another block, that one stays and becomes the parent.
    pub(crate) fn register(&mut self, block: BlockId, link: &Link<'_>, step: StepId) -> Parent {
        if let Some(other) = self.prefix.block_of(link.group, link.hash) {
            if self.prefix.matches(other, link) {
                return self.prefix.as_parent(other);
            }
            // Another chain's block with this hash, or one whose parent is gone: it cannot be found.
            self.forget(other);
        }
        if block.0 >= self.pool.end() {
            // Its memory is about to go: neither it nor what follows it can be found.
            return self.prefix.unknown_parent();
        }
        self.pool.set_cached(block);
        self.prefix.insert(block, link, step)
    }

    /// Makes room for so many blocks in all; the further ones are absent. Nothing may be cached yet.
    pub(crate) fn reserve(&mut self, num_blocks: u32) {
        self.pool.reserve(num_blocks);
        self.prefix.reserve(self.pool.num_blocks());
    }

    /// From now on blocks up to `end` are handed out. Nobody finds those beyond it any more.
    pub(crate) fn set_end(&mut self, end: u32) {
        for block in (end..self.pool.end()).map(BlockId) {
            self.forget(block);
        }
        self.pool.set_end(end);
    }

    /// Takes a block out of the prefix cache; it is free at once if it has no owner.
    pub(crate) fn forget(&mut self, block: BlockId) {
        if self.prefix.remove(block) {
            self.pool.clear_cached(block);
        }
    }

    /// Takes every block out of the prefix cache; returns how many there were.
    pub(crate) fn forget_all(&mut self) -> u32 {
        let blocks = self.prefix.clear();
        for &block in &blocks {
            self.pool.clear_cached(block);
        }
        u32::try_from(blocks.len()).unwrap_or(u32::MAX)
    }

    /// Full recount. Panics on a broken invariant.
    pub(crate) fn verify(&self) {
        self.pool.verify();
        self.prefix.verify(|block| self.pool.is_findable(block));
    }
}
