//! [2] The text of a prompt together with where it came from. Any thread.
//!
//! Special tokens count only where the template wrote them. The template engine cannot say which
//! characters came from the request, so `chat::provenance` marks characters of the request before
//! rendering and this type remembers where the marked ones ended up.

use crate::TextError;

/// A prompt, and which of its characters may not take part in a special token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    text: String,
    /// Byte offsets of characters that came from the request, ascending; only characters of
    /// `guarded` are listed.
    foreign: Vec<usize>,
    /// The characters that were marked; `None`: all of the text is trusted.
    guarded: Option<Vec<char>>,
}

impl RenderedPrompt {
    /// A prompt in which every special token counts, wherever it stands. Not for text of a request.
    pub fn trusted(text: String) -> Self {
        Self { text, foreign: Vec::new(), guarded: None }
    }

    pub(crate) fn guarded(text: String, foreign: Vec<usize>, guarded: Vec<char>) -> Self {
        Self { text, foreign, guarded: Some(guarded) }
    }

    /// The text that Hugging Face would have rendered.
    pub fn text(&self) -> String {
        self.text.clone()
    }

    /// The same without a copy.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether a special token may be read from the bytes `[start, end)`.
    pub(crate) fn is_trusted(&self, start: usize, end: usize) -> bool {
        let next = self.foreign.partition_point(|&offset| offset < start);
        self.foreign.get(next).is_none_or(|&offset| offset >= end)
    }

    /// Checks that the marks protect special tokens that begin with one of `first_chars`.
    ///
    /// # Errors
    /// `TextError::Encode` otherwise, since then user text could pass as a special token.
    pub(crate) fn check_guards(&self, first_chars: &[char]) -> Result<(), TextError> {
        let Some(guarded) = &self.guarded else { return Ok(()) };
        match first_chars.iter().find(|c| !guarded.contains(c)) {
            None => Ok(()),
            Some(c) => Err(TextError::Encode(format!(
                "the chat template was not told that special tokens begin with {c:?}"
            ))),
        }
    }
}
