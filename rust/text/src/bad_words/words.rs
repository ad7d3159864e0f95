//! One automaton over bytes for all words (Aho and Corasick 1975) and, for each state, the tokens
//! that complete a word that the text has begun.

use std::collections::VecDeque;
use std::ops::Range;

use super::vocabulary::SortedVocabulary;

/// How much of which words the text ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NodeId(u32);

/// Nothing of any word.
pub(super) const ROOT: NodeId = NodeId(0);
const NONE: u32 = u32::MAX;

/// Compiled words. No word contains another, so a word ends at a leaf and only there.
pub(super) struct WordList {
    nodes: Vec<Node>,
    /// Children of the root by byte: most steps are decided here.
    first: Box<[u32; 256]>,
    /// Tokens, as places in the sorted vocabulary, that begin with the rest of a word, by node.
    rests: Vec<Range<u32>>,
}

struct Node {
    byte: u8,
    first_child: u32,
    next_sibling: u32,
    /// The node of the longest proper suffix that begins a word.
    fail: u32,
    /// Its part of `rests`.
    rests: Range<u32>,
}

impl Node {
    fn new(byte: u8, next_sibling: u32) -> Self {
        Self { byte, first_child: NONE, next_sibling, fail: 0, rests: 0..0 }
    }
}

impl WordList {
    /// `words` are not empty.
    ///
    /// Blocking: microseconds a word.
    pub(super) fn new(words: &[String], vocabulary: &SortedVocabulary) -> Self {
        let mut list = Self {
            nodes: vec![Node::new(0, NONE)],
            first: Box::new([NONE; 256]),
            rests: Vec::new(),
        };
        let mut rests: Vec<(u32, Range<u32>)> = Vec::new();
        for word in shortest(words) {
            list.insert(word.as_bytes(), vocabulary, &mut rests);
        }
        list.link();
        rests.sort_by_key(|(node, _)| *node);
        for (node, places) in rests {
            let at = list.rests.len() as u32;
            let known = &mut list.nodes[node as usize].rests;
            *known = if known.start == known.end { at..at + 1 } else { known.start..at + 1 };
            list.rests.push(places);
        }
        list
    }

    fn insert(
        &mut self,
        word: &[u8],
        vocabulary: &SortedVocabulary,
        rests: &mut Vec<(u32, Range<u32>)>,
    ) {
        let mut node = 0;
        for (at, &byte) in word.iter().enumerate() {
            let rest = &word[at..];
            if node != 0 && rest.len() <= vocabulary.longest() {
                let places = vocabulary.starting_with(rest);
                if !places.is_empty() {
                    rests.push((node, places));
                }
            }
            node = match self.child(node, byte) {
                Some(child) => child,
                None => self.add(node, byte),
            };
        }
    }

    fn add(&mut self, parent: u32, byte: u8) -> u32 {
        let child = self.nodes.len() as u32;
        let sibling = std::mem::replace(&mut self.nodes[parent as usize].first_child, child);
        self.nodes.push(Node::new(byte, sibling));
        if parent == 0 {
            self.first[usize::from(byte)] = child;
        }
        child
    }

    /// Sets the suffixes, level by level.
    fn link(&mut self) {
        let mut queue = VecDeque::from([0]);
        while let Some(node) = queue.pop_front() {
            let mut child = self.nodes[node as usize].first_child;
            while child != NONE {
                let Node { byte, next_sibling, .. } = self.nodes[child as usize];
                if node != 0 {
                    let fail = self.nodes[node as usize].fail;
                    self.nodes[child as usize].fail = self.next(fail, byte);
                }
                queue.push_back(child);
                child = next_sibling;
            }
        }
    }

    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        if node == 0 {
            return Some(self.first[usize::from(byte)]).filter(|&child| child != NONE);
        }
        let mut child = self.nodes[node as usize].first_child;
        while child != NONE && self.nodes[child as usize].byte != byte {
            child = self.nodes[child as usize].next_sibling;
        }
        Some(child).filter(|&child| child != NONE)
    }

    fn next(&self, mut node: u32, byte: u8) -> u32 {
        loop {
            match self.child(node, byte) {
                Some(child) => return child,
                None if node == 0 => return 0,
                None => node = self.nodes[node as usize].fail,
            }
        }
    }

    /// The state after one more byte; `None` if that completes a word.
    pub(super) fn step(&self, NodeId(node): NodeId, byte: u8) -> Option<NodeId> {
        let next = self.next(node, byte);
        let is_word = next != 0 && self.nodes[next as usize].first_child == NONE;
        (!is_word).then_some(NodeId(next))
    }

    /// The tokens that complete a word which the text has begun. Few states have many.
    pub(super) fn completing(&self, NodeId(node): NodeId) -> impl Iterator<Item = &Range<u32>> {
        let begun = |node: u32| Some(node).filter(|&node| node != 0);
        let suffixes =
            std::iter::successors(begun(node), move |&node| begun(self.nodes[node as usize].fail));
        suffixes.flat_map(|node| {
            let Range { start, end } = self.nodes[node as usize].rests;
            &self.rests[start as usize..end as usize]
        })
    }
}

/// The words without those that contain another one: they cannot come without it.
fn shortest(words: &[String]) -> Vec<&str> {
    let mut kept: Vec<&str> = words.iter().map(String::as_str).collect();
    kept.sort_unstable();
    kept.dedup();
    let all = kept.clone();
    kept.retain(|word| !all.iter().any(|other| other != word && word.contains(other)));
    kept
}
