//! [2] The fast encoder of SentencePiece-style BPE: symbols are characters, spaces are `▁`. Any
//! thread. Merges come from tokenizer.json, or from the scores of a GGUF vocabulary as in llama.cpp
//! (`llm_tokenizer_spm`): the pair whose token has the highest score merges first.
//!
//! Such a model treats the whole text as one word. If no token has a `▁` after another character,
//! no merge crosses such a position, so the text can be split there and the words cached.

use std::collections::HashMap;

use serde_json::Value;

use crate::TextError;
use crate::hf::{Model, TOKENIZER_JSON, fallback_byte};
use crate::merge::{Merge, MergeTable};
use crate::words::{CachePool, WordCache};

const SPACE: char = '▁';

/// A SentencePiece-style model.
pub(crate) struct SentencePieceEncoder {
    /// Single characters that are tokens.
    chars: HashMap<char, u32>,
    merges: MergeTable,
    unknown: Unknown,
    prefix: Prefix,
    /// Whether text may be cut before the `▁` that follows another character.
    cut: bool,
    caches: CachePool,
}

/// When a text gets a `▁` before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefix {
    /// Before every text between added tokens.
    Always,
    /// The same, unless the text begins with a space.
    UnlessSpace,
    /// Before the text at the very start, unless it begins with a space.
    FirstUnlessSpace,
    Never,
}

/// What becomes of a character that no token has.
enum Unknown {
    /// The tokens of its bytes, which take part in merges.
    Bytes(Box<[u32; 256]>),
    /// The same, once no merge has made it a part of a token.
    BytesAfterMerging(Box<[u32; 256]>),
    /// The unknown token, once no merge has made it a part of a token.
    TokenAfterMerging(u32),
}

/// A vocabulary with scores, reduced to what encoding needs.
#[derive(Debug, Default)]
pub(crate) struct Pieces<'v> {
    /// Ordinary tokens: text, id, score.
    pub(crate) ordinary: Vec<(&'v str, u32, f32)>,
    /// Byte tokens: byte, id.
    pub(crate) bytes: Vec<(u8, u32)>,
    pub(crate) unknown: Option<u32>,
    pub(crate) add_space_prefix: bool,
}

impl Prefix {
    /// Recognises a normaliser and a pre-tokeniser; anything unknown is `None`.
    pub(crate) fn of(normalizer: Option<&Value>, pre_tokenizer: Option<&Value>) -> Option<Self> {
        let null = Value::Null;
        let (normalizer, pre) = (normalizer.unwrap_or(&null), pre_tokenizer.unwrap_or(&null));
        let replaces = |section: &Value| {
            section["type"] == "Replace"
                && section["pattern"]["String"] == " "
                && section["content"] == "▁"
        };
        // Once spaces are replaced, a split at spaces does nothing.
        let no_split = pre.is_null()
            || (pre["type"] == "Split"
                && pre["pattern"]["String"] == " "
                && pre["behavior"] == "MergedWithPrevious"
                && pre["invert"] == false);
        if normalizer.is_null() {
            let plain = pre["type"] == "Metaspace"
                && pre["replacement"] == "▁"
                && pre["split"] == false
                && pre.get("add_prefix_space").is_none();
            return match pre["prepend_scheme"].as_str().filter(|_| plain)? {
                "always" => Some(Self::UnlessSpace),
                "first" => Some(Self::FirstUnlessSpace),
                "never" => Some(Self::Never),
                _ => None,
            };
        }
        if replaces(normalizer) && no_split {
            return Some(Self::Never);
        }
        match normalizer["normalizers"].as_array()?.as_slice() {
            [prepend, replace]
                if normalizer["type"] == "Sequence"
                    && prepend["type"] == "Prepend"
                    && prepend["prepend"] == "▁"
                    && replaces(replace)
                    && no_split =>
            {
                Some(Self::Always)
            }
            _ => None,
        }
    }

    fn applies(self, text: &str, first: bool) -> bool {
        match self {
            Self::Always => true,
            Self::UnlessSpace => !text.starts_with([' ', SPACE]),
            Self::FirstUnlessSpace => first && !text.starts_with([' ', SPACE]),
            Self::Never => false,
        }
    }
}

