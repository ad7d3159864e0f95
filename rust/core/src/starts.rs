//! [4] Which waiting requests start in a step. Engine thread only. Never keeps blocks for a request
//! that it leaves out.

use crate::batcher::Draft;
use crate::kv::Parent;
use crate::live_request::Phase;
use crate::request_table::RequestIndex;
use crate::scheduler::{Scheduler, count};
use crate::waiting_queue::{Standing, Turn};
use crate::{BlockId, Micros, OpenedSlot};

/// What a request would start with.
struct Fit {
    /// Blocks of its first tokens that the prefix cache has.
    cached: Vec<BlockId>,
    parent: Option<Parent>,
    /// Blocks for the rest.
    num_new: u32,
    /// Cached ones that could be evicted until it takes them.
    num_evictable: u32,
}

impl Scheduler {
    /// Starts requests from the queue while budget, slots and blocks last. The first one that does
    /// not fit holds back all others, or it might never fit.
    pub(crate) fn start_waiting(&mut self, draft: &mut Draft) {
        while draft.num_tokens < self.shape.max_num_batched_tokens
            && count(self.running.len()) < self.shape.max_running()
            // Some have a row and were preempted since.
            && draft.num_rows() < self.shape.max_running()
            && !self.free_slots.is_empty()
        {
            let standing = |ticket: &_| self.standing(ticket);
            let Some(turn) = self.queue.next(&self.tenants, self.now, standing) else { return };
            // Where running requests wait for blocks, only those start for whom room was made.
            if draft.num_returning.is_some() && turn.standing != Standing::Within {
                return;
            }
            let Some(opened) = self.start(&turn) else { return };
            draft.opened.push(opened);
            let request = &self.requests[turn.request];
            self.push_chunk(turn.request, request.prefill_end - request.num_submitted, draft);
        }
    }

    /// Blocks that must be available for the request to start.
    pub(crate) fn num_missing_blocks(&mut self, index: RequestIndex) -> u32 {
        let fit = self.fit(index);
        fit.num_new + fit.num_evictable
    }

    fn fit(&mut self, index: RequestIndex) -> Fit {
        let (cached, parent) = self.find_cached(index);
        let num_tokens = self.requests[index].num_tokens();
        let num_new = num_tokens.div_ceil(self.shape.block_size) - count(cached.len());
        let evictable = cached.iter().filter(|&&block| self.kv.pool.is_unowned(block));
        Fit { num_evictable: count(evictable.count()), cached, parent, num_new }
    }

    /// Gives the request a slot and blocks for all its known tokens; nothing if they are not there.
    fn start(&mut self, turn: &Turn) -> Option<OpenedSlot> {
        let index = turn.request;
        let Fit { cached, parent, num_new, num_evictable } = self.fit(index);
        // Within half a block's worth of steps half of the running requests need a block each; whoever
        // is within its share does not pay for that while another one can give way.
        let is_urgent = turn.standing == Standing::Within && self.has_victim_for_blocks();
        let reserve = if is_urgent { 0 } else { count(self.running.len() / 2) };
        if num_new + reserve > self.kv.num_available() - num_evictable {
            return None;
        }
        let slot = self.free_slots.pop()?;
        self.queue.start(turn);
        for &block in &cached {
            self.kv.pool.share(block);
        }
        let depends_on = cached.iter().map(|&block| self.kv.prefix.filled_by(block)).max();
        let request = &mut self.requests[index];
        request.table.open(&cached, parent);
        for _ in 0..num_new {
            match self.kv.allocate() {
                Some(block) => request.table.blocks.push(block),
                None => unreachable!("available blocks were counted wrongly"),
            }
        }
        let num_tokens = request.num_tokens();
        let num_cached = count(cached.len()) * self.shape.block_size;
        request.num_shared_blocks = count(cached.len());
        request.phase = Phase::Running;
        request.is_paused = false;
        request.slot = slot;
        request.num_submitted = num_cached;
        request.prefill_end = num_tokens;
        request.depends_on = depends_on;
        request.waited.0 += self.now.0 - request.queued_at.0;
        request.rank = if turn.is_overdue {
            (0, i64::try_from(turn.ticket.overdue_at.0).unwrap_or(i64::MAX), turn.ticket.arrival)
        } else {
            (1, i64::from(turn.ticket.priority), turn.ticket.arrival)
        };
        if !request.has_started {
            request.has_started = true;
            request.num_cached = num_cached;
            request.started_after = Micros(self.now.0 - request.admitted_at.0);
            self.counters.prefix_cache_queries += u64::from(request.num_prompt);
            self.counters.prefix_cache_hits += u64::from(num_cached);
        }
        let opened = OpenedSlot {
            slot,
            sampling: request.request.sampling.clone(),
            prompt: request.request.prompt.clone(),
            generated: request.generated.clone(),
            cached_blocks: cached,
        };
        let rank = request.rank;
        let holding = self.tenants.holding_mut(turn.ticket.tenant);
        holding.num_slots += 1;
        holding.num_blocks += num_new;
        let place = self.running.partition_point(|&other| self.requests[other].rank < rank);
        self.running.insert(place, index);
        Some(opened)
    }
}
