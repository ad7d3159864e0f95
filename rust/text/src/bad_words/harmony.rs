//! Tracks which message of an answer in the harmony format the text is in, byte by byte. Words are
//! allowed in headers and reasoning, and banned in all other messages. Agrees with `HarmonyReader`.

use super::words::{NodeId, ROOT, WordList};
use crate::grammar::Reasoned;
use crate::tools::HARMONY;

/// A place in the answer, and how much of a marker its last bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HarmonyPlace {
    /// In a header, whose last bytes are so many of `analysis`; all of them if that word was there.
    Header { analysis: u8, mark: Mark },
    /// In the reasoning.
    Thought { mark: Mark },
    /// In any other message.
    Content { node: NodeId, mark: Mark },
}

/// The beginning of a marker: `len` bytes of the one at this place of `HARMONY`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Mark {
    marker: u8,
    len: u8,
}

impl HarmonyPlace {
    pub(super) fn first(reasoned: Reasoned) -> Self {
        let mark = Mark::default();
        match reasoned {
            Reasoned::Opened => Self::Thought { mark },
            Reasoned::Allowed => Self::Header { analysis: 0, mark },
            Reasoned::Closed => Self::Content { node: ROOT, mark },
        }
    }

    /// After one more byte; `None` if that completes a word.
    pub(super) fn step(self, byte: u8, words: &WordList) -> Option<Self> {
        let header = Self::Header { analysis: 0, mark: Mark::default() };
        Some(match self {
            Self::Header { analysis, mark } => match mark.step(byte) {
                Ok(mark) => Self::Header { analysis: step_word(analysis, byte), mark },
                Err("<|message|>") if usize::from(analysis) == ANALYSIS.len() => {
                    Self::Thought { mark: Mark::default() }
                }
                Err("<|message|>") => Self::Content { node: ROOT, mark: Mark::default() },
                Err("<|channel|>" | "<|constrain|>") => {
                    Self::Header { analysis, mark: Mark::default() }
                }
                Err(_) => header,
            },
            Self::Thought { mark } => match mark.step(byte) {
                Ok(mark) => Self::Thought { mark },
                Err(_) => header,
            },
            Self::Content { node, mark } => {
                let node = words.step(node, byte)?;
                match mark.step(byte) {
                    Ok(mark) => Self::Content { node, mark },
                    Err(_) => header,
                }
            }
        })
    }
}

impl Mark {
    /// After one more byte; the marker that it completes is the error.
    fn step(self, byte: u8) -> Result<Self, &'static str> {
        let begun = &HARMONY[usize::from(self.marker)].as_bytes()[..usize::from(self.len)];
        let goes_on = |text: &&str| {
            text.as_bytes().starts_with(begun) && text.as_bytes().get(begun.len()) == Some(&byte)
        };
        if let Some(found) = HARMONY.iter().position(goes_on) {
            let text = HARMONY[found];
            let len = self.len + 1;
            if usize::from(len) == text.len() {
                return Err(text);
            }
            // There are seven markers.
            return Ok(Self { marker: found as u8, len });
        }
        // Their first byte comes only once in them: a mismatch can only start anew.
        Ok(if byte == b'<' { Self { marker: 0, len: 1 } } else { Self::default() })
    }
}

fn step_word(matched: u8, byte: u8) -> u8 {
    match ANALYSIS.get(usize::from(matched)) {
        None => matched,
        Some(next) if *next == byte => matched + 1,
        Some(_) => u8::from(byte == ANALYSIS[0]),
    }
}

const ANALYSIS: &[u8] = b"analysis";
