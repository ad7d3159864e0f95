//! The work that one rendering may do. A template pays for everything before it is made, and
//! nothing is refunded, so the budget bounds both time and memory.

use std::cell::Cell;

use crate::error::{Fault, Res};

/// How much work a rendering may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// What an event loop can wait for, and more than a published template takes for a short input.
    Brief,
    /// All that a template may do.
    Full,
}

/// The budget of one rendering. A unit is about a byte of memory or half a nanosecond.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Cell<u64>,
    limit: u64,
}

impl Budget {
    /// The budget for an input of this many bytes.
    pub(crate) fn for_input(bytes: usize, effort: Effort) -> Self {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let (base, for_each) = match effort {
            Effort::Brief => BRIEF,
            Effort::Full => FULL,
        };
        let limit = bytes.saturating_mul(for_each).saturating_add(base);
        Self { left: Cell::new(limit), limit }
    }

    /// A budget that is never spent, for values of the request: what they cost is in its size.
    pub(crate) fn unlimited() -> Self {
        Self { left: Cell::new(u64::MAX), limit: u64::MAX }
    }

    /// What has been paid so far.
    pub(crate) fn spent(&self) -> u64 {
        self.limit - self.left.get()
    }

    /// Pays for making or reading this many bytes.
    #[inline]
    pub(crate) fn pay(&self, units: usize) -> Res<()> {
        let units = u64::try_from(units).unwrap_or(u64::MAX);
        match self.left.get().checked_sub(units) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.left.set(0);
                Err(Fault::limit(self.limit))
            }
        }
    }

    /// Pays for one step of the template or of an iteration.
    #[inline]
    pub(crate) fn step(&self) -> Res<()> {
        self.pay(STEP)
    }

    /// Pays for this many items of a list.
    #[inline]
    pub(crate) fn items(&self, count: usize) -> Res<()> {
        self.pay(count.saturating_mul(ITEM))
    }
}

/// A fixed part, about 700,000 steps, of which an ordinary chat takes a hundredth, and a part for each
/// byte of the input: a template may copy a text this many times.
const FULL: (u64, u64) = (24 << 20, 32);
/// Of the published families' templates none takes more than 2.2 Mi for 400 messages of two letters,
/// the short input that takes most.
const BRIEF: (u64, u64) = (5 << 19, 4);
/// One node of the tree, or one value of an iteration.
const STEP: usize = 32;
/// A slot of a list is 48 bytes, and lists grow by doubling.
pub(crate) const ITEM: usize = 96;
