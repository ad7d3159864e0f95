//! [5] Submitted steps until they complete. Engine thread only.

use std::collections::VecDeque;

use crate::counts::count;
use crate::ids::RequestIndex;
use crate::live_request::LiveRequest;
use crate::{RequestId, SlotId, SnapshotId, StepId};

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

/// A late-sampled row whose mask is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateRow {
    /// Which slot.
    pub slot: SlotId,
    /// Whose row it is.
    pub request: RequestId,
    /// False if the request has ended or will be recomputed: its token is dropped and any mask will do.
    pub is_live: bool,
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
