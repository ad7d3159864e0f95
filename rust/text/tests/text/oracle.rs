//! Ids and text are those of the tokenizers library, for every kind of tokenizer that is loaded.

use std::sync::Arc;

use ingle_text::{Detokenizer, RenderedPrompt, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::testing::text;
use crate::vocabularies::{
    self, Library, byte_level, gguf_with_its_oracle, metaspace, sentencepiece,
    sentencepiece_over_words, split_by, tiny_with,
};

/// Our tokenizer and the library's, of the same file.
struct Pair {
    name: &'static str,
    ours: Arc<Tokenizer>,
    theirs: Library,
}

impl Pair {
    fn new(name: &'static str, file: &Value) -> Self {
        let file = file.to_string();
        Self {
            name,
            ours: Arc::new(Tokenizer::from_json(file.as_bytes(), None).unwrap()),
            theirs: Library::new(&file),
        }
    }

    fn check(&self, text: &str) -> Result<(), TestCaseError> {
        // Plain text: special tokens stay text, the model's own are put around it.
        let wanted = self.theirs.plain(text, true);
        let ids = self.ours.encode(text, true).unwrap();
        prop_assert_eq!(&ids, &wanted, "{}: {:?}", self.name, text);
        // A second time, with a warm cache.
        prop_assert_eq!(&self.ours.encode(text, true).unwrap(), &wanted);
        // A template's text: special tokens count.
        let wanted = self.theirs.with_special(text);
        let rendered = RenderedPrompt::trusted(text.to_string());
        let ids = self.ours.encode_rendered(&rendered).unwrap();
        prop_assert_eq!(&ids, &wanted, "{}: {:?}", self.name, text);
        self.check_decoding(&ids)
    }

    /// Whole and piece by piece, with and without special tokens.
    fn check_decoding(&self, ids: &[u32]) -> Result<(), TestCaseError> {
        for skip in [false, true] {
            let text = self.ours.decode(ids, skip);
            let wanted = self.theirs.decode(ids, skip);
            prop_assert_eq!(&text, &wanted, "{}: {:?}", self.name, ids);
            let mut stream = Detokenizer::new(Arc::clone(&self.ours), skip);
            let mut joined = String::new();
            for &id in ids {
                stream.push(id, &mut joined);
            }
            stream.finish(&mut joined);
            prop_assert_eq!(&joined, &text, "{}: {:?}", self.name, ids);
        }
        Ok(())
    }
}

/// Every kind of tokenizer.json: those of the fast encoder and those left to the library.
fn pairs() -> Vec<Pair> {
    let llama3 = split_by(vocabularies::LLAMA3_PATTERN);
    let digits = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true}, byte_level(true)]});
    let mut whole_words = tiny_with(Value::Null, llama3.clone());
    whole_words["model"]["ignore_merges"] = true.into();
    let mut with_unknown = tiny_with(Value::Null, byte_level(true));
    with_unknown["model"]["vocab"].as_object_mut().unwrap().remove("ÿ");
    with_unknown["model"]["vocab"].as_object_mut().unwrap().remove("Ä");
    let mut with_added = tiny_with(json!({"type": "NFC"}), split_by(vocabularies::QWEN2_PATTERN));
    with_added["added_tokens"].as_array_mut().unwrap().extend([
        json!({"id": 388, "content": "<think>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": false}),
        json!({"id": 389, "content": "е\u{300}e", "single_word": false, "lstrip": false,
            "rstrip": true, "normalized": true, "special": false}),
        json!({"id": 390, "content": "<|tool|>", "single_word": false, "lstrip": true,
            "rstrip": true, "normalized": false, "special": true}),
    ]);
    vec![
        Pair::new("gpt-2", &tiny_with(Value::Null, byte_level(true))),
        Pair::new("smollm", &tiny_with(Value::Null, digits)),
        Pair::new("llama-3", &tiny_with(Value::Null, llama3)),
        Pair::new("llama-3, whole words", &whole_words),
        Pair::new("qwen-2", &with_added),
        Pair::new("bytes without a token", &with_unknown),
        Pair::new("an unknown pattern", &tiny_with(Value::Null, split_by(r"\p{L}+|\s"))),
        Pair::new("llama-2", &sentencepiece("llama-2")),
        Pair::new("gemma", &sentencepiece("gemma")),
        Pair::new("tokens over words", &sentencepiece_over_words()),
        Pair::new("mistral, metaspace first", &metaspace("first", false)),
        Pair::new("metaspace always", &metaspace("always", false)),
        Pair::new("metaspace never", &metaspace("never", false)),
        Pair::new("metaspace that splits, left to the library", &metaspace("first", true)),
    ]
}

#[test]
fn test_ids_and_text_are_those_of_the_library() {
    let pairs = pairs();
    let config = ProptestConfig::with_cases(400);
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let awkward =
        (text(), prop::sample::select(vec!["", "<think>", "е\u{300}e  ", " <|tool|> \n"]));
    let run = runner.run(&awkward, |(text, added)| {
        let text = format!("{text}{added}{text}<|im_start|>{text}");
        pairs.iter().try_for_each(|pair| pair.check(&text))
    });
    run.unwrap();
}

#[test]
fn test_gguf_ids_are_those_of_the_matching_tokenizer() {
    let pairs = gguf_with_its_oracle();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(100));
    let run = runner.run(&text(), |text| {
        for (name, ours, theirs) in &pairs {
            let wanted = theirs.plain(&text, false);
            prop_assert_eq!(&ours.encode(&text, false).unwrap(), &wanted, "{}: {:?}", name, text);
            let wanted = theirs.with_special(&text);
            let rendered = RenderedPrompt::trusted(text.clone());
            let ids = ours.encode_rendered(&rendered).unwrap();
            prop_assert_eq!(&ids, &wanted, "{}: {:?}", name, text);
            prop_assert_eq!(ours.decode(&ids, true), theirs.decode(&ids, true), "{}", name);
        }
        Ok(())
    });
    run.unwrap();
}
