//! What the engine asks of the executor besides steps: how graphs are used, the end of their recording, another
//! size of the KV pool.

use std::sync::Arc;

use ingle_core::{ExecutorError, KvMemory};

use crate::CudaError;
use crate::arena::LARGE_PIECE_BYTES;
use crate::executor::CudaExecutor;
use crate::graphs::{GraphSeal, GraphStats, Graphs};
use crate::group::Member as _;
use crate::launches::LaunchCounters;

impl CudaExecutor {
    /// How far graphs are and how steps were launched; no graphs with `enforce_eager`.
    #[must_use]
    pub fn graph_stats(&self) -> GraphStats {
        let (nodes_max, last_error) =
            self.group.graphs().map(Graphs::nodes_and_error).unwrap_or_default();
        GraphStats { launches: self.launches.read(), nodes_max, last_error }
    }

    /// The same numbers, for readers without the executor.
    #[must_use]
    pub fn launch_counters(&self) -> Arc<LaunchCounters> {
        Arc::clone(&self.launches)
    }

    /// Ends the recording of graphs after the start; `None` where none are recorded.
    #[must_use]
    pub fn graph_seal(&self) -> Option<GraphSeal> {
        self.group.graphs().map(Graphs::seal)
    }

    /// Blocks until every graph asked for is recorded. For benchmarks and tests.
    pub fn wait_for_graphs(&self) {
        for graphs in self.group.ranks().iter().filter_map(|rank| rank.graphs.as_ref()) {
            graphs.wait_until_idle();
        }
    }

    /// The sizes of the KV pool; of one GPU, since the ranks of a group would have to agree.
    pub(crate) fn pool_memory(&self) -> Option<KvMemory> {
        let [rank] = self.group.ranks() else { return None };
        let kv = &rank.model.kv;
        Some(KvMemory {
            bytes: kv.mapped_bytes(),
            most_bytes: kv.reserved_bytes(),
            block_bytes: kv.block_bytes(),
            piece_bytes: LARGE_PIECE_BYTES,
        })
    }

    /// Gives the KV pool another size; the bytes that it then has.
    pub(crate) fn resized_pool(&mut self, bytes: u64) -> Result<u64, ExecutorError> {
        self.check_lost()?;
        let grows = bytes > self.group.model().kv.mapped_bytes();
        match self.resize_kv_pool(bytes) {
            Err(error) if error.is_sticky() => Err(self.note(&error)),
            Err(error) if !grows => Err(ExecutorError::Unchanged(error.to_string())),
            // A pool that has got a part of what it was to get can use that.
            Ok(_) | Err(_) => Ok(self.group.model().kv.mapped_bytes()),
        }
    }

    /// Gives the KV pool this many bytes, rounded up to whole pieces; returns the blocks it then holds.
    /// Waits for the device. The caller names no block beyond the smaller pool any more.
    ///
    /// # Errors
    /// Out of memory, with numbers. The pool then keeps the blocks that it has; `shape` gives their number.
    pub fn resize_kv_pool(&mut self, bytes: u64) -> Result<u32, CudaError> {
        self.group.leader().make_current()?;
        self.group.synchronise()?;
        let resized = self.group.each(|_, rank| rank.model.kv.resize(&rank.stream, bytes));
        let blocks = self.group.ranks().iter().map(|rank| rank.model.kv.num_blocks());
        self.shape.num_blocks = blocks.min().unwrap_or(0);
        resized.map(|()| self.shape.num_blocks)
    }
}
