//! [4] Which waiting requests start in a step. Engine thread only. Never keeps blocks for a request
//! that does not start.

use crate::counts::count;
use crate::draft::Draft;
use crate::live_request::Phase;
use crate::scheduler::Scheduler;
use crate::shared_prefix::Fit;
use crate::ticket::{Rank, Standing};
use crate::waiting_queue::Turn;
use crate::{Micros, OpenedSlot};

impl Scheduler {
    /// Starts requests from the queue while budget, slots and blocks last. The first one that does
    /// not fit holds back all others, or it might never fit.
    pub(crate) fn start_waiting(&mut self, draft: &mut Draft) {
        while draft.has_room()
            && count(self.running.len()) < self.shape.max_running()
            // Some chunks belong to requests that were preempted after they got a row.
            && draft.num_rows() < self.shape.max_running()
            && self.slots.has_free()
        {
            let fairness = &self.fairness;
            let standing = |ticket: &_| fairness.standing(ticket);
            let Some(turn) = self.queue.next(&fairness.tenants, self.now, standing) else { return };
            // While running requests wait for blocks, only requests that room was made for may start.
            if draft.num_returning.is_some() && turn.standing != Standing::Within {
                return;
            }
            let Some(opened) = self.start(&turn) else { return };
            draft.opened.push(opened);
            draft.push_chunk(turn.request, &self.requests[turn.request], &mut self.fairness);
        }
    }

    /// Gives the request a slot and blocks for all its known tokens; nothing if they are not there.
    fn start(&mut self, turn: &Turn) -> Option<OpenedSlot> {
        let index = turn.request;
        let Fit { cached, parent, num_new, num_evictable } = self.fit(index);
        // Within half a block's worth of steps half of the running requests need a block each; a tenant
        // within its share does not pay for that while another one can give way.
        let is_urgent = turn.standing == Standing::Within && self.has_victim_for_blocks();
        let reserve = if is_urgent { 0 } else { count(self.running.len() / 2) };
        if num_new + reserve > self.kv.num_available() - num_evictable {
            return None;
        }
        let slot = self.slots.allocate()?;
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
            Rank::overdue(&turn.ticket)
        } else {
            Rank::by_priority(&turn.ticket)
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
        self.running.insert(request.rank, index);
        let holding = self.fairness.tenants.holding_mut(turn.ticket.tenant);
        holding.num_slots += 1;
        holding.num_blocks += num_new;
        Some(opened)
    }
}
