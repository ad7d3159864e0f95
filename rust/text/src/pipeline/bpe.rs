//! [2] Byte-pair encoding of one piece of text, with every option of the tokenizers library. Any thread.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::TextError;
use crate::hf::Model;
use crate::merge::MergeTable;
use crate::words::{CachePool, WordCache};

/// The model section of tokenizer.json.
pub(super) struct Bpe {
    vocab: HashMap<String, u32>,
    merges: MergeTable,
    unknown: Option<String>,
    prefix: Option<String>,
    suffix: Option<String>,
    fuse_unknown: bool,
    byte_fallback: bool,
    whole_words: bool,
    caches: CachePool,
}

/// Takes the pieces of one text.
pub(super) struct Words<'w> {
    model: &'w Bpe,
    cache: Option<WordCache>,
    out: &'w mut Vec<u32>,
}

impl Bpe {
    /// # Errors
    /// `TextError::Load` for a merge that the vocabulary does not allow.
    pub(super) fn new(model: Model) -> Result<Self, TextError> {
        let merges = model.merge_table(|_| {})?;
        Ok(Self {
            vocab: model.vocab,
            merges,
            unknown: model.unk_token,
            prefix: model.continuing_subword_prefix.filter(|text| !text.is_empty()),
            suffix: model.end_of_word_suffix.filter(|text| !text.is_empty()),
            fuse_unknown: model.fuse_unk,
            byte_fallback: model.byte_fallback,
            whole_words: model.ignore_merges,
            caches: CachePool::default(),
        })
    }

    /// A place to put the pieces of one text.
    pub(super) fn words<'w>(&'w self, out: &'w mut Vec<u32>) -> Words<'w> {
        Words { model: self, cache: Some(self.caches.take()), out }
    }

    fn encode(&self, word: &str) -> Result<Vec<u32>, TextError> {
        if self.whole_words
            && let Some(id) = self.vocab.get(word)
        {
            return Ok(vec![*id]);
        }
        let mut symbols = self.symbols(word)?;
        self.merges.merge(&mut symbols);
        Ok(symbols)
    }

    /// The tokens of the characters.
    fn symbols(&self, word: &str) -> Result<Vec<u32>, TextError> {
        let mut symbols = Vec::with_capacity(word.len());
        // An unknown token that has not been written yet, as more of them may become one.
        let mut unknown = None;
        for (at, c) in word.char_indices() {
            let is_last = at + c.len_utf8() == word.len();
            let spelled = self.spelled(&word[at..at + c.len_utf8()], at == 0, is_last);
            if let Some(id) = self.vocab.get(spelled.as_ref()) {
                symbols.extend(unknown.take());
                symbols.push(*id);
            } else if let Some(ids) = self.bytes(&spelled) {
                // Bytes overtake an unknown token that is waiting, as in the library.
                symbols.extend(ids);
            } else if let Some(token) = &self.unknown {
                let id = *self.vocab.get(token).ok_or_else(|| {
                    TextError::Encode("the unknown token is not in the vocabulary".into())
                })?;
                if !self.fuse_unknown {
                    symbols.extend(unknown.take());
                }
                unknown = Some(id);
            }
        }
        symbols.extend(unknown);
        Ok(symbols)
    }

    /// A character as the vocabulary spells it at its place in the word.
    fn spelled<'c>(&self, c: &'c str, is_first: bool, is_last: bool) -> Cow<'c, str> {
        let prefix = self.prefix.as_deref().filter(|_| !is_first).unwrap_or_default();
        let suffix = self.suffix.as_deref().filter(|_| is_last).unwrap_or_default();
        if prefix.is_empty() && suffix.is_empty() {
            return Cow::Borrowed(c);
        }
        Cow::Owned(format!("{prefix}{c}{suffix}"))
    }

    /// The byte tokens of a text, if they are wanted and all there.
    fn bytes(&self, text: &str) -> Option<Vec<u32>> {
        if !self.byte_fallback {
            return None;
        }
        text.bytes().map(|byte| self.vocab.get(&format!("<0x{byte:02X}>")).copied()).collect()
    }
}

impl std::fmt::Debug for Bpe {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Bpe").field("tokens", &self.vocab.len()).finish_non_exhaustive()
    }
}

impl Words<'_> {
    /// Appends the ids of a piece.
    pub(super) fn push(&mut self, piece: &str) -> Result<(), TextError> {
        let Some(cache) = &mut self.cache else {
            self.out.append(&mut self.model.encode(piece)?);
            return Ok(());
        };
        let mut failure = Ok(());
        cache.ids(piece, self.out, || {
            self.model.encode(piece).unwrap_or_else(|error| {
                failure = Err(error);
                Vec::new()
            })
        });
        if failure.is_err() {
            // It remembers the failed word as one without tokens.
            self.cache = None;
        }
        failure
    }

    /// Appends the id of an added token.
    pub(super) fn push_id(&mut self, id: u32) {
        self.out.push(id);
    }
}

impl Drop for Words<'_> {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.take() {
            self.model.caches.give_back(cache);
        }
    }
}
