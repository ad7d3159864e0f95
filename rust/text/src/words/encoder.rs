//! [2] Byte-level BPE over words. Any thread.

use std::collections::HashMap;

use serde_json::Value;
use unicode_normalization_alignments::UnicodeNormalization;

use super::cache::CachePool;
use super::splitter::Splitter;
use crate::TextError;
use crate::added::{AddedMatcher, AddedToken, Part, TokenKind};
use crate::byte_level::char_of_byte;
use crate::hf::{Model, TOKENIZER_JSON};
use crate::merge::MergeTable;

/// The fast encoder of one model.
pub(crate) struct WordEncoder {
    splitter: Splitter,
    /// Whether text is brought to normalisation form C first.
    nfc: bool,
    /// Added tokens that are looked for in normalised text.
    normalized: AddedMatcher,
    /// The token of each byte; `NO_TOKEN`: the byte is passed over, as the crate does.
    byte_ids: [u32; 256],
    merges: MergeTable,
    /// For models with `ignore_merges`: a word that is a token is that token.
    whole_words: Option<HashMap<Box<[u8]>, u32>>,
    caches: CachePool,
}

/// The parts of an encoder that come ready.
pub(crate) struct WordParts {
    pub(crate) splitter: Splitter,
    /// The token of each byte.
    pub(crate) byte_ids: [u32; 256],
    pub(crate) merges: MergeTable,
    /// Every token by its bytes: a word that is a token is that token.
    pub(crate) whole_words: HashMap<Box<[u8]>, u32>,
}

/// What a tokenizer must be for this encoder.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) splitter: Splitter,
    pub(crate) nfc: bool,
}

impl Recipe {
    /// Recognises a normaliser and a pre-tokeniser; anything unknown is `None`.
    ///
    /// # Errors
    /// `TextError` for a pattern that no encoder supports.
    pub(crate) fn of(
        normalizer: Option<&Value>,
        pre_tokenizer: Option<&Value>,
    ) -> Result<Option<Self>, TextError> {
        let nfc = match normalizer {
            None | Some(Value::Null) => false,
            Some(section) if section["type"] == "NFC" => true,
            Some(_) => return Ok(None),
        };
        let splitter = pre_tokenizer.map_or(Ok(None), splitter)?;
        Ok(splitter.map(|splitter| Self { splitter, nfc }))
    }
}

fn splitter(section: &Value) -> Result<Option<Splitter>, TextError> {
    Ok(match section["pretokenizers"].as_array().map(Vec::as_slice) {
        None if is_byte_level(section, true) => Some(Splitter::Gpt2),
        Some([digits, byte_level])
            if digits["type"] == "Digits"
                && digits["individual_digits"] == true
                && is_byte_level(byte_level, true) =>
        {
            Some(Splitter::Gpt2Digits)
        }
        Some([splits @ .., byte_level])
            if !splits.is_empty()
                && splits.len() <= MAX_PATTERNS
                && is_byte_level(byte_level, false) =>
        {
            match splits.iter().map(isolating_pattern).collect::<Option<Vec<&str>>>() {
                None => None,
                Some(patterns) => {
                    Some(Splitter::of_patterns(TOKENIZER_JSON, "pre_tokenizer", &patterns)?)
                }
            }
        }
        _ => None,
    })
}

/// The pattern of a section that cuts out what it matches.
fn isolating_pattern(section: &Value) -> Option<&str> {
    let isolates = section["type"] == "Split"
        && section["behavior"] == "Isolated"
        && section["invert"] == false;
    section["pattern"]["Regex"].as_str().filter(|_| isolates)
}

/// Whether a section is the byte-level pre-tokeniser that adds no space.
fn is_byte_level(section: &Value, use_regex: bool) -> bool {
    let regex = section.get("use_regex").and_then(Value::as_bool).unwrap_or(true);
    section["type"] == "ByteLevel" && section["add_prefix_space"] == false && regex == use_regex
}

impl WordEncoder {
    /// Whether a model is plain byte-level BPE.
    pub(crate) fn fits(model: &Model) -> bool {
        model.is_plain() && byte_ids(model).is_some()
    }

    /// Builds the encoder.
    ///
    /// # Errors
    /// `TextError::Load` for a merge of tokens that the vocabulary lacks, as in the tokenizers crate.
    pub(crate) fn new(
        recipe: Recipe,
        model: &Model,
        normalized: Vec<AddedToken>,
    ) -> Result<Self, TextError> {
        let unclear = || TextError::load(TOKENIZER_JSON, "bytes without a token");
        let byte_ids = byte_ids(model).ok_or_else(unclear)?;
        let merges = model.merge_table(|_| {})?;
        let whole = |(token, id): (&String, &u32)| {
            Some((crate::byte_level::bytes_of_token(token)?.into_boxed_slice(), *id))
        };
        let whole_words =
            model.ignore_merges.then(|| model.vocab.iter().filter_map(whole).collect());
        Ok(Self {
            splitter: recipe.splitter,
            nfc: recipe.nfc,
            normalized: AddedMatcher::new(normalized),
            byte_ids,
            merges,
            whole_words,
            caches: CachePool::default(),
        })
    }

