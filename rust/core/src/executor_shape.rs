//! What an executor is: sizes that it fixed at start, and how deep it can sleep. Plain data.

use crate::{KvGroups, Micros};

/// Sizes that an executor fixed at start; the scheduler is built from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorShape {
    /// KV blocks in the pool.
    pub num_blocks: u32,
    /// Tokens a block.
    pub block_size: u32,
    /// Groups of layers that keep the same part of a sequence. A block belongs to one of them at a time.
    pub kv_groups: KvGroups,
    /// Layers keep a state of a slot's whole sequence besides: a request can begin with blocks of another one
    /// only where there is a copy of the state after their tokens.
    pub keeps_state: bool,
    /// Room for such copies; without any, requests share nothing.
    pub num_snapshots: u32,
    /// Slots; more than the rows of a step, since leaving requests still hold theirs.
    pub num_slots: u32,
    /// Most rows of one step.
    pub max_num_seqs: u32,
    /// Most token rows of one step.
    pub max_num_batched_tokens: u32,
    /// Steps that may be submitted and not yet completed: 1, or 2 to stay one step ahead.
    pub max_steps_in_flight: u32,
    /// The scheduler keeps the token rows of a step just under a multiple of this; 1 for no preference.
    pub row_tile: u32,
    /// Token rows of a step beside requests that decode, up to which a prompt token costs least;
    /// at least `max_num_batched_tokens` for no preference.
    pub steady_rows: u32,
    /// Most token rows of a step beside requests that decode, however late prompts are.
    pub busy_rows: u32,
    /// About how long a step of `busy_rows` holds those requests up. A prompt that has waited no longer gets what is
    /// cheap.
    pub pause: Micros,
    /// Token rows that one of several active tenants may have in a step: about as many as are computed while the
    /// weights are read.
    pub tenant_rows: u32,
    /// Ids of a vocabulary of this size come back; masks have one bit for each.
    pub vocab_size: u32,
}

impl ExecutorShape {
    /// Most requests that run: a step must hold a row for each one that decodes.
    pub(crate) fn max_running(&self) -> u32 {
        self.max_num_seqs.min(self.max_num_batched_tokens)
    }
}

/// What an executor gives back while it sleeps: each level includes those before it. vLLM numbers them so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SleepLevel {
    /// Nothing.
    Pause = 0,
    /// KV blocks, and weights on the device. A device other than the host may keep a copy of them in host memory.
    Offload = 1,
    /// That copy too.
    Discard = 2,
}

impl SleepLevel {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pause, Self::Offload, Self::Discard];
}

/// What an executor's KV pool has and can have, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvMemory {
    /// What it has now.
    pub bytes: u64,
    /// What it has addresses for.
    pub most_bytes: u64,
    /// One block.
    pub block_bytes: u64,
    /// Memory comes and goes in multiples of this.
    pub piece_bytes: u64,
}

impl KvMemory {
    /// Of an executor that can have any number of blocks.
    #[must_use]
    pub fn of_blocks(num_blocks: u32, block_bytes: u64) -> Self {
        Self {
            bytes: u64::from(num_blocks) * block_bytes,
            most_bytes: u64::from(u32::MAX) * block_bytes,
            block_bytes,
            piece_bytes: block_bytes,
        }
    }

    /// Whole blocks in a pool of so many bytes.
    #[must_use]
    pub fn blocks_in(&self, bytes: u64) -> u32 {
        u32::try_from(bytes / self.block_bytes.max(1)).unwrap_or(u32::MAX)
    }
}

/// For unit tests: an 8B model on an H200.
#[cfg(test)]
pub(crate) fn of_an_h200() -> ExecutorShape {
    ExecutorShape {
        num_blocks: 1000,
        block_size: 64,
        kv_groups: KvGroups::ONE,
        keeps_state: false,
        num_snapshots: 0,
        num_slots: 512,
        max_num_seqs: 256,
        max_num_batched_tokens: 2048,
        max_steps_in_flight: 2,
        row_tile: 128,
        tenant_rows: 192,
        steady_rows: 384,
        busy_rows: 1408,
        pause: Micros(30_000),
        vocab_size: 1000,
    }
}
