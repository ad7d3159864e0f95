//! The executor's state of one running request. Driver thread only. All of it can be rebuilt from
//! the request's token ids.

use std::sync::Arc;

use ingle_core::{BlockId, KvGroups, OpenedSlot, SamplingParams, SlotId, TokenId};

use crate::sampler::History;

/// One open slot.
#[derive(Debug)]
pub(crate) struct Slot {
    /// With the owner that it was opened for.
    pub(crate) id: SlotId,
    pub(crate) sampling: Arc<SamplingParams>,
    /// One block table a KV group.
    pub(crate) tables: Vec<Vec<BlockId>>,
    pub(crate) last_sampled: Option<TokenId>,
    pub(crate) history: History,
    pub(crate) pooled: MeanPool,
}

impl Slot {
    /// Nothing if the cached blocks are not as many for each group.
    pub(crate) fn open(opened: OpenedSlot, groups: &KvGroups) -> Option<Self> {
        let tables = groups.split(&opened.cached_blocks)?.map(<[_]>::to_vec).collect();
        let history = History::new(&opened.sampling, &opened.prompt, &opened.generated);
        Some(Self {
            id: opened.slot,
            sampling: opened.sampling,
            tables,
            last_sampled: None,
            history,
            pooled: MeanPool::default(),
        })
    }
}

/// The running mean of a prompt's hidden states: one chain by rising position, in f64.
#[derive(Debug, Default)]
pub(crate) struct MeanPool {
    sums: Vec<f64>,
    count: u32,
}

impl MeanPool {
    pub(crate) fn add(&mut self, hidden: &[f32]) {
        self.sums.resize(hidden.len(), 0.0);
        for (sum, x) in self.sums.iter_mut().zip(hidden) {
            *sum += f64::from(*x);
        }
        self.count += 1;
    }

    pub(crate) fn mean(&self) -> Vec<f32> {
        self.sums.iter().map(|sum| (sum / f64::from(self.count)) as f32).collect()
    }
}