impl SentencePieceEncoder {
    /// Whether a model of tokenizer.json is plain BPE with a token for every byte.
    pub(crate) fn fits(model: &Model) -> bool {
        model.is_plain() && model.byte_fallback && !model.ignore_merges && bytes_of(model).is_some()
    }

    /// Builds the encoder from tokenizer.json.
    ///
    /// # Errors
    /// `TextError::Load` for a merge of tokens that the vocabulary lacks.
    pub(crate) fn from_merges(prefix: Prefix, model: &Model) -> Result<Self, TextError> {
        let no_bytes = || TextError::load(TOKENIZER_JSON, "not the 256 byte tokens");
        let bytes = bytes_of(model).ok_or_else(no_bytes)?;
        let mut cut = true;
        let merges = model.merge_table(|joined| cut &= !has_space_inside(joined))?;
        let chars = model.vocab.iter().filter_map(|(text, id)| Some((single(text)?, *id)));
        Ok(Self {
            chars: chars.collect(),
            merges,
            unknown: Unknown::Bytes(bytes),
            prefix,
            cut,
            caches: CachePool::default(),
        })
    }

    /// Builds the encoder from a vocabulary with scores, of a GGUF file or a SentencePiece model. `file`:
    /// what errors name.
    ///
    /// # Errors
    /// `TextError::Load` for a token that is listed twice, a score that is not a number, or a
    /// vocabulary without an answer to unknown characters.
    pub(crate) fn from_scores(pieces: &Pieces<'_>, file: &'static str) -> Result<Self, TextError> {
        let mut symbols: HashMap<&str, u32> = HashMap::with_capacity(pieces.ordinary.len());
        for &(text, id, score) in &pieces.ordinary {
            if score.is_nan() {
                let message = format!("the score of token {id} is not a number");
                return Err(TextError::load(file, message));
            }
            if symbols.insert(text, id).is_some() {
                let message = format!("token {text:?} is listed twice, the second time as {id}");
                return Err(TextError::load(file, message));
            }
        }
        let mut scores: Vec<f32> = pieces.ordinary.iter().map(|(_, _, score)| *score).collect();
        scores.sort_unstable_by(|a, b| b.total_cmp(a));
        scores.dedup();
        let mut merges = MergeTable::with_capacity(2 * pieces.ordinary.len());
        for &(text, id, score) in &pieces.ordinary {
            let rank = scores.partition_point(|other| *other > score);
            let rank = u32::try_from(rank).unwrap_or(u32::MAX);
            for (cut, _) in text.char_indices().skip(1) {
                let (left, right) = text.split_at(cut);
                if let (Some(left), Some(right)) = (symbol(&symbols, left), symbol(&symbols, right))
                {
                    merges.insert(left, right, Merge { rank, id });
                }
            }
        }
        let chars = pieces.ordinary.iter().filter_map(|&(text, id, _)| Some((single(text)?, id)));
        Ok(Self {
            chars: chars.collect(),
            merges,
            unknown: Unknown::of(pieces, file)?,
            prefix: if pieces.add_space_prefix { Prefix::Always } else { Prefix::Never },
            cut: !pieces.ordinary.iter().any(|(text, _, _)| has_space_inside(text)),
            caches: CachePool::default(),
        })
    }

    /// Appends the ids of `text`, never empty, which follows an added token or, if `first`, nothing.
    pub(crate) fn encode(&self, text: &str, first: bool, out: &mut Vec<u32>) {
        let mut rest = text;
        let mut cache = self.caches.take();
        if self.prefix.applies(text, first) {
            // A space and `▁` are the same from here on.
            let (word, after) = rest.split_at(self.end_of_word(rest));
            self.encode_word(&format!(" {word}"), &mut cache, out);
            rest = after;
        }
        while !rest.is_empty() {
            let (word, after) = rest.split_at(self.end_of_word(rest));
            self.encode_word(word, &mut cache, out);
            rest = after;
        }
        self.caches.give_back(cache);
    }

