//! [4] [5] A step from its first row to its completion: a draft, then in flight. Engine thread only.

use std::collections::VecDeque;

use crate::counts::count;
use crate::ids::RequestIndex;
use crate::live_request::LiveRequest;
use crate::{OpenedSlot, PlanRow, SlotId, SnapshotId, StateCopies, StepId};

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

    /// Token rows that are left.
    pub(crate) fn room(&self) -> u32 {
        self.max_tokens - self.num_tokens
    }
}

/// Submitted steps, oldest first; they complete in this order.
#[derive(Debug)]
pub(crate) struct InFlight {
    steps: VecDeque<FlightStep>,
    /// Emptied, for reuse.
    spare: Vec<FlightStep>,
    next: StepId,
}

/// One submitted step.
#[derive(Debug, Default)]
pub(crate) struct FlightStep {
    pub(crate) id: StepId,
    /// In the plan's order.
    pub(crate) rows: Vec<FlightRow>,
    /// Some rows wait for masks.
    pub(crate) needs_masks: bool,
}

/// One row of a submitted step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlightRow {
    pub(crate) request: RequestIndex,
    pub(crate) slot: SlotId,
    pub(crate) start: u32,
    pub(crate) num_tokens: u32,
    pub(crate) is_sampled: bool,
    pub(crate) is_late: bool,
    /// Of the state after a row that decodes, until it is committed.
    pub(crate) snapshot: Option<SnapshotId>,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        Self { steps: VecDeque::new(), spare: Vec::new(), next: StepId(1) }
    }

    pub(crate) fn len(&self) -> u32 {
        count(self.steps.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &FlightStep> {
        self.steps.iter()
    }

    /// An empty step with its number, to be filled and pushed, or recycled.
    pub(crate) fn draft(&mut self) -> FlightStep {
        FlightStep { id: self.next, ..self.spare.pop().unwrap_or_default() }
    }

    pub(crate) fn push(&mut self, step: FlightStep) {
        self.next.0 += 1;
        self.steps.push_back(step);
    }

    pub(crate) fn oldest(&self) -> Option<&FlightStep> {
        self.steps.front()
    }

    pub(crate) fn pop_oldest(&mut self) -> Option<FlightStep> {
        self.steps.pop_front()
    }

    pub(crate) fn remove(&mut self, id: StepId) -> Option<FlightStep> {
        let place = self.steps.iter().position(|step| step.id == id)?;
        self.steps.remove(place)
    }

    /// The step with this number, if it waits for masks.
    pub(crate) fn waiting_for_masks(&mut self, id: StepId) -> Option<&mut FlightStep> {
        self.steps.iter_mut().find(|step| step.id == id && step.needs_masks)
    }

    /// Keeps the emptied vectors of a step.
    pub(crate) fn recycle(&mut self, mut step: FlightStep) {
        step.rows.clear();
        step.needs_masks = false;
        self.spare.push(step);
    }
}

impl FlightStep {
    /// Remembers a row and moves its request on.
    pub(crate) fn push_row(
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
            snapshot: None,
        });
        self.needs_masks |= is_late;
        request.is_mask_pending = is_late;
        request.num_submitted += num_tokens;
        request.num_in_flight += 1;
    }
}
