//! What one rendering may cost. Whatever a template makes is paid for before it is made, and nothing
//! is paid back: the budget bounds time and memory together.

use std::cell::Cell;

use crate::error::{Fault, Res};

/// The budget of one rendering. A unit is about a byte of memory or half a nanosecond.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Cell<u64>,
    limit: u64,
}

impl Budget {
    /// The budget for an input of so many bytes.
    pub(crate) fn for_input(bytes: usize) -> Self {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let limit = bytes.saturating_mul(UNITS_A_BYTE).saturating_add(BASE);
        Self { left: Cell::new(limit), limit }
    }

    /// Pays for making or reading so many bytes.
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

    /// Pays for one step of the template or of a walk through a value.
    #[inline]
    pub(crate) fn step(&self) -> Res<()> {
        self.pay(STEP)
    }

    /// Pays for so many items of a list.
    #[inline]
    pub(crate) fn items(&self, count: usize) -> Res<()> {
        self.pay(count.saturating_mul(ITEM))
    }
}

/// For any request: some 700,000 steps. An ordinary chat takes a hundredth of it.
const BASE: u64 = 24 << 20;
/// And for each of its bytes: a template may copy a text so many times.
const UNITS_A_BYTE: u64 = 32;
/// One node of the tree, or one value of a walk.
const STEP: usize = 32;
/// A slot of a list is 48 bytes, and lists grow by doubling.
pub(crate) const ITEM: usize = 96;
