//! Reads the vocabulary of a GGUF file. At model load only. The input is hostile.

mod pre;

use std::collections::HashMap;

use crate::TextError;
use crate::added::{AddedToken, MAX_ADDED_BYTES};
use crate::byte_level::bytes_of_token;
use crate::hf::{Model, fallback_byte};
use crate::sentencepiece::{Pieces, SentencePieceEncoder};
use crate::token_table::{MAX_VOCAB, TokenEntry, TokenTable};
use crate::tokenizer::{Encoder, Tokenizer, TokenizerParts};
use crate::words::{Recipe, WordEncoder};
use pre::Cut;

/// The `tokenizer.ggml.*` keys of a GGUF file.
#[derive(Debug, Clone, Default)]
pub struct GgufVocab {
    /// `model`: gpt2 (byte-level BPE) or llama (SentencePiece).
    pub model: String,
    /// `pre`: which pre-tokeniser a gpt2 model uses.
    pub pre: Option<String>,
    /// `tokens`, by id.
    pub tokens: Vec<String>,
    /// `token_type`, by id; empty: all normal.
    pub token_types: Vec<i32>,
    /// `scores`, by id; only for llama.
    pub scores: Vec<f32>,
    /// `merges`, in order; only for gpt2.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos_token_id: Option<u32>,
    /// `eos_token_id`.
    pub eos_token_id: Option<u32>,
    /// `eot_token_id`: ends a turn.
    pub eot_token_id: Option<u32>,
    /// `unknown_token_id`.
    pub unk_token_id: Option<u32>,
    /// `padding_token_id`.
    pub pad_token_id: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
}

/// `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The two kinds of model and what llama.cpp assumes where a key is missing.
struct Defaults {
    add_bos: bool,
    add_space_prefix: bool,
}

/// Builds a tokenizer from the keys of a GGUF file.
pub(crate) fn tokenizer(vocab: &GgufVocab) -> Result<Tokenizer, TextError> {
    let types = vocab.types()?;
    vocab.check_lengths(&types)?;
    let (encoder, defaults) = match vocab.model.as_str() {
        "gpt2" => {
            let cut = Cut::of(vocab.pre.as_deref(), &vocab.tokens)?;
            let defaults = Defaults { add_bos: cut.add_bos, add_space_prefix: false };
            (Encoder::Words(Box::new(vocab.byte_level(&types, cut)?)), defaults)
        }
        "llama" => {
            let encoder = Encoder::SentencePiece(Box::new(vocab.sentencepiece(&types)?));
            (encoder, Defaults { add_bos: true, add_space_prefix: true })
        }
        other => return Err(TextError::unsupported("tokenizer.ggml.model", "model", other)),
    };
    let table = TokenTable::new("tokenizer.ggml.tokens", vocab.entries(&types))?;
    vocab.check_ids(&table)?;
    let frame = |asked: Option<bool>, default: bool, id: Option<u32>, key: &'static str| match (
        asked, id,
    ) {
        (Some(true), None) => Err(TextError::load(key, "true, but there is no such token")),
        (asked, id) => Ok(id.filter(|_| asked.unwrap_or(default)).into_iter().collect()),
    };
    let add_bos = "tokenizer.ggml.add_bos_token";
    let add_eos = "tokenizer.ggml.add_eos_token";
    let space_prefix = vocab.add_space_prefix.unwrap_or(defaults.add_space_prefix);
    Ok(Tokenizer::from_parts(TokenizerParts {
        encoder,
        added: vocab.added(&types),
        prefix: frame(vocab.add_bos, defaults.add_bos, vocab.bos_token_id, add_bos)?,
        suffix: frame(vocab.add_eos, false, vocab.eos_token_id, add_eos)?,
        strip_leading_space: vocab.model == "llama" && space_prefix,
        bos: vocab.bos_token_id,
        eos: vocab.eos_ids(),
        named: vocab.named(),
        table,
    }))
}

impl GgufVocab {
    /// The type of every token, all lengths checked.
    fn types(&self) -> Result<Vec<TokenType>, TextError> {
        let count = self.tokens.len();
        if count == 0 || count > MAX_VOCAB as usize {
            let message = format!("{count} tokens, expected 1 to {MAX_VOCAB}");
            return Err(TextError::load(TOKENS, message));
        }
        for (key, len) in [
            ("tokenizer.ggml.token_type", self.token_types.len()),
            ("tokenizer.ggml.scores", self.scores.len()),
        ] {
            if len != count && len != 0 {
                return Err(TextError::load(key, format!("{len} entries for {count} tokens")));
            }
        }
        if self.token_types.is_empty() {
            return Ok(vec![TokenType::Normal; count]);
        }
        self.token_types.iter().zip(0u32..).map(|(kind, id)| TokenType::new(*kind, id)).collect()
    }

    /// Every place of a text is compared with the tokens that are looked for in it, and a token of a llama
    /// vocabulary is cut everywhere to find its merges: both must be short.
    fn check_lengths(&self, types: &[TokenType]) -> Result<(), TextError> {
        for (id, token, kind) in self.with_types(types) {
            let limit = match kind {
                kind if kind.is_special_or_user_defined() => MAX_ADDED_BYTES,
                TokenType::Normal if self.model == "llama" => MAX_PIECE_BYTES,
                _ => continue,
            };
            if token.len() > limit {
                let message =
                    format!("token {id} has {} bytes; at most {limit} are allowed", token.len());
                return Err(TextError::load(TOKENS, message));
            }
        }
        Ok(())
    }

