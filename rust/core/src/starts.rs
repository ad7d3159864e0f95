//! [4] Which waiting requests start in a step. Engine thread only. Never keeps blocks for a request
//! that does not start.

use crate::counts::count;
use crate::flight::Draft;
use crate::ids::RequestIndex;
use crate::kv::GroupBlocks;
use crate::live_request::Phase;
use crate::scheduler::Scheduler;
use crate::shared_prefix::{Cached, Fit};
use crate::ticket::{Rank, Standing};
use crate::waiting_queue::Turn;
use crate::{Micros, OpenedSlot, StateCopy};

impl Scheduler {
    /// Starts requests from the queue while budget, slots and blocks last. No request overtakes one that
    /// does not fit; otherwise that one might never start.
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
            // While running requests wait for blocks, only requests within their tenant's share may start:
            // `make_room` has preempted for them.
            let is_short = draft.is_short || draft.num_returning.is_some();
            if is_short && turn.standing != Standing::Within {
                return;
            }
            let restored = &mut draft.states.restored;
            let Some(opened) = self.start(&turn, draft.num_promised, restored) else { return };
            draft.opened.push(opened);
            self.push_chunk(turn.request, draft);
        }
    }

    /// Gives the request a slot and its first blocks. `None` if too few blocks are available; `num_promised`
    /// of them are kept for other requests.
    fn start(
        &mut self,
        turn: &Turn,
        num_promised: u32,
        restored: &mut Vec<StateCopy>,
    ) -> Option<OpenedSlot> {
        let index = turn.request;
        let Fit { cached, num_new, num_evictable } = self.fit(index);
        // In the time in which half a block fills, half of the running requests need another block each. A
        // request within its tenant's share need not leave them free while another tenant can be preempted.
        let is_urgent = turn.standing == Standing::Within && self.has_victim_for_blocks();
        let num_groups = count(self.shape.kv_groups.len());
        let reserve = if is_urgent { 0 } else { count(self.running.len() / 2) * num_groups };
        if num_new + reserve + num_promised > self.kv.num_available() - num_evictable {
            return None;
        }
        let slot = self.slots.allocate()?;
        self.queue.start(turn);
        let filled = cached.blocks.iter().map(|&block| self.kv.prefix.filled_by(block)).max();
        let saved = cached.snapshot.map(|snapshot| {
            let end = cached.num_places * self.shape.block_size;
            restored.push(StateCopy { slot, end, snapshot });
            self.snapshots.touch(snapshot)
        });
        let depends_on = filled.max(saved);
        self.open_tables(index, &cached);
        let request = &mut self.requests[index];
        let num_tokens = request.num_tokens();
        let num_cached = cached.num_places * self.shape.block_size;
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
            cached_blocks: cached.blocks,
        };
        self.running.insert(request.rank, index);
        self.fairness.tenants.holding_mut(turn.ticket.tenant).num_slots += 1;
        Some(opened)
    }

    /// Shares the cached blocks of the prefix and allocates blocks for the rest.
    fn open_tables(&mut self, index: RequestIndex, cached: &Cached) {
        let (groups, block_size) = (self.shape.kv_groups, self.shape.block_size);
        let num_places = self.requests[index].num_tokens().div_ceil(block_size);
        let mut num_shared_blocks = 0;
        for group in 0..groups.len() {
            let held = self.held_of(cached, group);
            held.iter().for_each(|&block| self.kv.pool.share(block));
            num_shared_blocks += count(held.len());
        }
        let request = &mut self.requests[index];
        request.num_shared_places = cached.num_places;
        request.num_shared_blocks = num_shared_blocks;
        for group in 0..groups.len() {
            let num_passed = groups.first_read(group, cached.num_places * block_size, block_size);
            let request = &mut self.requests[index];
            if group == 0 {
                request.table.open(cached.of_group(group), num_passed, cached.parent);
            } else {
                let blocks = cached.of_group(group).to_vec();
                request.other_groups.push(GroupBlocks { blocks, num_passed });
            }
            let num_places = self.places_at_start(group, num_places, cached.num_places);
            self.extend_table(index, group, num_places);
        }
    }
}
