//! Caches recently compiled grammars and refusals. The key is the whole source, not a hash.

use std::collections::HashMap;
use std::sync::Arc;

/// Least recently used goes first. Small: eviction looks at every entry. Memory follows the length of
/// the sources (a grammar takes up to two hundred times it), so their sum is bounded too.
#[derive(Debug)]
pub(crate) struct SourceCache<T> {
    entries: HashMap<Arc<str>, (u64, T)>,
    clock: u64,
    max_entries: usize,
    max_bytes: usize,
}

impl<T: Clone> SourceCache<T> {
    pub(crate) fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self { entries: HashMap::new(), clock: 0, max_entries, max_bytes }
    }

    pub(crate) fn find(&mut self, source: &str) -> Option<T> {
        self.clock += 1;
        let (used, found) = self.entries.get_mut(source)?;
        *used = self.clock;
        Some(found.clone())
    }

    pub(crate) fn insert(&mut self, source: Arc<str>, value: T) {
        self.entries.remove(&source);
        while !self.has_room(source.len()) {
            let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used);
            let Some(oldest) = oldest.map(|(source, _)| Arc::clone(source)) else { break };
            self.entries.remove(&oldest);
        }
        self.clock += 1;
        self.entries.insert(source, (self.clock, value));
    }

    fn has_room(&self, bytes: usize) -> bool {
        let held: usize = self.entries.keys().map(|source| source.len()).sum();
        self.entries.len() < self.max_entries && held + bytes <= self.max_bytes
    }
}
