//! [2] The general encoder, for everything that the fast encoders do not cover: normaliser,
//! pre-tokeniser and BPE model of tokenizer.json, step by step. Any thread. Ids are those of the
//! tokenizers library. It handles only those added tokens that are looked up in normalised text.
//!
//! The files are hostile. Patterns run in the linear engine, the growth of a text is bounded, and
//! anything unknown is refused by name at load.

mod bpe;
mod charsmap;
mod normalizer;
mod pieces;
mod pre_tokenizer;

pub(crate) use charsmap::CharsMap;
pub(crate) use normalizer::Normalizer;

use crate::TextError;
use crate::added::{AddedMatcher, AddedToken, Part, TokenKind};
use crate::hf::Model;
use bpe::Bpe;
use pre_tokenizer::PreTokenizer;
use serde_json::Value;

/// Normaliser, pre-tokeniser and BPE model.
#[derive(Debug)]
pub(crate) struct Pipeline {
    normalizer: Normalizer,
    pre_tokenizer: PreTokenizer,
    model: Bpe,
    normalized: AddedMatcher,
}

impl Pipeline {
    /// Builds the encoder.
    ///
    /// # Errors
    /// `TextError` that names the section and the unsupported part.
    pub(crate) fn new(
        normalizer: Normalizer,
        pre_tokenizer: Option<&Value>,
        model: Model,
        normalized: Vec<AddedToken>,
    ) -> Result<Self, TextError> {
        Ok(Self {
            normalizer,
            pre_tokenizer: PreTokenizer::parse(pre_tokenizer)?,
            model: Bpe::new(model)?,
            normalized: AddedMatcher::new(normalized),
        })
    }

    /// Appends the ids of `text`; `first`: it is at the start of the input.
    ///
    /// # Errors
    /// `TextError::Encode` if the text grows too much or costs too much.
    pub(crate) fn encode(
        &self,
        text: &str,
        first: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let text = self.normalizer.apply(text)?;
        let mut words = self.model.words(out);
        if self.normalized.is_empty() {
            return self.pre_tokenizer.pieces(&text, first, &mut |piece| words.push(piece));
        }
        let mut first = first;
        self.normalized.split(&text, &|kind, _, _| kind != TokenKind::Special, &mut |part| {
            match part {
                Part::Token(id) => words.push_id(id),
                Part::Text(text) => {
                    self.pre_tokenizer.pieces(text, first, &mut |piece| words.push(piece))?;
                }
            }
            first = false;
            Ok(())
        })
    }
}
