//! Runs sequences through a model in several ways and returns the logits of every position.

use std::path::Path;

use ingle_core::{BlockId, SlotId, SnapshotId, StateCopy, TokenId};
use ingle_cpu::{CpuConfig, CpuError, CpuPath, LOGIT_ROWS, Model, Sequence, kv_groups};

/// A loaded model with room for a few sequences.
pub(crate) struct Runner {
    pub(crate) model: Model,
    block_size: u32,
}

/// A sequence that runs: all its tokens, how many were computed, its blocks.
pub(crate) struct Running {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) done: usize,
    pub(crate) tables: Vec<Vec<BlockId>>,
    pub(crate) slot: SlotId,
    /// Copies of the state to be made in the next step.
    pub(crate) saves: Vec<StateCopy>,
    pub(crate) logits: Vec<Vec<f32>>,
}

const MAX_LEN: u32 = 512;

impl Runner {
    pub(crate) fn new(path: &Path, block_size: u32, vector_path: CpuPath) -> Self {
        Self::try_new(path, block_size, vector_path).expect("vector path")
    }

    /// `None` if the processor lacks the path.
    pub(crate) fn try_new(path: &Path, block_size: u32, vector_path: CpuPath) -> Option<Self> {
        match Self::load(path, block_size, CpuConfig { path: vector_path, ..CpuConfig::default() })
        {
            Ok(runner) => Some(runner),
            Err(CpuError::PathUnsupported(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// A model divided among ranks; `None` if it cannot be.
    pub(crate) fn of_ranks(
        path: &Path,
        tensor_parallel_size: u32,
        expert_parallel: bool,
    ) -> Option<Self> {
        let config = CpuConfig { tensor_parallel_size, expert_parallel, ..CpuConfig::default() };
        match Self::load(path, 16, config) {
            Ok(runner) => Some(runner),
            Err(CpuError::Partition(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn load(path: &Path, block_size: u32, config: CpuConfig) -> Result<Self, CpuError> {
        let checkpoint = ingle_model::open(path).expect("checkpoint");
        let config = CpuConfig {
            block_size,
            num_blocks: 16 * MAX_LEN / block_size * kv_groups(&checkpoint.spec).len() as u32,
            num_snapshots: 1,
            max_model_len: MAX_LEN,
            max_num_batched_tokens: 2048,
            ..config
        };
        let source = &*checkpoint.source;
        let model = Model::load(&checkpoint.spec, &checkpoint.plan, source, &config)?;
        Ok(Self { model, block_size })
    }

    pub(crate) fn block_size(&self) -> usize {
        self.block_size as usize
    }

    /// The state of a sequence after so many tokens, where layers keep one.
    pub(crate) fn copy(&self, running: &Running, end: usize) -> StateCopy {
        StateCopy { slot: running.slot, end: end as u32, snapshot: SnapshotId(0) }
    }

    pub(crate) fn restore(&mut self, copy: &StateCopy) {
        self.model.restore(copy);
    }

    /// A sequence whose blocks are its own; `place` keeps sequences apart.
    pub(crate) fn running(&self, ids: &[u32], place: u32) -> Running {
        let per_sequence = MAX_LEN / self.block_size;
        let groups = kv_groups(self.model.spec()).len() as u32;
        // From high to low, so that neighbours in the sequence are not neighbours in memory.
        let table = |group| {
            let first = (place * groups + group) * per_sequence;
            (0..per_sequence).rev().map(|i| BlockId(first + i)).collect()
        };
        let tables = (0..groups).map(table).collect();
        let tokens = ids.iter().map(|id| TokenId(*id)).collect();
        Running {
            tokens,
            done: 0,
            tables,
            slot: SlotId::first(place),
            saves: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// One step: the next `count` tokens of each sequence.
    pub(crate) fn step(&mut self, parts: &mut [(&mut Running, usize)]) {
        let sequences: Vec<Sequence<'_>> = parts
            .iter()
            .map(|(running, count)| Sequence {
                tokens: &running.tokens[running.done..running.done + count],
                start: running.done as u32,
                tables: &running.tables,
                slot: running.slot,
                saves: &running.saves,
            })
            .collect();
        self.model.forward(&sequences);
        let mut row = 0;
        for (running, count) in parts {
            let rows: Vec<usize> = (row..row + *count).collect();
            for slice in rows.chunks(LOGIT_ROWS) {
                self.model.compute_logits(slice);
                for index in 0..slice.len() {
                    running.logits.push(self.model.logit_row(index).to_vec());
                }
            }
            row += *count;
            running.done += *count;
        }
    }

    /// The whole sequence at once.
    pub(crate) fn plain(&mut self, ids: &[u32]) -> Vec<Vec<f32>> {
        let mut running = self.running(ids, 0);
        self.step(&mut [(&mut running, ids.len())]);
        running.logits
    }
}
