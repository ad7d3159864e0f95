//! What the engine asks of the scheduler as a whole, and sets in it, between steps. Engine thread only.

use std::sync::Arc;

use crate::scheduler::Scheduler;
use crate::{Limits, PrefixWatcher};

impl Scheduler {
    /// Whether requests share computed prefixes.
    #[must_use]
    pub fn shares_prefixes(&self) -> bool {
        self.enable_prefix_caching
    }

    /// From now on reports to `watcher` which prefixes the cache can find.
    ///
    /// # Panics
    /// If requests have run.
    pub fn watch_prefixes(&mut self, watcher: Arc<dyn PrefixWatcher>) {
        self.kv.prefix.watch(watcher);
    }

    /// From now on steps have at most so many token rows, where there are parts of prompts to leave out.
    pub fn limit_rows(&mut self, most_rows: u32) {
        self.most_rows = most_rows;
    }

    /// Whether waiting requests start from now on; running ones go on in any case.
    pub fn let_start(&mut self, starts: bool) {
        self.starts = starts;
    }

    /// Whether no request runs and no step is in flight; others may wait.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.running.num_holding() == 0 && self.in_flight.is_empty()
    }

    /// Forgets all cached prefixes; returns how many blocks could be found. Running requests keep their
    /// blocks, but nobody shares them any more.
    pub fn clear_prefix_cache(&mut self) -> u32 {
        self.snapshots.forget_all();
        self.kv.forget_all()
    }

    /// Whether the pool has fewer blocks than at the start, so that a request may have to wait for memory.
    pub(crate) fn lacks_memory(&self) -> bool {
        self.kv.pool.end() < self.shape.num_blocks
    }

    /// The stateless part of admission, for other threads.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether there is nothing to do: no request waits or runs and no step is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.has_requests() && self.in_flight.is_empty()
    }

    /// Whether a request waits or runs; of those that have ended, a step may still be in flight.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.requests.num_alive() > 0
    }
}
