//! Counters for /metrics: how many graphs are recorded, and how steps reached the device. The
//! capture thread counts graphs, the engine thread steps; any thread reads, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of one executor.
#[derive(Debug, Default)]
pub struct LaunchCounters {
    pub(crate) graphs_ready: AtomicU64,
    pub(crate) graphs_waiting: AtomicU64,
    pub(crate) graphs_failed: AtomicU64,
    pub(crate) steps_replayed: AtomicU64,
    pub(crate) steps_plain: AtomicU64,
}

/// What they said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchStats {
    /// Graphs that were captured.
    pub graphs_ready: u64,
    /// Graphs that were asked for and are neither captured nor given up.
    pub graphs_waiting: u64,
    /// Graphs that could not be captured; their steps stay plain.
    pub graphs_failed: u64,
    /// Steps that were one launch of a graph.
    pub steps_replayed: u64,
    /// Steps whose kernels were launched one by one.
    pub steps_plain: u64,
}

impl LaunchCounters {
    /// The current numbers. A graph is counted in one of the other two before it leaves `graphs_waiting`.
    #[must_use]
    pub fn read(&self) -> LaunchStats {
        let graphs_waiting = self.graphs_waiting.load(Ordering::Acquire);
        LaunchStats {
            graphs_waiting,
            graphs_ready: self.graphs_ready.load(Ordering::Relaxed),
            graphs_failed: self.graphs_failed.load(Ordering::Relaxed),
            steps_replayed: self.steps_replayed.load(Ordering::Relaxed),
            steps_plain: self.steps_plain.load(Ordering::Relaxed),
        }
    }

    /// A graph is asked for.
    pub(crate) fn ask(&self) {
        self.graphs_waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// A graph that was asked for is there, or will never be.
    pub(crate) fn settle(&self, is_ready: bool) {
        let counter = if is_ready { &self.graphs_ready } else { &self.graphs_failed };
        counter.fetch_add(1, Ordering::Relaxed);
        self.graphs_waiting.fetch_sub(1, Ordering::Release);
    }

    /// A step was launched.
    pub(crate) fn launched(&self, is_replay: bool) {
        let counter = if is_replay { &self.steps_replayed } else { &self.steps_plain };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_its_number() {
        let counters = LaunchCounters::default();
        for _ in 0..6 {
            counters.ask();
        }
        for is_ready in [true, false, false] {
            counters.settle(is_ready);
        }
        for is_replay in [true, true, true, true, false] {
            counters.launched(is_replay);
        }
        let want = LaunchStats {
            graphs_ready: 1,
            graphs_failed: 2,
            graphs_waiting: 3,
            steps_replayed: 4,
            steps_plain: 1,
        };
        assert_eq!(counters.read(), want);
    }
}
