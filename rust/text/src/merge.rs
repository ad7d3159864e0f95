//! [2] Byte-pair merging: merges the pair with the lowest rank, the leftmost of equal ones, until
//! no pair is left. Any thread. Short words are scanned. Long ones use a heap, so that a megabyte
//! of one letter costs n log n instead of n squared.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::mem::take;

/// What two neighbouring symbols become, and how early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Merge {
    pub(crate) rank: u32,
    pub(crate) id: u32,
}

/// All merges of a model.
#[derive(Debug, Default)]
pub(crate) struct MergeTable {
    pairs: HashMap<u64, Merge, BuildHasherDefault<PairHasher>>,
}

impl MergeTable {
    pub(crate) fn with_capacity(merges: usize) -> Self {
        Self { pairs: HashMap::with_capacity_and_hasher(merges, BuildHasherDefault::default()) }
    }

    /// Adds a merge; false if this pair has one already.
    pub(crate) fn insert(&mut self, left: u32, right: u32, merge: Merge) -> bool {
        self.pairs.insert(pair(left, right), merge).is_none()
    }

    fn get(&self, left: u32, right: u32) -> Option<Merge> {
        self.pairs.get(&pair(left, right)).copied()
    }

    /// Merges `symbols` in place; fewer than 2^32 of them.
    pub(crate) fn merge(&self, symbols: &mut Vec<u32>) {
        if symbols.len() <= SCANNED_SYMBOLS {
            self.merge_short(symbols)
        } else {
            self.merge_long(symbols)
        }
    }

    /// Looks at every pair for each merge.
    fn merge_short(&self, symbols: &mut Vec<u32>) {
        // The merge of each symbol with its right neighbour; NONE where there is none.
        let mut merges = [NONE; SCANNED_SYMBOLS];
        for (at, two) in symbols.windows(2).enumerate() {
            merges[at] = self.get(two[0], two[1]).unwrap_or(NONE);
        }
        loop {
            let mut best = 0;
            for at in 1..symbols.len().saturating_sub(1) {
                if merges[at].rank < merges[best].rank {
                    best = at;
                }
            }
            if symbols.len() < 2 || merges[best].rank == NONE.rank {
                return;
            }
            symbols[best] = merges[best].id;
            symbols.remove(best + 1);
            merges.copy_within(best + 1..symbols.len().max(best + 1), best);
            merges[symbols.len() - 1] = NONE;
            for at in best.saturating_sub(1)..=best {
                if at + 1 < symbols.len() {
                    merges[at] = self.get(symbols[at], symbols[at + 1]).unwrap_or(NONE);
                }
            }
        }
    }

    /// Keeps the places of possible merges by rank; those whose symbols have changed are passed over.
    fn merge_long(&self, symbols: &mut Vec<u32>) {
        let len = symbols.len();
        let mut links: Vec<Link> = (0..len as u32).map(Link::to_neighbours).collect();
        let mut places = Places::default();
        for (left, two) in symbols.windows(2).enumerate() {
            if let Some(merge) = self.get(two[0], two[1]) {
                places.add(merge.rank, left as u32);
            }
        }
        while let Some((rank, left)) = places.next() {
            let right = links[left as usize].next;
            if right as usize >= len {
                continue;
            }
            // GONE is in no merge.
            let merge = self.get(symbols[left as usize], symbols[right as usize]);
            let Some(Merge { id, .. }) = merge.filter(|merge| merge.rank == rank) else { continue };
            symbols[left as usize] = id;
            symbols[right as usize] = GONE;
            let after = links[right as usize].next;
            links[left as usize].next = after;
            let mut add = |left: u32, right: u32| {
                let merge = self.get(symbols[left as usize], symbols[right as usize]);
                if let Some(merge) = merge {
                    places.add(merge.rank, left);
                }
            };
            if left > 0 {
                add(links[left as usize].prev, left);
            }
            if (after as usize) < len {
                links[after as usize].prev = left;
                add(left, after);
            }
        }
        symbols.retain(|symbol| *symbol != GONE);
    }
}

