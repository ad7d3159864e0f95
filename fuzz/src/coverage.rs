//! Which code an input has reached, in builds whose compiler counts that (`tools/fuzz`); in others
//! nothing is ever new. Any thread; the counters are those of the whole process.
//!
//! LLVM's pass sancov-module, which stable compilers have, gives each edge a counter of one byte and
//! hands the arrays over before `main`:
//! clang.llvm.org/docs/SanitizerCoverage.html, "Inline 8bit-counters".

use std::sync::{Mutex, MutexGuard, PoisonError};

/// An array of counters in the program's data.
struct Counters {
    start: usize,
    len: usize,
}

static ARRAYS: Mutex<Vec<Counters>> = Mutex::new(Vec::new());

fn arrays() -> MutexGuard<'static, Vec<Counters>> {
    ARRAYS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called by each instrumented module at start.
// SAFETY: the name is LLVM's for this purpose, and no other part of the program defines it: libFuzzer would.
#[cfg_attr(not(feature = "libfuzzer"), unsafe(no_mangle))]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, end: *mut u8) {
    let (start, len) = (start.expose_provenance(), end.addr().saturating_sub(start.addr()));
    let mut arrays = arrays();
    // A module may announce itself more than once.
    if arrays.iter().all(|array| array.start != start) {
        arrays.push(Counters { start, len });
    }
}

/// What inputs have reached so far.
#[derive(Debug, Default)]
pub struct Coverage {
    /// Of each counter, the classes of its values, a bit each.
    seen: Vec<u8>,
}

impl Coverage {
    /// Forgets what the next input did not reach.
    pub fn reset(&mut self) {
        for array in arrays().iter() {
            let start = std::ptr::with_exposed_provenance_mut::<u8>(array.start);
            // SAFETY: the module handed over an array of `len` bytes that lives as long as the program.
            // Other threads may count meanwhile, with plain stores of their own; a lost count is no harm.
            unsafe { std::ptr::write_bytes(start, 0, array.len) };
        }
    }

    /// Whether an edge was taken for the first time, or for the first time so often, since `reset`.
    pub fn has_grown(&mut self) -> bool {
        let arrays = arrays();
        self.seen.resize(arrays.iter().map(|array| array.len).sum(), 0);
        let mut place = 0;
        let mut has_grown = false;
        for array in arrays.iter() {
            let start = std::ptr::with_exposed_provenance::<u8>(array.start);
            // SAFETY: as in `reset`.
            let counts = unsafe { std::slice::from_raw_parts(start, array.len) };
            for (counts, seen) in counts.chunks(CHUNK).zip(self.seen[place..].chunks_mut(CHUNK)) {
                // Nearly all are; this code is instrumented too, the comparison is not.
                if counts == &ZEROS[..counts.len()] {
                    continue;
                }
                for (count, seen) in counts.iter().zip(seen) {
                    let class = class_of(*count);
                    has_grown |= class & !*seen != 0;
                    *seen |= class;
                }
            }
            place += array.len;
        }
        has_grown
    }

    /// Edges reached.
    #[must_use]
    pub fn num_edges(&self) -> usize {
        self.seen.iter().filter(|seen| **seen != 0).count()
    }
}

const CHUNK: usize = 256;
const ZEROS: [u8; CHUNK] = [0; CHUNK];

/// Counts that mean the same: 0 is no bit, then 1, 2, 3, and ever wider ranges.
fn class_of(count: u8) -> u8 {
    match count {
        0 => 0,
        1..=3 => 1 << (count - 1),
        4..=7 => 8,
        8..=15 => 16,
        16..=31 => 32,
        32..=127 => 64,
        _ => 128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_new_edges_and_new_counts_are_growth() {
        static mut COUNTS: [u8; 4] = [0; 4];
        let start = &raw mut COUNTS;
        __sanitizer_cov_8bit_counters_init(start.cast(), start.wrapping_add(1).cast());
        let set = |counts: [u8; 4]| {
            // SAFETY: nothing else uses the array while this test runs.
            unsafe { start.write(counts) };
        };
        let mut coverage = Coverage::default();
        coverage.reset();
        set([1, 0, 0, 0]);
        assert!(coverage.has_grown());
        set([1, 0, 0, 0]);
        assert!(!coverage.has_grown());
        set([9, 1, 0, 0]);
        assert!(coverage.has_grown());
        set([10, 1, 0, 0]);
        assert!(!coverage.has_grown());
    }
}
