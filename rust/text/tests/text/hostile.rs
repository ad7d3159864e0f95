//! Tokenizer files by strangers: each is refused, or bounded, and quickly so.

use std::time::Duration;

use ingle_text::{RenderedPrompt, Tokenizer};
use serde_json::{Value, json};

use crate::scaling::cpu_time;
use crate::vocabularies::{byte_level, split_by, tiny_with};

/// What a file may cost, with some room for slow machines and unoptimised builds.
const BOUND: Duration = Duration::from_millis(400);

fn replace(pattern: Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

/// A good file with a change.
fn changed(change: &dyn Fn(&mut Value)) -> String {
    let mut file = tiny_with(Value::Null, byte_level(true));
    change(&mut file);
    file.to_string()
}

fn added(content: &str, normalized: bool) -> Value {
    json!({"id": 388, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": normalized, "special": false})
}

/// What is done to a good file, and a part of the error that it makes.
type Case<'c> = (&'c dyn Fn(&mut Value), &'c str);

/// Each is refused by file and field, in one short line and at once.
fn check_refused(cases: &[Case<'_>]) {
    for (change, wanted) in cases {
        let file = changed(change);
        let start = cpu_time();
        let error = Tokenizer::from_json(file.as_bytes(), None).unwrap_err().to_string();
        let spent = cpu_time() - start;
        assert!(error.starts_with("tokenizer.json: ") && error.contains(wanted), "{error}");
        assert!(spent < BOUND, "{wanted}: {spent:?}");
        assert!(error.len() < 1100 && !error.contains('\n'), "{wanted}: {}", error.len());
    }
}

fn decoders(content: &str, count: usize) -> Value {
    let steps = vec![replace(json!({"String": "a"}), content); count];
    json!({"type": "Sequence", "decoders": steps})
}

fn add(file: &mut Value, token: Value) {
    file["added_tokens"].as_array_mut().unwrap().push(token);
}

#[test]
fn test_a_token_is_some_hundred_bytes_at_most() {
    let with = |length: usize| {
        move |file: &mut Value| file["model"]["vocab"]["z".repeat(length)] = json!(388)
    };
    assert!(Tokenizer::from_json(changed(&with(1024)).as_bytes(), None).is_ok());
    // 8,000 ids in 16 kB of JSON would become gigabytes of text.
    check_refused(&[(&with(1025), "token 388 has 1025 bytes; at most 1024 are allowed")]);
}

#[test]
fn test_steps_that_are_not_understood_are_refused_at_load_by_field() {
    let many = json!({"type": "Sequence", "pretokenizers": vec![byte_level(true); 99]});
    let map = |text: &str| json!({"type": "Precompiled", "precompiled_charsmap": text});
    check_refused(&[
        (&|f| f["pre_tokenizer"] = split_by(r"(?:a|a)*$|!"), "pre_tokenizer: pattern"),
        (&|f| f["pre_tokenizer"] = split_by(r"(a|a)*$"), "pre_tokenizer: pattern"),
        (&|f| f["pre_tokenizer"] = split_by(r"(?<=a)b"), "pre_tokenizer: pattern"),
        (&|f| f["pre_tokenizer"] = split_by(&r"\p{L}{50}".repeat(400)), "pre_tokenizer: pattern"),
        (&|f| f["pre_tokenizer"] = many.clone(), "pre_tokenizer: more than 32 steps"),
        (&|f| f["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0}), "\"length\""),
        (&|f| f["pre_tokenizer"] = json!({"type": "UnicodeScripts"}), "\"UnicodeScripts\""),
        (&|f| f["normalizer"] = json!({"type": "BertNormalizer"}), "\"BertNormalizer\""),
        (&|f| f["normalizer"] = replace(json!({"Regex": r"(a*)*b"}), ""), "normalizer: pattern"),
        (&|f| f["normalizer"] = replace(json!({"String": ""}), "y"), "\"pattern\""),
        (&|f| f["normalizer"] = map(""), "precompiled_charsmap: shorter than its header"),
        (&|f| f["normalizer"] = map("AAAAAA=="), "precompiled_charsmap: a trie of 0 bytes"),
        (
            &|f| f["decoder"] = json!({"type": "Metaspace", "replacement": ""}),
            "decoder replacement",
        ),
        (&|f| f["model"]["type"] = "y".repeat(100_000).into(), "model type"),
    ]);
}

#[test]
fn test_files_that_multiply_what_they_hold_are_refused_at_load_by_field() {
    let ten = "x".repeat(10);
    let multiply = vec![replace(json!({"String": "x"}), &ten); 12];
    let multiply = json!({"type": "Sequence", "normalizers": multiply});
    let long = "#".repeat(99);
    let far = |mut token: Value| {
        token["id"] = 4_000_000_000u32.into();
        token
    };
    check_refused(&[
        (&|f| f["normalizer"] = multiply.clone(), "can make a text 1000000000000 times"),
        (&|f| f["normalizer"] = replace(json!({"String": "a"}), &"y".repeat(9999)), "\"content\""),
        (&|f| f["decoder"] = decoders("b", 40), "decoder: 17 replacements"),
        (&|f| f["decoder"] = decoders("aaaaa", 9), "times as long"),
        (
            &|f| {
                let list: Vec<u32> = vec![0; 100_000];
                f["post_processor"]["special_tokens"]["<|bos|>"]["ids"] = json!(list);
            },
            "post_processor: more than 64 tokens",
        ),
        (&|f| add(f, added(&"a".repeat(200_000), false)), "has 200000 bytes; at most 256"),
        (
            &|f| {
                f["normalizer"] = replace(json!({"String": "x"}), &ten);
                add(f, added(&"x".repeat(200), true));
            },
            "has 2000 bytes",
        ),
        (
            &|f| f["model"]["continuing_subword_prefix"] = long.clone().into(),
            "shorter than continuing",
        ),
        (&|f| f["model"]["vocab"]["zzz"] = 4_000_000.into(), "beyond the limit"),
        (&|f| add(f, far(added("<far>", false))), "beyond the limit"),
    ]);
}

#[test]
fn test_texts_that_a_file_makes_costly_end_in_an_error_or_at_once() {
    let texts = ["a".repeat(1 << 16), "x".repeat(1 << 16), "\u{FDFA}".repeat(1 << 14)];
    let files = [
        changed(&|f| f["pre_tokenizer"] = split_by(r"a*b|a")),
        changed(&|f| f["pre_tokenizer"] = split_by(r"[ab]*a[ab]{200}c|[ab]")),
        changed(&|f| f["normalizer"] = replace(json!({"String": "x"}), "xxxxxxxxxx")),
        changed(&|f| f["normalizer"] = json!({"type": "NFKD"})),
        changed(&|f| {
            let token = added(&format!("{}b", "a".repeat(255)), false);
            f["added_tokens"].as_array_mut().unwrap().push(token);
        }),
    ];
    let mut refused = 0;
    for file in &files {
        let tokenizer = Tokenizer::from_json(file.as_bytes(), None).unwrap();
        for text in &texts {
            let start = cpu_time();
            match tokenizer.encode(text, true) {
                Ok(ids) => assert!(ids.len() <= 16 * text.len()),
                Err(error) => {
                    assert!(error.to_string().starts_with("the text could not be tokenised: "));
                    refused += 1;
                }
            }
            assert!(cpu_time() - start < 3 * BOUND, "{}", &file[..80]);
        }
        // The next request is served.
        assert!(tokenizer.encode("hello", true).is_ok());
        assert!(tokenizer.encode_rendered(&RenderedPrompt::trusted("hi".into())).is_ok());
    }
    assert!(refused >= 1, "the pattern that reads ahead");
}
