//! Opens a checkpoint: a Hugging Face folder or a GGUF file. Reads headers and small files only; every
//! check of the files is done here, before anybody allocates memory for weights.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::config::{self, Fields};
use crate::error::ModelError;
use crate::gguf::{GgufMetadata, open_gguf};
use crate::source::{FileSource, OpenFile};
use crate::{CopyPlan, GenerationDefaults, ModelSpec, WeightSource, generation, safetensors};

/// A checked checkpoint with its files open.
pub struct Checkpoint {
    /// What the model computes.
    pub spec: ModelSpec,
    /// Where its weights lie.
    pub plan: CopyPlan,
    /// Reads them.
    pub source: Arc<dyn WeightSource>,
    /// What the tokenizer is built from.
    pub tokenizer: TokenizerFiles,
    /// End tokens and sampling defaults.
    pub generation: GenerationDefaults,
    /// As given to `open`.
    pub path: PathBuf,
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoint")
            .field("path", &self.path)
            .field("architecture", &self.spec.architecture)
            .field("tensors", &self.plan.tensors.len())
            .finish_non_exhaustive()
    }
}

/// The tokenizer as the checkpoint holds it.
#[derive(Clone, Debug)]
pub enum TokenizerFiles {
    /// Files of a Hugging Face folder, unparsed.
    HuggingFace {
        /// tokenizer.json
        tokenizer_json: Vec<u8>,
        /// tokenizer_config.json
        tokenizer_config: Option<Vec<u8>>,
        /// chat_template.jinja, else the `chat_template` of tokenizer_config.json.
        chat_template: Option<String>,
    },
    /// The metadata of a GGUF file.
    Gguf {
        /// Holds `tokenizer.ggml.*`.
        metadata: GgufMetadata,
        /// tokenizer.chat_template
        chat_template: Option<String>,
    },
}

/// Opens a Hugging Face folder or a `.gguf` file and checks all of it but the weights' values.
///
/// # Errors
/// `ModelError`, one line that names file and field or tensor.
pub fn open(path: &Path) -> Result<Checkpoint, ModelError> {
    let name = path.display().to_string();
    let metadata = std::fs::metadata(path).map_err(|cause| ModelError::io(&name, "open", cause))?;
    if metadata.is_dir() {
        return open_folder(path);
    }
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        return open_gguf(path);
    }
    let reason = "neither a folder nor a .gguf file".to_owned();
    Err(ModelError::Layout { path: name, reason })
}

fn open_folder(folder: &Path) -> Result<Checkpoint, ModelError> {
    let config = Json::required(folder, "config.json", MAX_CONFIG_BYTES)?;
    let config = config.fields()?;
    let (family, mut spec) = config::model_spec(&config)?;
    let generation = Json::optional(folder, "generation_config.json", MAX_CONFIG_BYTES)?;
    let generation = generation.as_ref().map(Json::fields).transpose()?;
    let generation = generation::from_config(&config, generation.as_ref())?;
    let tokenizer = tokenizer_files(folder)?;
    let (files, mut catalogue) = safetensors::open_folder(folder)?;
    safetensors::take_tensors(family, &spec, &mut catalogue)?;
    spec.weight_type = catalogue.main_type();
    Ok(Checkpoint {
        spec,
        plan: catalogue.finish(safetensors::is_harmless)?,
        source: Arc::new(FileSource::new(files)),
        tokenizer,
        generation,
        path: folder.to_owned(),
    })
}

fn tokenizer_files(folder: &Path) -> Result<TokenizerFiles, ModelError> {
    let (_, tokenizer_json) = read(folder, "tokenizer.json", MAX_TOKENIZER_BYTES)?
        .ok_or_else(|| missing(folder, "tokenizer.json"))?;
    let tokenizer_config = read(folder, "tokenizer_config.json", MAX_TOKENIZER_BYTES)?;
    let file = read(folder, "chat_template.jinja", MAX_TEMPLATE_BYTES)?;
    let chat_template = match (file, &tokenizer_config) {
        (Some((name, bytes)), _) => {
            Some(String::from_utf8(bytes).map_err(|_| ModelError::malformed(&name, "not UTF-8"))?)
        }
        (None, Some((name, bytes))) => {
            let json = Json::parse(name.clone(), bytes)?;
            template_of(&json.fields()?)?
        }
        (None, None) => None,
    };
    let tokenizer_config = tokenizer_config.map(|(_, bytes)| bytes);
    Ok(TokenizerFiles::HuggingFace { tokenizer_json, tokenizer_config, chat_template })
}

/// A template, or the one called "default" of a list of named ones.
fn template_of(config: &Fields<'_>) -> Result<Option<String>, ModelError> {
    let key = "chat_template";
    match config.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(list)) => {
            let is_default = |item: &&Value| item.get("name").is_some_and(|name| name == "default");
            match list.iter().find(is_default).and_then(|item| item.get("template")) {
                Some(Value::String(text)) => Ok(Some(text.clone())),
                _ => Err(config.error(key, "is a list without a template named default")),
            }
        }
        Some(other) => Err(config.wrong(key, other, "a template")),
    }
}

/// A parsed file with its name.
struct Json {
    name: String,
    value: Value,
}

impl Json {
    fn required(folder: &Path, file: &str, limit: u64) -> Result<Self, ModelError> {
        Self::optional(folder, file, limit)?.ok_or_else(|| missing(folder, file))
    }

    fn optional(folder: &Path, file: &str, limit: u64) -> Result<Option<Self>, ModelError> {
        match read(folder, file, limit)? {
            Some((name, bytes)) => Self::parse(name, &bytes).map(Some),
            None => Ok(None),
        }
    }

    fn parse(name: String, bytes: &[u8]) -> Result<Self, ModelError> {
        let value = serde_json::from_slice(bytes)
            .map_err(|cause| ModelError::malformed(&name, format!("not JSON: {cause}")))?;
        Ok(Self { name, value })
    }

    fn fields(&self) -> Result<Fields<'_>, ModelError> {
        Fields::of_file(&self.name, &self.value)
    }
}

/// A small file's name and bytes; `None` if there is no such file.
fn read(folder: &Path, file: &str, limit: u64) -> Result<Option<(String, Vec<u8>)>, ModelError> {
    let path = folder.join(file);
    if std::fs::symlink_metadata(&path).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let file = OpenFile::open(&path)?;
    let bytes = file.read_all(limit)?;
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(ModelError::LfsPointer { file: file.name });
    }
    Ok(Some((file.name, bytes)))
}

fn missing(folder: &Path, file: &str) -> ModelError {
    let path = folder.display().to_string();
    ModelError::Layout { path, reason: format!("{file} is missing") }
}

const MAX_CONFIG_BYTES: u64 = 1 << 20;
const MAX_TOKENIZER_BYTES: u64 = 128 << 20;
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;
