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

/// The CPU time of this thread, so that others on the machine do not count.
pub(crate) fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// The CPU time of one run, from as many as take half a second: the kernel counts in ticks.
fn cpu_time_of(mut run: impl FnMut()) -> Duration {
    let (start, mut runs) = (cpu_time(), 0);
    while cpu_time() - start < Duration::from_millis(500) {
        run();
        runs += 1;
    }
    (cpu_time() - start) / runs
}

fn time(run: impl FnOnce()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
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
            let (short, long) = (of(1 << 13), of(1 << 18));
            let encode = |text: &str| drop(black_box(tokenizer.encode(text, false).unwrap()));
            // The same amount of text, once in 32 pieces: about 1 if linear, 32 if quadratic. The
            // two stand side by side, and the best of several tries counts, as others use the machine.
            let ratio = || {
                let pieces = time(|| (0..32).for_each(|_| encode(&short)));
                time(|| encode(&long)).as_secs_f64() / pieces.as_secs_f64()
            };
            let good = (0..10).map(|_| ratio()).find(|ratio| *ratio < 8.0);
            assert!(good.is_some(), "{name}: a long run of {piece:?} costs more than its parts");
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

/// Microseconds of CPU time for each prompt.
fn each(prompts: &[String], mut encode: impl FnMut(&str)) -> f64 {
    let time = cpu_time_of(|| prompts.iter().for_each(|prompt| encode(prompt)));
    time.as_secs_f64() * 1e6 / prompts.len() as f64
}

#[test]
#[ignore = "prints figures"]
fn print_figures() {
    let prompts = prompts();
    for (name, ours, theirs) in gguf_with_its_oracle() {
        let first = time(|| prompts.iter().for_each(|text| drop(ours.encode(text, false))));
        let warm = each(&prompts, |text| drop(black_box(ours.encode(text, false))));
        let library = each(&prompts, |text| drop(black_box(theirs.plain(text, false))));
        println!(
            "{name}: {} prompts of 4000 characters; us each: first time {:.0} (wall), after that \
             {warm:.0}; the library {library:.0}",
            prompts.len(),
            first.as_secs_f64() * 1e6 / prompts.len() as f64
        );
        let ours = Arc::new(ours);
        let all: Vec<u32> =
            prompts.iter().flat_map(|text| ours.encode(text, false).unwrap()).collect();
        let (mut stream, mut out) = (Detokenizer::new(Arc::clone(&ours), true), String::new());
        let mut stop = StopMatcher::new(&["\n\n\n\n".into(), "ZZZ".into()], false).unwrap();
        let mut sent = String::new();
        let detokenise = cpu_time_of(|| {
            for &id in &all {
                stream.push(id, &mut out);
                out.clear();
            }
        });
        let both = cpu_time_of(|| {
            for &id in &all {
                stream.push(id, &mut out);
                stop.push(&out, &mut sent);
                out.clear();
                sent.clear();
            }
        });
        let per_token = |time: Duration| time.as_secs_f64() * 1e9 / all.len() as f64;
        let both = per_token(both);
        println!("  ns a token: detokenise {:.0}, with two stops {both:.0}", per_token(detokenise));
    }
    let long = "a".repeat(1 << 20);
    for (name, ours, _) in gguf_with_its_oracle().into_iter().take(2) {
        let time = cpu_time_of(|| drop(black_box(ours.encode(&long, false).unwrap())));
        println!("{name}: 1 MiB of one letter {time:?}");
    }
    let (vocab, _) = common::smollm2_vocab().unwrap();
    let load = cpu_time_of(|| drop(black_box(Tokenizer::from_gguf(vocab.clone()).unwrap())));
    println!("SmolLM2: load from GGUF keys {load:?}");
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
        let time = cpu_time_of(|| drop(black_box(template.render(&input).unwrap())));
        let us = time.as_secs_f64() * 1e6;
        println!("SmolLM2's template, {count} messages {content:?}: {us:.0} us");
    }
}
