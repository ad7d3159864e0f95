//! [7] Finds stop strings in the text of one choice. Engine thread only. Never emits a character
//! that may still turn out to be part of a stop string.
//!
//! The match that ends first wins; of several that end at the same position, the longest one, which
//! begins first. All stop strings form one Aho-Corasick automaton: constant work per byte, whatever
//! the overlaps and however the text is cut.

use std::collections::HashMap;
use std::sync::Arc;

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::nfa::noncontiguous::NFA;

use crate::TextError;

/// The stop state of one choice of one request.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    /// Absent without stops.
    stops: Option<Arc<Stops>>,
    include_stop: bool,
    state: StateID,
    /// Text that is not out yet: the beginning of a possible stop.
    held: String,
    matched: bool,
}

/// Compiled stops; all choices of a request share them.
#[derive(Debug)]
struct Stops {
    automaton: NFA,
    start: StateID,
    /// How many bytes of a stop the text ends with, by state; 0 where the state is missing.
    depths: HashMap<StateID, usize>,
}

impl StopMatcher {
    /// Makes a matcher; without stops all text passes. `include_stop`: the text ends with the stop
    /// instead of before it.
    ///
    /// # Errors
    /// `TextError::Input` naming `stop` if one of the strings is empty, or if they are too long for an
    /// automaton.
    pub fn new(stops: &[String], include_stop: bool) -> Result<Self, TextError> {
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(TextError::input("stop", format!("string {index} is empty")));
        }
        let stops = (!stops.is_empty()).then(|| Stops::new(stops)).transpose()?;
        let state = stops.as_ref().map_or(StateID::default(), |stops| stops.start);
        let stops = stops.map(Arc::new);
        Ok(Self { stops, include_stop, state, held: String::new(), matched: false })
    }

    /// Takes the next text, appends to `out` what is safe to send, and returns the index of the stop
    /// that ended the text. After a match nothing more comes out.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.matched {
            return None;
        }
        let Some(stops) = &self.stops else {
            out.push_str(text);
            return None;
        };
        let held_before = self.held.len();
        self.held.push_str(text);
        for (offset, &byte) in text.as_bytes().iter().enumerate() {
            self.state = stops.automaton.next_state(Anchored::No, self.state, byte);
            if let Some((index, len)) = stops.longest_match(self.state) {
                let end = held_before + offset + 1;
                out.push_str(&self.held[..if self.include_stop { end } else { end - len }]);
                self.held.clear();
                self.matched = true;
                return Some(index);
            }
        }
        let hold = stops.depths.get(&self.state).copied().unwrap_or(0);
        let safe = self.held.len() - hold;
        out.extend(self.held.drain(..safe));
        None
    }

    /// Appends the text that was held back, once no more will come.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

impl Stops {
    fn new(stops: &[String]) -> Result<Self, TextError> {
        let refused = |error: String| TextError::input("stop", error);
        let automaton = NFA::builder().prefilter(false).build(stops);
        let automaton = automaton.map_err(|error| refused(error.to_string()))?;
        let start = automaton.start_state(Anchored::No);
        let start = start.map_err(|error| refused(error.to_string()))?;
        let mut depths = HashMap::new();
        for stop in stops {
            let mut state = start;
            for (depth, &byte) in (1..).zip(stop.as_bytes()) {
                state = automaton.next_state(Anchored::No, state, byte);
                depths.insert(state, depth);
            }
        }
        Ok(Self { automaton, start, depths })
    }

    /// The longest stop that ends in this state, and its length; the first of equals.
    fn longest_match(&self, state: StateID) -> Option<(usize, usize)> {
        let num_found = match self.automaton.is_match(state) {
            true => self.automaton.match_len(state),
            false => 0,
        };
        let found = (0..num_found).map(|index| {
            let stop = self.automaton.match_pattern(state, index);
            (stop.as_usize(), self.automaton.pattern_len(stop))
        });
        found.min_by_key(|&(index, len)| (std::cmp::Reverse(len), index))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, on the whole text: earliest end, then the longest, then the first in the list.
    fn naive(text: &str, stops: &[String], include_stop: bool) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let ending =
                (0..stops.len()).filter(|&i| text.as_bytes()[..end].ends_with(stops[i].as_bytes()));
            if let Some(index) = ending.rev().max_by_key(|&i| stops[i].len()) {
                let keep = if include_stop { end } else { end - stops[index].len() };
                return (text[..keep].to_string(), Some(index));
            }
        }
        (text.to_string(), None)
    }

    proptest! {
        #[test]
        fn test_any_cut_of_the_text_matches_as_the_whole(
            pieces in prop::collection::vec("[abé€]{0,4}", 0..10),
            stops in prop::collection::vec("[abé€]{1,4}", 0..4),
            include_stop: bool,
        ) {
            let text = pieces.concat();
            let (wanted, wanted_index) = naive(&text, &stops, include_stop);
            let mut matcher = StopMatcher::new(&stops, include_stop).unwrap();
            let (mut out, mut index) = (String::new(), None);
            for piece in &pieces {
                let found = matcher.push(piece, &mut out);
                prop_assert!(index.is_none() || found.is_none());
                index = index.or(found);
                // What is out must stay right whatever follows.
                prop_assert!(wanted.starts_with(&out), "{out:?} is no beginning of {wanted:?}");
            }
            matcher.finish(&mut out);
            prop_assert_eq!(out, wanted);
            prop_assert_eq!(index, wanted_index);
        }
    }

    #[test]
    fn test_stop_over_two_events_leaks_nothing_and_false_starts_come_out() {
        let mut matcher = StopMatcher::new(&["\n\nQ".into(), "END".into()], false).unwrap();
        let mut out = String::new();
        assert_eq!(matcher.push("a\n", &mut out), None);
        assert_eq!(out, "a");
        assert_eq!(matcher.push("\nE", &mut out), None);
        assert_eq!(out, "a\n\n");
        assert_eq!(matcher.push("N", &mut out), None);
        assert_eq!(matcher.push("Dx", &mut out), Some(1));
        assert_eq!(matcher.push("more", &mut out), None);
        matcher.finish(&mut out);
        assert_eq!(out, "a\n\n");
    }

    #[test]
    fn test_held_text_is_released_at_the_end() {
        let mut matcher = StopMatcher::new(&["five".into()], false).unwrap();
        let mut out = String::new();
        matcher.push("four fi", &mut out);
        assert_eq!(out, "four ");
        matcher.finish(&mut out);
        assert_eq!(out, "four fi");
    }

    #[test]
    fn test_empty_stop_is_refused_by_name() {
        let error = StopMatcher::new(&["a".into(), String::new()], false).unwrap_err();
        assert_eq!(error.to_string(), "stop: string 1 is empty");
    }
}
