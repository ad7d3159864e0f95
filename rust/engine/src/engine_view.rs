//! What callers know of one engine without asking its thread: what its prefix cache holds, and which
//! prompts it is still to compute. Callers and the engine thread write; neither waits for the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ingle_core::{CachedBlock, PrefixWatcher};

use crate::hash_table::HashTable;

/// One engine as the routing sees it.
#[derive(Debug)]
pub(crate) struct EngineView {
    /// Chain hashes of the blocks that its prefix cache can find.
    cached: HashTable,
    /// Chain hashes of prompts that it has received and not yet computed. They will be cached.
    expected: HashTable,
    /// Tokens of these prompts that are missing from its cache.
    num_queued: AtomicU64,
}

impl EngineView {
    /// The view of an engine with a pool of `num_blocks` blocks.
    pub(crate) fn new(num_blocks: u32) -> Self {
        let num_blocks = num_blocks as usize;
        Self {
            cached: HashTable::new(num_blocks),
            expected: HashTable::new(num_blocks),
            num_queued: AtomicU64::new(0),
        }
    }

    /// How many of a prompt's first blocks are cached or soon will be; `hashes` are their chain hashes.
    pub(crate) fn num_known(&self, hashes: &[u128]) -> usize {
        let is_known =
            |hash: &&u128| self.cached.contains(**hash) || self.expected.contains(**hash);
        hashes.iter().take_while(is_known).count()
    }

    /// Prompt tokens that the engine still has to compute.
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

/// Counts a prompt as queued on an engine. It is dropped when the prompt has been computed or given up.
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
