//! [5] What the core remembers of a submitted step until it completes. Engine thread only.

use crate::request_table::RequestIndex;
use crate::{RequestId, SlotId, StepId};

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
