//! An engine whose KV pool grows when requests need more than it has and there is memory, and gives memory back on
//! demand. The policy is the core's (`DeviceMemory`); this is an engine thread's part of it, a bounded amount of work
//! a round. swap.rs moves whole models.

use std::sync::Arc;
use std::time::Instant;

use ingle_core::{ExecutorError, ResizeSink};

use crate::balloon::{Balloon, Job};
use crate::engine_thread::EngineThread;
use crate::inbox::Message;
use crate::presence::Presence;

impl EngineThread {
    /// From now on the pool grows and shrinks.
    pub(crate) fn with_balloon(mut self, balloon: Option<Balloon>) -> Self {
        if let Some(balloon) = &balloon {
            self.scheduler.reserve_blocks(balloon.most_blocks());
        }
        self.balloon = balloon;
        self
    }

    /// The memory asks for another size.
    pub(crate) fn begin_resize(&mut self, bytes: u64, preempts: bool) {
        if let Some(balloon) = &mut self.balloon {
            balloon.job = Some(Job { bytes, preempts, is_asked: false, began: Instant::now() });
        }
    }

    /// Whether the next round should come without a message: there are blocks to forget.
    pub(crate) fn resizes_on(&self) -> bool {
        let Some(Balloon { memory, job: Some(job), .. }) = &self.balloon else { return false };
        !job.is_asked && memory.blocks_in(job.bytes) < self.scheduler.pool_blocks()
    }

    /// Whether a change of the pool is under way: the model leaves after it.
    pub(crate) fn is_resizing(&self) -> bool {
        self.balloon.as_ref().is_some_and(|balloon| balloon.job.is_some())
    }

    /// A round's part of the change. Growing is one call of the executor. To shrink, blocks are no longer handed
    /// out, prefixes in them are forgotten, and what runs there is waited for or preempted; then the executor gets a
    /// bounded part of the memory to give back.
    pub(crate) fn resize_on(&mut self) {
        let Some(balloon) = &mut self.balloon else { return };
        let (memory, has) = (balloon.memory, balloon.bytes);
        let Some(job) = &mut balloon.job else { return };
        if job.is_asked {
            return;
        }
        let target = if job.bytes >= has {
            job.bytes
        } else {
            if !self.scheduler.shrink_pool(memory.blocks_in(job.bytes), BLOCKS_A_ROUND) {
                return;
            }
            if job.preempts {
                self.scheduler.preempt_beyond();
                if self.scheduler.num_blocks_beyond() > 0 {
                    // Steps in flight still name them.
                    return;
                }
            } else if self.scheduler.num_blocks_beyond() > 0 {
                // Requests have come meanwhile and keep what they hold.
                let least = u64::from(self.scheduler.least_pool()) * memory.block_bytes;
                job.bytes = least.next_multiple_of(memory.piece_bytes.max(1)).min(has);
                self.scheduler.grow_pool(memory.blocks_in(job.bytes));
            }
            job.bytes.max(has.saturating_sub(BYTES_A_ROUND))
        };
        job.is_asked = true;
        let shared = Arc::clone(&self.shared);
        let done: ResizeSink = Box::new(move |resized| {
            // A closed inbox: the engine has stopped.
            let _ = shared.inbox.put(Message::Resized(resized));
        });
        self.executor.resize_kv(target, done);
    }

    /// The executor has changed the pool. A lost device is an error.
    pub(crate) fn resized(&mut self, resized: Result<u64, ExecutorError>) -> Result<(), String> {
        let Some(balloon) = &mut self.balloon else { return Ok(()) };
        let Some(job) = &mut balloon.job else { return Ok(()) };
        job.is_asked = false;
        let before = balloon.bytes;
        let is_over = match resized {
            Ok(bytes) => {
                balloon.bytes = bytes;
                if bytes < before && bytes <= job.bytes {
                    let took = job.began.elapsed().as_micros();
                    let took = u64::try_from(took).unwrap_or(u64::MAX);
                    self.shared.metrics.give_back.observe(took);
                }
                // It has got there, or the executor has no smaller piece.
                bytes <= job.bytes || bytes >= before
            }
            Err(error @ ExecutorError::DeviceLost(_)) => return Err(error.to_string()),
            Err(_) => true,
        };
        if !is_over {
            return Ok(());
        }
        balloon.job = None;
        let bytes = balloon.bytes;
        self.scheduler.grow_pool(balloon.memory.blocks_in(bytes));
        if let Some(turns) = &self.turns {
            turns.resized(bytes);
        }
        Ok(())
    }

    /// Tells the memory what the pool could make use of, when that has changed.
    pub(crate) fn ask_for_pool(&mut self) {
        let Some(balloon) = &mut self.balloon else { return };
        if self.presence != Presence::Here || balloon.job.is_some() {
            return;
        }
        let wanted = u64::from(self.scheduler.wanted_blocks()) * balloon.memory.block_bytes;
        let lacks = wanted > balloon.bytes && balloon.bytes < balloon.pool.most;
        // A little more each time would be many changes.
        let wanted = if lacks { wanted.max(balloon.bytes + balloon.bytes / 4) } else { 0 };
        let wants = wanted.min(balloon.pool.most);
        let old = std::mem::replace(&mut balloon.wants, wants);
        if wants != old
            && let Some(turns) = &self.turns
        {
            turns.want_pool(wants);
        }
    }

    /// The model leaves: what the pool has beyond its share does not come back with it. False while the executor
    /// works on that.
    pub(crate) fn drop_surplus(&mut self) -> bool {
        let Some(balloon) = &mut self.balloon else { return true };
        balloon.wants = 0;
        if balloon.job.is_none() && balloon.bytes > balloon.pool.share {
            let (bytes, began) = (balloon.pool.share, Instant::now());
            balloon.job = Some(Job { bytes, preempts: true, is_asked: false, began });
        }
        while self.resizes_on() {
            self.resize_on();
        }
        !self.is_resizing()
    }
}

/// Blocks that are forgotten in a round: about a millisecond.
const BLOCKS_A_ROUND: u32 = 4096;
/// Bytes that an executor gives back in a round.
const BYTES_A_ROUND: u64 = 4 << 30;
