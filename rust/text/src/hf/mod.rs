//! Reads tokenizer.json and tokenizer_config.json. At model load only. The input is hostile:
//! anything that is not fully understood is refused by name.

mod config;
mod decoder;
mod files;
pub(crate) mod parts;
mod post_processor;

use std::collections::HashMap;

use serde_json::Value;

use crate::TextError;
use crate::added::{AddedToken, MAX_ADDED_BYTES, TokenKind};
use crate::error::excerpt;
use crate::pipeline::{Normalizer, Pipeline};
use crate::sentencepiece::{Prefix, SentencePieceEncoder};
use crate::token_table::{MAX_VOCAB, TokenEntry, TokenTable};
use crate::tokenizer::{Encoder, Tokenizer, TokenizerParts};
use crate::words::{Recipe, WordEncoder};
pub(crate) use config::TokenizerConfig;
use decoder::TokenDecoder;
pub(crate) use decoder::fallback_byte;
pub(crate) use files::{TOKENIZER_CONFIG, TOKENIZER_JSON};
pub(crate) use parts::Model;
use parts::TokenizerJson;
pub(crate) use post_processor::Framing;

/// How many ids may be without a token, beyond as many as there are tokens.
const FREE_HOLES: u32 = 1 << 16;
/// What all tokens together may add to a text. Published vocabularies have some 2 MB.
const MAX_TABLE_BYTES: usize = 64 << 20;

/// Builds a tokenizer from the two files of a Hugging Face folder.
pub(crate) fn tokenizer(json: &[u8], config: Option<&[u8]>) -> Result<Tokenizer, TextError> {
    let json = TokenizerJson::parse(json)?;
    let config = config.map(TokenizerConfig::parse).transpose()?.unwrap_or_default();
    json.model.check()?;

    let mut added = added_tokens(&json, &config)?;
    let normalizer = Normalizer::parse(json.normalizer.as_ref())?;
    normalize_patterns(&normalizer, &mut added)?;
    let decoder = TokenDecoder::parse(json.decoder.as_ref())?;
    let table = token_table(&json.model, &added, &decoder)?;
    let mut framing = Framing::parse(json.post_processor.as_ref(), &table)?;
    config.apply_flags(&mut framing, &table)?;

    // Markers, as special tokens, are looked for in the text as given: their place in it decides
    // whether they count. A normaliser that would change them is the exception.
    let is_raw = |token: &AddedToken| match token.kind() {
        TokenKind::Special => true,
        TokenKind::Marker => !token.normalized || token.pattern == token.content,
        TokenKind::Word => !token.normalized,
    };
    let (raw, normalized) = added.into_iter().partition(is_raw);
    let sections = (json.normalizer.as_ref(), json.pre_tokenizer.as_ref());
    let encoder = encoder(sections, normalizer, json.model, normalized)?;
    let id = |token: &Option<String>| token.as_ref().and_then(|token| table.id(token));
    let (bos, eos) = (id(&config.bos_token), id(&config.eos_token));
    Ok(Tokenizer::from_parts(TokenizerParts {
        encoder,
        added: raw,
        prefix: framing.prefix,
        suffix: framing.suffix,
        strip_leading_space: decoder.strips_leading_space(),
        bos,
        eos: eos.into_iter().collect(),
        named: config.named_tokens(),
        table,
    }))
}

/// The fastest encoder that is known to implement the file exactly.
///
/// `sections`: the file's normaliser and pre-tokeniser.
fn encoder(
    sections: (Option<&Value>, Option<&Value>),
    normalizer: Normalizer,
    model: Model,
    normalized: Vec<AddedToken>,
) -> Result<Encoder, TextError> {
    if WordEncoder::fits(&model)
        && let Some(recipe) = Recipe::of(sections.0, sections.1)?
    {
        return Ok(Encoder::Words(Box::new(WordEncoder::new(recipe, &model, normalized)?)));
    }
    let prefix = Prefix::of(sections.0, sections.1);
    let fits = || normalized.is_empty() && SentencePieceEncoder::fits(&model);
    if let Some(prefix) = prefix.filter(|_| fits()) {
        let encoder = SentencePieceEncoder::from_merges(prefix, &model)?;
        return Ok(Encoder::SentencePiece(Box::new(encoder)));
    }
    let encoder = Pipeline::new(normalizer, sections.1, model, normalized)?;
    Ok(Encoder::Pipeline(Box::new(encoder)))
}

