//! [2] The text of a prompt with the origin of each byte. Any thread.
//!
//! Special tokens are honoured only where the template wrote them. Markers that the vocabulary does
//! not call special, such as `</think>` of some models, are also honoured in earlier answers of the
//! model, which wrote them as tokens. In all other text of the request they are plain text.

use ingle_jinja::Source;

use crate::added::TokenKind;

/// A prompt, and the origin of each of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    text: String,
    /// Ends of the runs of bytes that have one author, ascending; the last one is the text's.
    runs: Vec<(usize, Source)>,
}

impl RenderedPrompt {
    /// A prompt in which every special token is honoured. Not for text of a request.
    pub fn trusted(text: String) -> Self {
        let runs = vec![(text.len(), Source::Template)];
        Self { text, runs }
    }

    /// A prompt of pieces, each a length in bytes and an author.
    pub(crate) fn mixed(text: String, pieces: Vec<(usize, Source)>) -> Self {
        let mut end = 0;
        let ends = pieces.into_iter().map(|(length, source)| {
            end += length;
            (end, source)
        });
        let runs = ends.collect();
        Self { text, runs }
    }

    /// Cuts the text; `end` is on a character boundary.
    pub(crate) fn truncate(&mut self, end: usize) {
        self.text.truncate(end);
        let last = self.runs.partition_point(|(run_end, _)| *run_end < end);
        self.runs.truncate(last + 1);
        if let Some((run_end, _)) = self.runs.last_mut() {
            *run_end = end;
        }
    }

    /// The text that Hugging Face would have rendered.
    pub fn text(&self) -> String {
        self.text.clone()
    }

    /// The same without a copy.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether an added token of a kind may be read from the bytes `[start, end)`.
    ///
    /// It may if nobody else wrote one of `ends`, the characters that begin or end such tokens: a
    /// template may put a marker together from its own brackets and a role of the request.
    pub(crate) fn honours(&self, kind: TokenKind, start: usize, end: usize, ends: &[char]) -> bool {
        let first = self.runs.partition_point(|(run_end, _)| *run_end <= start);
        let mut at = start;
        for (run_end, source) in self.runs.iter().skip(first) {
            if at >= end {
                break;
            }
            let stop = end.min(*run_end);
            let foreign = match kind {
                TokenKind::Word => false,
                TokenKind::Marker => *source == Source::Request,
                TokenKind::Special => *source != Source::Template,
            };
            if foreign && self.text.get(at..stop).is_none_or(|part| part.contains(ends)) {
                return false;
            }
            at = stop;
        }
        true
    }
}
