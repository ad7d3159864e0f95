//! [7] Finds one marker (`<think>`, `<tool_call>`, …) in text that arrives character by character.

/// Passes text on up to a marker; holds back what may be the marker's beginning, and white space,
/// which is dropped if the marker follows it.
#[derive(Clone, Debug)]
pub(crate) struct MarkerFilter {
    /// Has no white space, and contains its first character only once, so a mismatch always
    /// restarts from the beginning.
    marker: Box<str>,
    /// White space, then the first `matched` bytes of the marker.
    held: String,
    matched: usize,
}

impl MarkerFilter {
    pub(crate) fn new(marker: &str) -> Self {
        debug_assert!(!marker.contains(char::is_whitespace), "{marker}");
        debug_assert!(marker.chars().skip(1).all(|c| !marker.starts_with(c)), "{marker}");
        Self { marker: marker.into(), held: String::new(), matched: 0 }
    }

    /// Takes the next character; appends to `out` what is certain not to be the marker. True once
    /// the marker is complete: it is dropped, with the white space before it.
    pub(crate) fn step(&mut self, c: char, out: &mut String) -> bool {
        if self.matched > 0 && !self.marker[self.matched..].starts_with(c) {
            self.flush(out);
        }
        if self.marker[self.matched..].starts_with(c) {
            self.matched += c.len_utf8();
            self.held.push(c);
            if self.matched == self.marker.len() {
                self.held.clear();
                self.matched = 0;
                return true;
            }
        } else if c.is_whitespace() {
            self.held.push(c);
        } else {
            self.flush(out);
            out.push(c);
        }
        false
    }

    /// Whether the text ends with the marker's beginning.
    pub(crate) fn is_matching(&self) -> bool {
        self.matched > 0
    }

    /// Appends what is held back: no marker follows.
    pub(crate) fn flush(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.matched = 0;
    }

    /// The same at the end of an answer. A beginning that no other text has was to become the marker: it is
    /// dropped as the marker would be.
    pub(crate) fn end(&mut self, out: &mut String) {
        if self.matched >= DISTINCT {
            self.held.clear();
        }
        self.flush(out);
    }
}

/// So many bytes make `<tool` and `[TOOL`; `<` or `[T` may be text.
const DISTINCT: usize = 5;
