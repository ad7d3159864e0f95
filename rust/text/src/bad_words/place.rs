//! Tracks which part of the answer the text is in, byte by byte. Words are banned in the content
//! and allowed in the reasoning. Agrees with `ReasoningSplitter` and `HarmonyReader`; in doubt, it treats text as
//! content.

use super::harmony::HarmonyPlace;
use super::words::{NodeId, ROOT, WordList};
use crate::grammar::Reasoned;
use crate::reasoning::ReasoningFormat;

/// A place in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// So many bytes of the opening marker have come, and only white space before them. All of it is
    /// content unless the marker is completed; `None` if that content has a word.
    Start { matched: u8, content: Option<NodeId> },
    /// In the reasoning, whose last bytes are this many bytes of the closing marker.
    Inside { matched: u8 },
    /// White space after the closing marker belongs to it.
    Between,
    /// In the content.
    Content(NodeId),
    /// In an answer that is messages.
    Harmony(HarmonyPlace),
}

impl Place {
    pub(super) fn first(format: Option<&ReasoningFormat>, reasoning: Option<Reasoned>) -> Self {
        match reasoning.filter(|_| format.is_some()) {
            Some(reasoned) if format == Some(&ReasoningFormat::Harmony) => {
                Self::Harmony(HarmonyPlace::first(reasoned))
            }
            None | Some(Reasoned::Closed) => Self::Content(ROOT),
            Some(Reasoned::Opened) => Self::Inside { matched: 0 },
            Some(Reasoned::Allowed) => Self::Start { matched: 0, content: Some(ROOT) },
        }
    }

    /// Whether the answer may be cut here: a token that leaves a word in what may be content is as bad
    /// as one that completes a word.
    pub(super) fn may_last(self) -> bool {
        !matches!(self, Self::Start { content: None, .. })
    }

    /// After one more byte; `None` if that completes a word.
    pub(super) fn step(
        self,
        byte: u8,
        words: &WordList,
        format: Option<&ReasoningFormat>,
    ) -> Option<Self> {
        // Only a model with tags begins in one of the first two places.
        let (open, close) = match format {
            Some(ReasoningFormat::Tags(tags)) => (tags.open.as_str(), tags.close.as_str()),
            _ => ("", ""),
        };
        match self {
            Self::Harmony(place) => place.step(byte, words).map(Self::Harmony),
            Self::Start { matched, content } => {
                let content = content.and_then(|node| words.step(node, byte));
                if open.as_bytes().get(usize::from(matched)) == Some(&byte) {
                    let matched = matched + 1;
                    return Some(if usize::from(matched) == open.len() {
                        Self::Inside { matched: 0 }
                    } else {
                        Self::Start { matched, content }
                    });
                }
                let is_before = matched == 0 && byte.is_ascii_whitespace();
                content.map(|node| {
                    if is_before {
                        Self::Start { matched, content: Some(node) }
                    } else {
                        Self::Content(node)
                    }
                })
            }
            Self::Inside { matched } => {
                let close = close.as_bytes();
                // The marker's first byte comes only once in it: a mismatch can only start anew.
                let matched = if close.get(usize::from(matched)) == Some(&byte) {
                    matched + 1
                } else {
                    u8::from(close.first() == Some(&byte))
                };
                let is_closed = usize::from(matched) == close.len();
                Some(if is_closed { Self::Between } else { Self::Inside { matched } })
            }
            Self::Between if byte.is_ascii_whitespace() => Some(self),
            Self::Between => words.step(ROOT, byte).map(Self::Content),
            Self::Content(node) => words.step(node, byte).map(Self::Content),
        }
    }
}
