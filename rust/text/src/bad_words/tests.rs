//! Compares masks with a plain search over the text, and the place with the parser of reasoning.

use std::sync::Arc;

use super::*;
use crate::answer::{AnswerParser, AnswerRules};
use crate::answer_piece::AnswerPiece;
use crate::grammar::Reasoned;
use crate::reasoning::{ReasoningFormat, ReasoningStart};
use crate::{Detokenizer, TextError, Tokenizer};

/// 388 tokens; 0 to 4 are special, `<|eos|>` is 1.
fn tokenizer() -> Arc<Tokenizer> {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/qwen3/tokenizer.json");
    Arc::new(Tokenizer::from_json(&std::fs::read(path).unwrap(), None).unwrap())
}

/// More than the tokenizer has.
const ROWS: u32 = 512;
const EOS: u32 = 1;

fn compile(tokenizer: &Arc<Tokenizer>, words: &[&str], text: AnswerText) -> Arc<BadWords> {
    let tags = ReasoningFormat::detect("<think>");
    let factory = BadWordsFactory::new(Arc::clone(tokenizer), ROWS, tags);
    let words: Vec<String> = words.iter().map(|&word| word.into()).collect();
    Arc::new(factory.compile(&words, text).unwrap())
}

fn shown() -> AnswerText {
    AnswerText { skip_special_tokens: true, ends: vec![EOS], ..AnswerText::default() }
}

fn allows(mask: &[u32], id: u32) -> bool {
    mask[id as usize / 32] & (1 << (id % 32)) != 0
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, false).unwrap()
}

#[test]
fn test_a_mask_clears_exactly_what_completes_a_word() {
    let tokenizer = tokenizer();
    let letters = ["e", "t", "a", "th", "he", " t", "in", "é", "日", "\n", "<"];
    for seed in 0..300 {
        let mut random = Random(seed);
        let words: Vec<String> = (0..=random.below(6))
            .map(|_| (0..=random.below(3)).map(|_| letters[random.below(letters.len())]).collect())
            .collect();
        let borrowed: Vec<&str> = words.iter().map(String::as_str).collect();
        let hides = random.below(2) == 0;
        let text = AnswerText { skip_special_tokens: hides, ..shown() };
        let mut state = compile(&tokenizer, &borrowed, text).start();
        let mut bytes: Vec<u8> = Vec::new();
        for step in 0..12 {
            let mask = state.mask();
            assert_eq!(mask.len(), 16);
            for id in 0..ROWS {
                let silent = id == EOS || (hides && tokenizer.is_special(id));
                let mut next = bytes.clone();
                next.extend(tokenizer.token_bytes(id).unwrap_or_default());
                let is_bad = words
                    .iter()
                    .any(|word| next.windows(word.len()).any(|part| part == word.as_bytes()));
                let expected = id < tokenizer.vocab_size() && (silent || !is_bad);
                assert_eq!(
                    allows(&mask, id),
                    expected,
                    "seed {seed} step {step} id {id} {words:?}"
                );
            }
            let open: Vec<u32> = (0..ROWS).filter(|&id| allows(&mask, id)).collect();
            let likely: Vec<u32> = open
                .iter()
                .copied()
                .filter(|&id| {
                    let token = tokenizer.token_bytes(id).unwrap_or_default();
                    words.iter().any(|word| word.as_bytes().starts_with(token))
                })
                .collect();
            let from = if likely.is_empty() || random.below(3) == 0 { &open } else { &likely };
            let id = from[random.below(from.len())];
            state.accept(id);
            if id != EOS && !(hides && tokenizer.is_special(id)) {
                bytes.extend(tokenizer.token_bytes(id).unwrap_or_default());
            }
        }
    }
}

