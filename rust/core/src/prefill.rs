//! [4] The part of a step that computes prompts: chunks of requests that have not reached their last
//! known token. Engine thread only. windows.rs says how long a chunk can be.

use crate::fair_share::FairShare;
use crate::flight::{Chunk, Draft, FlightRow};
use crate::ids::RequestIndex;
use crate::live_request::LiveRequest;
use crate::row_budget::row_budget;
use crate::scheduler::{Scheduler, sample_mode};
use crate::ticket::OVERDUE_AFTER;
use crate::{
    Micros, PlanRow, PooledRow, RequestKind, SampleMode, StateCopies, StepId, TokenSource, Wants,
};

impl Scheduler {
    /// Keeps the step short for other models, and for the requests that decode. Between several tenants
    /// their shares do the latter.
    pub(crate) fn bound_rows(&self, draft: &mut Draft) {
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
    pub(crate) fn plan_prefills(&mut self, draft: &mut Draft) {
        for index in std::mem::take(&mut draft.prefills) {
            self.push_chunk(index, draft);
        }
    }

    pub(crate) fn push_prefill_row(&mut self, chunk: Chunk, draft: &mut Draft) {
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

    /// From the next step on the prefix cache finds the blocks that this row fills; with the prompt's last
    /// chunk, other choices of the prompt may start.
    pub(crate) fn register_prefill(
        &mut self,
        row: &FlightRow,
        step: StepId,
        states: &mut StateCopies,
    ) {
        let end = row.start + row.num_tokens;
        self.register_blocks(row.request, end, step);
        if self.shape.num_snapshots > 0 {
            self.save_prefill(row, step, states);
        }
        if end >= self.requests[row.request].num_prompt {
            self.requests[row.request].is_prompt_submitted = true;
            self.release_followers(row.request);
        }
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

impl Draft {
    /// As much of the request's prefill as the step and its tenant's share of it have room for, and at most
    /// `num_covered` tokens, for which there are blocks.
    pub(crate) fn push_chunk(
        &mut self,
        index: RequestIndex,
        request: &LiveRequest,
        num_covered: u32,
        fairness: &mut FairShare,
    ) -> u32 {
        let tenant = request.ticket.tenant;
        let num_left = request.prefill_end - request.num_submitted;
        let room = self.room().min(num_covered);
        let num_allowed = fairness.num_chunk_tokens_left(tenant);
        let num_tokens = if self.cuts_prompts() {
            num_left.min(room).min(num_allowed)
        } else {
            // A prompt that may not be cut starts within the tenant's share of the step, and may end beyond it.
            if num_left <= room && num_allowed > 0 { num_left } else { 0 }
        };
        if num_tokens > 0 {
            fairness.tenants.in_step_mut(tenant).num_chunk_tokens += num_tokens;
            self.chunks.push(Chunk { request: index, num_tokens });
            self.num_tokens += num_tokens;
        }
        num_tokens
    }

    /// Shortens the last chunk so that the rows fill whole tiles, if otherwise most of the last tile
    /// would be wasted and if at least half of the chunk remains (or it would crawl along by single
    /// tokens). Below one tile a step is bound by reading weights and costs the same.
    pub(crate) fn fit_to_tile(&mut self, tile: u32) {
        if !self.cuts_prompts() {
            return;
        }
        let excess = self.num_tokens % tile;
        let Some(last) = self.chunks.last_mut() else { return };
        if self.num_tokens > tile && excess <= tile / 2 && excess <= last.num_tokens / 2 {
            last.num_tokens -= excess;
            self.num_tokens -= excess;
        }
    }
}
