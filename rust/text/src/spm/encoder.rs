//! [2] Encodes text as the sentencepiece library does. Any thread.

use super::normalizer::Normalizer;
use super::unigram::Unigram;
use super::user_defined::UserDefined;
use crate::TextError;
use crate::added::Part;
use crate::sentencepiece::SentencePieceEncoder;

/// Encodes as a SentencePiece model does.
pub(crate) struct SpmEncoder {
    pub(super) normalizer: Normalizer,
    pub(super) model: Cutter,
    pub(super) symbols: UserDefined,
    pub(super) unknown: u32,
    /// The tokens of bytes, for characters that no piece has.
    pub(super) bytes: Option<Box<[u32; 256]>>,
    /// Whether the first text alone gets a space before it, and no text after a special token.
    pub(super) prefix_once: bool,
}

/// How a model cuts text into pieces.
pub(super) enum Cutter {
    Bpe(Box<SentencePieceEncoder>),
    Unigram(Box<Unigram>),
}

impl SpmEncoder {
    /// Appends the ids of `text`, which follows a special token or, if `first`, nothing.
    ///
    /// # Errors
    /// `TextError::Encode` if the normaliser makes the text much longer.
    pub(crate) fn encode(
        &self,
        text: &str,
        first: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let text = self.normalizer.apply(text, first || !self.prefix_once, &self.symbols)?;
        match &self.model {
            Cutter::Unigram(model) => {
                let mut after_unknown = false;
                model.cut(&text, |id, piece| {
                    after_unknown = self.push(id, piece, after_unknown, out);
                });
            }
            Cutter::Bpe(model) => {
                self.symbols.split(&text, &mut |part| {
                    match part {
                        Part::Token(id) => out.push(id),
                        Part::Text(text) => {
                            let start = out.len();
                            model.encode(text, false, out);
                            self.join_unknown(out, start);
                        }
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Several unknown tokens in a row are one.
    fn join_unknown(&self, ids: &mut Vec<u32>, start: usize) {
        let mut after_unknown = false;
        let mut at = 0;
        ids.retain(|id| {
            let is_unknown = at >= start && *id == self.unknown;
            let kept = !(is_unknown && after_unknown);
            (at, after_unknown) = (at + 1, is_unknown);
            kept
        });
    }

    /// Appends a piece; an unknown one as its bytes, or once for several. Returns whether it was unknown.
    fn push(&self, id: u32, text: &str, after_unknown: bool, out: &mut Vec<u32>) -> bool {
        let is_unknown = id == self.unknown;
        match &self.bytes {
            Some(ids) if is_unknown => out.extend(text.bytes().map(|byte| ids[usize::from(byte)])),
            _ if is_unknown && after_unknown => {}
            _ => out.push(id),
        }
        is_unknown
    }
}

impl std::fmt::Debug for SpmEncoder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SpmEncoder").field("normalizer", &self.normalizer).finish_non_exhaustive()
    }
}
