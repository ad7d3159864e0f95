//! The work that one rendering may do. A template pays for everything before it is made, and
//! nothing is refunded, so the budget bounds both time and memory.

use std::cell::Cell;

use crate::error::{Fault, Res};

/// The budget of one rendering. A unit is about a byte of memory or half a nanosecond.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Cell<u64>,
    limit: u64,
}

impl Budget {
    /// The budget for an input of this many bytes.
    pub(crate) fn for_input(bytes: usize) -> Self {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let limit = bytes.saturating_mul(UNITS_A_BYTE).saturating_add(BASE);
        Self { left: Cell::new(limit), limit }
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

/// The fixed part: about 700,000 steps. An ordinary chat takes a hundredth of it.
const BASE: u64 = 24 << 20;
/// The part for each byte of the input: a template may copy a text this many times.
const UNITS_A_BYTE: u64 = 32;
/// One node of the tree, or one value of an iteration.
const STEP: usize = 32;
/// A slot of a list is 48 bytes, and lists grow by doubling.
pub(crate) const ITEM: usize = 96;
