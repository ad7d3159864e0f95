//! [7] A compiled grammar and a position in it. Worker threads; never the event loop.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::Matcher;

/// A compiled grammar: immutable, shared by all requests that ask for it.
pub struct Grammar {
    /// At its start and never advanced. Behind a lock since it cannot be copied by two threads at
    /// once; copying takes microseconds.
    pristine: Mutex<Matcher>,
    vocab_size: u32,
    model_vocab_size: u32,
    eos: Arc<[u32]>,
    blank: Option<Arc<[u32]>>,
}

impl Grammar {
    /// `blank`: for JSON, a mask of the tokens that are white space or end the answer. An answer that could go on
    /// with those alone has ended.
    pub(crate) fn new(
        pristine: Matcher,
        vocab_size: u32,
        model_vocab_size: u32,
        eos: Arc<[u32]>,
        blank: Option<Arc<[u32]>>,
    ) -> Self {
        Self { pristine: Mutex::new(pristine), vocab_size, model_vocab_size, eos, blank }
    }

    /// A position at the start, independent of all others: nothing that happens to one of them, an
    /// error included, is seen by another.
    pub fn start(&self) -> GrammarState {
        let pristine = self.pristine.lock().unwrap_or_else(PoisonError::into_inner);
        GrammarState {
            matcher: pristine.deep_clone(),
            vocab_size: self.vocab_size.min(self.model_vocab_size),
            num_words: self.model_vocab_size.div_ceil(32) as usize,
            eos: Arc::clone(&self.eos),
            blank: self.blank.clone(),
            is_whole: false,
        }
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

/// One position in a grammar: the state of one choice.
pub struct GrammarState {
    matcher: Matcher,
    vocab_size: u32,
    num_words: usize,
    eos: Arc<[u32]>,
    blank: Option<Arc<[u32]>>,
    /// Nothing but white space could follow.
    is_whole: bool,
}

/// Why a grammar cannot go on. The request ends with an error; others go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A token came that the mask had not allowed: our own mistake.
    #[error("token {0} does not fit the grammar")]
    Token(u32),
    /// The mask would cost more than is allowed, or cannot be computed.
    #[error("the grammar is too complex to continue ({0})")]
    TooComplex(&'static str),
}

impl GrammarState {
    /// Which tokens may come next: one bit an id of the model's vocabulary, lowest bit first,
    /// `ceil(vocab_size / 32)` words. Ids beyond the tokenizer are never allowed; end-of-text ids
    /// only where the grammar may end. At least one bit is set, unless the grammar is finished and
    /// the model has no end-of-text.
    ///
    /// Blocking: tens of microseconds, at most some 20 ms.
    ///
    /// # Errors
    /// `GrammarError::TooComplex`; the state is of no use after it.
    pub fn mask(&mut self) -> Result<Vec<u32>, GrammarError> {
        let mut words = vec![0; self.num_words];
        if !self.is_finished() {
            match self.matcher.compute_mask() {
                Ok(mask) => {
                    let len = words.len().min(mask.as_slice().len());
                    words[..len].copy_from_slice(&mask.as_slice()[..len]);
                }
                // No token fits: an end if the grammar allows one here.
                Err(_) if self.is_finished() => {}
                Err(error) => return Err(too_complex(&error)),
            }
            if let Some(blank) = &self.blank
                && words.iter().zip(blank.iter()).all(|(word, blank)| word & !blank == 0)
                && self.matcher.is_accepting().unwrap_or(false)
            {
                self.is_whole = true;
                words.fill(0);
            }
        }
        if self.is_finished() {
            for &id in self.eos.iter().filter(|&&id| id < self.vocab_size) {
                words[id as usize / 32] |= 1 << (id % 32);
            }
        }
        clear_from(&mut words, self.vocab_size);
        Ok(words)
    }

    /// Takes the token that was sampled under the last mask.
    ///
    /// # Errors
    /// `GrammarError`; the state is of no use after it.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        if self.is_finished() && self.eos.contains(&token) {
            return Ok(());
        }
        if self.is_finished() || !matches!(self.matcher.validate_tokens(&[token]), Ok(1)) {
            return Err(GrammarError::Token(token));
        }
        self.matcher.consume_token(token).map_err(|error| too_complex(&error))
    }

    /// The bytes that must follow `token`, as far as there is no choice; empty if the token does not fit.
    ///
    /// Blocking: tens of microseconds. The state does not change.
    pub fn forced_after(&self, token: u32) -> Vec<u8> {
        let mut matcher = self.matcher.deep_clone();
        match matcher.consume_token(token) {
            Ok(()) if !matcher.is_stopped() => matcher.compute_ff_bytes(),
            _ => Vec::new(),
        }
    }

    /// Nothing but end-of-text can follow; seen for JSON once its mask has been asked for.
    pub fn is_finished(&self) -> bool {
        self.is_whole
            || (!self.matcher.is_error()
                && self.matcher.is_stopped()
                && self.matcher.stop_reason().is_ok())
    }

    /// Whether the answer may end here.
    pub fn may_end(&mut self) -> bool {
        self.is_finished() || self.matcher.is_accepting().unwrap_or(false)
    }
}

/// The library's texts can hold text of the answer: only what they are about goes on.
fn too_complex(error: &impl fmt::Display) -> GrammarError {
    let text = error.to_string();
    let limits = [
        ("items", "too many alternatives at one place"),
        ("fuel", "its regexes take too long"),
        ("states", "its regexes have too many states"),
    ];
    let known = limits.iter().find(|(word, _)| text.contains(word));
    GrammarError::TooComplex(known.map_or("internal error", |(_, reason)| reason))
}

impl fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarState")
            .field("finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

/// Clears all bits from number `start` on.
fn clear_from(words: &mut [u32], start: u32) {
    let (word, bit) = (start as usize / 32, start % 32);
    if let Some(edge) = words.get_mut(word) {
        *edge &= (1 << bit) - 1;
    }
    for beyond in words.iter_mut().skip(word + 1) {
        *beyond = 0;
    }
}
