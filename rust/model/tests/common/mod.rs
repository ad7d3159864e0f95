//! A tiny llama checkpoint in a folder of its own, made to be broken.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

/// A folder that is removed with this value.
pub(crate) struct Folder(PathBuf);

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Folder {
    pub(crate) fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ingle-model-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(name), bytes).unwrap();
    }

    /// The message of the refusal, which must be one line.
    pub(crate) fn refused(&self) -> String {
        match ingle_model::open(&self.0) {
            Ok(checkpoint) => panic!("{checkpoint:?} must be refused"),
            Err(error) => {
                let text = error.to_string();
                assert!(!text.contains('\n') && text.starts_with('/'), "{text}");
                text
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Type and shape by name.
pub(crate) type Tensors = BTreeMap<String, (&'static str, Vec<u64>)>;

pub(crate) fn llama_config() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 32, "hidden_size": 8, "num_attention_heads": 2,
        "num_key_value_heads": 1, "num_hidden_layers": 1, "intermediate_size": 16,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": false, "eos_token_id": 7
    })
}

pub(crate) fn llama_tensors() -> Tensors {
    let layer = |part: &str| format!("model.layers.0.{part}.weight");
    [
        ("model.embed_tokens.weight".to_owned(), vec![32, 8]),
        ("lm_head.weight".to_owned(), vec![32, 8]),
        ("model.norm.weight".to_owned(), vec![8]),
        (layer("input_layernorm"), vec![8]),
        (layer("post_attention_layernorm"), vec![8]),
        (layer("self_attn.q_proj"), vec![8, 8]),
        (layer("self_attn.k_proj"), vec![4, 8]),
        (layer("self_attn.v_proj"), vec![4, 8]),
        (layer("self_attn.o_proj"), vec![8, 8]),
        (layer("mlp.gate_proj"), vec![16, 8]),
        (layer("mlp.up_proj"), vec![16, 8]),
        (layer("mlp.down_proj"), vec![8, 16]),
    ]
    .into_iter()
    .map(|(name, shape)| (name, ("BF16", shape)))
    .collect()
}

/// A safetensors file of zeros.
pub(crate) fn safetensors(tensors: &Tensors) -> Vec<u8> {
    let header = header(tensors);
    let len = tensors.values().map(byte_len).sum();
    file_of(&header.to_string(), len)
}

/// Bytes of a tensor.
pub(crate) fn byte_len((dtype, shape): &(&'static str, Vec<u64>)) -> usize {
    let size = match *dtype {
        "BOOL" | "U8" | "F8_E4M3" | "F8_E8M0" => 1,
        "F32" | "I32" => 4,
        "F64" | "I64" => 8,
        _ => 2,
    };
    usize::try_from(shape.iter().product::<u64>() * size).unwrap()
}

/// The header's JSON, tensors in the order of their names.
pub(crate) fn header(tensors: &Tensors) -> Value {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, tensor) in tensors {
        let start = end;
        end += byte_len(tensor);
        let (dtype, shape) = tensor;
        let info = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
        header.insert(name.clone(), info);
    }
    Value::Object(header)
}

/// Header length, header, zeros.
pub(crate) fn file_of(header: &str, data_len: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data_len, 0);
    bytes
}

/// The folder without weights.
pub(crate) fn bare(config: &Value) -> Folder {
    let folder = Folder::new();
    folder.write("config.json", config.to_string());
    folder.write("tokenizer.json", "{}");
    folder
}

/// The folder with one weight file.
pub(crate) fn folder(config: &Value, tensors: &Tensors) -> Folder {
    let folder = bare(config);
    folder.write("model.safetensors", safetensors(tensors));
    folder
}
