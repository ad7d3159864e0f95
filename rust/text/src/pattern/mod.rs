//! [2] The regular expressions of tokenizer files, run without backtracking. Any thread.
//!
//! Tokenizer files are written for Oniguruma, which backtracks: a hostile pattern can take seconds
//! on a short text. Here a pattern becomes a lazy DFA. `syntax` accepts only what means the same in
//! both engines and refuses the rest by name. One look-ahead is supported exactly: `\s+(?!\S)|\s+`
//! at the end, which the splitting patterns since GPT-2 share.
//!
//! A DFA reads past the match that it reports, so a pattern can make it read the same text
//! repeatedly. The bytes read for one text are therefore counted and bounded.

mod syntax;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, PoisonError};

use regex_automata::hybrid::dfa::{Cache, Config, DFA};
use regex_automata::hybrid::{CacheError, LazyStateID};
use regex_automata::nfa::thompson::{self, NFA};
use regex_automata::{Anchored, Input, MatchKind, PatternID};
use regex_syntax::hir::Hir;

use crate::TextError;
use crate::error::excerpt;
use syntax::Checked;

/// A compiled pattern.
pub(crate) struct Pattern {
    forward: DFA,
    /// Finds where a match begins whose end is known.
    reverse: DFA,
    /// Whether the last alternative is `\s+(?!\S)|\s+`, compiled as `\s+` and cut afterwards.
    gives_back_space: bool,
    idle: Mutex<Vec<(Cache, Cache)>>,
}

/// A match: `[start, end)` in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Match {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Why a text could not be searched.
#[derive(Debug)]
enum Failure {
    /// The pattern reads the text too often.
    TooMuchReading,
    /// The pattern has too many states on this text.
    TooManyStates,
}

impl Pattern {
    /// Compiles a pattern of a tokenizer file. `file` and `field` are its place, for errors.
    ///
    /// # Errors
    /// `TextError` that names file, field and the part of the pattern that is not supported.
    pub(crate) fn new(
        file: &'static str,
        field: &'static str,
        pattern: &str,
    ) -> Result<Self, TextError> {
        let fail = |reason: &str| {
            TextError::load(file, format!("{field}: pattern {:?}: {reason}", excerpt(pattern)))
        };
        if pattern.len() > MAX_PATTERN_BYTES {
            return Err(fail(&format!("longer than {MAX_PATTERN_BYTES} bytes")));
        }
        let checked = syntax::check(pattern).map_err(|reason| fail(&reason))?;
        Self::compile(&checked).ok_or_else(|| fail("too large once compiled"))
    }

    /// The pattern of the pre-tokeniser called Whitespace, which the tokenizers library runs in the engine
    /// of this one: `\w` means the same without a check.
    ///
    /// # Errors
    /// None in practice.
    pub(crate) fn words() -> Result<Self, TextError> {
        let hirs = vec![regex_syntax::parse(r"\w+|[^\w\s]+").map_err(|_| fixed_pattern())?];
        Self::compile(&Checked { hirs, gives_back_space: false }).ok_or_else(fixed_pattern)
    }

    /// `None` if it is too large.
    fn compile(checked: &Checked) -> Option<Self> {
        let forward = nfa(&checked.hirs, false)?;
        let reverse = nfa(&checked.hirs, true)?;
        Some(Self {
            forward: dfa(forward, MatchKind::LeftmostFirst)?,
            reverse: dfa(reverse, MatchKind::All)?,
            gives_back_space: checked.gives_back_space,
            idle: Mutex::default(),
        })
    }

