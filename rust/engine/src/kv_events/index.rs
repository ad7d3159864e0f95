//! The prefix cache as readers of the events know it. A removed block takes its children out of reach
//! without any word of the cache (`prefix_cache.rs`), but a reader knows blocks by hash and would count
//! them as cached once a block like the removed one comes back. So the children are announced as removed
//! too. Publisher thread.

use std::sync::Arc;

use ingle_core::Parent;
use rustc_hash::FxHashMap;

use super::log::{Change, Changes};
use super::salts::SaltTable;

/// What is published.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// Blocks of one chain, each the parent of the next.
    Stored {
        hashes: Vec<u64>,
        parent: Option<u64>,
        /// `[hashes.len() * block_size]`.
        tokens: Vec<u32>,
        /// The cache salt that the chain begins with, if these blocks begin it.
        salt: Option<Arc<str>>,
    },
    Removed(Vec<u64>),
    Cleared,
}

/// The published blocks, by serial number.
#[derive(Debug)]
pub(super) struct Index {
    nodes: FxHashMap<u64, Node>,
    block_size: usize,
    /// The block that the last event ends with.
    last: Option<u64>,
}

#[derive(Debug)]
struct Node {
    hash: u64,
    parent: Option<u64>,
    children: Vec<u64>,
}

impl Index {
    pub(super) fn new(block_size: u32) -> Self {
        Self { nodes: FxHashMap::default(), block_size: block_size as usize, last: None }
    }

    /// Turns changes into the events that a reader needs.
    pub(super) fn apply(&mut self, changes: &Changes, salts: &SaltTable) -> Vec<Event> {
        let mut events = Vec::new();
        let mut tokens = changes.tokens.chunks_exact(self.block_size);
        self.last = None;
        for &change in &changes.list {
            match change {
                Change::Added { hash, serial, parent } => {
                    let tokens = tokens.next().unwrap_or_default();
                    self.add((hash, serial, parent), tokens, salts, &mut events);
                }
                Change::Removed { serial } => self.remove(serial, &mut events),
                Change::Cleared => {
                    self.nodes.clear();
                    self.last = None;
                    events.push(Event::Cleared);
                }
            }
        }
        events
    }

    fn add(
        &mut self,
        (hash, serial, parent): (u64, u64, Parent),
        tokens: &[u32],
        salts: &SaltTable,
        events: &mut Vec<Event>,
    ) {
        let (before, salt) = match parent {
            Parent::Entry(before) => match self.nodes.get_mut(&before) {
                Some(node) => {
                    node.children.push(serial);
                    (Some((before, node.hash)), None)
                }
                // The parent is gone, so nobody can find this block.
                None => return,
            },
            Parent::Salt(number) => match salts.find(number) {
                Some(salt) => (None, salt),
                None => return,
            },
            // The choices of one request share it, and nobody else.
            Parent::Leader(_) => return,
        };
        let parent = before.map(|(serial, _)| serial);
        self.nodes.insert(serial, Node { hash, parent, children: Vec::new() });
        match events.last_mut() {
            Some(Event::Stored { hashes, tokens: all, .. })
                if parent.is_some() && parent == self.last =>
            {
                hashes.push(hash);
                all.extend_from_slice(tokens);
            }
            _ => events.push(Event::Stored {
                hashes: vec![hash],
                parent: before.map(|(_, hash)| hash),
                tokens: tokens.to_vec(),
                salt,
            }),
        }
        self.last = Some(serial);
    }

    fn remove(&mut self, serial: u64, events: &mut Vec<Event>) {
        let Some(node) = self.nodes.remove(&serial) else { return };
        if let Some(parent) = node.parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            parent.children.retain(|&child| child != serial);
        }
        self.last = None;
        let mut hashes = vec![node.hash];
        let mut orphans = node.children;
        while let Some(orphan) = orphans.pop() {
            if let Some(node) = self.nodes.remove(&orphan) {
                hashes.push(node.hash);
                orphans.extend(node.children);
            }
        }
        match events.last_mut() {
            Some(Event::Removed(all)) => all.append(&mut hashes),
            _ => events.push(Event::Removed(hashes)),
        }
    }

    /// Hashes of all published blocks, sorted.
    #[cfg(test)]
    pub(super) fn hashes(&self) -> Vec<u64> {
        let mut hashes: Vec<u64> = self.nodes.values().map(|node| node.hash).collect();
        hashes.sort_unstable();
        hashes
    }
}
