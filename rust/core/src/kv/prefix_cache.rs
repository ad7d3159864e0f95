//! Which full blocks hold the KV of which tokens. Engine thread only.
//!
//! A block's key is its chain hash (`chain_hash.rs`). The hash only finds a candidate. A hit compares the token ids and the *identity* of the parent, so by induction the whole
//! prefix is equal even if hashes collide. Contents decide, never a hash that a client could choose. An
//! entry's serial number is never reused, so the children of a removed entry cannot be found any more.
//! What other groups of layers hold is a child of the first group's block at the same place.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::chain_hash::{ChainHasher, Parent};
use super::link::Link;
use crate::{BlockId, StepId, TokenId};

/// Learns which blocks can be found, as that changes. Called by the engine thread: must not block.
pub trait PrefixWatcher: std::fmt::Debug + Send + Sync {
    /// This block can be found from now on, provided that its parent can.
    fn added(&self, block: &CachedBlock<'_>);
    /// The block with this hash and serial number cannot be found any more, nor can its children.
    fn removed(&self, hash: u128, serial: u64);
    /// None of the blocks so far can be found any more. `removed` is called for none of them.
    fn cleared(&self);
}

/// A block that the cache has begun to find.
#[derive(Clone, Copy, Debug)]
pub struct CachedBlock<'a> {
    /// The chain hash.
    pub hash: u128,
    /// Never used for another entry.
    pub serial: u64,
    /// What comes before it.
    pub parent: Parent,
    /// `[block_size]`.
    pub tokens: &'a [TokenId],
}

/// Map from chain hash to block, and each block's content.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    by_hash: HashMap<u128, BlockId, BuildHasherDefault<TakeLowBits>>,
    entries: Vec<Option<Entry>>,
    /// `[num_blocks, block_size]`, valid where the block has an entry.
    tokens: Vec<TokenId>,
    block_size: usize,
    hasher: ChainHasher,
    next_serial: u64,
    watchers: Vec<Arc<dyn PrefixWatcher>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// With the group mixed in.
    key: u128,
    group: usize,
    parent: Parent,
    serial: u64,
    /// The step that fills the block; it may still be in flight.
    step: StepId,
}

impl PrefixCache {
    pub(crate) fn new(num_blocks: u32, block_size: u32, secret: u64) -> Self {
        let hasher = ChainHasher::new(block_size, secret);
        let (num_blocks, block_size) = (num_blocks as usize, block_size as usize);
        Self {
            // Allocated whole, because growing the table would stall one step.
            by_hash: HashMap::with_capacity_and_hasher(num_blocks, BuildHasherDefault::default()),
            entries: vec![None; num_blocks],
            tokens: vec![TokenId(0); num_blocks * block_size],
            block_size,
            hasher,
            next_serial: 1,
            watchers: Vec::new(),
        }
    }

    /// Makes room for so many blocks in all.
    pub(crate) fn reserve(&mut self, num_blocks: u32) {
        let num_blocks = num_blocks as usize;
        self.by_hash.reserve(num_blocks.saturating_sub(self.by_hash.len()));
        self.entries.resize(num_blocks, None);
        self.tokens.resize(num_blocks * self.block_size, TokenId(0));
    }

    /// The parent of blocks whose prefix ends in one that nobody can find.
    pub(crate) fn unknown_parent(&mut self) -> Parent {
        let serial = self.next_serial;
        self.next_serial += 1;
        Parent::Entry(serial)
    }

    /// Reports every change to `watcher` from now on; the cache must still be empty.
    pub(crate) fn watch(&mut self, watcher: Arc<dyn PrefixWatcher>) {
        assert!(self.by_hash.is_empty(), "a cache in use gets a watcher");
        self.watchers.push(watcher);
    }

    /// Hash of a chain without blocks.
    pub(crate) fn root_hash(&mut self, root: Parent) -> u128 {
        self.hasher.root(root)
    }

    /// Hash of the chain that ends with a block of these tokens.
    pub(crate) fn chain_hash(&mut self, before: u128, tokens: &[TokenId]) -> u128 {
        self.hasher.next(before, tokens)
    }

