//! [2] SentencePiece BPE from a GGUF vocabulary: symbols are characters, the pair whose token has
//! the highest score merges first. Any thread. Follows llama.cpp (`llm_tokenizer_spm`): a space
//! prefix for every text that follows an added token or nothing, bytes for what is no token.

use std::collections::HashMap;

use crate::TextError;
use crate::merge::{Merge, MergeTable};

const SPACE: char = '▁';

/// A SentencePiece model whose merges come from token scores.
#[derive(Debug)]
pub(crate) struct SentencePieceEncoder {
    /// Single characters that are tokens.
    chars: HashMap<char, u32>,
    merges: MergeTable,
    unknown: Unknown,
    add_space_prefix: bool,
}

/// What becomes of a character that no token has.
#[derive(Debug)]
enum Unknown {
    /// The id of each byte.
    Bytes(Box<[u32; 256]>),
    /// The id of the unknown token.
    Token(u32),
}

/// The vocabulary, reduced to what encoding needs.
#[derive(Debug, Default)]
pub(crate) struct Pieces<'v> {
    /// Ordinary tokens: text, id, score.
    pub(crate) ordinary: Vec<(&'v str, u32, f32)>,
    /// Byte tokens: byte, id.
    pub(crate) bytes: Vec<(u8, u32)>,
    pub(crate) unknown: Option<u32>,
    pub(crate) add_space_prefix: bool,
}

impl SentencePieceEncoder {
    pub(crate) fn new(pieces: &Pieces<'_>) -> Result<Self, TextError> {
        let mut symbols: HashMap<&str, u32> = HashMap::with_capacity(pieces.ordinary.len());
        for &(text, id, score) in &pieces.ordinary {
            if score.is_nan() {
                let message = format!("the score of token {id} is not a number");
                return Err(TextError::load(SCORES, message));
            }
            if symbols.insert(text, id).is_some() {
                let message = format!("token {text:?} is listed twice, the second time as {id}");
                return Err(TextError::load(TOKENS, message));
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
            unknown: Unknown::new(pieces)?,
            add_space_prefix: pieces.add_space_prefix,
        })
    }

    /// Appends the ids of `text`, which follows an added token or nothing.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut symbols = Vec::with_capacity(text.len() + 1);
        if self.add_space_prefix {
            symbols.push(self.symbol(SPACE));
        }
        let escaped = text.chars().map(|c| if c == ' ' { SPACE } else { c });
        symbols.extend(escaped.map(|c| self.symbol(c)));
        self.merges.merge(&mut symbols);
        for symbol in symbols {
            match symbol.checked_sub(NO_TOKEN).and_then(char::from_u32) {
                None => out.push(symbol),
                Some(c) => self.unknown.encode(c, out),
            }
        }
    }

    fn symbol(&self, c: char) -> u32 {
        self.chars.get(&c).copied().unwrap_or(NO_TOKEN + u32::from(c))
    }
}

impl Unknown {
    fn new(pieces: &Pieces<'_>) -> Result<Self, TextError> {
        let mut ids: [Option<u32>; 256] = [None; 256];
        for &(byte, id) in &pieces.bytes {
            ids[usize::from(byte)] = Some(id);
        }
        let all: Option<Vec<u32>> = ids.into_iter().collect();
        match (all.and_then(|ids| Box::<[u32; 256]>::try_from(ids).ok()), pieces.unknown) {
            (Some(ids), _) => Ok(Self::Bytes(ids)),
            (None, Some(unknown)) => Ok(Self::Token(unknown)),
            (None, None) => {
                let message = "neither the 256 byte tokens nor an unknown token";
                Err(TextError::load(TOKENS, message))
            }
        }
    }

    fn encode(&self, c: char, out: &mut Vec<u32>) {
        match self {
            Self::Token(id) => out.push(*id),
            Self::Bytes(ids) => {
                let mut buffer = [0; 4];
                let bytes = c.encode_utf8(&mut buffer).bytes();
                out.extend(bytes.map(|byte| ids[usize::from(byte)]));
            }
        }
    }
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
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
