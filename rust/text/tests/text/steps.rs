//! Every normaliser, pre-tokeniser and option of a BPE model has the ids of the tokenizers library.

use ingle_text::Tokenizer;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::common::golden;
use crate::testing::text;
use crate::vocabularies::{Library, byte_level, sentencepiece, tiny_with};

/// A step, as the file has it.
fn step(kind: &str, fields: Value) -> Value {
    let mut step = json!({"type": kind});
    for (key, value) in fields.as_object().unwrap() {
        step[key] = value.clone();
    }
    step
}

fn sequence(key: &str, steps: &[Value]) -> Value {
    json!({"type": "Sequence", key: steps})
}

/// Ours and the library's of one file, and what the file is.
struct Pair {
    name: String,
    ours: Tokenizer,
    theirs: Library,
}

fn pair(name: &str, file: &Value) -> Pair {
    let file = file.to_string();
    let ours = Tokenizer::from_json(file.as_bytes(), None);
    Pair {
        name: name.to_string(),
        ours: ours.unwrap_or_else(|error| panic!("{name}: {error}")),
        theirs: Library::new(&file),
    }
}

fn check(pairs: &[Pair], cases: u32) {
    let mut runner = TestRunner::new(ProptestConfig::with_cases(cases));
    let run = runner.run(&text(), |text| {
        for pair in pairs {
            let ids = pair.ours.encode(&text, false).unwrap();
            prop_assert_eq!(ids, pair.theirs.plain(&text, false), "{}: {:?}", pair.name, text);
        }
        Ok(())
    });
    run.unwrap();
}

#[test]
fn test_normalisers_are_those_of_the_library() {
    let charsmap = std::fs::read_to_string(golden("tokenizers/charsmap.txt")).unwrap();
    let none = || json!({});
    let mut steps: Vec<Value> =
        ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"]
            .map(|kind| step(kind, none()))
            .into();
    steps.extend([
        step("Strip", json!({"strip_left": true, "strip_right": false})),
        step("Strip", json!({"strip_left": true, "strip_right": true})),
        step("Prepend", json!({"prepend": "ab "})),
        step("Replace", json!({"pattern": {"String": " "}, "content": "▁"})),
        step("Replace", json!({"pattern": {"Regex": r"\s+"}, "content": " "})),
        step("Replace", json!({"pattern": {"Regex": r" {2,}|\p{N}$"}, "content": ""})),
        step("Precompiled", json!({"precompiled_charsmap": charsmap})),
    ]);
    steps.push(sequence("normalizers", &[steps[3].clone(), steps[5].clone(), steps[4].clone()]));
    steps.push(sequence("normalizers", &[]));
    let pairs: Vec<Pair> = steps
        .iter()
        .map(|step| pair(&step.to_string(), &tiny_with(step.clone(), byte_level(true))))
        .collect();
    check(&pairs, 60);
}

#[test]
fn test_pre_tokenisers_are_those_of_the_library() {
    let mut steps = vec![
        byte_level(false),
        step(
            "ByteLevel",
            json!({"add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        ),
        step("Digits", json!({"individual_digits": false})),
        step("Digits", json!({"individual_digits": true})),
        step("Whitespace", json!({})),
        step("WhitespaceSplit", json!({})),
        step("BertPreTokenizer", json!({})),
        step("CharDelimiterSplit", json!({"delimiter": "e"})),
        step("FixedLength", json!({"length": 3})),
        step("Metaspace", json!({"replacement": "Ġ", "prepend_scheme": "always", "split": true})),
        step("Metaspace", json!({"replacement": "Ġ", "prepend_scheme": "first", "split": false})),
    ];
    let behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
    for behavior in behaviors {
        steps.push(step("Punctuation", json!({"behavior": behavior})));
        for (pattern, invert) in [
            (json!({"Regex": r"\p{L}+|\s+(?!\S)|\s+"}), false),
            (json!({"Regex": r"\p{L}+|\p{N}"}), true),
            (json!({"String": " "}), false),
        ] {
            let fields = json!({"pattern": pattern, "behavior": behavior, "invert": invert});
            steps.push(step("Split", fields));
        }
    }
    let pairs: Vec<Pair> = steps
        .iter()
        .map(|step| {
            let steps = [step.clone(), byte_level(true)];
            let steps = sequence("pretokenizers", &steps);
            pair(&step.to_string(), &tiny_with(Value::Null, steps))
        })
        .collect();
    check(&pairs, 60);
    // Falcon: the alphabet of bytes comes before other steps.
    let falcon = sequence(
        "pretokenizers",
        &[
            step("Punctuation", json!({"behavior": "Contiguous"})),
            byte_level(true),
            step("Digits", json!({"individual_digits": false})),
            step(
                "Split",
                json!({"pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated",
                "invert": false}),
            ),
        ],
    );
    check(&[pair("falcon", &tiny_with(Value::Null, falcon))], 60);
}

#[test]
fn test_options_of_the_model_are_those_of_the_library() {
    let model = |change: &dyn Fn(&mut Value)| {
        let mut file = sentencepiece("llama-2");
        file["normalizer"] = Value::Null;
        file["pre_tokenizer"] = json!({"type": "WhitespaceSplit"});
        change(&mut file["model"]);
        file
    };
    let unknown = |fuse: bool| {
        move |model: &mut Value| {
            model["byte_fallback"] = false.into();
            model["fuse_unk"] = fuse.into();
        }
    };
    let affixes = |model: &mut Value| {
        model["byte_fallback"] = false.into();
        model["continuing_subword_prefix"] = "##".into();
        model["end_of_word_suffix"] = "</w>".into();
        let tokens =
            ["a", "##a", "##b", "##a</w>", "a</w>", "a##", "ab", "aba</w>", "##e", "##e</w>"];
        let map = model["vocab"].as_object_mut().unwrap();
        for token in tokens {
            let next = map.len();
            map.entry(token).or_insert(next.into());
        }
        model["merges"] = json!([["a", "##b"], ["ab", "##a</w>"]]);
    };
    let pairs = [
        pair("unknown tokens apart", &model(&unknown(false))),
        pair("unknown tokens joined", &model(&unknown(true))),
        pair(
            "no unknown token",
            &model(&|model| {
                model["byte_fallback"] = false.into();
                model["unk_token"] = Value::Null;
            }),
        ),
        pair(
            "some bytes without a token",
            &model(&|model| {
                let vocab = model["vocab"].as_object_mut().unwrap();
                vocab.retain(|token, _| token != "<0xE6>" && token != "<0xC3>");
            }),
        ),
        pair("whole words", &model(&|model| model["ignore_merges"] = true.into())),
        pair("prefix and suffix", &model(&affixes)),
    ];
    check(&pairs, 60);
    for pair in &pairs {
        for text in ["aba", "ab a", "abaa", "aea ae e", "aa a ba", "日本æé日"] {
            let ids = pair.ours.encode(text, false).unwrap();
            assert_eq!(ids, pair.theirs.plain(text, false), "{}: {text}", pair.name);
        }
    }
}
