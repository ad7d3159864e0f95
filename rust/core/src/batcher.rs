//! [4] Chooses the rows of one step. Engine thread only.
//!
//! Rows that decode come first, one token each; prefill chunks of running requests by rank, then of
//! requests that start, fill the token budget. A request that starts gets the blocks of all its known
//! tokens at once, so only decoding can run out of blocks; then the running request with the worst
//! rank is preempted.

use crate::flight::{FlightRow, FlightStep};
use crate::live_request::{LiveRequest, Phase};
use crate::request_table::RequestIndex;
use crate::scheduler::{Scheduler, count};
use crate::waiting_queue::Turn;
use crate::{
    Micros, OpenedSlot, PlanRow, PooledRow, RequestKind, SampleMode, StepPlan, TokenSource, Wants,
};

/// A step being put together.
#[derive(Debug, Default)]
struct Draft {
    rows: Vec<PlanRow>,
    opened: Vec<OpenedSlot>,
    flight: FlightStep,
    /// Running requests in prefill, by rank.
    prefills: Vec<RequestIndex>,
    chunks: Vec<Chunk>,
    num_tokens: u32,
    /// Once a request has found the pool dry: blocks that are on their way back.
    num_returning: Option<u32>,
    /// Requests that wait for one of those.
    num_stalled: u32,
}

/// Part of a prefill.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    request: RequestIndex,
    num_tokens: u32,
}

impl Scheduler {
    /// The next step, or nothing: no request can use one now, or enough steps are in flight. The
    /// caller must submit it, or call `fail_step` if that fails.
    ///
    /// # Panics
    /// If requests are alive, no step is in flight and still none can be planned.
    pub fn plan(&mut self, now: Micros) -> Option<StepPlan> {
        self.now = self.now.max(now);
        if count(self.in_flight.len()) >= self.shape.max_steps_in_flight {
            return None;
        }
        let mut draft = Draft {
            rows: Vec::with_capacity(self.running.len() + 1),
            flight: self.spare_steps.pop().unwrap_or_default(),
            ..Draft::default()
        };
        self.plan_decodes(&mut draft);
        self.plan_prefills(&mut draft);
        if draft.num_returning.is_none() {
            self.start_waiting(&mut draft);
        }
        self.fit_to_tile(&mut draft);
        if draft.rows.is_empty() && draft.chunks.is_empty() {
            self.recycle(draft.flight);
            let is_stuck = self.in_flight.is_empty() && self.requests.num_alive() > 0;
            assert!(!is_stuck, "no step can be planned: {:?}", self.stats());
            return None;
        }
        Some(self.submit(draft))
    }

    /// One row for every request that has its prompt behind it; collects those that have not.
    fn plan_decodes(&mut self, draft: &mut Draft) {
        let mut place = 0;
        while place < self.running.len() {
            let index = self.running[place];
            place += 1;
            let request = &self.requests[index];
            if request.is_prefill() {
                draft.prefills.push(index);
                continue;
            }
            if !request.can_decode() {
                continue;
            }
            let covered = request.table.covers(request.num_submitted, self.shape.block_size);
            if !covered && !self.grow(index, draft) {
                continue;
            }
            let request = &mut self.requests[index];
            let end = request.num_submitted + 1;
            let new_blocks = request.table.take_unsent(end, self.shape.block_size);
            let late = request.request.late_sampled;
            draft.rows.push(PlanRow {
                slot: request.slot,
                start: request.num_submitted,
                num_tokens: 1,
                source: TokenSource::LastSampled,
                new_blocks,
                wants: Wants { sample: sample_mode(late), ..Wants::default() },
            });
            draft.flight.push_row(index, request, 1, true);
            self.tenants.charge(request.ticket.tenant, 1);
            draft.num_tokens += 1;
        }
    }

    /// One more block for a running request; if none is left, the worst-ranked one is preempted,
    /// perhaps this one. Blocks that are on their way back are waited for first.
    fn grow(&mut self, index: RequestIndex, draft: &mut Draft) -> bool {
        loop {
            if let Some(block) = self.kv.allocate() {
                self.requests[index].table.blocks.push(block);
                return true;
            }
            let num_returning = match draft.num_returning {
                Some(num_returning) => num_returning,
                None => self.num_returning_blocks(),
            };
            draft.num_returning = Some(num_returning);
            if num_returning > draft.num_stalled {
                draft.num_stalled += 1;
                return false;
            }
            if self.running.len() == 1 {
                // Alone it fits: others that have been preempted or have ended still hold blocks.
                assert!(!self.in_flight.is_empty(), "one request alone outgrows the pool");
                return false;
            }
            let victim = self.running[self.running.len() - 1];
            let num_freed = self.preempt(victim);
            draft.num_returning = Some(num_returning + num_freed);
            if victim == index {
                return false;
            }
        }
    }

