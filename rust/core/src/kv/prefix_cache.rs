//! Which full blocks hold the KV of which tokens. Engine thread only.
//!
//! A block's key is a chain hash: xxh3-128, seeded with a per-boot secret, over the previous block's
//! hash and its own token ids. The first block's chain starts at a salt. The hash only finds a
//! candidate. A hit compares the token ids and the *identity* of the parent, so by induction the whole
//! prefix is equal even if hashes collide. Contents decide, never a hash that a client could choose. An
//! entry's serial number is never reused, so the children of a removed entry cannot be found any more.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::{BlockId, RequestId, StepId, TokenId};

/// What comes before a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// Nothing; shared by all requests of this salt.
    Salt(u64),
    /// Nothing; shared by the choices of one prompt, where prefix caching is off.
    Leader(RequestId),
    /// The entry with this serial number.
    Entry(u64),
}

/// Map from chain hash to block, and each block's content.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    by_hash: HashMap<u128, BlockId, BuildHasherDefault<TakeLowBits>>,
    entries: Vec<Option<Entry>>,
    /// `[num_blocks, block_size]`, valid where the block has an entry.
    tokens: Vec<TokenId>,
    block_size: usize,
    secret: u64,
    next_serial: u64,
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u128,
    parent: Parent,
    serial: u64,
    /// The step that fills the block; it may still be in flight.
    step: StepId,
}

impl PrefixCache {
    pub(crate) fn new(num_blocks: u32, block_size: u32, secret: u64) -> Self {
        let (num_blocks, block_size) = (num_blocks as usize, block_size as usize);
        Self {
            // All of it at once: a table that grows would stall one step.
            by_hash: HashMap::with_capacity_and_hasher(num_blocks, BuildHasherDefault::default()),
            entries: vec![None; num_blocks],
            tokens: vec![TokenId(0); num_blocks * block_size],
            block_size,
            secret,
            next_serial: 1,
            scratch: Vec::new(),
        }
    }

    /// Hash of a chain without blocks.
    pub(crate) fn root_hash(&mut self, root: Parent) -> u128 {
        let (kind, number) = match root {
            Parent::Salt(salt) => (0_u8, salt),
            Parent::Leader(id) => (1, id.0),
            Parent::Entry(_) => unreachable!("an entry is not the root of a chain"),
        };
        self.scratch.clear();
        self.scratch.push(kind);
        self.scratch.extend_from_slice(&number.to_le_bytes());
        xxh3_128_with_seed(&self.scratch, self.secret)
    }

    /// Hash of the chain that ends with a block of these tokens.
    pub(crate) fn chain_hash(&mut self, before: u128, tokens: &[TokenId]) -> u128 {
        self.scratch.clear();
        self.scratch.extend_from_slice(&before.to_le_bytes());
        self.scratch.extend(tokens.iter().flat_map(|token| token.0.to_le_bytes()));
        xxh3_128_with_seed(&self.scratch, self.secret)
    }

    /// The block with this hash; its content may still differ.
    pub(crate) fn block_of(&self, hash: u128) -> Option<BlockId> {
        self.by_hash.get(&hash).copied()
    }

    /// Whether the block holds exactly these tokens behind exactly this parent.
    pub(crate) fn matches(&self, block: BlockId, parent: Parent, tokens: &[TokenId]) -> bool {
        let first = block.index() * self.block_size;
        self.entries[block.index()].is_some_and(|entry| entry.parent == parent)
            && self.tokens[first..first + self.block_size] == *tokens
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
    pub(crate) fn insert(
        &mut self,
        block: BlockId,
        hash: u128,
        parent: Parent,
        tokens: &[TokenId],
        step: StepId,
    ) -> Parent {
        let serial = self.next_serial;
        self.next_serial += 1;
        let first = block.index() * self.block_size;
        self.tokens[first..first + self.block_size].copy_from_slice(tokens);
        let old = self.entries[block.index()].replace(Entry { hash, parent, serial, step });
        assert!(old.is_none(), "block {block} is in the prefix cache twice");
        let old = self.by_hash.insert(hash, block);
        assert!(old.is_none(), "blocks {block} and {old:?} have one hash");
        Parent::Entry(serial)
    }

    /// Removes the block's entry; false if it has none.
    pub(crate) fn remove(&mut self, block: BlockId) -> bool {
        let Some(entry) = self.entries[block.index()].take() else { return false };
        let removed = self.by_hash.remove(&entry.hash);
        assert_eq!(removed, Some(block), "the block found under the hash of block {block}");
        true
    }

    /// Full recount; `is_findable` is the pool's view of each block.
    pub(crate) fn verify(&self, is_findable: impl Fn(BlockId) -> bool) {
        let mut count = 0;
        for (id, entry) in (0_u32..).zip(&self.entries) {
            let block = BlockId(id);
            assert_eq!(entry.is_some(), is_findable(block), "cache entry of block {block}");
            if let Some(entry) = entry {
                count += 1;
                assert_eq!(self.block_of(entry.hash), Some(block), "hash of block {block}");
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
