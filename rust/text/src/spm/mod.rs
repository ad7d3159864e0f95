//! [2] tokenizer.model without tokenizer.json: a SentencePiece model, unigram or BPE. Read at model
//! load; encoding on any thread. Ids are those of the sentencepiece library. The input is hostile:
//! anything that is not understood is refused by name.

mod encoder;
mod normalizer;
mod proto;
mod unigram;
mod user_defined;

use crate::TextError;
use crate::added::{AddedToken, MAX_ADDED_BYTES};
use crate::hf::{Framing, TokenizerConfig, fallback_byte};
use crate::sentencepiece::{Pieces, SentencePieceEncoder};
use crate::token_table::{MAX_VOCAB, TokenEntry, TokenTable};
use crate::tokenizer::{Encoder, Tokenizer, TokenizerParts};
use encoder::Cutter;
pub(crate) use encoder::SpmEncoder;
use normalizer::Normalizer;
use proto::{FILE, Model, Piece};
use unigram::Unigram;
use user_defined::UserDefined;

/// Builds a tokenizer from tokenizer.model, with tokenizer_config.json where the folder has one.
pub(crate) fn tokenizer(bytes: &[u8], config: Option<&[u8]>) -> Result<Tokenizer, TextError> {
    let model = Model::parse(bytes)?;
    let config = config.map(TokenizerConfig::parse).transpose()?.unwrap_or_default();
    check(&model)?;
    let added = added_tokens(&model, &config)?;
    let table = TokenTable::new(FILE, entries(&model, &added)?)?;
    let own = |id: i32| u32::try_from(id).ok().filter(|id| table.bytes(*id).is_some());
    let named = |name: &Option<String>, id: i32| match name {
        Some(name) => table.id(name),
        None => own(id),
    };
    let trainer = &model.trainer;
    let bos = named(&config.bos_token, trainer.bos_id);
    let eos = named(&config.eos_token, trainer.eos_id);
    // As in transformers: such models begin a text with their BOS token unless the configuration says no.
    let mut framing = Framing { prefix: bos.into_iter().collect(), suffix: Vec::new() };
    config.apply_flags(&mut framing, &table)?;
    let normalizer = Normalizer::new(&model.normalizer)?;
    let strip_leading_space = normalizer.add_dummy_prefix || normalizer.remove_extra_spaces;
    let bytes = byte_tokens(&model)?;
    let encoder = SpmEncoder {
        model: cutter(&model, bytes.as_deref())?,
        symbols: UserDefined::new(of_kind(&model, USER_DEFINED, false)),
        unknown: own(trainer.unk_id).ok_or_else(|| TextError::load(FILE, "no unknown token"))?,
        bytes,
        prefix_once: config.legacy == Some(false),
        normalizer,
    };
    let mut names = config.named_tokens();
    let known = |names: &[(String, String)], key: &str| names.iter().any(|(name, _)| name == key);
    for (key, id) in [
        ("bos_token", trainer.bos_id),
        ("eos_token", trainer.eos_id),
        ("unk_token", trainer.unk_id),
        ("pad_token", trainer.pad_id),
    ] {
        let piece = usize::try_from(id).ok().and_then(|id| model.pieces.get(id));
        if let Some(piece) = piece.filter(|_| !known(&names, key)) {
            names.push((key.to_owned(), piece.text.clone()));
        }
    }
    Ok(Tokenizer::from_parts(TokenizerParts {
        encoder: Encoder::Spm(Box::new(encoder)),
        added,
        prefix: framing.prefix,
        suffix: framing.suffix,
        strip_leading_space,
        bos,
        eos: eos.into_iter().collect(),
        named: names,
        table,
    }))
}

/// Refuses unsupported models.
fn check(model: &Model) -> Result<(), TextError> {
    let count = model.pieces.len();
    if count == 0 || count > MAX_VOCAB as usize {
        return Err(TextError::load(FILE, format!("{count} pieces, expected 1 to {MAX_VOCAB}")));
    }
    let unsupported = |what, value: &str| Err(TextError::unsupported(FILE, what, value));
    match model.trainer.model_type {
        UNIGRAM | BPE => {}
        3 => return unsupported("model type", "word"),
        4 => return unsupported("model type", "char"),
        other => return unsupported("model type", &other.to_string()),
    }
    if model.trainer.space_after_words {
        return unsupported("trainer_spec.treat_whitespace_as_suffix", "true");
    }
    if model.has_denormalizer {
        return unsupported("denormalizer_spec", "a character map");
    }
    for (id, piece) in model.pieces.iter().enumerate() {
        let broken = |what: &str| Err(TextError::load(FILE, format!("piece {id}: {what}")));
        if piece.text.is_empty() || piece.text.len() > MAX_PIECE_BYTES {
            return broken(&format!("{} bytes, expected 1 to {MAX_PIECE_BYTES}", piece.text.len()));
        }
        if !piece.score.is_finite() {
            return broken("its score is not a finite number");
        }
        match piece.kind {
            NORMAL | UNKNOWN | CONTROL | USER_DEFINED | BYTE => {}
            UNUSED if model.trainer.model_type == UNIGRAM => {}
            UNUSED => return unsupported("type of a piece of a BPE model", "unused"),
            other => return broken(&format!("type {other}")),
        }
    }
    Ok(())
}

