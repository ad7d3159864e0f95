//! A set of hashes that several threads read and change without locks: an operation touches one cache
//! line and never waits. Where too many hashes share a line, further ones are left out, so a reader may
//! miss some. For uses where that costs time and nothing else.

use std::sync::atomic::{AtomicU64, Ordering};

/// Sixty-four bits of each hash are kept; 0 is a free place.
#[derive(Debug)]
pub(crate) struct HashTable {
    lines: Box<[Line]>,
}

/// One cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; PLACES]);

impl HashTable {
    /// Room for so many hashes with few left out.
    pub(crate) fn new(capacity: usize) -> Self {
        let num_lines = (capacity * SPARE).div_ceil(PLACES).next_power_of_two();
        Self { lines: (0..num_lines).map(|_| Line::default()).collect() }
    }

    pub(crate) fn contains(&self, hash: u128) -> bool {
        let (line, kept) = self.find(hash);
        line.iter().any(|place| place.load(Ordering::Relaxed) == kept)
    }

    /// Adds the hash if there is room and it is not there yet.
    pub(crate) fn insert(&self, hash: u128) {
        let (line, kept) = self.find(hash);
        if line.iter().any(|place| place.load(Ordering::Relaxed) == kept) {
            return;
        }
        let swap = |place: &AtomicU64| {
            place.compare_exchange(0, kept, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        // Two threads that add one hash at the same moment may both find a place: `remove` takes both.
        let _has_room = line.iter().any(swap);
    }

    pub(crate) fn remove(&self, hash: u128) {
        let (line, kept) = self.find(hash);
        for place in line {
            let _ = place.compare_exchange(kept, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Removes all hashes. One that is added meanwhile may go too.
    pub(crate) fn clear(&self) {
        for place in self.lines.iter().flat_map(|line| &line.0) {
            place.store(0, Ordering::Relaxed);
        }
    }

    /// The hash's line, and what is kept of it.
    fn find(&self, hash: u128) -> (&[AtomicU64; PLACES], u64) {
        let line = (hash >> 64) as usize & (self.lines.len() - 1);
        (&self.lines[line].0, (hash as u64).max(1))
    }
}

/// Of eight bytes in a cache line.
const PLACES: usize = 8;
/// Places for each expected hash: at this load one line in 300 is full (Poisson, mean 3).
const SPARE: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes as random as the real ones.
    fn hash(number: u64) -> u128 {
        xxhash(number, 1) << 64 | xxhash(number, 2)
    }

    fn xxhash(number: u64, seed: u64) -> u128 {
        use std::hash::Hasher as _;
        let mut hasher = rustc_hash::FxHasher::default();
        hasher.write_u64(number);
        hasher.write_u64(seed);
        u128::from(hasher.finish())
    }

    #[test]
    fn what_was_added_is_found_until_it_is_removed() {
        let table = HashTable::new(1000);
        (0..1000).for_each(|number| table.insert(hash(number)));
        let found = (0..1000).filter(|&number| table.contains(hash(number))).count();
        assert!(found >= 990, "{found}");
        assert!((1000..2000).all(|number| !table.contains(hash(number))));
        (0..1000).step_by(2).for_each(|number| table.remove(hash(number)));
        assert!((0..1000).step_by(2).all(|number| !table.contains(hash(number))));
        let left = (1..1000).step_by(2).filter(|&number| table.contains(hash(number))).count();
        assert!(left >= 490, "{left}");
    }

    #[test]
    fn a_full_line_leaves_hashes_out_and_keeps_what_it_has() {
        let table = HashTable::new(1);
        (1..=20).for_each(|number| table.insert(number));
        assert_eq!((1..=20).filter(|&number| table.contains(number)).count(), PLACES);
        // Twice is once.
        let table = HashTable::new(1);
        (0..20).for_each(|_| table.insert(5));
        table.insert(0);
        assert!(table.contains(5) && table.contains(0));
        table.remove(5);
        assert!(!table.contains(5));
        table.clear();
        assert!(!table.contains(0));
    }
}
