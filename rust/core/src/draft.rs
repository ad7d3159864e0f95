//! [4] A step while it is being built. Engine thread only.

use crate::counts::count;
use crate::fair_share::FairShare;
use crate::flight::FlightStep;
use crate::ids::RequestIndex;
use crate::live_request::LiveRequest;
use crate::{OpenedSlot, PlanRow, StateCopies};

/// A step being put together: rows that decode, then chunks of prompts as long as the budget lasts.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) rows: Vec<PlanRow>,
    pub(crate) opened: Vec<OpenedSlot>,
    pub(crate) states: StateCopies,
    pub(crate) flight: FlightStep,
    /// Running requests in prefill, by rank.
    pub(crate) prefills: Vec<RequestIndex>,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) num_tokens: u32,
    max_tokens: u32,
    /// Whether part of a prompt may be computed without the rest.
    cuts_prompts: bool,
    /// Once a request has found the pool dry: blocks that are on their way back.
    pub(crate) num_returning: Option<u32>,
    /// Blocks of those that requests wait for.
    pub(crate) num_stalled: u32,
    /// Blocks that chunks will take when the step is submitted.
    pub(crate) num_promised: u32,
    /// A chunk of a running request is shorter than it could be, because blocks are missing.
    pub(crate) is_short: bool,
}

/// Part of a prefill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) request: RequestIndex,
    pub(crate) num_tokens: u32,
}

impl Draft {
    pub(crate) fn new(
        flight: FlightStep,
        num_running: usize,
        max_tokens: u32,
        cuts_prompts: bool,
    ) -> Self {
        Self {
            rows: Vec::with_capacity(num_running + 1),
            opened: Vec::new(),
            states: StateCopies::default(),
            flight,
            prefills: Vec::new(),
            chunks: Vec::new(),
            num_tokens: 0,
            max_tokens,
            cuts_prompts,
            num_returning: None,
            num_stalled: 0,
            num_promised: 0,
            is_short: false,
        }
    }

    pub(crate) fn num_rows(&self) -> u32 {
        count(self.rows.len() + self.chunks.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.chunks.is_empty()
    }

    /// From now on the step has at most `max_tokens` token rows.
    pub(crate) fn bound(&mut self, max_tokens: u32) {
        self.max_tokens = self.max_tokens.min(max_tokens);
    }

    /// Whether part of a prompt may be computed without the rest.
    pub(crate) fn cuts_prompts(&self) -> bool {
        self.cuts_prompts
    }

    pub(crate) fn has_room(&self) -> bool {
        self.num_tokens < self.max_tokens
    }

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
        let room = (self.max_tokens - self.num_tokens).min(num_covered);
        let num_allowed = fairness.num_chunk_tokens_left(tenant);
        let num_tokens = if self.cuts_prompts {
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

    /// Token rows that are left.
    pub(crate) fn room(&self) -> u32 {
        self.max_tokens - self.num_tokens
    }

    /// Shortens the last chunk so that the rows fill whole tiles, if otherwise most of the last tile
    /// would be wasted and if at least half of the chunk remains (or it would crawl along by single
    /// tokens). Below one tile a step is bound by reading weights and costs the same.
    pub(crate) fn fit_to_tile(&mut self, tile: u32) {
        if !self.cuts_prompts {
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
