//! The hashes that name prefixes: xxh3-128, seeded with a per-boot secret, over the hash of the block
//! before and a block's own token ids. The first block's chain starts at a salt. A hash only finds a
//! candidate; `prefix_cache.rs` compares contents. Any thread.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::{RequestId, TokenId};

/// What comes before a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// Nothing; shared by all requests of this salt.
    Salt(u64),
    /// Nothing; shared by the choices of one prompt, where prefix caching is off.
    Leader(RequestId),
    /// The entry with this serial number.
    Entry(u64),
}

/// Computes the hashes of chains of full blocks.
#[derive(Clone, Debug)]
pub struct ChainHasher {
    block_size: usize,
    secret: u64,
    scratch: Vec<u8>,
}

impl ChainHasher {
    /// Schedulers of the same block size and secret (`SchedulerConfig`) have the same hashes.
    #[must_use]
    pub fn new(block_size: u32, secret: u64) -> Self {
        Self { block_size: block_size as usize, secret, scratch: Vec::new() }
    }

    /// The hash of each full block of a prompt, in order, as a scheduler with prefix caching knows them
    /// for requests of this `cache_salt`.
    #[must_use]
    pub fn of_prompt(&mut self, cache_salt: u64, prompt: &[TokenId]) -> Arc<[u128]> {
        let mut before = self.root(Parent::Salt(cache_salt));
        let blocks = prompt.chunks_exact(self.block_size);
        let mut hashes = Vec::with_capacity(blocks.len());
        for tokens in blocks {
            before = self.next(before, tokens);
            hashes.push(before);
        }
        hashes.into()
    }

    /// Hash of a chain without blocks.
    pub(crate) fn root(&mut self, root: Parent) -> u128 {
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
    pub(crate) fn next(&mut self, before: u128, tokens: &[TokenId]) -> u128 {
        self.scratch.clear();
        self.scratch.extend_from_slice(&before.to_le_bytes());
        self.scratch.extend(tokens.iter().flat_map(|token| token.0.to_le_bytes()));
        xxh3_128_with_seed(&self.scratch, self.secret)
    }
}