#[test]
fn test_reasoning_is_free_and_content_is_not() {
    let tokenizer = tokenizer();
    let tags = ReasoningFormat::detect("<think>").unwrap();
    // The first is a part of the opening marker, which cannot be spelled out then.
    let every = ["th", " a", "e", "\n", "<a", "k>x"];
    let starts = [
        (Some(Reasoned::Opened), ReasoningStart::Opened),
        (Some(Reasoned::Allowed), ReasoningStart::Unopened),
        (None, ReasoningStart::Closed),
    ];
    let pieces = ["<think>", "</think>", "<thin", "</", " ", "\n", "a", "e", "th", "<a", "x", "k>"];
    let (mut seen_reasoning, mut seen_content) = (0, 0);
    for seed in 0..600 {
        let mut random = Random(seed);
        let (reasoned, start) = starts[seed as usize % 3];
        let words = &every[usize::from(seed % 2 == 0)..];
        let text = AnswerText { reasoning: reasoned, ..shown() };
        let mut state = compile(&tokenizer, words, text).start();
        let rules = AnswerRules { reasoning: Some((tags.clone(), start)), tools: None };
        let mut parser = AnswerParser::new(&rules, 1);
        let mut detokenizer = Detokenizer::continuing(Arc::clone(&tokenizer), true);
        let mut whole = String::new();
        for _ in 0..14 {
            for id in ids(&tokenizer, pieces[random.below(pieces.len())]) {
                if !allows(&state.mask(), id) {
                    continue;
                }
                state.accept(id);
                let mut part = String::new();
                detokenizer.push(id, &mut part);
                parser.push(&part);
                whole += &part;
            }
        }
        parser.finish();
        for piece in parser.take() {
            let AnswerPiece::Content(content) = piece else {
                seen_reasoning += 1;
                continue;
            };
            seen_content += 1;
            let bad = words.iter().find(|word| content.contains(**word));
            assert_eq!(bad, None, "seed {seed}: {whole:?}");
        }
    }
    assert!(seen_reasoning > 100 && seen_content > 100, "{seen_reasoning} {seen_content}");
}

#[test]
fn test_words_count_from_the_end_of_the_reasoning() {
    let tokenizer = tokenizer();
    let reasoning = Some(Reasoned::Opened);
    let words = compile(&tokenizer, &["the"], AnswerText { reasoning, ..shown() });
    let mut state = words.start();
    let next = |state: &mut BadWordsState, text: &str| {
        for id in ids(&tokenizer, text) {
            assert!(allows(&state.mask(), id), "{text}: {id}");
            state.accept(id);
        }
    };
    let e = ids(&tokenizer, "e")[0];
    next(&mut state, "the the th");
    assert!(allows(&state.mask(), e));
    // The word does not go on across the marker.
    next(&mut state, "</think>e");
    next(&mut state, " th");
    assert!(!allows(&state.mask(), e));
}

#[test]
fn test_hidden_tokens_do_not_part_a_word_and_ends_are_always_allowed() {
    let tokenizer = tokenizer();
    let e = ids(&tokenizer, "e")[0];
    for (hides, expected) in [(true, false), (false, true)] {
        let text = AnswerText { skip_special_tokens: hides, ..shown() };
        let mut state = compile(&tokenizer, &["the", "eos"], text).start();
        for id in ids(&tokenizer, "th") {
            state.accept(id);
        }
        state.accept(4);
        assert_eq!(allows(&state.mask(), e), expected);
        assert!(allows(&state.mask(), EOS));
    }
    // Shown, it is text like any other.
    let text = AnswerText { ends: Vec::new(), skip_special_tokens: false, ..shown() };
    assert!(!allows(&compile(&tokenizer, &["eos"], text).start().mask(), EOS));
}

#[test]
fn test_the_longest_lists_compile_at_once() {
    let tokenizer = tokenizer();
    let factory = BadWordsFactory::new(tokenizer, ROWS, None);
    let nested: Vec<String> =
        (0..128).map(|i| format!("{}{}", "a".repeat(i), "𠀀".repeat(256 - i))).collect();
    let spread: Vec<String> = (0..128_u32)
        .map(|i| char::from_u32(0x20000 + i).unwrap().to_string().repeat(256))
        .collect();
    let same = vec!["é".repeat(256); 128];
    let all: String = (0..128_u32).map(|i| char::from_u32(0x4e00 + i).unwrap()).collect();
    for words in [nested, spread, same, vec![all; 128]] {
        let state = Arc::new(factory.compile(&words, AnswerText::default()).unwrap()).start();
        assert!(state.mask().iter().any(|&word| word != 0));
    }
}

#[test]
fn test_refusals_name_the_word() {
    let factory = BadWordsFactory::new(tokenizer(), ROWS, None);
    for (words, part) in [
        (vec!["a".to_owned(); 129], "must be a list of at most 128 words, not 129 words"),
        (vec!["a".to_owned(), String::new()], "word 1 is empty"),
        (vec!["é".repeat(257)], "word 0 must be of 1 to 256 characters, not 257"),
        (vec!["a\u{fffd}".to_owned()], "word 0 has U+FFFD"),
    ] {
        let error = factory.compile(&words, AnswerText::default()).unwrap_err();
        assert!(matches!(error, TextError::Input { field: "bad_words", .. }));
        assert!(error.to_string().contains(part), "{error}");
    }
}
