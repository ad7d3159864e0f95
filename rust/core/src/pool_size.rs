//! [4] The KV pool grows and shrinks while requests run, where several models share a device's memory. Engine
//! thread only. Blocks with low numbers are handed out first, so that the last ones become free; nothing is copied.

use crate::ids::RequestIndex;
use crate::kv::MAX_KV_GROUPS;
use crate::scheduler::Scheduler;

impl Scheduler {
    /// Makes room for up to `num_blocks` blocks. Those beyond what the executor began with come with
    /// `grow_pool`.
    ///
    /// # Panics
    /// If requests have run.
    pub fn reserve_blocks(&mut self, num_blocks: u32) {
        assert!(!self.has_requests(), "a pool in use gets further blocks");
        self.kv.reserve(num_blocks);
    }

    /// Blocks that are handed out now.
    #[must_use]
    pub fn pool_blocks(&self) -> u32 {
        self.kv.pool.end()
    }

    /// Blocks up to `num_blocks` have memory from now on.
    pub fn grow_pool(&mut self, num_blocks: u32) {
        let end = num_blocks.min(self.kv.pool.num_blocks());
        if end > self.kv.pool.end() {
            self.kv.set_end(end);
        }
    }

    /// Hands out no block beyond the first `num_blocks` from now on, and forgets the prefixes there: at most
    /// `most` blocks at a time, so that no step waits long. True once it has got there.
    pub fn shrink_pool(&mut self, num_blocks: u32, most: u32) -> bool {
        let end = self.kv.pool.end();
        let next = num_blocks.max(end.saturating_sub(most)).min(end);
        self.kv.set_end(next);
        next <= num_blocks
    }

    /// Blocks beyond the pool's end that requests still hold, or leave.
    #[must_use]
    pub fn num_blocks_beyond(&self) -> u32 {
        self.kv.pool.num_owned_beyond()
    }

    /// One more than the last block that a request holds or leaves: a pool of so many blocks takes nothing from
    /// any of them.
    #[must_use]
    pub fn least_pool(&self) -> u32 {
        self.kv.pool.owned_end()
    }

    /// Preempts every running request with a block beyond the pool's end; they wait and are computed again.
    /// Their blocks are free once the steps in flight have completed.
    pub fn preempt_beyond(&mut self) {
        if self.num_blocks_beyond() == 0 {
            return;
        }
        let end = self.kv.pool.end();
        let is_beyond =
            |index: &RequestIndex| self.requests[*index].held().any(|block| block.0 >= end);
        let victims: Vec<RequestIndex> = self.running.iter().filter(is_beyond).collect();
        // The worst ranked first, as everywhere.
        for victim in victims.into_iter().rev() {
            self.preempt(victim);
        }
    }

    /// Blocks with which all that could run now would run and keep growing for a while; the pool may have more.
    #[must_use]
    pub fn wanted_blocks(&self) -> u32 {
        let num_groups = (self.shape.kv_groups.len() as u64).min(MAX_KV_GROUPS as u64);
        let pool = &self.kv.pool;
        let held = u64::from(pool.num_held()) + u64::from(pool.num_leaving());
        let num_running = self.running.len() as u64;
        let num_slots = u64::from(self.shape.max_running()).saturating_sub(num_running);
        let num_waiting = self.queue.len() as u64;
        let starting = if self.starts && num_waiting > 0 {
            // As if all were of the average length.
            let can_start = num_waiting.min(num_slots);
            let average = (self.queue.num_blocks() * can_start).div_ceil(num_waiting);
            // The next one starts before all others, however long it is.
            let firsts = self.queue.first_of_tenants().map(|(_, ticket)| ticket.num_blocks);
            average.max(u64::from(firsts.max().unwrap_or(0))) * num_groups
        } else {
            0
        };
        let used = held + starting;
        let growth = (num_running + num_waiting.min(num_slots)) * num_groups;
        let wanted = if used == 0 { 0 } else { used + used / 8 + growth };
        u32::try_from(wanted).unwrap_or(u32::MAX)
    }
}
