//! [6] Late-sampled rows: their sampler waits for masks that depend on the tokens before them. Engine
//! thread only.

use crate::live_request::Phase;
use crate::scheduler::Scheduler;
use crate::{RequestId, SlotId, StepId};

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

impl Scheduler {
    /// The late-sampled rows whose masks are due, if any: those of the oldest step in flight, since
    /// every token before them is committed then. The engine calls `Executor::sample` with a mask
    /// for each row and then `note_masks_issued`; the step does not complete before.
    #[must_use]
    pub fn late_rows(&self, rows: &mut Vec<LateRow>) -> Option<StepId> {
        rows.clear();
        let step = self.in_flight.oldest().filter(|step| step.needs_masks)?;
        rows.extend(step.rows.iter().filter(|row| row.is_late).map(|row| {
            let request = &self.requests[row.request];
            LateRow {
                slot: row.slot,
                request: request.id(),
                is_live: request.phase != Phase::Leaving && !request.is_tainted,
            }
        }));
        Some(step.id)
    }

    /// Whether the oldest step in flight waits for `note_masks_issued`.
    #[must_use]
    pub fn waits_for_masks(&self) -> bool {
        self.in_flight.oldest().is_some_and(|step| step.needs_masks)
    }

    /// The sampler of the step's late rows has been started: their requests may be planned again.
    ///
    /// # Panics
    /// If the step does not wait for masks.
    pub fn note_masks_issued(&mut self, id: StepId) {
        let Some(step) = self.in_flight.waiting_for_masks(id) else {
            unreachable!("step {id} does not wait for masks")
        };
        step.needs_masks = false;
        for row in step.rows.iter().filter(|row| row.is_late) {
            self.requests[row.request].is_mask_pending = false;
        }
    }
}
