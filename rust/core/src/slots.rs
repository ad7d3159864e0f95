//! [4] Which slots of the executor are free. Engine thread only.

use crate::SlotId;
use crate::counts::count;

/// The executor's slots: each is free or belongs to one request.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Vec<SlotId>,
    /// Given back since the last plan; the executor does not know yet.
    closed: Vec<SlotId>,
    num_slots: u32,
}

impl Slots {
    pub(crate) fn new(num_slots: u32) -> Self {
        Self { free: (0..num_slots).rev().map(SlotId).collect(), closed: Vec::new(), num_slots }
    }

    pub(crate) fn allocate(&mut self) -> Option<SlotId> {
        self.free.pop()
    }

    /// No submitted step names the slot any more.
    pub(crate) fn free(&mut self, slot: SlotId) {
        self.closed.push(slot);
        self.free.push(slot);
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn is_free(&self, slot: SlotId) -> bool {
        self.free.contains(&slot)
    }

    /// Slots that the next plan closes.
    pub(crate) fn take_closed(&mut self) -> Vec<SlotId> {
        std::mem::take(&mut self.closed)
    }

    /// Panics unless exactly `num_held` slots are not free.
    pub(crate) fn check(&self, num_held: u32) {
        assert_eq!(count(self.free.len()) + num_held, self.num_slots, "slots");
    }
}