fn cutter(model: &Model, bytes: Option<&[u32; 256]>) -> Result<Cutter, TextError> {
    let with_id = (0u32..).zip(&model.pieces);
    if model.trainer.model_type == UNIGRAM {
        let wanted = |piece: &Piece| matches!(piece.kind, NORMAL | USER_DEFINED);
        let pieces = with_id
            .filter(|(_, piece)| wanted(piece))
            .map(|(id, piece)| (piece.text.as_str(), id, piece.score, piece.kind == USER_DEFINED));
        let unknown = u32::try_from(model.trainer.unk_id).unwrap_or(0);
        return Ok(Cutter::Unigram(Box::new(Unigram::new(pieces, unknown))));
    }
    let normal = with_id.filter(|(_, piece)| piece.kind == NORMAL);
    let pieces = Pieces {
        ordinary: normal.map(|(id, piece)| (piece.text.as_str(), id, piece.score)).collect(),
        bytes: (0u8..=255).zip(bytes.into_iter().flatten().copied()).collect(),
        unknown: u32::try_from(model.trainer.unk_id).ok(),
        add_space_prefix: false,
    };
    Ok(Cutter::Bpe(Box::new(SentencePieceEncoder::from_scores(&pieces, FILE)?)))
}

/// All byte tokens, if characters without a piece become bytes.
fn byte_tokens(model: &Model) -> Result<Option<Box<[u32; 256]>>, TextError> {
    if !model.trainer.byte_fallback {
        return Ok(None);
    }
    let bytes = (0u32..).zip(&model.pieces).filter(|(_, piece)| piece.kind == BYTE);
    let bytes = bytes.filter_map(|(id, piece)| Some((fallback_byte(&piece.text)?, id)));
    match crate::sentencepiece::all_bytes(bytes) {
        Some(ids) => Ok(Some(ids)),
        None => Err(TextError::load(FILE, "byte_fallback without the 256 byte tokens")),
    }
}

/// The tokens that count where a template writes them: control pieces, and what the config adds.
fn added_tokens(model: &Model, config: &TokenizerConfig) -> Result<Vec<AddedToken>, TextError> {
    let mut added = of_kind(model, CONTROL, true);
    added.extend(of_kind(model, UNKNOWN, true));
    let rows = model.pieces.len();
    for (&id, token) in &config.added_tokens_decoder {
        if token.single_word || token.content.len() > MAX_ADDED_BYTES {
            let what = "added token (single_word, or too long)";
            return Err(TextError::unsupported(FILE, what, &token.content));
        }
        if id as usize > 2 * rows + MAX_MORE_TOKENS {
            let message = format!("added token id {id} is far beyond the {rows} pieces");
            return Err(TextError::load(crate::hf::TOKENIZER_CONFIG, message));
        }
        added.retain(|other| other.id != id);
        added.push(AddedToken {
            id,
            content: token.content.clone(),
            pattern: token.content.clone(),
            special: token.special,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            normalized: false,
        });
    }
    Ok(added)
}

fn of_kind(model: &Model, kind: u64, special: bool) -> Vec<AddedToken> {
    let pieces = (0u32..).zip(&model.pieces).filter(|(_, piece)| piece.kind == kind);
    pieces
        .map(|(id, piece)| AddedToken {
            id,
            content: piece.text.clone(),
            pattern: piece.text.clone(),
            special,
            lstrip: false,
            rstrip: false,
            normalized: false,
        })
        .collect()
}

fn entries(model: &Model, added: &[AddedToken]) -> Result<Vec<Option<TokenEntry>>, TextError> {
    let entry = |(id, piece): (usize, &Piece)| {
        let bytes = match piece.kind {
            BYTE => match fallback_byte(&piece.text) {
                Some(byte) => vec![byte],
                None => {
                    let message = format!("piece {id}: byte token {:?}, not <0xNN>", piece.text);
                    return Err(TextError::load(FILE, message));
                }
            },
            _ => piece.text.replace('▁', " ").into_bytes(),
        };
        let special = matches!(piece.kind, CONTROL | UNKNOWN);
        Ok(Some(TokenEntry { name: piece.text.clone(), bytes, special }))
    };
    let mut entries = model.pieces.iter().enumerate().map(entry).collect::<Result<Vec<_>, _>>()?;
    for token in added {
        let at = token.id as usize;
        if entries.len() <= at {
            entries.resize_with(at + 1, || None);
        }
        entries[at] = Some(TokenEntry {
            name: token.content.clone(),
            bytes: token.content.clone().into_bytes(),
            special: token.special,
        });
    }
    Ok(entries)
}

/// `TrainerSpec.ModelType`
const UNIGRAM: u64 = 1;
const BPE: u64 = 2;
/// `SentencePiece.Type`
const NORMAL: u64 = 1;
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;
const BYTE: u64 = 6;
/// Published pieces have at most some 100 bytes.
const MAX_PIECE_BYTES: usize = MAX_ADDED_BYTES;
/// How many ids beyond the pieces tokenizer_config.json may name.
const MAX_MORE_TOKENS: usize = 1 << 16;
