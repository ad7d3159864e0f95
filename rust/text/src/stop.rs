//! [7] Finds stop strings in the text of one choice. Engine thread only. Never lets out a character
//! that may still turn out to belong to a stop.
//!
//! The match that ends first wins; of several that end at the same place the longest (it begins
//! first). One Knuth-Morris-Pratt automaton per stop: constant work per byte and stop, whatever the
//! overlaps and however the text is cut.

use crate::TextError;

/// The stop state of one choice of one request.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Automaton>,
    include_stop: bool,
    /// Text that is not out yet: the beginning of a possible stop.
    held: String,
    matched: bool,
}

#[derive(Debug, Clone)]
struct Automaton {
    pattern: Vec<u8>,
    /// `failure[n]`: the longest proper prefix of the first n + 1 bytes that is also their suffix.
    failure: Vec<usize>,
    /// How many bytes of the pattern the text ends with.
    state: usize,
}

impl StopMatcher {
    /// Makes a matcher; without stops all text passes. `include_stop`: the text ends with the stop
    /// instead of before it.
    ///
    /// # Errors
    /// `TextError::Input` naming `stop` if one of the strings is empty.
    pub fn new(stops: &[String], include_stop: bool) -> Result<Self, TextError> {
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(TextError::input("stop", format!("string {index} is empty")));
        }
        let stops = stops.iter().map(|stop| Automaton::new(stop)).collect();
        Ok(Self { stops, include_stop, held: String::new(), matched: false })
    }

    /// Takes the next text, appends to `out` what is safe to send, and returns the index of the stop
    /// that ended the text. After a match nothing more comes out.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.matched {
            return None;
        }
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        let held_before = self.held.len();
        self.held.push_str(text);
        for (offset, &byte) in text.as_bytes().iter().enumerate() {
            if let Some(index) = self.advance(byte) {
                let end = held_before + offset + 1;
                let begin = end - self.stops[index].pattern.len();
                out.push_str(&self.held[..if self.include_stop { end } else { begin }]);
                self.held.clear();
                self.matched = true;
                return Some(index);
            }
        }
        let hold = self.stops.iter().map(|stop| stop.state).max().unwrap_or(0);
        let safe = self.held.len() - hold;
        out.extend(self.held.drain(..safe));
        None
    }

    /// Appends the text that was held back, once no more will come.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// Feeds one byte to every automaton; the longest stop that it completed.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut found: Option<usize> = None;
        for index in 0..self.stops.len() {
            if self.stops[index].advance(byte) {
                let longer = |other: usize| {
                    self.stops[index].pattern.len() > self.stops[other].pattern.len()
                };
                if found.is_none_or(longer) {
                    found = Some(index);
                }
            }
        }
        found
    }
}

impl Automaton {
    fn new(pattern: &str) -> Self {
        let pattern = pattern.as_bytes().to_vec();
        let mut failure = vec![0; pattern.len()];
        let mut length = 0;
        for at in 1..pattern.len() {
            while length > 0 && pattern[length] != pattern[at] {
                length = failure[length - 1];
            }
            if pattern[length] == pattern[at] {
                length += 1;
            }
            failure[at] = length;
        }
        Self { pattern, failure, state: 0 }
    }

    /// Whether `byte` completes the pattern.
    fn advance(&mut self, byte: u8) -> bool {
        while self.state > 0 && self.pattern[self.state] != byte {
            self.state = self.failure[self.state - 1];
        }
        if self.pattern[self.state] == byte {
            self.state += 1;
        }
        self.state == self.pattern.len()
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