    fn with_types<'v>(
        &'v self,
        types: &'v [TokenType],
    ) -> impl Iterator<Item = (u32, &'v str, TokenType)> {
        (0u32..).zip(&self.tokens).zip(types).map(|((id, token), kind)| (id, token.as_str(), *kind))
    }

    fn byte_level(&self, types: &[TokenType], cut: Cut) -> Result<WordEncoder, TextError> {
        if self.merges.is_empty() {
            return Err(TextError::load(MERGES, "missing; a gpt2 vocabulary needs them"));
        }
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (id, token, kind) in self.with_types(types) {
            if kind == TokenType::Normal && ids.insert(token.to_string(), id).is_some() {
                let message = format!("token {token:?} is listed twice, the second time as {id}");
                return Err(TextError::load(TOKENS, message));
            }
        }
        let model = Model::byte_level(ids, self.merges.clone(), cut.whole_words);
        let recipe = Recipe { splitter: cut.splitter, nfc: cut.nfc };
        WordEncoder::new(recipe, &model, Vec::new()).map_err(|error| match error {
            TextError::Load { message, .. } => TextError::load(MERGES, message),
            other => other,
        })
    }

    fn sentencepiece(&self, types: &[TokenType]) -> Result<SentencePieceEncoder, TextError> {
        if self.scores.is_empty() {
            return Err(TextError::load("tokenizer.ggml.scores", "missing"));
        }
        let mut pieces = Pieces {
            unknown: self.unk_token_id,
            add_space_prefix: self.add_space_prefix.unwrap_or(true),
            ..Pieces::default()
        };
        for ((id, token, kind), score) in self.with_types(types).zip(&self.scores) {
            match kind {
                TokenType::Normal => pieces.ordinary.push((token, id, *score)),
                TokenType::Byte => match fallback_byte(token) {
                    Some(byte) => pieces.bytes.push((byte, id)),
                    None => {
                        let message = format!("byte token {id} is {token:?}, expected <0xNN>");
                        return Err(TextError::load(TOKENS, message));
                    }
                },
                _ => {}
            }
        }
        SentencePieceEncoder::from_scores(&pieces, TOKENS)
    }

    /// Tokens that are found in the text before the model sees it.
    fn added(&self, types: &[TokenType]) -> Vec<AddedToken> {
        self.with_types(types)
            .filter(|(_, token, kind)| !token.is_empty() && kind.is_special_or_user_defined())
            .map(|(id, token, kind)| AddedToken {
                id,
                content: token.to_string(),
                pattern: token.to_string(),
                special: kind != TokenType::UserDefined,
                lstrip: false,
                rstrip: false,
                normalized: false,
            })
            .collect()
    }

    fn entries(&self, types: &[TokenType]) -> Vec<Option<TokenEntry>> {
        let bytes = |token: &str, kind: TokenType| match kind {
            TokenType::Byte => fallback_byte(token).map(|byte| vec![byte]),
            TokenType::Normal | TokenType::Unused if self.model == "llama" => {
                Some(token.replace('▁', " ").into_bytes())
            }
            TokenType::Normal | TokenType::Unused => bytes_of_token(token),
            _ => None,
        };
        self.with_types(types)
            .map(|(_, token, kind)| {
                Some(TokenEntry {
                    name: token.to_string(),
                    bytes: bytes(token, kind).unwrap_or_else(|| token.as_bytes().to_vec()),
                    special: matches!(kind, TokenType::Control | TokenType::Unknown),
                })
            })
            .collect()
    }

    fn check_ids(&self, table: &TokenTable) -> Result<(), TextError> {
        for (key, id) in [
            ("tokenizer.ggml.bos_token_id", self.bos_token_id),
            ("tokenizer.ggml.eos_token_id", self.eos_token_id),
            ("tokenizer.ggml.eot_token_id", self.eot_token_id),
            ("tokenizer.ggml.unknown_token_id", self.unk_token_id),
            ("tokenizer.ggml.padding_token_id", self.pad_token_id),
        ] {
            if let Some(id) = id.filter(|id| *id >= table.len()) {
                let message = format!("{id}, but there are {} tokens", table.len());
                return Err(TextError::load(key, message));
            }
        }
        Ok(())
    }

    fn eos_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.eos_token_id.into_iter().chain(self.eot_token_id).collect();
        ids.dedup();
        ids
    }

    /// The named special tokens, as a chat template sees them.
    fn named(&self) -> Vec<(String, String)> {
        let named = [
            ("bos_token", self.bos_token_id),
            ("eos_token", self.eos_token_id),
            ("unk_token", self.unk_token_id),
            ("pad_token", self.pad_token_id),
        ];
        let text = |(key, id): (&str, Option<u32>)| {
            Some((key.to_string(), self.tokens.get(id? as usize)?.clone()))
        };
        named.into_iter().filter_map(text).collect()
    }
}

impl TokenType {
    fn new(number: i32, id: u32) -> Result<Self, TextError> {
        match number {
            1 => Ok(Self::Normal),
            2 => Ok(Self::Unknown),
            3 => Ok(Self::Control),
            4 => Ok(Self::UserDefined),
            5 => Ok(Self::Unused),
            6 => Ok(Self::Byte),
            _ => {
                let message = format!("token {id} has type {number}, expected 1 to 6");
                Err(TextError::load("tokenizer.ggml.token_type", message))
            }
        }
    }

    fn is_special_or_user_defined(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::UserDefined)
    }
}

/// Published pieces have at most some 100 bytes.
const MAX_PIECE_BYTES: usize = 1024;
const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";