    /// Where the first word of a text ends: before a space that follows another character.
    fn end_of_word(&self, text: &str) -> usize {
        if !self.cut {
            return text.len();
        }
        let bytes = text.as_bytes();
        let is_space = |at: usize| match bytes[at] {
            b' ' => true,
            0xE2 => bytes[at..].starts_with("▁".as_bytes()),
            _ => false,
        };
        // The bytes after the first one of `▁` are no space of their own, hence the trim.
        let begin = text.len() - text.trim_start_matches([' ', SPACE]).len();
        (begin..bytes.len()).find(|&at| is_space(at)).unwrap_or(bytes.len())
    }

    fn encode_word(&self, word: &str, cache: &mut WordCache, out: &mut Vec<u32>) {
        cache.ids(word, out, || self.merge_word(word));
    }

    fn merge_word(&self, word: &str) -> Vec<u32> {
        let mut symbols = Vec::with_capacity(word.len());
        for c in word.chars() {
            let c = if c == ' ' { SPACE } else { c };
            match (self.chars.get(&c), &self.unknown) {
                (Some(id), _) => symbols.push(*id),
                (None, Unknown::Bytes(ids)) => push_bytes(ids, c, &mut symbols),
                (None, _) => symbols.push(NO_TOKEN + u32::from(c)),
            }
        }
        self.merges.merge(&mut symbols);
        if symbols.iter().all(|symbol| *symbol < NO_TOKEN) {
            return symbols;
        }
        let mut ids = Vec::with_capacity(symbols.len());
        for symbol in symbols {
            match (symbol.checked_sub(NO_TOKEN).and_then(char::from_u32), &self.unknown) {
                (None, _) => ids.push(symbol),
                (Some(_), Unknown::TokenAfterMerging(id)) => ids.push(*id),
                (Some(c), Unknown::Bytes(bytes) | Unknown::BytesAfterMerging(bytes)) => {
                    push_bytes(bytes, c, &mut ids);
                }
            }
        }
        ids
    }
}

impl std::fmt::Debug for SentencePieceEncoder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SentencePieceEncoder")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl Unknown {
    fn of(pieces: &Pieces<'_>, file: &'static str) -> Result<Self, TextError> {
        match (all_bytes(pieces.bytes.iter().copied()), pieces.unknown) {
            (Some(ids), _) => Ok(Self::BytesAfterMerging(ids)),
            (None, Some(unknown)) => Ok(Self::TokenAfterMerging(unknown)),
            (None, None) => {
                let message = "neither the 256 byte tokens nor an unknown token";
                Err(TextError::load(file, message))
            }
        }
    }
}

fn push_bytes(ids: &[u32; 256], c: char, out: &mut Vec<u32>) {
    out.extend(c.encode_utf8(&mut [0; 4]).bytes().map(|byte| ids[usize::from(byte)]));
}

/// The byte tokens of a model of tokenizer.json, if it has all 256.
fn bytes_of(model: &Model) -> Option<Box<[u32; 256]>> {
    // The library looks for `<0x0A>` with capital digits.
    let upper = |(text, id): (&String, &u32)| {
        let byte = fallback_byte(text).filter(|byte| *text == format!("<0x{byte:02X}>"));
        Some((byte?, *id))
    };
    all_bytes(model.vocab.iter().filter_map(upper))
}

pub(crate) fn all_bytes(tokens: impl Iterator<Item = (u8, u32)>) -> Option<Box<[u32; 256]>> {
    let mut ids: [Option<u32>; 256] = [None; 256];
    for (byte, id) in tokens {
        ids[usize::from(byte)] = Some(id);
    }
    let all: Option<Vec<u32>> = ids.into_iter().collect();
    all.and_then(|ids| ids.try_into().ok())
}

/// Whether a token has a `▁` after another character.
fn has_space_inside(token: &str) -> bool {
    token.trim_start_matches(SPACE).contains(SPACE)
}

/// The symbol of a piece: its id, or for a character that is no token a number of its own, since
/// such a character can still be part of a token.
fn symbol(symbols: &HashMap<&str, u32>, text: &str) -> Option<u32> {
    symbols.get(text).copied().or_else(|| Some(NO_TOKEN + u32::from(single(text)?)))
}

/// The character of a text of one character.
fn single(text: &str) -> Option<char> {
    let mut chars = text.chars();
    chars.next().filter(|_| chars.next().is_none())
}

/// Characters that are no token have symbols from here on, above every token id.
const NO_TOKEN: u32 = 1 << 31;