    /// Builds the encoder of a vocabulary whose merges follow from its tokens.
    pub(crate) fn from_parts(parts: WordParts) -> Self {
        Self {
            splitter: parts.splitter,
            nfc: false,
            normalized: AddedMatcher::new(Vec::new()),
            byte_ids: parts.byte_ids,
            merges: parts.merges,
            whole_words: Some(parts.whole_words),
            caches: CachePool::default(),
        }
    }

    /// Appends the ids of `text`.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TextError> {
        if self.nfc && !is_surely_nfc(text) {
            let normalized: String = text.nfc().map(|(c, _)| c).collect();
            return self.encode_normalized(&normalized, out);
        }
        self.encode_normalized(text, out)
    }

    fn encode_normalized(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TextError> {
        let mut cache = self.caches.take();
        let done =
            self.normalized.split(text, &|kind, _, _| kind != TokenKind::Special, &mut |part| {
                match part {
                    Part::Token(id) => out.push(id),
                    Part::Text(text) => {
                        let ids = |word| self.merge_word(word);
                        self.splitter.split(text, |word| cache.ids(word, out, || ids(word)))?;
                    }
                }
                Ok(())
            });
        self.caches.give_back(cache);
        done
    }

    fn merge_word(&self, word: &str) -> Vec<u32> {
        if let Some(id) = self.whole_words.as_ref().and_then(|words| words.get(word.as_bytes())) {
            return vec![*id];
        }
        let ids = word.bytes().map(|byte| self.byte_ids[usize::from(byte)]);
        let mut symbols: Vec<u32> = ids.filter(|id| *id != NO_TOKEN).collect();
        self.merges.merge(&mut symbols);
        symbols
    }
}

impl std::fmt::Debug for WordEncoder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("WordEncoder").field("splitter", &self.splitter).finish_non_exhaustive()
    }
}

/// The id of every byte. `None` if a byte has no token and the model does more about it than taking
/// its unknown token or passing over it.
fn byte_ids(model: &Model) -> Option<[u32; 256]> {
    let unknown = match &model.unk_token {
        Some(token) => *model.vocab.get(token)?,
        None => NO_TOKEN,
    };
    let mut ids = [unknown; 256];
    for (byte, id) in (0u8..=255).zip(&mut ids) {
        match model.vocab.get(char_of_byte(byte).encode_utf8(&mut [0; 4])) {
            Some(known) => *id = *known,
            None if model.byte_fallback || (model.fuse_unk && unknown != NO_TOKEN) => return None,
            None => {}
        }
    }
    Some(ids)
}

/// Whether `text` is in normalisation form C for sure: it has only characters that neither combine
/// nor decompose nor reorder. Other text is left to the library.
fn is_surely_nfc(text: &str) -> bool {
    text.is_ascii() || text.chars().all(never_changes_in_nfc)
}

/// Latin, Cyrillic, punctuation, kana, ideographs and emoji without combining marks.
fn never_changes_in_nfc(c: char) -> bool {
    matches!(c, '\0'..='\u{2FF}' | '\u{400}'..='\u{482}' | '\u{48A}'..='\u{52F}'
        | '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205E}' | '\u{2190}'..='\u{22FF}'
        | '\u{2500}'..='\u{27BF}' | '\u{3001}'..='\u{3029}' | '\u{3041}'..='\u{3096}'
        | '\u{30A1}'..='\u{30FA}' | '\u{4E00}'..='\u{9FFF}' | '\u{FE0F}' | '\u{200D}'
        | '\u{FF01}'..='\u{FF5E}' | '\u{1F300}'..='\u{1F64F}' | '\u{1F680}'..='\u{1F6FF}'
        | '\u{1F900}'..='\u{1F9FF}')
}

/// Published tokenizers cut by up to five patterns.
const MAX_PATTERNS: usize = 8;
/// Never an id: `MAX_VOCAB` is below.
const NO_TOKEN: u32 = u32::MAX;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_characters_that_need_no_normalising_are_left_alone() {
        let chars = || ('\0'..=char::MAX).filter(|c| never_changes_in_nfc(*c));
        assert!(chars().count() > 20_000);
        // Each beside letters and marks that compose with what they can.
        for (before, after) in [("", ""), ("e", ""), ("\u{AC00}", "\u{4E00}")] {
            let text: String = chars().map(|c| format!("{before}{c}{after}")).collect();
            let normalized: String = text.nfc().map(|(c, _)| c).collect();
            assert!(normalized == text, "changed beside {before:?} and {after:?}");
        }
        assert!(!is_surely_nfc("e\u{301}"));
    }
}
