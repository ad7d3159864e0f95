//! The grammars compiled last, by their whole source: equal sources, not equal hashes, share one.

use std::collections::HashMap;
use std::sync::Arc;

use super::Grammar;

/// Least recently used goes first. Small: eviction looks at every entry.
#[derive(Debug)]
pub(crate) struct GrammarCache {
    entries: HashMap<Arc<str>, (u64, Arc<Grammar>)>,
    clock: u64,
    capacity: usize,
}

impl GrammarCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entries: HashMap::new(), clock: 0, capacity }
    }

    pub(crate) fn find(&mut self, source: &str) -> Option<Arc<Grammar>> {
        self.clock += 1;
        let (used, grammar) = self.entries.get_mut(source)?;
        *used = self.clock;
        Some(Arc::clone(grammar))
    }

    pub(crate) fn insert(&mut self, source: Arc<str>, grammar: Arc<Grammar>) {
        if self.entries.len() >= self.capacity && !self.entries.contains_key(&source) {
            let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(source, _)| Arc::clone(source)) {
                self.entries.remove(&oldest);
            }
        }
        self.clock += 1;
        self.entries.insert(source, (self.clock, grammar));
    }
}
