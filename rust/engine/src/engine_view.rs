//! What callers see of one engine without asking its thread: what its prefix cache holds, and which
//! prompts are on their way to it. Callers and the engine thread write; nobody waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ingle_core::{CachedBlock, PrefixWatcher};

use crate::hash_table::HashTable;

/// One engine as the routing sees it.
#[derive(Debug)]
pub(crate) struct EngineView {
    /// Chain hashes of the blocks that its prefix cache can find.
    cached: HashTable,
    /// Those of prompts that were sent to it and are not computed: they will be cached.
    expected: HashTable,
    /// Tokens of these prompts that it has to compute.
    num_queued: AtomicU64,
}

impl EngineView {
    /// For a pool of so many blocks.
    pub(crate) fn new(num_blocks: u32) -> Self {
        let num_blocks = num_blocks as usize;
        Self {
            cached: HashTable::new(num_blocks),
            expected: HashTable::new(num_blocks),
            num_queued: AtomicU64::new(0),
        }
    }

    /// How many of a prompt's first blocks, given by their chain hashes, it has or is about to have.
    pub(crate) fn num_known(&self, hashes: &[u128]) -> usize {
        let is_known =
            |hash: &&u128| self.cached.contains(**hash) || self.expected.contains(**hash);
        hashes.iter().take_while(is_known).count()
    }

    /// Prompt tokens that it has still to compute.
    pub(crate) fn num_queued(&self) -> u64 {
        self.num_queued.load(Ordering::Relaxed)
    }
}

impl PrefixWatcher for EngineView {
    fn added(&self, block: &CachedBlock<'_>) {
        self.cached.insert(block.hash);
    }

    fn removed(&self, hash: u128, _serial: u64) {
        self.cached.remove(hash);
    }

    fn cleared(&self) {
        self.cached.clear();
    }
}

/// A prompt on its way to an engine, until this is dropped: when it is computed, or will not be.
#[derive(Debug)]
pub(crate) struct QueuedPrompt {
    view: Arc<EngineView>,
    hashes: Arc<[u128]>,
    num_tokens: u64,
}

impl QueuedPrompt {
    /// `num_tokens`: those that the engine has to compute.
    pub(crate) fn new(view: &Arc<EngineView>, hashes: &Arc<[u128]>, num_tokens: u64) -> Self {
        view.num_queued.fetch_add(num_tokens, Ordering::Relaxed);
        hashes.iter().for_each(|&hash| view.expected.insert(hash));
        Self { view: Arc::clone(view), hashes: Arc::clone(hashes), num_tokens }
    }
}

impl Drop for QueuedPrompt {
    fn drop(&mut self) {
        self.view.num_queued.fetch_sub(self.num_tokens, Ordering::Relaxed);
        self.hashes.iter().for_each(|&hash| self.view.expected.remove(hash));
    }
}

#[cfg(test)]
mod tests {
    use ingle_core::Parent;

    use super::*;

    #[test]
    fn a_prompt_counts_from_its_way_there_until_it_is_evicted() {
        let view = Arc::new(EngineView::new(64));
        let hashes: Arc<[u128]> = (1..=5).map(|number| number << 64 | number).collect();
        let queued = QueuedPrompt::new(&view, &hashes, 70);
        assert_eq!((view.num_known(&hashes), view.num_queued()), (5, 70));
        let block = |hash| CachedBlock { hash, serial: 0, parent: Parent::Salt(0), tokens: &[] };
        hashes[..4].iter().for_each(|&hash| view.added(&block(hash)));
        drop(queued);
        assert_eq!((view.num_known(&hashes), view.num_queued()), (4, 0));
        view.removed(hashes[2], 0);
        assert_eq!(view.num_known(&hashes), 2, "only a whole prefix is of use");
        view.cleared();
        assert_eq!(view.num_known(&hashes), 0);
    }
}
