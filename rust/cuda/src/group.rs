//! [5] The ranks that run a step together. Engine thread only.
//!
//! A rank's kernels wait for those of the others, so two rules hold. Nothing that may wait for a device comes between the
//! first and the last rank's launch of a step: uploads of all ranks come before. And a rank that fails takes the group
//! with it: `abort` ends the waits of the others, and the executor is lost.

use std::sync::Arc;

use crate::CudaError;
use crate::exchange::ExchangeMemory;
use crate::graph::GraphExec;
use crate::graphs::Graphs;
use crate::model::{Model, StepShape};
use crate::rank::Rank;
use crate::stream::Stream;

/// A rank as a group sees it.
pub(crate) trait Member {
    /// Makes its device's context current.
    fn make_current(&self) -> Result<(), CudaError>;

    /// Where its steps run.
    fn stream(&self) -> &Stream;
}

impl Member for Rank {
    fn make_current(&self) -> Result<(), CudaError> {
        self.model.context.make_current()
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }
}

/// One rank, or several that exchange partial sums.
#[derive(Debug)]
pub(crate) struct Group<R = Rank> {
    ranks: Vec<R>,
    /// `None` with one rank.
    exchange: Option<Arc<ExchangeMemory>>,
}

impl<R: Member> Group<R> {
    /// The rank whose results go to the host.
    pub(crate) fn leader(&self) -> &R {
        &self.ranks[0]
    }

    pub(crate) fn ranks(&self) -> &[R] {
        &self.ranks
    }

    /// Queues a step: the uploads of all ranks, then the launches of all ranks in order.
    ///
    /// # Errors
    /// As `each`.
    pub(crate) fn step(
        &self,
        mut upload: impl FnMut(&R) -> Result<(), CudaError>,
        launch: impl FnMut(usize, &R) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        self.each(|_, rank| upload(rank))?;
        self.each(launch)
    }

    /// Calls `work` for each rank in order, with its context current; then the leader's is current again.
    ///
    /// # Errors
    /// The first of them; with several ranks it names the rank, and those behind it were not called.
    pub(crate) fn each(
        &self,
        mut work: impl FnMut(usize, &R) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let Some(exchange) = &self.exchange else { return work(0, &self.ranks[0]) };
        for (number, rank) in self.ranks.iter().enumerate() {
            let done = rank.make_current().and_then(|()| work(number, rank));
            done.map_err(|source| CudaError::Rank {
                name: exchange.fault.name(number),
                source: Box::new(source),
            })?;
        }
        self.leader().make_current()
    }

    /// Ends the waits of all ranks.
    pub(crate) fn abort(&self) {
        if let Some(exchange) = &self.exchange {
            exchange.fault.abort();
        }
    }

    /// Waits until everything queued on all ranks has run. Blocking.
    pub(crate) fn synchronise(&self) -> Result<(), CudaError> {
        let mut result = Ok(());
        for rank in &self.ranks {
            let waited = rank.make_current().and_then(|()| rank.stream().synchronise());
            result = result.and(waited);
        }
        result.and(self.leader().make_current())
    }

    pub(crate) fn exchange(&self) -> Option<&Arc<ExchangeMemory>> {
        self.exchange.as_ref()
    }
}

impl Group {
    /// Ranks in order; with more than one, each knows its place.
    pub(crate) fn new(ranks: Vec<Rank>) -> Self {
        assert!(!ranks.is_empty(), "a group of no ranks");
        let exchange = ranks[0].model.place.as_ref().map(|place| Arc::clone(&place.memory));
        Self { ranks, exchange }
    }

    /// The leader's model.
    pub(crate) fn model(&self) -> &Arc<Model> {
        &self.ranks[0].model
    }

    /// The graphs of a shape, if all ranks have it.
    pub(crate) fn ready(&self, shape: StepShape) -> Option<Vec<Arc<GraphExec>>> {
        let ready = |rank: &Rank| rank.graphs.as_ref().and_then(|graphs| graphs.ready(shape));
        self.ranks.iter().map(ready).collect()
    }

    /// Ends the threads that record graphs.
    pub(crate) fn drop_graphs(&mut self) {
        for rank in &mut self.ranks {
            // The driver needs it to free what is dropped. An error (a lost device) cannot be reported here.
            let _ = rank.make_current();
            rank.graphs = None;
        }
        let _ = self.leader().make_current();
    }

    /// Those of the leader.
    pub(crate) fn graphs(&self) -> Option<&Graphs> {
        self.leader().graphs.as_ref()
    }
}

#[cfg(test)]
mod tests;