    /// Calls `each` for every match in order; matches do not overlap and are never empty.
    ///
    /// Blocking: linear in the text.
    ///
    /// # Errors
    /// `TextError::Encode` if the pattern is too costly for this text.
    pub(crate) fn matches(
        &self,
        text: &str,
        each: &mut impl FnMut(Match) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (mut forward, mut reverse) =
            idle.unwrap_or_else(|| (self.forward.create_cache(), self.reverse.create_cache()));
        let mut search = Search::new(self, text, &mut forward, &mut reverse);
        let done = loop {
            match search.next() {
                Ok(None) => break Ok(()),
                Ok(Some(found)) => {
                    if let Err(error) = each(found) {
                        break Err(error);
                    }
                }
                Err(failure) => break Err(TextError::Encode(failure.text().to_owned())),
            }
        };
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE_CACHES {
            idle.push((forward, reverse));
        }
        done
    }

    /// Calls `each` for every match and every gap between matches; together they are the text.
    ///
    /// # Errors
    /// As `matches`, and those of `each`.
    pub(crate) fn pieces<'t>(
        &self,
        text: &'t str,
        each: &mut impl FnMut(&'t str, bool) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let mut at = 0;
        self.matches(text, &mut |found| {
            if at < found.start {
                each(&text[at..found.start], false)?;
            }
            at = found.end;
            each(&text[found.start..found.end], true)
        })?;
        if at < text.len() { each(&text[at..], false) } else { Ok(()) }
    }
}

impl std::fmt::Debug for Pattern {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pattern").finish_non_exhaustive()
    }
}

impl Failure {
    fn text(&self) -> &'static str {
        match self {
            Self::TooMuchReading => "a pattern of the tokenizer reads this text too often",
            Self::TooManyStates => "a pattern of the tokenizer has too many states on this text",
        }
    }
}

/// One text's matches.
struct Search<'s> {
    pattern: &'s Pattern,
    text: &'s str,
    forward: &'s mut Cache,
    reverse: &'s mut Cache,
    at: usize,
    /// Bytes read so far.
    read: usize,
    max_read: usize,
    /// A cache that has been emptied more often has too many states: forward, reverse.
    max_clears: [usize; 2],
}

/// The end of a match and the alternative that matched.
type End = (usize, PatternID);

impl<'s> Search<'s> {
    fn new(
        pattern: &'s Pattern,
        text: &'s str,
        forward: &'s mut Cache,
        reverse: &'s mut Cache,
    ) -> Self {
        let max_clears = [&*forward, &*reverse].map(|cache| cache.clear_count() + MAX_CLEARS);
        let max_read = text.len().saturating_mul(MAX_READINGS).saturating_add(FREE_READING);
        Self { pattern, text, forward, reverse, at: 0, read: 0, max_read, max_clears }
    }

    fn next(&mut self) -> Result<Option<Match>, Failure> {
        if self.at >= self.text.len() {
            return Ok(None);
        }
        // Most matches begin where the last one ended.
        let (start, (mut end, alternative)) = match self.read_forward(Anchored::Yes)? {
            Some(end) => (self.at, end),
            None => match self.read_forward(Anchored::No)? {
                None => return Ok(None),
                Some(end) => (self.start_of(end)?, end),
            },
        };
        if self.pattern.gives_back_space && alternative == SPACE {
            end = self.without_last_space(start, end);
        }
        self.at = end;
        Ok(Some(Match { start, end }))
    }

    /// `\s+(?!\S)`: before other text, the last of several spaces is not part of the match.
    fn without_last_space(&self, start: usize, end: usize) -> usize {
        if end == self.text.len() {
            return end;
        }
        match self.text[start..end].char_indices().next_back() {
            Some((last, _)) if last > 0 => start + last,
            _ => end,
        }
    }

