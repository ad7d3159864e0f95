//! Cost: linear in the text, whatever the text; figures on demand.

#![allow(clippy::print_stdout, reason = "figures on demand")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common;
use crate::vocabularies::{
    self, byte_level, gguf_with_its_oracle, sentencepiece, split_by, tiny_with,
};
use ingle_text::{ChatInput, ChatTemplate, Detokenizer, StopMatcher, Tokenizer};
use serde_json::{Value, json};

/// The least of three runs.
fn least(mut run: impl FnMut()) -> Duration {
    let times = (0..3).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed()
    });
    times.min().unwrap()
}

#[test]
fn test_long_runs_of_anything_are_linear() {
    let file = |file: Value| Tokenizer::from_json(file.to_string().as_bytes(), None).unwrap();
    let mut tokenizers: Vec<(String, Tokenizer)> = vec![
        ("gpt-2".into(), file(tiny_with(Value::Null, byte_level(true)))),
        ("llama-3".into(), file(tiny_with(Value::Null, split_by(vocabularies::LLAMA3_PATTERN)))),
        ("llama-2".into(), file(sentencepiece("llama-2"))),
    ];
    tokenizers
        .extend(gguf_with_its_oracle().into_iter().take(2).map(|(name, ours, _)| (name, ours)));
    for (name, tokenizer) in &tokenizers {
        for piece in ["a", " ", "\n", "1", "'", "é", "<", "<|im_start|", "ab "] {
            let of = |bytes: usize| piece.repeat(bytes / piece.len());
            let (short, long) = (of(1 << 15), of(1 << 18));
            let short_time = least(|| drop(black_box(tokenizer.encode(&short, false).unwrap())));
            let long_time = least(|| drop(black_box(tokenizer.encode(&long, false).unwrap())));
            // Eight times the text: 8 if linear, 64 if quadratic.
            let ratio = long_time.as_secs_f64() / short_time.as_secs_f64().max(50e-6);
            assert!(ratio < 32.0, "{name}, {piece:?}: {short_time:?}, then {long_time:?}");
        }
    }
}

/// Prompts of 4,000 characters of English and Rust: this crate's own source.
fn prompts() -> Vec<String> {
    let mut text = String::new();
    let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("unicode_tables.rs") {
                text.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let chars: Vec<char> = text.chars().collect();
    chars.chunks_exact(4000).map(|chunk| chunk.iter().collect()).collect()
}

fn microseconds_each(prompts: &[String], mut encode: impl FnMut(&str)) -> f64 {
    let start = Instant::now();
    prompts.iter().for_each(|prompt| encode(prompt));
    start.elapsed().as_secs_f64() * 1e6 / prompts.len() as f64
}

#[test]
#[ignore = "prints figures"]
fn print_figures() {
    let prompts = prompts();
    for (name, ours, theirs) in gguf_with_its_oracle() {
        let mut ids = Vec::new();
        let mut passes = [0.0; 3];
        for pass in &mut passes {
            *pass = microseconds_each(&prompts, |text| ids = ours.encode(text, false).unwrap());
        }
        let mut library = [0.0; 2];
        for pass in &mut library {
            *pass = microseconds_each(&prompts, |text| drop(black_box(theirs.plain(text, false))));
        }
        println!(
            "{name}: {} prompts of 4000 characters, {} ids in the last; us each: ours cold {:.0}, \
             warm {:.0}; the library cold {:.0}, warm {:.0}",
            prompts.len(),
            ids.len(),
            passes[0],
            passes[2],
            library[0],
            library[1]
        );
        let ours = Arc::new(ours);
        let all: Vec<u32> =
            prompts.iter().flat_map(|text| ours.encode(text, false).unwrap()).collect();
        let (mut stream, mut out) = (Detokenizer::new(Arc::clone(&ours), true), String::new());
        let mut stop = StopMatcher::new(&["\n\n\n\n".into(), "ZZZ".into()], false).unwrap();
        let mut sent = String::new();
        let start = Instant::now();
        for &id in &all {
            stream.push(id, &mut out);
            out.clear();
        }
        let detokenise = start.elapsed();
        let start = Instant::now();
        for &id in &all {
            stream.push(id, &mut out);
            stop.push(&out, &mut sent);
            out.clear();
            sent.clear();
        }
        let per_token = |time: Duration| time.as_secs_f64() * 1e9 / all.len() as f64;
        let both = per_token(start.elapsed());
        println!("  ns a token: detokenise {:.0}, with two stops {both:.0}", per_token(detokenise));
    }
    let long = "a".repeat(1 << 20);
    for (name, ours, _) in gguf_with_its_oracle().into_iter().take(2) {
        let time = least(|| drop(black_box(ours.encode(&long, false).unwrap())));
        println!("{name}: 1 MiB of one letter {time:?}");
    }
    print_template_figures();
}

fn print_template_figures() {
    let Some((tokenizer, source)) = common::smollm2() else { return };
    let template = ChatTemplate::for_tokenizer(&source, &tokenizer).unwrap();
    for (count, content) in
        [(1, "Hello there."), (65, "Hello there."), (65, "if a < b { c[0] > d }")]
    {
        let message = |index: usize| json!({"role": if index.is_multiple_of(2) { "user" } else { "assistant" }, "content": content});
        let messages = (0..count).map(message).collect();
        let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
        let runs = 200;
        let time = least(|| {
            (0..runs).for_each(|_| drop(black_box(template.render(&input).unwrap())));
        });
        let us = time.as_secs_f64() * 1e6 / f64::from(runs);
        println!("SmolLM2's template, {count} messages {content:?}: {us:.0} us");
    }
}
