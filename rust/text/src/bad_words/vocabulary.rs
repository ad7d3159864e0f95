//! The vocabulary in byte order, so that tokens with a common prefix are adjacent. Built once per
//! model, read-only.

use std::ops::Range;
use std::sync::Arc;

use crate::Tokenizer;

/// All ids that have bytes, sorted by them.
pub(super) struct SortedVocabulary {
    tokenizer: Arc<Tokenizer>,
    ids: Vec<u32>,
    /// Bytes that a token shares with the one before it, capped at `u16::MAX`.
    shared: Vec<u16>,
    longest: usize,
}

impl SortedVocabulary {
    /// `vocab_size`: ids from there on are left out.
    ///
    /// Blocking: about 10 ms for 50,000 tokens.
    pub(super) fn new(tokenizer: Arc<Tokenizer>, vocab_size: u32) -> Self {
        let bytes = |id: u32| tokenizer.token_bytes(id).unwrap_or_default();
        let mut ids: Vec<u32> = (0..vocab_size).filter(|&id| !bytes(id).is_empty()).collect();
        ids.sort_unstable_by_key(|&id| (bytes(id), id));
        let mut last: &[u8] = &[];
        let shared = ids.iter().map(|&id| {
            let before = std::mem::replace(&mut last, bytes(id));
            let count = before.iter().zip(last).take_while(|(a, b)| a == b).count();
            u16::try_from(count).unwrap_or(u16::MAX)
        });
        let shared = shared.collect();
        let longest = ids.iter().map(|&id| bytes(id).len()).max().unwrap_or(0);
        Self { ids, shared, longest, tokenizer }
    }

    /// Bytes of the longest token.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// The tokens that begin with `prefix`, as places in the order.
    pub(super) fn starting_with(&self, prefix: &[u8]) -> Range<u32> {
        if prefix.len() > self.longest {
            return 0..0;
        }
        let start = self.ids.partition_point(|&id| self.bytes(id) < prefix);
        let rest = self.ids.get(start..).unwrap_or_default();
        let len = rest.partition_point(|&id| self.bytes(id).starts_with(prefix));
        start as u32..(start + len) as u32
    }

    /// The ids at these places.
    pub(super) fn ids(&self, places: &Range<u32>) -> &[u32] {
        self.ids.get(places.start as usize..places.end as usize).unwrap_or_default()
    }

    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        self.tokenizer.token_bytes(id).unwrap_or_default()
    }

    /// Calls `found` for every token on whose way from `start` a step fails, or that does not end well.
    /// Beginnings that tokens share are walked once.
    pub(super) fn walk<S: Copy>(
        &self,
        start: S,
        step: impl Fn(S, u8) -> Option<S>,
        ends_well: impl Fn(S) -> bool,
        mut found: impl FnMut(u32),
    ) {
        // The states after 0, 1, 2, … bytes, as far as no step failed.
        let mut states = vec![start];
        for (&id, &shared) in self.ids.iter().zip(&self.shared) {
            let shared = usize::from(shared);
            if states.len() <= shared {
                found(id);
                continue;
            }
            states.truncate(shared + 1);
            let rest = self.bytes(id).get(shared..).unwrap_or_default();
            let mut state = states.last().copied();
            for &byte in rest {
                state = state.and_then(|state| step(state, byte));
                let Some(next) = state else { break };
                states.push(next);
            }
            if !state.is_some_and(&ends_well) {
                found(id);
            }
        }
    }
}
