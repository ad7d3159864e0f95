//! Headers of weight files.

use std::path::{Path, PathBuf};

use ingle_engine::{Engine, EngineError};
use safetensors::SafeTensors;
use serde_json::json;

use super::golden_model;
use crate::driver::{Outcome, Target};
use crate::model_files::Generator;

/// A safetensors file: what the reference implementation refuses is refused.
#[derive(Debug)]
pub(super) struct Safetensors {
    folder: PathBuf,
}

impl Safetensors {
    pub(super) fn new(scratch: &Path) -> Self {
        let folder = scratch.join("safetensors");
        std::fs::create_dir_all(&folder).unwrap();
        let config = json!({
            "model_type": "llama", "vocab_size": 16, "hidden_size": 8, "num_attention_heads": 2,
            "num_key_value_heads": 1, "num_hidden_layers": 1, "intermediate_size": 8,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "tie_word_embeddings": true, "eos_token_id": 7
        });
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        std::fs::write(folder.join("tokenizer.json"), "{}").unwrap();
        Self { folder }
    }
}

impl Target for Safetensors {
    fn name(&self) -> &'static str {
        "safetensors"
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "\"dtype\":\"BF16\"",
            "\"shape\":[",
            "\"data_offsets\":[0,",
            "__metadata__",
            "F8_E4M3",
            "F64",
        ]
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        std::fs::write(self.folder.join("model.safetensors"), input).unwrap();
        let outcome = ingle_model::open(&self.folder);
        let reference = SafeTensors::deserialize(input);
        match outcome {
            Ok(checkpoint) => {
                let reference = reference.expect("the reference refuses what was loaded");
                for view in checkpoint.plan.tensors.values() {
                    let tensor = reference.tensor(&view.name).expect("a tensor of that name");
                    let start = usize::try_from(view.offset).unwrap();
                    let len = usize::try_from(view.byte_len).unwrap();
                    assert_eq!(tensor.data(), &input[start..start + len], "{}", view.name);
                }
                Outcome::of(checkpoint.plan.tensors.len())
            }
            Err(error) => refused(&error.to_string(), &self.folder),
        }
    }
}

/// The head of a GGUF file, weights of zeros behind it: loaded whole, vocabulary and template included.
#[derive(Debug)]
pub(super) struct Gguf {
    file: PathBuf,
    header: Vec<u8>,
    num_data_bytes: u64,
}

impl Gguf {
    pub(super) fn new(models: &Path, scratch: &Path) -> Self {
        let generator = Generator::new(&golden_model(models));
        let (header, num_data_bytes) = generator.gguf_header();
        Self { file: scratch.join("model.gguf"), header, num_data_bytes }
    }
}

impl Target for Gguf {
    fn name(&self) -> &'static str {
        "gguf"
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "general.architecture",
            "tokenizer.ggml.",
            "llama.",
            "blk.0.",
            ".weight",
            "general.alignment",
        ]
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        vec![self.header.clone()]
    }

    fn max_len(&self) -> usize {
        16 << 10
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let file = std::fs::File::create(&self.file).unwrap();
        std::io::Write::write_all(&mut &file, input).unwrap();
        // Mutation that keeps the head's length keeps the file whole.
        let padded = (input.len() as u64).next_multiple_of(32) + self.num_data_bytes;
        file.set_len(padded).unwrap();
        let options = json!({"model": self.file, "device": "sim", "max_num_seqs": 4});
        match Engine::start(options.to_string().as_bytes()) {
            Ok(engine) => {
                let plan = ingle_model::open(&self.file).unwrap().plan;
                for view in plan.tensors.values() {
                    assert!(view.offset + view.byte_len <= padded, "{view:?}");
                }
                Outcome::of(engine.info().len())
            }
            Err(EngineError::Model(message)) => refused(&message, &self.file),
            Err(other) => panic!("{other:?}"),
        }
    }
}

fn refused(message: &str, path: &Path) -> Outcome {
    let rest = message.strip_prefix(path.to_str().unwrap());
    let rest = rest.unwrap_or_else(|| panic!("names no file: {message}"));
    assert!(!message.contains(char::is_control) && message.len() < 2000, "{message:?}");
    Outcome::refused(rest)
}
