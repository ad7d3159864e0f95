//! The KV pool of an engine whose model shares a device's memory with others: its sizes, and the change that is under
//! way. Plain data; resize.rs works on it.

use std::time::Instant;

use ingle_core::{KvMemory, PoolMemory};

use crate::error::EngineError;

/// An engine's pool, and the change that is under way.
#[derive(Debug)]
pub(crate) struct Balloon {
    pub(crate) memory: KvMemory,
    pub(crate) pool: PoolMemory,
    /// What the executor has now.
    pub(crate) bytes: u64,
    /// What the memory heard last.
    pub(crate) wants: u64,
    pub(crate) job: Option<Job>,
}

/// A new size, and how far it has got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) bytes: u64,
    /// Running requests may be preempted for it.
    pub(crate) preempts: bool,
    /// The executor works on a part of it.
    pub(crate) is_asked: bool,
    pub(crate) began: Instant,
}

/// What a pool with these sizes may do. `most`: the option that lets it grow; `useful`: bytes that all requests which
/// may run can fill, since what lists the blocks takes memory too.
///
/// # Errors
/// `EngineError::Model`, which names the option.
pub(crate) fn pool_memory(
    memory: Option<KvMemory>,
    most: Option<u64>,
    useful: u64,
) -> Result<PoolMemory, EngineError> {
    let Some(memory) = memory else {
        return match most {
            None => Ok(PoolMemory::default()),
            Some(_) => Err(EngineError::Model(FIXED.to_owned())),
        };
    };
    let most = most.unwrap_or(memory.bytes);
    if most < memory.bytes {
        return Err(EngineError::Model(format!(
            "kv_cache_max_memory_bytes: {most} is less than the {} bytes that the KV pool has from the start",
            memory.bytes
        )));
    }
    let piece = memory.piece_bytes.max(memory.block_bytes);
    Ok(PoolMemory {
        share: memory.bytes,
        most: most.min(memory.most_bytes).min(useful.max(memory.bytes)),
        floor: (memory.bytes / FLOOR_PART).next_multiple_of(piece.max(1)).min(memory.bytes),
        piece,
    })
}

impl Balloon {
    pub(crate) fn new(memory: KvMemory, pool: PoolMemory) -> Self {
        Self { memory, pool, bytes: memory.bytes, wants: 0, job: None }
    }

    /// Blocks that the pool can ever have.
    pub(crate) fn most_blocks(&self) -> u32 {
        self.memory.blocks_in(self.pool.most)
    }
}

/// An idle model keeps this part of its share, so that it can begin at once.
const FLOOR_PART: u64 = 8;
const FIXED: &str = "kv_cache_max_memory_bytes: the KV pool can only grow where models share a device's memory \
                     (--device-memory-bytes) and each has one engine of one rank";
