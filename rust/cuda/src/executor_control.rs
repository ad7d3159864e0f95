//! What the engine asks of the executor besides steps: how graphs are used, the end of their recording, another
//! size of the KV pool.

use std::sync::Arc;

use crate::CudaError;
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
