//! The vocabulary for grammars: the bytes of all tokens in one tree.

use std::sync::Arc;

use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::Tokenizer;

/// Builds the tree: about 30 ms for 50,000 tokens. Special tokens match no text, only their number
/// in a grammar (`<[7]>`); ids without bytes never match.
///
/// # Errors
/// One line; the vocabulary cannot be put into a tree.
pub(crate) fn token_tree(tokenizer: &Tokenizer, eos: &[u32]) -> Result<TokEnv, String> {
    let vocab_size = tokenizer.vocab_size();
    if vocab_size >= MAX_VOCAB {
        return Err(format!("a vocabulary of {vocab_size} tokens, at most {MAX_VOCAB}"));
    }
    let eos: Vec<u32> = eos.iter().copied().filter(|&id| id < vocab_size).collect();
    let words: Vec<Vec<u8>> = (0..vocab_size)
        .map(|id| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            if tokenizer.is_special(id) || eos.contains(&id) {
                return [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat();
            }
            let usable = bytes.len() <= MAX_TOKEN_BYTES
                && bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER);
            if usable { bytes.to_vec() } else { Vec::new() }
        })
        .collect();
    let first_eos = eos.first().copied().unwrap_or(toktrie::INVALID_TOKEN);
    let mut trie = TokTrie::from(&TokRxInfo::new(vocab_size, first_eos), &words);
    if !eos.is_empty() {
        trie = trie.with_eos_tokens(&eos);
    }
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

/// The tree packs ids into 24 bits and sizes into 22.
const MAX_VOCAB: u32 = 1 << 20;
/// Longer ones (runs of spaces) do not fit the tree's depth.
const MAX_TOKEN_BYTES: usize = 1000;
