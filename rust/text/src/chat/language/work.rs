//! [2] What one rendering may cost. Every step, item and byte that a template makes is paid for
//! before it is made, so the budget bounds time and memory together; depth is bounded apart.

use std::cell::Cell;

use super::fault::Fault;

/// The budget of one rendering. A unit is about a byte of memory, or half a nanosecond.
#[derive(Debug)]
pub(crate) struct Work {
    left: Cell<u64>,
    limit: u64,
}

impl Work {
    /// The budget for a request of so many bytes.
    pub(crate) fn for_input(bytes: usize) -> Self {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let limit = bytes.saturating_mul(UNITS_A_BYTE).saturating_add(BASE);
        Self { left: Cell::new(limit), limit }
    }

    /// Pays for making or reading so many bytes.
    #[inline]
    pub(crate) fn spend(&self, units: usize) -> Result<(), Fault> {
        let units = u64::try_from(units).unwrap_or(u64::MAX);
        match self.left.get().checked_sub(units) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.left.set(0);
                Err(Fault::too_much(self.limit))
            }
        }
    }

    /// Pays for one step of the template.
    #[inline]
    pub(crate) fn step(&self) -> Result<(), Fault> {
        self.spend(STEP)
    }

    /// Pays for so many items of a list or map.
    #[inline]
    pub(crate) fn items(&self, count: usize) -> Result<(), Fault> {
        self.spend(count.saturating_mul(ITEM))
    }
}

/// For any request: some 500,000 steps, 20 ms. An ordinary chat takes a hundredth of it.
const BASE: u64 = 16 << 20;
/// And for each of its bytes: a template may copy a text so many times.
const UNITS_A_BYTE: u64 = 32;
const STEP: usize = 32;
/// One slot of a list is 32 bytes, and lists grow by doubling.
pub(crate) const ITEM: usize = 64;
