//! Tokenizer files of every kind, made from the tiny models and from a small trained vocabulary.

use std::collections::BTreeMap;

use ingle_text::{GgufVocab, Tokenizer};
use serde_json::{Value, json};
use tokenizers::TokenizerBuilder;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};

use crate::{common, patterns};

pub(crate) use crate::patterns::{LLAMA3 as LLAMA3_PATTERN, QWEN2 as QWEN2_PATTERN};

/// The tokenizers library, with special tokens as text and with special tokens honoured.
pub(crate) struct Library {
    plain: tokenizers::Tokenizer,
    with_special: tokenizers::Tokenizer,
}

impl Library {
    pub(crate) fn new(file: &str) -> Self {
        let with_special = tokenizers::Tokenizer::from_bytes(file.as_bytes()).unwrap();
        let mut plain = with_special.clone();
        plain.set_encode_special_tokens(true);
        Self { plain, with_special }
    }

    pub(crate) fn plain(&self, text: &str, add_special_tokens: bool) -> Vec<u32> {
        self.plain.encode_fast(text, add_special_tokens).unwrap().get_ids().to_vec()
    }

    pub(crate) fn with_special(&self, text: &str) -> Vec<u32> {
        self.with_special.encode_fast(text, false).unwrap().get_ids().to_vec()
    }

    pub(crate) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        self.plain.decode(ids, skip_special_tokens).unwrap()
    }
}

/// The byte-level pre-tokeniser.
pub(crate) fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": use_regex})
}

/// A pattern, then the byte-level alphabet.
pub(crate) fn split_by(pattern: &str) -> Value {
    split_by_all(&[pattern])
}

/// Patterns one after the other, then the byte-level alphabet.
pub(crate) fn split_by_all(patterns: &[&str]) -> Value {
    let split = |pattern: &&str| {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
        "invert": false})
    };
    let mut steps: Vec<Value> = patterns.iter().map(split).collect();
    steps.push(byte_level(false));
    json!({"type": "Sequence", "pretokenizers": steps})
}

/// The tokenizer.json of the tiny models with another normaliser and pre-tokeniser.
pub(crate) fn tiny_with(normalizer: Value, pre_tokenizer: Value) -> Value {
    let mut file: Value = serde_json::from_slice(&common::tiny_json("qwen3")).unwrap();
    file["normalizer"] = normalizer;
    file["pre_tokenizer"] = pre_tokenizer;
    file
}

/// A small SentencePiece-like vocabulary: tokens by id and merges in order.
struct Trained {
    tokens: Vec<String>,
    merges: Vec<(String, String)>,
}

fn trained() -> Trained {
    let mut trainer = BpeTrainer::builder().vocab_size(700).show_progress(false).build();
    let mut tokenizer = TokenizerBuilder::default()
        .with_model(BPE::default())
        .with_normalizer(None::<tokenizers::normalizers::NormalizerWrapper>)
        .with_pre_tokenizer(Some(Metaspace::new('▁', PrependScheme::Always, true)))
        .with_post_processor(None::<tokenizers::processors::PostProcessorWrapper>)
        .with_decoder(None::<tokenizers::decoders::DecoderWrapper>)
        .build()
        .unwrap();
    tokenizer.train(&mut trainer, CORPUS.lines()).unwrap();
    let model = serde_json::to_value(tokenizer.get_model()).unwrap();
    let by_id: BTreeMap<u32, String> =
        tokenizer.get_model().get_vocab().into_iter().map(|(token, id)| (id, token)).collect();
    let special = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"].map(String::from);
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let tokens = special.into_iter().chain(bytes).chain(by_id.into_values()).collect();
    let pair = |merge: &Value| {
        (merge[0].as_str().unwrap().to_string(), merge[1].as_str().unwrap().to_string())
    };
    Trained { tokens, merges: model["merges"].as_array().unwrap().iter().map(pair).collect() }
}

fn special_tokens() -> Value {
    let names = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"];
    let tokens = names.iter().enumerate().map(|(id, name)| {
        json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    });
    tokens.collect()
}

fn sentencepiece_file(merges: &[(String, String)], tokens: &[String]) -> Value {
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": special_tokens(),
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>",
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "vocab": vocab, "merges": merges},
    })
}

