//! [2] The user-defined pieces of a SentencePiece model.

use crate::TextError;
use crate::added::{AddedMatcher, AddedToken, Part};

/// Pieces that are found in the text before anything else.
#[derive(Debug)]
pub(crate) struct UserDefined(AddedMatcher);

impl UserDefined {
    pub(super) fn new(pieces: Vec<AddedToken>) -> Self {
        Self(AddedMatcher::new(pieces))
    }

    /// The symbol at the beginning of `text`: its id and its length.
    pub(super) fn first(&self, text: &str) -> Option<(u32, usize)> {
        self.0.token_at_start(text)
    }

    /// Hands the symbols in `text`, and the text between them, to `each`.
    pub(super) fn split(
        &self,
        text: &str,
        each: &mut impl FnMut(Part<'_>) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        self.0.split(text, &|_, _, _| true, each)
    }
}
