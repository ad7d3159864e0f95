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
        Self {
            free: (0..num_slots).rev().map(SlotId::first).collect(),
            closed: Vec::new(),
            num_slots,
        }
    }

    pub(crate) fn allocate(&mut self) -> Option<SlotId> {
        self.free.pop()
    }

    /// No submitted step names the slot any more.
    pub(crate) fn free(&mut self, slot: SlotId) {
        self.closed.push(slot);
        self.free.push(slot.next());
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn is_free(&self, slot: SlotId) -> bool {
        self.free.iter().any(|free| free.index() == slot.index())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_each_owner_of_a_slot_has_another_id() {
        let mut slots = Slots::new(1);
        let first = slots.allocate().unwrap();
        assert!(!slots.is_free(first));
        slots.free(first);
        assert!(slots.is_free(first));
        let second = slots.allocate().unwrap();
        assert_eq!((second.number(), second.generation()), (first.number(), 1));
        assert_ne!(second, first);
        // The executor closes what it has opened.
        assert_eq!(slots.take_closed(), [first]);
    }
}