/// A tokenizer.json in the style of Llama 2 or of Gemma.
pub(crate) fn sentencepiece(style: &str) -> Value {
    let trained = trained();
    let mut file = sentencepiece_file(&trained.merges, &trained.tokens);
    if style == "gemma" {
        file["normalizer"] = file["normalizer"]["normalizers"][1].clone();
        file["pre_tokenizer"] = json!({"type": "Split", "pattern": {"String": " "},
            "behavior": "MergedWithPrevious", "invert": false});
        file["decoder"]["decoders"].as_array_mut().unwrap().pop();
        file["post_processor"] = json!({"type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            file["post_processor"]]});
    }
    file
}

/// The same with a Metaspace pre-tokeniser, as Mistral's newer files have it.
pub(crate) fn metaspace(prepend_scheme: &str, split: bool) -> Value {
    let mut file = sentencepiece("llama-2");
    file["normalizer"] = Value::Null;
    file["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "▁",
        "prepend_scheme": prepend_scheme, "split": split});
    if prepend_scheme == "never" {
        file["decoder"]["decoders"].as_array_mut().unwrap().pop();
    }
    file
}

/// The same with a token that goes over the end of a word.
pub(crate) fn sentencepiece_over_words() -> Value {
    let mut file = sentencepiece("llama-2");
    let model = &mut file["model"];
    let next = model["vocab"].as_object().unwrap().len();
    model["vocab"]["e▁"] = next.into();
    model["merges"].as_array_mut().unwrap().insert(0, json!(["e", "▁"]));
    file
}

/// Tokenizers from GGUF keys, each with the tokenizer of the library that it must equal.
pub(crate) fn gguf_with_its_oracle() -> Vec<(String, Tokenizer, Library)> {
    let mut pairs = vec![gguf_llama()];
    if let Some((vocab, _)) = common::smollm2_vocab() {
        for pre in [
            "smollm",
            "gpt-2",
            "default",
            "llama-bpe",
            "qwen2",
            "qwen35",
            "tekken",
            "gpt-4o",
            "deepseek-v3",
            "deepseek-llm",
            "deepseek-coder",
            "falcon",
            "viking",
            "bailingmoe",
        ] {
            pairs.push(gguf_gpt2(&vocab, pre));
        }
    }
    pairs
}

/// Scores instead of merges: every way to cut a token in two is a merge, ranked by its score.
fn gguf_llama() -> (String, Tokenizer, Library) {
    let trained = trained();
    let ids: BTreeMap<&str, usize> =
        trained.tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
    let mut merges: Vec<(usize, String, String)> = Vec::new();
    for (id, token) in trained.tokens.iter().enumerate().skip(5 + 256) {
        for (cut, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(cut);
            if ids.contains_key(left) && ids.contains_key(right) {
                merges.push((id, left.to_string(), right.to_string()));
            }
        }
    }
    merges.sort_by_key(|(id, _, _)| *id);
    let merges: Vec<(String, String)> = merges.into_iter().map(|(_, l, r)| (l, r)).collect();
    let file = sentencepiece_file(&merges, &trained.tokens).to_string();
    let kind = |id: usize| match id {
        0 => 2,
        1..5 => 3,
        5..261 => 6,
        _ => 1,
    };
    let vocab = GgufVocab {
        model: "llama".into(),
        token_types: (0..trained.tokens.len()).map(kind).collect(),
        scores: (0..trained.tokens.len()).map(|id| -(id as f32)).collect(),
        tokens: trained.tokens,
        bos_token_id: Some(1),
        eos_token_id: Some(2),
        unk_token_id: Some(0),
        ..GgufVocab::default()
    };
    let ours = Tokenizer::from_gguf(vocab).unwrap();
    assert_eq!(ours.encode("", true).unwrap(), [1], "llama models begin with a token");
    ("llama".into(), ours, Library::new(&file))
}

fn gguf_gpt2(vocab: &GgufVocab, pre: &str) -> (String, Tokenizer, Library) {
    let pre_tokenizer = match pre {
        "smollm" => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, byte_level(true)]}),
        "llama-bpe" => split_by(LLAMA3_PATTERN),
        "qwen2" => split_by(QWEN2_PATTERN),
        "qwen35" => split_by(patterns::QWEN35),
        "tekken" => split_by(patterns::TEKKEN),
        "gpt-4o" => split_by(patterns::O200K),
        "bailingmoe" => split_by(patterns::BAILING),
        "default" => split_by_all(&patterns::LLAMA_CPP_DEFAULT),
        "deepseek-v3" => split_by_all(&patterns::DEEPSEEK_V3),
        "deepseek-llm" => split_by_all(&patterns::DEEPSEEK_LLM),
        "deepseek-coder" => split_by_all(&patterns::DEEPSEEK_CODER),
        "falcon" => split_by_all(&patterns::FALCON),
        "viking" => split_by_all(&[patterns::BLOOM, r"\p{N}"]),
        _ => byte_level(true),
    };
    let mut file = tiny_with(Value::Null, pre_tokenizer);
    if pre.starts_with("qwen") {
        file["normalizer"] = json!({"type": "NFC"});
    }
    let merges: Vec<Vec<&str>> =
        vocab.merges.iter().map(|merge| merge.split(' ').collect()).collect();
    let special = |id: usize| vocab.token_types[id] != 1;
    let with_id = || vocab.tokens.iter().enumerate();
    file["model"]["vocab"] =
        with_id().map(|(id, token)| (token.clone(), Value::from(id))).collect();
    file["model"]["merges"] = json!(merges);
    file["model"]["ignore_merges"] = ["llama-bpe", "tekken"].contains(&pre).into();
    file["added_tokens"] = with_id()
        .filter(|(id, _)| special(*id))
        .map(|(id, token)| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    file["post_processor"] = Value::Null;
    let theirs = Library::new(&file.to_string());
    let ours = Tokenizer::from_gguf(GgufVocab { pre: Some(pre.into()), ..vocab.clone() }).unwrap();
    (format!("smollm2 cut as {pre}"), ours, theirs)
}

/// Text to train on: enough different words for a few hundred merges.
const CORPUS: &str = "The fire in the hearth burns low, and the house is quiet at night.
She said that she'd seen the sea once, twice, three times: 1, 2, 3, 10, 100, 1000.
def add(left, right):\n    return left + right\n\nprint(add(1, 2))
Zürich, naïve, café, señor, straße — größer als das Haus.
Быстрая лиса прыгает через ленивую собаку, и собака спит.
日本の首都は東京です。中国的首都是北京。
the then there these those other another mother brother together gather weather
a  b   c    d     e\tf\t\tg
https://example.org/path?query=value&other=1#fragment
{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"unit\": \"celsius\"}}
";
