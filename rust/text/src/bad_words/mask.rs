//! [7] Bad words combined with one kind of answer, and one position in such an answer. Worker
//! threads.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::harmony::HarmonyPlace;
use super::place::Place;
use super::vocabulary::SortedVocabulary;
use super::words::{ROOT, WordList};
use crate::grammar::Reasoned;
use crate::reasoning::ReasoningFormat;

/// A compiled list, whatever kind of answer it binds: immutable but for what it remembers, shared by
/// all requests that send the same words.
pub(super) struct CompiledList {
    words: WordList,
    vocabulary: Arc<SortedVocabulary>,
    format: Option<ReasoningFormat>,
    /// Ids beyond the tokenizer are never allowed.
    vocab_size: u32,
    num_words: usize,
    /// Masks of places that need a walk: the content without a word begun, and those before it.
    walked: Mutex<HashMap<Place, Arc<[u32]>>>,
}

impl CompiledList {
    pub(super) fn new(
        words: WordList,
        vocabulary: Arc<SortedVocabulary>,
        format: Option<ReasoningFormat>,
        vocab_size: u32,
        model_vocab_size: u32,
    ) -> Self {
        let num_words = model_vocab_size.div_ceil(32) as usize;
        Self { words, vocabulary, format, vocab_size, num_words, walked: Mutex::default() }
    }

    fn step(&self, place: Place, byte: u8) -> Option<Place> {
        place.step(byte, &self.words, self.format.as_ref())
    }

    /// Blocking: about a millisecond for a position that is not cached.
    fn walked(&self, place: Place) -> Arc<[u32]> {
        let lock = || self.walked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mask) = lock().get(&place) {
            return Arc::clone(mask);
        }
        let mut mask = vec![0; self.num_words];
        (0..self.vocab_size).for_each(|id| allow(&mut mask, id));
        let step = |at, byte| self.step(at, byte);
        self.vocabulary.walk(place, step, Place::may_last, |id| clear(&mut mask, id));
        let mask: Arc<[u32]> = mask.into();
        let mut walked = lock();
        if walked.len() < MAX_WALKED {
            walked.insert(place, Arc::clone(&mask));
        }
        mask
    }
}

/// Words bound to the answers of a request, whose choices share them.
pub struct BadWords {
    list: Arc<CompiledList>,
    first: Place,
    /// Ids that add nothing to the text; sorted.
    silent: Vec<u32>,
    /// The mask where the text has begun no word.
    fresh: Arc<[u32]>,
}

impl BadWords {
    pub(super) fn new(
        list: Arc<CompiledList>,
        mut silent: Vec<u32>,
        reasoning: Option<Reasoned>,
    ) -> Self {
        silent.sort_unstable();
        let first = Place::first(list.format.as_ref(), reasoning);
        let fresh = with(&silent, list.walked(Place::Content(ROOT)));
        Self { list, first, silent, fresh }
    }

    /// The position at the start of an answer.
    pub fn start(self: &Arc<Self>) -> BadWordsState {
        BadWordsState { place: self.first, words: Arc::clone(self) }
    }

    fn mask(&self, place: Place) -> Arc<[u32]> {
        let node = match place {
            Place::Content(node) => node,
            // A marker completes no word.
            Place::Harmony(HarmonyPlace::Content { node, .. }) => node,
            _ => return with(&self.silent, self.list.walked(place)),
        };
        let mut completing = self.list.words.completing(node).peekable();
        if completing.peek().is_none() {
            return Arc::clone(&self.fresh);
        }
        let mut mask = self.fresh.to_vec();
        for places in completing {
            self.list.vocabulary.ids(places).iter().for_each(|&id| clear(&mut mask, id));
        }
        self.silent.iter().for_each(|&id| allow(&mut mask, id));
        mask.into()
    }
}

/// The mask with these ids allowed.
fn with(silent: &[u32], mut mask: Arc<[u32]>) -> Arc<[u32]> {
    if !silent.is_empty() {
        let mask = Arc::make_mut(&mut mask);
        silent.iter().for_each(|&id| allow(mask, id));
    }
    mask
}

/// The position of one choice.
#[derive(Clone)]
pub struct BadWordsState {
    words: Arc<BadWords>,
    place: Place,
}

impl BadWordsState {
    /// Takes the token that was sampled. One that the mask had not allowed, which no sampler takes,
    /// completes a word; what comes after it counts as new text.
    pub fn accept(&mut self, token: u32) {
        self.place = self.after(token);
    }

    fn after(&self, token: u32) -> Place {
        let BadWords { list, silent, .. } = &*self.words;
        if silent.binary_search(&token).is_ok() {
            return self.place;
        }
        let bytes = list.vocabulary.bytes(token).iter();
        let step = |place, &byte: &u8| list.step(place, byte).unwrap_or(Place::Content(ROOT));
        bytes.fold(self.place, step)
    }

    /// Whether a token is white space and nothing else.
    pub fn is_blank(&self, token: u32) -> bool {
        self.words.list.vocabulary.bytes(token).iter().all(u8::is_ascii_whitespace)
    }

    /// Whether `token` and then these bytes complete a word.
    pub fn completes_word(&self, token: u32, bytes: &[u8]) -> bool {
        let list = &self.words.list;
        bytes.iter().try_fold(self.after(token), |place, &byte| list.step(place, byte)).is_none()
    }

    /// Which tokens may come next: one bit an id of the model's vocabulary, lowest bit first,
    /// `ceil(vocab_size / 32)` words. Ids beyond the tokenizer are never allowed; those that add no
    /// text always are.
    pub fn mask(&self) -> Arc<[u32]> {
        self.words.mask(self.place)
    }
}

fn clear(mask: &mut [u32], id: u32) {
    if let Some(word) = mask.get_mut(id as usize / 32) {
        *word &= !(1 << (id % 32));
    }
}

fn allow(mask: &mut [u32], id: u32) {
    if let Some(word) = mask.get_mut(id as usize / 32) {
        *word |= 1 << (id % 32);
    }
}

impl fmt::Debug for BadWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BadWords").field("first", &self.first).finish_non_exhaustive()
    }
}

impl fmt::Debug for BadWordsState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BadWordsState").finish_non_exhaustive()
    }
}

/// As many places as opening and closing markers have bytes, and some.
const MAX_WALKED: usize = 32;
