//! [2] Encodes text with the tokenizers crate: whatever the fast encoders do not cover. Any thread.
//! Added tokens are not its business, except those that are looked for in normalised text.

use std::fmt::Display;

use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{
    Model as _, NormalizedString, Normalizer as _, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer as _,
};

use crate::TextError;
use crate::added::{AddedMatcher, AddedToken, Part};
use crate::hf::{Model, TOKENIZER_JSON};

/// Normaliser, pre-tokeniser and BPE model of the tokenizers crate.
#[derive(Debug)]
pub(crate) struct CrateEncoder {
    normalizer: Option<NormalizerWrapper>,
    /// For text at the very start.
    pre_tokenizer: Option<PreTokenizerWrapper>,
    /// For text after an added token: Metaspace with `prepend_scheme` first adds nothing there.
    pre_tokenizer_later: Option<PreTokenizerWrapper>,
    model: BPE,
    normalized: AddedMatcher,
}

impl CrateEncoder {
    pub(crate) fn new(
        normalizer: Option<Value>,
        pre_tokenizer: Option<Value>,
        model: Model,
        normalized: Vec<AddedToken>,
    ) -> Result<Self, TextError> {
        let broken = |error: &dyn Display| TextError::load(TOKENIZER_JSON, error.to_string());
        let normalizer = serde_json::from_value(normalizer.unwrap_or(Value::Null));
        let pre_tokenizer = pre_tokenizer.unwrap_or(Value::Null);
        let later = never_prepend(pre_tokenizer.clone());
        let mut merges = Vec::with_capacity(model.merges.len());
        for merge in &model.merges {
            let (left, right) = merge.split()?;
            merges.push((left.to_string(), right.to_string()));
        }
        let mut builder = BPE::builder()
            .vocab_and_merges(model.vocab.into_iter().collect::<Vocab>(), merges)
            .cache_capacity(CACHE_CAPACITY)
            .fuse_unk(model.fuse_unk)
            .byte_fallback(model.byte_fallback)
            .ignore_merges(model.ignore_merges);
        if let Some(unk) = model.unk_token {
            builder = builder.unk_token(unk);
        }
        if let Some(prefix) = model.continuing_subword_prefix {
            builder = builder.continuing_subword_prefix(prefix);
        }
        if let Some(suffix) = model.end_of_word_suffix {
            builder = builder.end_of_word_suffix(suffix);
        }
        Ok(Self {
            normalizer: normalizer.map_err(|error| broken(&error))?,
            pre_tokenizer: serde_json::from_value(pre_tokenizer).map_err(|error| broken(&error))?,
            pre_tokenizer_later: serde_json::from_value(later).map_err(|error| broken(&error))?,
            model: builder.build().map_err(|error| broken(&error))?,
            normalized: AddedMatcher::new(normalized),
        })
    }

    /// Appends the ids of `text`; `first`: nothing stands before it.
    pub(crate) fn encode(
        &self,
        text: &str,
        first: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = &self.normalizer {
            normalizer.normalize(&mut normalized).map_err(|error| failed(&error))?;
        }
        if self.normalized.is_empty() {
            return self.encode_normalized(normalized.get(), first, out);
        }
        let mut first = first;
        self.normalized.split(normalized.get(), &|_, _| false, &mut |part| {
            match part {
                Part::Token(id) => out.push(id),
                Part::Text(text) => self.encode_normalized(text, first, out)?,
            }
            first = false;
            Ok(())
        })
    }

    fn encode_normalized(
        &self,
        text: &str,
        first: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let mut pieces = PreTokenizedString::from(text);
        let pre_tokenizer = if first { &self.pre_tokenizer } else { &self.pre_tokenizer_later };
        if let Some(pre_tokenizer) = pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(|error| failed(&error))?;
        }
        for (piece, _, _) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            let tokens = self.model.tokenize(piece).map_err(|error| failed(&error))?;
            out.extend(tokens.iter().map(|token| token.id));
        }
        Ok(())
    }
}

fn failed(error: &dyn Display) -> TextError {
    TextError::Encode(error.to_string())
}

/// The pre-tokeniser for text that does not stand first.
fn never_prepend(mut section: Value) -> Value {
    if section["type"] == "Metaspace" && section["prepend_scheme"] == "first" {
        section["prepend_scheme"] = "never".into();
    }
    if let Some(Value::Array(inner)) = section.get_mut("pretokenizers") {
        for section in inner {
            *section = never_prepend(section.take());
        }
    }
    section
}

/// Words that the crate remembers per thread; its entries are large, hence fewer than its default.
const CACHE_CAPACITY: usize = 2000;
