//! tokenizer.json, and text and token ids through a tokenizer.

use std::sync::Arc;

use ingle_text::{Detokenizer, TextError, Tokenizer};

use crate::driver::{Outcome, Target};

/// tokenizer.json: what loads encodes any text to ids that it has, and decodes as a stream as at once.
#[derive(Debug)]
pub(super) struct TokenizerJson;

impl Target for TokenizerJson {
    fn name(&self) -> &'static str {
        "tokenizer_json"
    }

    fn is_json(&self) -> bool {
        true
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "\"type\":\"BPE\"",
            "\"type\":\"WordPiece\"",
            "\"type\":\"Unigram\"",
            "\"ByteLevel\"",
            "\"Split\"",
            "{\"Regex\":\"",
            "(?:a|a)*$",
            "\"Replace\"",
            "\"Precompiled\"",
            "\"Metaspace\"",
            "\"FixedLength\"",
            "\"special\":true",
            "\"merges\":[",
            "\"NFKC\"",
            "\"ByteFallback\"",
            "\"Fuse\"",
            "\"Strip\"",
            "[\"a\",\"b\"]",
        ]
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let tokenizer = match Tokenizer::from_json(input, None) {
            Ok(tokenizer) => Arc::new(tokenizer),
            Err(error) => return Outcome::refused(&error.to_string()),
        };
        let mut kinds = Vec::new();
        for text in ["", "ab ab", "a\u{0}é🙂 \n<|x|>", &"ab".repeat(500), &" a".repeat(200)] {
            match tokenizer.encode(text, true) {
                Ok(ids) => {
                    assert!(ids.iter().all(|&id| id < tokenizer.vocab_size()), "{ids:?}");
                    streams_as_at_once(&tokenizer, &ids);
                    kinds.push(ids.len().min(40));
                }
                Err(TextError::Encode(_)) => kinds.push(usize::MAX),
                Err(other) => panic!("{other:?} is no error of a text"),
            }
        }
        Outcome::of(kinds)
    }
}

/// Text: the ids' bytes are the text's, and none of them is a special token.
#[derive(Debug)]
pub(super) struct Tokenise(pub(super) Arc<Tokenizer>);

impl Target for Tokenise {
    fn name(&self) -> &'static str {
        "tokenise"
    }

    fn words(&self) -> &'static [&'static str] {
        &["<|im_start|>", "<|eos|>", "\u{200d}", "\u{301}", "\u{fffd}", "  ", "\r\n", "'ll", "0123"]
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let text = String::from_utf8_lossy(input);
        let ids = self.0.encode(&text, false).unwrap();
        let mut bytes = Vec::new();
        for &id in &ids {
            assert!(!self.0.is_special(id), "text became the special token {id}");
            bytes.extend_from_slice(self.0.token_bytes(id).unwrap());
        }
        assert_eq!(bytes, text.as_bytes(), "the tokens' bytes are not the text's");
        assert_eq!(self.0.decode(&ids, false), text);
        // A prompt that its sender wrote whole may have special tokens; its bytes are the text's too.
        let ids = self.0.encode_prompt(&text, false).unwrap();
        assert_eq!(self.0.decode(&ids, false), text);
        let num_special = ids.iter().filter(|&&id| self.0.is_special(id)).count();
        Outcome::of((ids.len().ilog2_or_zero(), num_special.min(3)))
    }
}

trait Log2 {
    fn ilog2_or_zero(self) -> u32;
}

impl Log2 for usize {
    fn ilog2_or_zero(self) -> u32 {
        self.checked_ilog2().unwrap_or(0)
    }
}

/// Token ids, two bytes each: the stream of pieces is the text at once.
#[derive(Debug)]
pub(super) struct Detokenise(pub(super) Arc<Tokenizer>);

impl Target for Detokenise {
    fn name(&self) -> &'static str {
        "detokenise"
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let pairs = input.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        // Most ids exist; some lie beyond the vocabulary.
        let ids: Vec<u32> = pairs.map(|id| u32::from(id) % 400).collect();
        streams_as_at_once(&self.0, &ids);
        let text = self.0.decode(&ids, true);
        let num_broken = text.matches('\u{fffd}').count();
        Outcome::of((ids.len().ilog2_or_zero(), num_broken.min(8)))
    }
}

fn streams_as_at_once(tokenizer: &Arc<Tokenizer>, ids: &[u32]) {
    for skips in [false, true] {
        let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), skips);
        let mut text = String::new();
        for &id in ids {
            let before = text.len();
            detokenizer.push(id, &mut text);
            assert!(text.is_char_boundary(before), "a piece changes what was sent");
        }
        detokenizer.finish(&mut text);
        assert_eq!(text, tokenizer.decode(ids, skips), "{ids:?}");
    }
}