/// The added tokens of both files; tokenizer_config.json wins, as in transformers.
fn added_tokens(
    json: &TokenizerJson,
    config: &TokenizerConfig,
) -> Result<Vec<AddedToken>, TextError> {
    let mut tokens: Vec<AddedToken> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let from_config = config.added_tokens_decoder.iter().map(|(id, token)| (*id, token));
    let listed = json.added_tokens.iter().map(|token| (token.id, &token.token)).chain(from_config);
    for (id, token) in listed {
        if token.single_word {
            let what = "added token with single_word";
            return Err(TextError::unsupported(TOKENIZER_JSON, what, &token.content));
        }
        check_length(&token.content)?;
        // A token that the model knows keeps the model's id, as in the tokenizers library.
        let id = json.model.vocab.get(&token.content).copied().unwrap_or(id);
        let token = AddedToken {
            id,
            content: token.content.clone(),
            pattern: token.content.clone(),
            special: token.special,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            normalized: token.normalized,
        };
        match places.get(&token.content) {
            Some(&place) => tokens[place] = token,
            None => {
                places.insert(token.content.clone(), tokens.len());
                tokens.push(token);
            }
        }
    }
    for name in config.special_names() {
        match (places.get(name), json.model.vocab.get(name)) {
            (Some(&place), _) => tokens[place].special = true,
            (None, Some(&id)) => {
                places.insert(name.clone(), tokens.len());
                tokens.push(AddedToken {
                    id,
                    content: name.clone(),
                    pattern: name.clone(),
                    special: true,
                    lstrip: false,
                    rstrip: false,
                    normalized: false,
                });
            }
            // A name that no vocabulary has names no token.
            (None, None) => {}
        }
    }
    tokens.retain(|token| !token.content.is_empty());
    Ok(tokens)
}

/// Every place of a text is compared with the added tokens, so they must be short.
fn check_length(content: &str) -> Result<(), TextError> {
    if content.len() > MAX_ADDED_BYTES {
        let message = format!(
            "added_tokens: {:?} has {} bytes; at most {MAX_ADDED_BYTES} are allowed",
            excerpt(content),
            content.len()
        );
        return Err(TextError::load(TOKENIZER_JSON, message));
    }
    Ok(())
}

/// Tokens that are looked for in normalised text are spelled as the normaliser leaves them.
///
/// Special tokens are looked for in the text as given, whatever `normalized` says: their place in
/// it decides whether they count.
fn normalize_patterns(normalizer: &Normalizer, added: &mut [AddedToken]) -> Result<(), TextError> {
    for token in added.iter_mut().filter(|token| token.normalized && !token.special) {
        let pattern = normalizer.apply(&token.content).map_err(|error| {
            TextError::load(TOKENIZER_JSON, format!("added_tokens: {:?}: {error}", token.content))
        })?;
        check_length(&pattern)?;
        token.pattern = pattern.into_owned();
    }
    Ok(())
}

fn token_table(
    model: &Model,
    added: &[AddedToken],
    decoder: &TokenDecoder,
) -> Result<TokenTable, TextError> {
    let ids = model.vocab.values().chain(added.iter().map(|token| &token.id));
    let size = ids.max().map_or(0, |id| id.saturating_add(1));
    // Holes take memory too: a small file must not ask for a large table.
    let count = u32::try_from(model.vocab.len() + added.len()).unwrap_or(u32::MAX);
    let limit = count.saturating_mul(2).saturating_add(FREE_HOLES).min(MAX_VOCAB);
    if size > limit {
        let message =
            format!("token id {} is beyond the limit of {limit} for {count} tokens", size - 1);
        return Err(TextError::load(TOKENIZER_JSON, message));
    }
    let mut entries: Vec<Option<TokenEntry>> = Vec::new();
    entries.resize_with(size as usize, || None);
    let mut total = 0usize;
    for (name, &id) in &model.vocab {
        if let Some(other) = &entries[id as usize] {
            let message = format!("tokens {:?} and {name:?} share id {id}", other.name);
            return Err(TextError::load(TOKENIZER_JSON, message));
        }
        let bytes = decoder.bytes(name);
        total += bytes.len();
        if total > MAX_TABLE_BYTES {
            let message = format!("decoder: the tokens have more than {MAX_TABLE_BYTES} bytes");
            return Err(TextError::load(TOKENIZER_JSON, message));
        }
        entries[id as usize] = Some(TokenEntry { name: name.clone(), bytes, special: false });
    }
    for token in added {
        entries[token.id as usize] = Some(TokenEntry {
            name: token.content.clone(),
            bytes: decoder.bytes_of_added(&token.pattern),
            special: token.special,
        });
    }
    TokenTable::new(TOKENIZER_JSON, entries)
}
