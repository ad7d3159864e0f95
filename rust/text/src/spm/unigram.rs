//! [2] SentencePiece's unigram model: finds the most likely segmentation of a text. Any thread.
//! Linear in the text, since pieces are short.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::merge::PairHasher;

/// The pieces and their scores.
#[derive(Default)]
pub(super) struct Unigram {
    /// The node after a node and a byte.
    next: HashMap<u64, u32, BuildHasherDefault<PairHasher>>,
    /// By node: the piece that ends there.
    pieces: Vec<Option<(u32, f32)>>,
    unknown: u32,
    unknown_score: f32,
}

/// The best way to get to a place of the text.
#[derive(Clone, Copy)]
struct Way {
    from: usize,
    id: u32,
    score: f32,
}

impl Unigram {
    /// `pieces`: text, id, score, and whether it is wanted wherever it stands.
    pub(super) fn new<'p>(
        pieces: impl Iterator<Item = (&'p str, u32, f32, bool)> + Clone,
        unknown: u32,
    ) -> Self {
        let scores = pieces.clone().filter(|piece| !piece.3).map(|(_, _, score, _)| score);
        // As the library: the largest score starts at the smallest positive number.
        let (min, max) =
            scores.fold((f32::MAX, f32::MIN_POSITIVE), |(min, max), s| (min.min(s), max.max(s)));
        let mut model = Self {
            pieces: vec![None],
            unknown,
            unknown_score: min - UNKNOWN_PENALTY,
            ..Self::default()
        };
        for (text, id, score, wanted) in pieces {
            let score = if wanted { text.len() as f32 * max - 0.1 } else { score };
            model.insert(text, id, score);
        }
        model
    }

    fn insert(&mut self, text: &str, id: u32, score: f32) {
        let mut node = 0u32;
        for &byte in text.as_bytes() {
            let new = self.pieces.len() as u32;
            node = *self.next.entry(edge(node, byte)).or_insert(new);
            if node == new {
                self.pieces.push(None);
            }
        }
        self.pieces[node as usize] = Some((id, score));
    }

    /// Calls `piece` for each piece of the best cut in order: its id and its text.
    pub(super) fn cut<'t>(&self, text: &'t str, mut piece: impl FnMut(u32, &'t str)) {
        let mut ways: Vec<Option<Way>> = vec![None; text.len() + 1];
        let offer = |ways: &mut Vec<Option<Way>>, to: usize, way: Way| {
            let best = &mut ways[to];
            if best.is_none_or(|best| way.score > best.score) {
                *best = Some(way);
            }
        };
        for (from, c) in text.char_indices() {
            let score = ways[from].map_or(0.0, |way| way.score);
            let (mut node, mut has_single) = (0, false);
            for (at, &byte) in text.as_bytes().iter().enumerate().skip(from) {
                match self.next.get(&edge(node, byte)) {
                    None => break,
                    Some(next) => node = *next,
                }
                if let Some((id, own)) = self.pieces[node as usize] {
                    offer(&mut ways, at + 1, Way { from, id, score: own + score });
                    has_single |= at + 1 == from + c.len_utf8();
                }
            }
            if !has_single {
                let way = Way { from, id: self.unknown, score: self.unknown_score + score };
                offer(&mut ways, from + c.len_utf8(), way);
            }
        }
        let (mut places, mut at) = (Vec::new(), text.len());
        while let Some(way) = ways[at].filter(|_| at > 0) {
            places.push((way.id, way.from, at));
            at = way.from;
        }
        for (id, from, to) in places.into_iter().rev() {
            piece(id, &text[from..to]);
        }
    }
}

fn edge(node: u32, byte: u8) -> u64 {
    u64::from(node) << 8 | u64::from(byte)
}

/// What an unknown character costs beyond the least likely piece.
const UNKNOWN_PENALTY: f32 = 10.0;