    /// The group's block with this hash; its content may still differ.
    pub(crate) fn block_of(&self, group: usize, hash: u128) -> Option<BlockId> {
        self.by_hash.get(&key(group, hash)).copied()
    }

    /// Whether the block holds exactly these tokens for this group behind exactly this parent.
    pub(crate) fn matches(&self, block: BlockId, link: &Link<'_>) -> bool {
        let first = block.index() * self.block_size;
        self.entries[block.index()]
            .is_some_and(|entry| entry.parent == link.parent && entry.group == link.group)
            && self.tokens[first..first + self.block_size] == *link.tokens
    }

    /// The block as the parent of the next one.
    pub(crate) fn as_parent(&self, block: BlockId) -> Parent {
        Parent::Entry(self.entry(block).serial)
    }

    /// The step that fills the block.
    pub(crate) fn filled_by(&self, block: BlockId) -> StepId {
        self.entry(block).step
    }

    /// Adds a full block that has no entry, under a hash that has none.
    pub(crate) fn insert(&mut self, block: BlockId, link: &Link<'_>, step: StepId) -> Parent {
        let serial = self.next_serial;
        self.next_serial += 1;
        let first = block.index() * self.block_size;
        self.tokens[first..first + self.block_size].copy_from_slice(link.tokens);
        let &Link { group, hash, parent, .. } = link;
        let entry = Entry { key: key(group, hash), group, parent, serial, step };
        let old = self.entries[block.index()].replace(entry);
        assert!(old.is_none(), "block {block} is in the prefix cache twice");
        let old = self.by_hash.insert(entry.key, block);
        assert!(old.is_none(), "blocks {block} and {old:?} have one hash");
        if group == 0 {
            for watcher in &self.watchers {
                watcher.added(&CachedBlock { hash, serial, parent, tokens: link.tokens });
            }
        }
        Parent::Entry(serial)
    }

    /// Removes the block's entry; false if it has none.
    pub(crate) fn remove(&mut self, block: BlockId) -> bool {
        let Some(entry) = self.entries[block.index()].take() else { return false };
        let removed = self.by_hash.remove(&entry.key);
        assert_eq!(removed, Some(block), "the block found under the hash of block {block}");
        // The first group's key is the hash.
        if entry.group == 0 {
            for watcher in &self.watchers {
                watcher.removed(entry.key, entry.serial);
            }
        }
        true
    }

    /// Removes every entry; gives the blocks that had one.
    pub(crate) fn clear(&mut self) -> Vec<BlockId> {
        let mut blocks: Vec<BlockId> = self.by_hash.drain().map(|(_, block)| block).collect();
        blocks.sort_unstable();
        for block in &blocks {
            self.entries[block.index()] = None;
        }
        self.watchers.iter().for_each(|watcher| watcher.cleared());
        blocks
    }

    /// Full recount; `is_findable` is the pool's view of each block.
    pub(crate) fn verify(&self, is_findable: impl Fn(BlockId) -> bool) {
        let mut count = 0;
        for (id, entry) in (0_u32..).zip(&self.entries) {
            let block = BlockId(id);
            assert_eq!(entry.is_some(), is_findable(block), "cache entry of block {block}");
            if let Some(entry) = entry {
                count += 1;
                let found = self.by_hash.get(&entry.key);
                assert_eq!(found, Some(&block), "hash of block {block}");
            }
        }
        assert_eq!(count, self.by_hash.len(), "entries of the prefix cache");
    }

    fn entry(&self, block: BlockId) -> &Entry {
        match &self.entries[block.index()] {
            Some(entry) => entry,
            None => unreachable!("block {block} is not in the prefix cache"),
        }
    }
}

/// A group's key for a chain hash: the first group's is the hash itself. The map uses the low half.
fn key(group: usize, hash: u128) -> u128 {
    hash ^ (group as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The keys are hashes already.
#[derive(Debug, Default)]
struct TakeLowBits(u64);

impl Hasher for TakeLowBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}
