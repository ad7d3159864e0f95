//! [4] Chooses the rows of one step. Engine thread only.
//!
//! Decoding rows come first, one token each. Prefill chunks fill the rest of the token budget: first
//! those of running requests by rank, then those of starting requests. A request that starts gets the
//! blocks of all its known tokens at once, so only decoding can run out of blocks; then the running
//! request with the worst rank is preempted. starts.rs decides which requests start, preemption.rs
//! which are preempted, fair_share.rs how several tenants share a step.

use crate::draft::{Chunk, Draft};
use crate::ids::RequestIndex;
use crate::live_request::LiveRequest;
use crate::row_budget::row_budget;
use crate::scheduler::Scheduler;
use crate::ticket::OVERDUE_AFTER;
use crate::{Micros, PlanRow, PooledRow, RequestKind, SampleMode, StepPlan, TokenSource, Wants};

impl Scheduler {
    /// Whether as many steps are in flight as may be: then none is planned before one ends.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.in_flight.len() >= self.shape.max_steps_in_flight
    }

    /// The next step, or nothing: no request can use one now, or enough steps are in flight. The
    /// caller must submit it, or call `fail_step` if that fails.
    ///
    /// # Panics
    /// If requests are alive, no step is in flight and still none can be planned.
    pub fn plan(&mut self, now: Micros) -> Option<StepPlan> {
        self.now = self.now.max(now);
        if self.is_full() {
            return None;
        }
        let flight = self.in_flight.draft();
        let max_tokens = self.shape.max_num_batched_tokens;
        let mut draft = Draft::new(flight, self.running.len(), max_tokens, !self.whole_prompts);
        self.fairness.begin_step(&self.shape, self.now);
        if self.starts {
            self.make_room();
        }
        self.fairness.pause_decodes(&self.running, &mut self.requests);
        self.plan_decodes(&mut draft);
        if draft.rows.is_empty() && self.fairness.share().is_some() && self.in_flight.is_empty() {
            // The requests whose turn it was may have been preempted. Nothing is paused any more, so plan again.
            draft.prefills.clear();
            self.plan_decodes(&mut draft);
        }
        self.bound_rows(&mut draft);
        self.plan_prefills(&mut draft);
        if self.starts {
            self.start_waiting(&mut draft);
        }
        // Only the last chunk may be cut, so a tenant above its share comes last.
        draft.chunks.sort_by_key(|chunk| {
            self.fairness.is_above_share(self.requests[chunk.request].ticket.tenant)
        });
        draft.fit_to_tile(self.shape.row_tile);
        if draft.is_empty() {
            self.in_flight.recycle(draft.flight);
            if self.in_flight.is_empty() && draft.is_short && self.running.len() > 1 {
                // All of them lack blocks for a chunk. One alone always fits.
                self.preempt(self.running.at(self.running.len() - 1));
                return self.plan(now);
            }
            let has_work =
                if self.starts { self.requests.num_alive() > 0 } else { !self.is_quiet() };
            let is_stuck = self.in_flight.is_empty() && has_work;
            assert!(!is_stuck, "no step can be planned: {:?}", self.stats());
            return None;
        }
        Some(self.submit(draft))
    }

    /// One row for every request that has its prompt behind it; collects those that have not.
    fn plan_decodes(&mut self, draft: &mut Draft) {
        let mut place = 0;
        while place < self.running.len() {
            let index = self.running.at(place);
            place += 1;
            let request = &self.requests[index];
            if request.is_prefill() {
                draft.prefills.push(index);
                continue;
            }
            if std::mem::take(&mut self.requests[index].is_paused) {
                continue;
            }
            let request = &self.requests[index];
            if !request.can_decode() {
                continue;
            }
            let covered = request.table.covers(request.num_submitted, self.shape.block_size);
            if !covered {
                let has_grown = self.grow(index, draft);
                // `grow` may have preempted this request or some before it.
                place = self.running.place_after(self.requests[index].rank);
                if !has_grown {
                    continue;
                }
            }
            let request = &mut self.requests[index];
            let end = request.num_submitted + 1;
            let new_blocks = request.take_unsent(end, self.shape.block_size);
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
            if self.shape.num_snapshots > 0 {
                self.save_decode(index, end, draft);
            }
            let request = &self.requests[index];
            let tenants = &mut self.fairness.tenants;
            tenants.charge(request.ticket.tenant, 1);
            tenants.in_step_mut(request.ticket.tenant).num_decodes += 1;
            draft.num_tokens += 1;
        }
    }

    /// Keeps the step short for other models, and for the requests that decode. Between several tenants
    /// their shares do the latter.
    fn bound_rows(&self, draft: &mut Draft) {
        if !draft.cuts_prompts() {
            return;
        }
        draft.bound(self.most_rows.max(draft.num_tokens + 1));
        if self.fairness.share().is_some() {
            return;
        }
        let running = draft.prefills.iter().map(|&index| self.requests[index].ticket.overdue_at);
        let overdue_at = running.chain(self.queue.first_overdue_at()).min();
        let since = overdue_at.map_or(self.now.0, |at| at.0.saturating_sub(OVERDUE_AFTER.0));
        let waited = Micros(self.now.0.saturating_sub(since));
        let left = |&index: &RequestIndex| u64::from(self.requests[index].num_prefill_left());
        let begun: u64 = draft.prefills.iter().map(left).sum();
        let backlog = begun + self.queue.num_blocks() * u64::from(self.shape.block_size);
        draft.bound(row_budget(&self.shape, draft.num_tokens, waited, backlog));
    }

    /// Chunks of running requests, best rank first.
    fn plan_prefills(&mut self, draft: &mut Draft) {
        for index in std::mem::take(&mut draft.prefills) {
            self.push_chunk(index, draft);
        }
    }

    /// Turns the draft into a plan and remembers it as submitted.
    fn submit(&mut self, mut draft: Draft) -> StepPlan {
        let id = draft.flight.id;
        for chunk in std::mem::take(&mut draft.chunks) {
            self.push_prefill_row(chunk, &mut draft);
        }
        // Only now, so that no row of this step could have found a block that this step fills.
        for place in 0..draft.flight.rows.len() {
            let row = draft.flight.rows[place];
            let request = &mut self.requests[row.request];
            if row.start < request.prefill_end {
                let end = row.start + row.num_tokens;
                self.register_blocks(row.request, end, id);
                if self.shape.num_snapshots > 0 {
                    self.save_prefill(&row, id, &mut draft.states);
                }
                if end >= self.requests[row.request].num_prompt {
                    self.requests[row.request].is_prompt_submitted = true;
                    self.release_followers(row.request);
                }
            }
        }
        self.snapshots.end_step();
        self.counters.steps += 1;
        self.counters.scheduled_tokens += u64::from(draft.num_tokens);
        self.in_flight.push(draft.flight);
        self.check_slots();
        let (opened, rows, states) = (draft.opened, draft.rows, draft.states);
        StepPlan { id, closed: self.slots.take_closed(), opened, rows, states }
    }

    fn push_prefill_row(&mut self, chunk: Chunk, draft: &mut Draft) {
        let end = self.requests[chunk.request].num_submitted + chunk.num_tokens;
        self.extend_tables(chunk.request, end.div_ceil(self.shape.block_size));
        let request = &mut self.requests[chunk.request];
        let start = request.num_submitted;
        assert!(!self.whole_prompts || (start, end) == (0, request.num_prompt), "a prompt was cut");
        let tokens = request.tokens(start, end).into_owned();
        let wants = prefill_wants(request, end);
        draft.rows.push(PlanRow {
            slot: request.slot,
            start,
            num_tokens: chunk.num_tokens,
            source: TokenSource::Host(tokens),
            new_blocks: request.take_unsent(end, self.shape.block_size),
            wants,
        });
        let is_sampled = wants.sample != SampleMode::None;
        draft.flight.push_row(chunk.request, request, chunk.num_tokens, is_sampled);
        self.fairness.tenants.charge(request.ticket.tenant, chunk.num_tokens);
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
    // Entry i is for position start + i + 1. A chunk that is computed again has been reported already.
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