/// Places of possible merges: the lowest rank first, of that the leftmost.
///
/// A word of one letter has few ranks and a million places of each. What is known of a rank when its
/// turn comes is sorted once; only what comes while it has its turn goes through a heap.
#[derive(Default)]
struct Places {
    by_rank: BTreeMap<u32, OfRank>,
}

#[derive(Default)]
struct OfRank {
    /// The leftmost is last.
    sorted: Vec<u32>,
    later: BinaryHeap<Reverse<u32>>,
}

impl Places {
    fn add(&mut self, rank: u32, left: u32) {
        self.by_rank.entry(rank).or_default().later.push(Reverse(left));
    }

    fn next(&mut self) -> Option<(u32, u32)> {
        loop {
            let mut first = self.by_rank.first_entry()?;
            if let Some(left) = first.get_mut().next() {
                return Some((*first.key(), left));
            }
            first.remove();
        }
    }
}

impl OfRank {
    fn next(&mut self) -> Option<u32> {
        if self.sorted.is_empty() {
            self.sorted = take(&mut self.later).into_iter().map(|Reverse(left)| left).collect();
            self.sorted.sort_unstable_by(|a, b| b.cmp(a));
        }
        match (self.sorted.last(), self.later.peek()) {
            (Some(sorted), Some(Reverse(later))) if later < sorted => {
                self.later.pop().map(|Reverse(left)| left)
            }
            _ => self.sorted.pop(),
        }
    }
}

#[derive(Clone, Copy)]
struct Link {
    /// Not read for the first symbol, which is never merged away.
    prev: u32,
    next: u32,
}

impl Link {
    fn to_neighbours(at: u32) -> Self {
        Self { prev: at.wrapping_sub(1), next: at + 1 }
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Spreads a pair of ids over 64 bits; the table is made from a file, not from requests.
#[derive(Debug, Default)]
pub(crate) struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, pair: u64) {
        // The finaliser of MurmurHash3 (Appleby, public domain), one round.
        let mixed = (pair ^ (pair >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        self.0 = mixed ^ (mixed >> 32);
    }
}

const NONE: Merge = Merge { rank: u32::MAX, id: 0 };
/// A symbol that was merged into its left neighbour; never a token id.
const GONE: u32 = u32::MAX;
/// Up to here a scan beats the heap (measured on English: 24 to 48 are level).
const SCANNED_SYMBOLS: usize = 32;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: find the lowest rank, leftmost, until there is none.
    fn naive(table: &MergeTable, mut symbols: Vec<u32>) -> Vec<u32> {
        loop {
            let best = (1..symbols.len())
                .filter_map(|at| Some((table.get(symbols[at - 1], symbols[at])?, at)))
                .min_by_key(|(merge, at)| (merge.rank, *at));
            let Some((merge, at)) = best else { return symbols };
            symbols.splice(at - 1..=at, [merge.id]);
        }
    }

    proptest! {
        #[test]
        fn test_scan_and_heap_do_as_the_definition(
            merges in prop::collection::vec((0u32..8, 0u32..8, 0u32..6), 0..20),
            symbols in prop::collection::vec(0u32..4, 0..40),
        ) {
            let mut table = MergeTable::default();
            for (index, (left, right, rank)) in merges.into_iter().enumerate() {
                let id = 4 + u32::try_from(index).unwrap();
                table.insert(left, right, Merge { rank, id });
            }
            let wanted = naive(&table, symbols.clone());
            let mut long = symbols.clone();
            table.merge_long(&mut long);
            prop_assert_eq!(&long, &wanted);
            if symbols.len() <= SCANNED_SYMBOLS {
                let mut short = symbols;
                table.merge_short(&mut short);
                prop_assert_eq!(&short, &wanted);
            }
        }
    }
}