    /// Blocks that will be free or cached once the steps in flight have completed.
    fn num_returning_blocks(&self) -> u32 {
        let preempted = self.preempted.iter().map(|&index| self.num_own_blocks(index));
        self.kv.pool.num_leaving() + preempted.sum::<u32>()
    }

    /// Blocks that nobody else owns.
    fn num_own_blocks(&self, index: RequestIndex) -> u32 {
        let blocks = &self.requests[index].table.blocks;
        count(blocks.iter().filter(|&&block| self.kv.pool.has_one_owner(block)).count())
    }

    /// Leaves the running request out of further plans. Returns how many blocks will come back later;
    /// none if they came back at once, because no submitted step names it.
    pub(crate) fn preempt(&mut self, victim: RequestIndex) -> u32 {
        self.stop_running(victim);
        self.counters.preemptions += 1;
        self.requests[victim].phase = Phase::Preempted;
        if self.requests[victim].num_in_flight == 0 {
            self.requeue(victim);
            return 0;
        }
        self.preempted.push(victim);
        self.num_own_blocks(victim)
    }

    /// Chunks of running requests, best rank first.
    fn plan_prefills(&mut self, draft: &mut Draft) {
        for index in std::mem::take(&mut draft.prefills) {
            let request = &self.requests[index];
            self.push_chunk(index, request.prefill_end - request.num_submitted, draft);
        }
    }

    fn push_chunk(&self, request: RequestIndex, num_left: u32, draft: &mut Draft) {
        let num_tokens = num_left.min(self.shape.max_num_batched_tokens - draft.num_tokens);
        if num_tokens > 0 {
            draft.chunks.push(Chunk { request, num_tokens });
            draft.num_tokens += num_tokens;
        }
    }

    /// Starts requests from the queue while budget, slots and blocks last. The first one that does
    /// not fit holds back all others, or it might never fit.
    fn start_waiting(&mut self, draft: &mut Draft) {
        // A budget below max_num_seqs must still hold a row for each request that decodes.
        let max_running = self.shape.max_num_seqs.min(self.shape.max_num_batched_tokens);
        while draft.num_tokens < self.shape.max_num_batched_tokens
            && count(self.running.len()) < max_running
            && !self.free_slots.is_empty()
        {
            let Some(turn) = self.queue.next(&self.tenants, self.now) else { return };
            let Some(opened) = self.start(&turn) else { return };
            draft.opened.push(opened);
            let request = &self.requests[turn.request];
            self.push_chunk(turn.request, request.prefill_end - request.num_submitted, draft);
        }
    }

    /// Gives the request a slot and blocks for all its known tokens; nothing if they are not there.
    fn start(&mut self, turn: &Turn) -> Option<OpenedSlot> {
        let index = turn.request;
        let (cached, parent) = self.find_cached(index);
        let request = &self.requests[index];
        let num_tokens = request.num_tokens();
        let num_new = num_tokens.div_ceil(self.shape.block_size) - count(cached.len());
        let evictable = cached.iter().filter(|&&block| self.kv.pool.is_unowned(block)).count();
        // Within half a block's worth of steps half of the running requests need a block each.
        let reserve = count(self.running.len() / 2);
        if num_new + reserve > self.kv.num_available() - count(evictable) {
            return None;
        }
        let slot = self.free_slots.pop()?;
        self.queue.start(&turn.ticket);
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
        let num_cached = count(cached.len()) * self.shape.block_size;
        request.phase = Phase::Running;
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
        let place = self.running.partition_point(|&other| self.requests[other].rank < rank);
        self.running.insert(place, index);
        Some(opened)
    }

