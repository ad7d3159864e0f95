//! tekken.json, Mistral's format since Nemo: a byte-level vocabulary in which a token's index is
//! its rank as a merge. At model load only. The input is hostile: anything that is not understood
//! is refused by name.

use std::collections::HashMap;

use serde::Deserialize;

use crate::TextError;
use crate::added::{AddedToken, MAX_ADDED_BYTES};

use crate::merge::{Merge, MergeTable};
use crate::token_table::{MAX_VOCAB, TokenEntry, TokenTable};
use crate::tokenizer::{Encoder, Tokenizer, TokenizerParts};
use crate::words::splitter::Splitter;
use crate::words::{WordEncoder, WordParts};

const FILE: &str = "tekken.json";

#[derive(Deserialize)]
struct Tekken {
    config: Config,
    vocab: Vec<Entry>,
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct Entry {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

/// Builds a tokenizer from tekken.json.
pub(crate) fn tokenizer(json: &[u8]) -> Result<Tokenizer, TextError> {
    let file: Tekken =
        serde_json::from_slice(json).map_err(|error| TextError::load(FILE, error.to_string()))?;
    let special = special_tokens(&file)?;
    let words = words(&file)?;
    let first = special.len();
    let id = |rank: usize| u32::try_from(first + rank).unwrap_or(u32::MAX);

    let ranks: HashMap<&[u8], u32> =
        words.iter().enumerate().map(|(rank, word)| (word.as_slice(), id(rank))).collect();
    if ranks.len() != words.len() {
        return Err(TextError::load(FILE, "vocab: two tokens have the same bytes"));
    }
    let parts = WordParts {
        splitter: Splitter::of_patterns(FILE, "config.pattern", &[&file.config.pattern])?,
        byte_ids: byte_ids(&ranks)?,
        merges: merges(&words, &ranks),
        whole_words: ranks.iter().map(|(word, id)| ((*word).into(), *id)).collect(),
    };
    let encoder = Encoder::Words(Box::new(WordEncoder::from_parts(parts)));
    let table = TokenTable::new(FILE, entries(&special, words))?;
    let named = |text: &str| special.iter().position(|token| token == text);
    let special_id = |text: &str| named(text).and_then(|id| u32::try_from(id).ok());
    let (bos, eos) = (special_id("<s>"), special_id("</s>"));
    let names = [
        ("bos_token", "<s>"),
        ("eos_token", "</s>"),
        ("unk_token", "<unk>"),
        ("pad_token", "<pad>"),
    ];
    let names = names.into_iter().filter(|(_, text)| named(text).is_some());
    Ok(Tokenizer::from_parts(TokenizerParts {
        encoder,
        named: names.map(|(key, text)| (key.to_owned(), text.to_owned())).collect(),
        added: (0u32..).zip(&special).map(|(id, text)| AddedToken::special(id, text)).collect(),
        table,
        prefix: bos.into_iter().collect(),
        suffix: Vec::new(),
        strip_leading_space: false,
        bos,
        eos: eos.into_iter().collect(),
    }))
}

/// The names of the special tokens by id. Files of the first versions do not list them, and most ids have no
/// name of their own.
fn special_tokens(file: &Tekken) -> Result<Vec<String>, TextError> {
    let count = file.config.default_num_special_tokens;
    if count > MAX_SPECIAL {
        let message = format!(
            "config.default_num_special_tokens: {count}; at most {MAX_SPECIAL} are allowed"
        );
        return Err(TextError::load(FILE, message));
    }
    let mut names: Vec<Option<String>> = vec![None; count];
    let listed = file.special_tokens.as_deref().unwrap_or_default();
    let listed = listed.iter().map(|token| (token.rank, token.token_str.as_str()));
    let first = FIRST_SPECIAL.iter().copied().enumerate();
    let all: Vec<(usize, &str)> =
        if file.special_tokens.is_some() { listed.collect() } else { first.collect() };
    for (rank, text) in all {
        let place = names.get_mut(rank).filter(|place| place.is_none());
        let place = place.filter(|_| !text.is_empty() && text.len() <= MAX_ADDED_BYTES);
        let place = place.ok_or_else(|| {
            let message = format!(
                "special_tokens: rank {rank} is listed twice, is not below {count}, or its text has not 1 to \
                 {MAX_ADDED_BYTES} bytes"
            );
            TextError::load(FILE, message)
        })?;
        *place = Some(text.to_owned());
    }
    let filler = |(id, name): (usize, Option<String>)| name.unwrap_or(format!("<SPECIAL_{id}>"));
    Ok(names.into_iter().enumerate().map(filler).collect())
}

/// The bytes of the ordinary tokens by rank: as many as the configured size leaves room for.
fn words(file: &Tekken) -> Result<Vec<Vec<u8>>, TextError> {
    let Config { default_vocab_size: size, default_num_special_tokens: special, .. } = file.config;
    let count = size.checked_sub(special).filter(|_| size <= MAX_VOCAB as usize);
    let count = count.filter(|count| (256..=file.vocab.len()).contains(count)).ok_or_else(|| {
        let message = format!(
            "config.default_vocab_size: {size} with {special} special tokens and {} others in vocab",
            file.vocab.len()
        );
        TextError::load(FILE, message)
    })?;
    let entry = |(rank, entry): (usize, &Entry)| {
        let bytes = crate::base64::decode(&entry.token_bytes);
        let bytes = bytes.filter(|bytes| (1..=MAX_WORD_BYTES).contains(&bytes.len()));
        bytes.filter(|_| entry.rank == rank).ok_or_else(|| {
            let message = format!(
                "vocab[{rank}]: rank {} instead of {rank}, or token_bytes are not 1 to {MAX_WORD_BYTES} bytes \
                 in base64",
                entry.rank
            );
            TextError::load(FILE, message)
        })
    };
    file.vocab.iter().take(count).enumerate().map(entry).collect()
}

fn byte_ids(ranks: &HashMap<&[u8], u32>) -> Result<[u32; 256], TextError> {
    let mut ids = [0; 256];
    for (byte, id) in (0u8..=255).zip(&mut ids) {
        let known = ranks.get([byte].as_slice());
        *id = *known
            .ok_or_else(|| TextError::load(FILE, format!("vocab: no token for the byte {byte}")))?;
    }
    Ok(ids)
}

/// Every way to cut a token in two tokens is a merge, and the lowest rank merges first, as in tiktoken.
fn merges(words: &[Vec<u8>], ranks: &HashMap<&[u8], u32>) -> MergeTable {
    let mut merges = MergeTable::with_capacity(2 * words.len());
    for (word, rank) in words.iter().zip(0u32..) {
        let Some(id) = ranks.get(word.as_slice()) else { continue };
        for cut in 1..word.len() {
            let (left, right) = word.split_at(cut);
            if let (Some(left), Some(right)) = (ranks.get(left), ranks.get(right)) {
                merges.insert(*left, *right, Merge { rank, id: *id });
            }
        }
    }
    merges
}

fn entries(special: &[String], words: Vec<Vec<u8>>) -> Vec<Option<TokenEntry>> {
    let special = special.iter().map(|text| TokenEntry {
        name: text.clone(),
        bytes: text.clone().into_bytes(),
        special: true,
    });
    let words = words.into_iter().map(|bytes| TokenEntry {
        name: bytes.iter().map(|byte| crate::byte_level::char_of_byte(*byte)).collect(),
        bytes,
        special: false,
    });
    special.chain(words).map(Some).collect()
}

/// The special tokens of files that list none.
const FIRST_SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];
/// Published files have 1,000.
const MAX_SPECIAL: usize = 1 << 16;
/// Published tokens have at most some 200 bytes.
const MAX_WORD_BYTES: usize = 1024;
