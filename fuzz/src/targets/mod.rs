//! The fuzz targets: one for each parser of untrusted bytes, and for the state machines behind them.

mod grammars;
mod requests;
mod scheduling;
mod template;
mod tokenizers;
mod weights;
mod zmtp;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ingle_text::Tokenizer;

use crate::driver::Target;

/// Their names, those of the folders in fuzz/corpus.
pub const NAMES: [&str; 13] = [
    "safetensors",
    "gguf",
    "tokenizer_json",
    "tokenise",
    "detokenise",
    "template",
    "request",
    "framing",
    "schema",
    "grammar_step",
    "blocks",
    "batcher",
    "zmtp",
];

/// All targets, in the order of their names. `root` is the repository; `scratch` an empty folder of the caller's.
#[must_use]
pub fn all(root: &Path, scratch: &Path) -> Vec<Box<dyn Target>> {
    let models = root.join("tests/golden/models");
    let tokenizer = Arc::new(golden_tokenizer(&models));
    vec![
        Box::new(weights::Safetensors::new(scratch)),
        Box::new(weights::Gguf::new(&models, scratch)),
        Box::new(tokenizers::TokenizerJson),
        Box::new(tokenizers::Tokenise(Arc::clone(&tokenizer))),
        Box::new(tokenizers::Detokenise(Arc::clone(&tokenizer))),
        Box::new(template::Template(Arc::clone(&tokenizer))),
        Box::new(requests::Request::new(&models)),
        Box::new(requests::Framing::new(&models)),
        Box::new(grammars::Schema::new(&tokenizer)),
        Box::new(grammars::Step::new(&tokenizer)),
        Box::new(scheduling::Blocks),
        Box::new(scheduling::Batcher),
        Box::new(zmtp::Zmtp),
    ]
}

fn golden_tokenizer(models: &Path) -> Tokenizer {
    let json = std::fs::read(models.join("qwen3/tokenizer.json")).unwrap();
    Tokenizer::from_json(&json, None).unwrap()
}

/// The checkpoint that engines of targets serve.
fn golden_model(models: &Path) -> PathBuf {
    models.join("qwen3")
}
