//! [2] Text to token ids and back. Any thread; one tokenizer is shared by all requests.

use crate::added::{AddedMatcher, AddedToken, Part, TokenKind};
use crate::pipeline::Pipeline;
use crate::sentencepiece::SentencePieceEncoder;
use crate::spm::SpmEncoder;
use crate::token_table::TokenTable;
use crate::words::WordEncoder;
use crate::{RenderedPrompt, TextError};

/// The tokenizer of one model.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    added: AddedMatcher,
    table: TokenTable,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    strip_leading_space: bool,
    bos: Option<u32>,
    eos: Vec<u32>,
    named: Vec<(String, String)>,
    special: Vec<String>,
    /// The characters that special tokens and markers begin or end with.
    marker_ends: Vec<char>,
}

/// Encodes text that holds no added token.
#[derive(Debug)]
pub(crate) enum Encoder {
    /// Byte-level BPE with a known way to cut text into words.
    Words(Box<WordEncoder>),
    /// The general encoder for everything else.
    Pipeline(Box<Pipeline>),
    /// SentencePiece-style BPE with bytes for unknown characters.
    SentencePiece(Box<SentencePieceEncoder>),
    /// A SentencePiece model as its own library runs it.
    Spm(Box<SpmEncoder>),
}

/// The result of a loader.
#[derive(Debug)]
pub(crate) struct TokenizerParts {
    pub(crate) encoder: Encoder,
    pub(crate) added: Vec<AddedToken>,
    pub(crate) table: TokenTable,
    pub(crate) prefix: Vec<u32>,
    pub(crate) suffix: Vec<u32>,
    pub(crate) strip_leading_space: bool,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Vec<u32>,
    /// Named special tokens for the chat template: `bos_token` and so on.
    pub(crate) named: Vec<(String, String)>,
}

impl Tokenizer {
    pub(crate) fn from_parts(parts: TokenizerParts) -> Self {
        let special = parts.added.iter().filter(|token| token.special);
        let special: Vec<String> = special.map(|token| token.content.clone()).collect();
        let markers = parts.added.iter().filter(|token| token.kind() != TokenKind::Word);
        let ends = markers.flat_map(|token| {
            let content = token.content.as_str();
            [content.chars().next(), content.chars().next_back()].into_iter().flatten()
        });
        let mut marker_ends: Vec<char> = ends.collect();
        marker_ends.sort_unstable();
        marker_ends.dedup();
        Self {
            encoder: parts.encoder,
            added: AddedMatcher::new(parts.added),
            table: parts.table,
            prefix: parts.prefix,
            suffix: parts.suffix,
            strip_leading_space: parts.strip_leading_space,
            bos: parts.bos,
            eos: parts.eos,
            named: parts.named,
            special,
            marker_ends,
        }
    }

    /// The ids of a plain text. Special tokens in `text` stay text; ordinary added tokens count.
    /// `add_special_tokens` puts the model's own tokens (begin of text and the like) around it.
    ///
    /// Blocking: linear in the text, about 0.1 us a token once warm.
    ///
    /// # Errors
    /// `TextError::Encode` if a pattern or a normaliser of the file is too costly for this text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if add_special_tokens {
            ids.extend_from_slice(&self.prefix);
        }
        self.encode_parts(text, &|kind, _, _| kind == TokenKind::Marker, &mut ids)?;
        if add_special_tokens {
            ids.extend_from_slice(&self.suffix);
        }
        Ok(ids)
    }

    /// The ids of a prompt that its sender wrote whole, as Hugging Face reads it: special tokens that it
    /// spells count, so that a chat template may be pasted into it. `add_special_tokens` as in `encode`, but
    /// a text that begins with the model's begin token gets no second one.
    ///
    /// # Errors
    /// As `encode`.
    pub fn encode_prompt(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        self.encode_parts(text, &|_, _, _| true, &mut ids)?;
        if add_special_tokens {
            if !ids.starts_with(&self.prefix) {
                ids.splice(..0, self.prefix.iter().copied());
            }
            ids.extend_from_slice(&self.suffix);
        }
        Ok(ids)
    }

    /// The ids of a rendered prompt: special tokens and markers that the template wrote are honoured,
    /// those in text of the request are not. Nothing is put around it: a template writes its own begin
    /// token.
    ///
    /// # Errors
    /// As `encode`.
    pub fn encode_rendered(&self, rendered: &RenderedPrompt) -> Result<Vec<u32>, TextError> {
        let text = rendered.as_str();
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let honoured = |kind: TokenKind, start: usize, end: usize| {
            rendered.honours(kind, start, end, &self.marker_ends)
        };
        self.encode_parts(text, &honoured, &mut ids)?;
        Ok(ids)
    }

    fn encode_parts(
        &self,
        text: &str,
        honoured: &impl Fn(TokenKind, usize, usize) -> bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let mut first = true;
        self.added.split(text, honoured, &mut |part| {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(text) => match &self.encoder {
                    Encoder::Words(encoder) => encoder.encode(text, ids)?,
                    Encoder::Pipeline(encoder) => encoder.encode(text, first, ids)?,
                    Encoder::SentencePiece(encoder) => encoder.encode(text, first, ids),
                    Encoder::Spm(encoder) => encoder.encode(text, first, ids)?,
                },
            }
            first = false;
            Ok(())
        })
    }

    /// Highest id + 1, added tokens included.
    pub fn vocab_size(&self) -> u32 {
        self.table.len()
    }

    /// The bytes that a token adds to the text (special tokens: their text); `None` for an id that
    /// the vocabulary lacks.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.table.bytes(id)
    }

    /// Whether `id` is a special token.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }

    /// The id of a token as the vocabulary spells it.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.table.id(token)
    }

    /// The id of a token that a chat template writes by this name: special or added.
    pub(crate) fn marker_id(&self, name: &str) -> Option<u32> {
        let id = self.table.id(name)?;
        (self.is_special(id) || self.added.contains(name)).then_some(id)
    }

    /// The end tokens that the tokenizer's files name.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.eos
    }

    /// The id that begins a text.
    pub fn bos_token_id(&self) -> Option<u32> {
        self.bos
    }

    /// The named special tokens that a chat template may use: `bos_token`, `eos_token` and so on.
    pub fn named_tokens(&self) -> &[(String, String)] {
        &self.named
    }

    /// The texts of all special tokens.
    pub fn special_tokens(&self) -> &[String] {
        &self.special
    }

    /// The text of `ids`; bytes that are no UTF-8 become U+FFFD. Ids beyond the vocabulary add
    /// nothing.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let mut bytes = Vec::with_capacity(4 * ids.len());
        for &id in ids {
            if !(skip_special_tokens && self.is_special(id)) {
                bytes.extend_from_slice(self.token_bytes(id).unwrap_or_default());
            }
        }
        let start = usize::from(self.strip_leading_space && bytes.first() == Some(&b' '));
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }

    pub(crate) fn strips_leading_space(&self) -> bool {
        self.strip_leading_space
    }
}