    /// Shortens the last chunk so that the rows fill whole tiles, if otherwise most of the last tile
    /// would be wasted and if at least half of the chunk remains (or it would crawl along by single
    /// tokens). Below one tile a step is bound by reading weights and costs the same.
    fn fit_to_tile(&self, draft: &mut Draft) {
        let (tile, num_tokens) = (self.shape.row_tile, draft.num_tokens);
        let excess = num_tokens % tile;
        let Some(last) = draft.chunks.last_mut() else { return };
        if num_tokens > tile && excess <= tile / 2 && excess <= last.num_tokens / 2 {
            last.num_tokens -= excess;
            draft.num_tokens -= excess;
        }
    }

    /// Turns the draft into a plan and remembers it as submitted.
    fn submit(&mut self, mut draft: Draft) -> StepPlan {
        let id = self.next_step;
        self.next_step.0 += 1;
        for chunk in std::mem::take(&mut draft.chunks) {
            self.push_prefill_row(chunk, &mut draft);
        }
        draft.flight.id = id;
        // Only now, so that no row of this step could have found a block that this step fills.
        for place in 0..draft.flight.rows.len() {
            let row = draft.flight.rows[place];
            let request = &mut self.requests[row.request];
            if row.start < request.prefill_end {
                let end = row.start + row.num_tokens;
                self.register_blocks(row.request, end, id);
                if end >= self.requests[row.request].num_prompt {
                    self.requests[row.request].is_prompt_submitted = true;
                    self.release_followers(row.request);
                }
            }
        }
        self.counters.steps += 1;
        self.counters.scheduled_tokens += u64::from(draft.num_tokens);
        self.in_flight.push_back(draft.flight);
        self.check_slots();
        StepPlan {
            id,
            closed: std::mem::take(&mut self.closed),
            opened: draft.opened,
            rows: draft.rows,
        }
    }

    fn push_prefill_row(&mut self, chunk: Chunk, draft: &mut Draft) {
        let request = &mut self.requests[chunk.request];
        let start = request.num_submitted;
        let end = start + chunk.num_tokens;
        let mut tokens = Vec::with_capacity(chunk.num_tokens as usize);
        request.copy_tokens(start, end, &mut tokens);
        let wants = prefill_wants(request, end);
        draft.rows.push(PlanRow {
            slot: request.slot,
            start,
            num_tokens: chunk.num_tokens,
            source: TokenSource::Host(tokens),
            new_blocks: request.table.take_unsent(end, self.shape.block_size),
            wants,
        });
        let is_sampled = wants.sample != SampleMode::None;
        draft.flight.push_row(chunk.request, request, chunk.num_tokens, is_sampled);
        self.tenants.charge(request.ticket.tenant, chunk.num_tokens);
    }

    /// Keeps the emptied vectors of a step.
    pub(crate) fn recycle(&mut self, mut step: FlightStep) {
        step.rows.clear();
        step.needs_masks = false;
        self.spare_steps.push(step);
    }
}

impl FlightStep {
    /// Remembers a row and moves its request on.
    fn push_row(
        &mut self,
        index: RequestIndex,
        request: &mut LiveRequest,
        num_tokens: u32,
        is_sampled: bool,
    ) {
        let is_late = is_sampled && request.request.late_sampled;
        self.rows.push(FlightRow {
            request: index,
            slot: request.slot,
            start: request.num_submitted,
            num_tokens,
            is_sampled,
            is_late,
        });
        self.needs_masks |= is_late;
        request.is_mask_pending = is_late;
        request.num_submitted += num_tokens;
        request.num_in_flight += 1;
    }
}

/// What comes back for a chunk that ends before position `end`.
fn prefill_wants(request: &LiveRequest, end: u32) -> Wants {
    let mut wants = Wants::default();
    let is_last = end == request.prefill_end;
    match request.request.kind {
        RequestKind::Generate if is_last => {
            wants.sample = sample_mode(request.request.late_sampled);
        }
        RequestKind::Generate => {}
        RequestKind::Embed(pooling) => wants.pooled = Some(PooledRow { pooling, is_last }),
    }
    // Entry i is for position start + i + 1; a chunk that was delivered before brings nothing new.
    let last_target = end.min(request.num_prompt - 1);
    if let Some(top) = request.request.prompt_log_probs
        && last_target > request.num_prompt_log_probs
    {
        wants.prompt_log_probs = Some(top);
        wants.next_prompt_token = request.request.prompt.get(end as usize).copied();
    }
    wants
}

fn sample_mode(is_late: bool) -> SampleMode {
    if is_late { SampleMode::Late } else { SampleMode::Now }
}
