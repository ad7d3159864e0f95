//! [4] Chooses the rows of one step. Engine thread only.
//!
//! Rows that decode come first, one token each; prefill chunks of running requests by rank, then of
//! requests that start, fill the token budget. A request that starts gets the blocks of all its known
//! tokens at once, so only decoding can run out of blocks; then the running request with the worst
//! rank is preempted. Who starts is decided in starts.rs, who gets the last blocks in growth.rs, and
//! how several tenants share a step in fair_share.rs.

use crate::fair_share::Share;
use crate::flight::{FlightRow, FlightStep};
use crate::live_request::LiveRequest;
use crate::request_table::RequestIndex;
use crate::scheduler::{Scheduler, count};
use crate::{
    Micros, OpenedSlot, PlanRow, PooledRow, RequestKind, SampleMode, StepPlan, TokenSource, Wants,
};

/// A step being put together.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    rows: Vec<PlanRow>,
    pub(crate) opened: Vec<OpenedSlot>,
    flight: FlightStep,
    /// Running requests in prefill, by rank.
    pub(crate) prefills: Vec<RequestIndex>,
    chunks: Vec<Chunk>,
    pub(crate) num_tokens: u32,
    /// Once a request has found the pool dry: blocks that are on their way back.
    pub(crate) num_returning: Option<u32>,
    /// Requests that wait for one of those.
    pub(crate) num_stalled: u32,
}

/// Part of a prefill.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    request: RequestIndex,
    num_tokens: u32,
}

impl Draft {
    pub(crate) fn num_rows(&self) -> u32 {
        count(self.rows.len() + self.chunks.len())
    }
}

impl Scheduler {
    /// Whether as many steps are in flight as may be: then none is planned before one ends.
    #[must_use]
    pub fn is_full(&self) -> bool {
        count(self.in_flight.len()) >= self.shape.max_steps_in_flight
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
        let mut draft = Draft {
            rows: Vec::with_capacity(self.running.len() + 1),
            flight: self.spare_steps.pop().unwrap_or_default(),
            ..Draft::default()
        };
        let num_active = self.tenants.begin_step(self.now);
        self.share = Share::new(&self.shape, self.weight_tokens, num_active);
        self.make_room();
        self.pause_decodes();
        self.plan_decodes(&mut draft);
        if draft.rows.is_empty() && self.share.is_some() && self.in_flight.is_empty() {
            // Whose turn it was may have been preempted: nobody is paused any more.
            draft.prefills.clear();
            self.plan_decodes(&mut draft);
        }
        self.plan_prefills(&mut draft);
        self.start_waiting(&mut draft);
        // The last chunk may be cut: not that of somebody who holds little.
        draft
            .chunks
            .sort_by_key(|chunk| self.is_above_share(self.requests[chunk.request].ticket.tenant));
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
                place = self.place_after(index);
                if !has_grown {
                    continue;
                }
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
            self.tenants.in_step_mut(request.ticket.tenant).num_decodes += 1;
            draft.num_tokens += 1;
        }
    }

    /// Where the running requests begin that rank behind this one, which may just have been preempted.
    fn place_after(&self, index: RequestIndex) -> usize {
        let rank = self.requests[index].rank;
        self.running.partition_point(|&other| self.requests[other].rank <= rank)
    }

    /// Chunks of running requests, best rank first.
    fn plan_prefills(&mut self, draft: &mut Draft) {
        for index in std::mem::take(&mut draft.prefills) {
            let request = &self.requests[index];
            self.push_chunk(index, request.prefill_end - request.num_submitted, draft);
        }
    }

    pub(crate) fn push_chunk(&mut self, request: RequestIndex, num_left: u32, draft: &mut Draft) {
        let tenant = self.requests[request].ticket.tenant;
        let num_tokens = num_left
            .min(self.shape.max_num_batched_tokens - draft.num_tokens)
            .min(self.num_chunk_tokens_left(tenant));
        if num_tokens > 0 {
            self.tenants.in_step_mut(tenant).num_chunk_tokens += num_tokens;
            draft.chunks.push(Chunk { request, num_tokens });
            draft.num_tokens += num_tokens;
        }
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