    /// The end of the match that begins at `at` or, unless anchored, of the leftmost one after it.
    fn read_forward(&mut self, anchored: Anchored) -> Result<Option<End>, Failure> {
        let (dfa, cache) = (&self.pattern.forward, &mut *self.forward);
        let input = Input::new(self.text).range(self.at..).anchored(anchored);
        let mut state =
            dfa.start_state_forward(cache, &input).map_err(|_| Failure::TooManyStates)?;
        let mut found = None;
        for (at, &byte) in self.text.as_bytes().iter().enumerate().skip(self.at) {
            state = dfa.next_state(cache, state, byte)?;
            self.read += 1;
            if cache.clear_count() > self.max_clears[0] {
                return Err(Failure::TooManyStates);
            }
            if state.is_tagged() {
                if state.is_match() {
                    // The DFA reports a match one byte late.
                    found = Some((at, dfa.match_pattern(cache, state, 0)));
                } else if state.is_dead() {
                    self.check_cost()?;
                    return Ok(found);
                }
            }
        }
        state = dfa.next_eoi_state(cache, state)?;
        if state.is_match() {
            found = Some((self.text.len(), dfa.match_pattern(cache, state, 0)));
        }
        self.check_cost()?;
        Ok(found)
    }

    /// Where the match begins that ends there.
    fn start_of(&mut self, (end, alternative): End) -> Result<usize, Failure> {
        let (dfa, cache) = (&self.pattern.reverse, &mut *self.reverse);
        let anchored = Anchored::Pattern(alternative);
        let input = Input::new(self.text).range(self.at..end).anchored(anchored);
        let mut state: LazyStateID =
            dfa.start_state_reverse(cache, &input).map_err(|_| Failure::TooManyStates)?;
        let mut start = end;
        for at in (self.at..end).rev() {
            state = dfa.next_state(cache, state, self.text.as_bytes()[at])?;
            self.read += 1;
            if cache.clear_count() > self.max_clears[1] {
                return Err(Failure::TooManyStates);
            }
            if state.is_match() {
                start = at + 1;
            } else if state.is_dead() {
                self.check_cost()?;
                return Ok(start);
            }
        }
        // The byte before decides about the last step, as in the library's own search.
        state = match self.at.checked_sub(1) {
            Some(before) => dfa.next_state(cache, state, self.text.as_bytes()[before])?,
            None => dfa.next_eoi_state(cache, state)?,
        };
        if state.is_match() {
            start = self.at;
        }
        self.check_cost()?;
        Ok(start)
    }

    fn check_cost(&mut self) -> Result<(), Failure> {
        if self.read > self.max_read {
            return Err(Failure::TooMuchReading);
        }
        Ok(())
    }
}

impl From<CacheError> for Failure {
    fn from(_: CacheError) -> Self {
        Self::TooManyStates
    }
}

fn fixed_pattern() -> TextError {
    TextError::Encode("a fixed pattern did not compile".into())
}

/// `None` if it is too large.
fn nfa(hirs: &[Hir], reverse: bool) -> Option<NFA> {
    let config = thompson::Config::new()
        .nfa_size_limit(Some(MAX_NFA_BYTES))
        .which_captures(thompson::WhichCaptures::None)
        .shrink(false)
        .reverse(reverse);
    thompson::Compiler::new().configure(config).build_many_from_hir(hirs).ok()
}

/// `None` if it is too large.
fn dfa(nfa: NFA, kind: MatchKind) -> Option<DFA> {
    let config =
        Config::new().match_kind(kind).starts_for_each_pattern(true).cache_capacity(CACHE_BYTES);
    DFA::builder().configure(config).build_from_nfa(nfa).ok()
}

/// The alternative for `\s+(?!\S)|\s+`.
const SPACE: PatternID = PatternID::new_unchecked(1);
/// The longest published pattern has some 1,400 bytes.
const MAX_PATTERN_BYTES: usize = 8 << 10;
/// Published patterns need up to 0.4 MB.
const MAX_NFA_BYTES: usize = 2 << 20;
/// States of one direction of one thread.
const CACHE_BYTES: usize = 2 << 20;
/// How often a text may fill a cache.
const MAX_CLEARS: usize = 16;
/// How often each byte of a text may be read on average. Published patterns read it two or three times.
const MAX_READINGS: usize = 32;
/// What a short text may cost.
const FREE_READING: usize = 4096;
const MAX_IDLE_CACHES: usize = 4;
