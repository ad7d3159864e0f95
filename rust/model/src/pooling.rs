//! Reads how sentence-transformers files say that embeddings are made: modules.json names the
//! parts, and the pooling part has its own config.json. An unknown part would change the vectors
//! and is refused by name.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::path::Path;

use serde_json::Value;

use crate::config::Fields;
use crate::error::ModelError;
use crate::json_file::Json;

/// A checkpoint's defaults for embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingDefaults {
    /// Which hidden states.
    pub pooling: PoolingKind,
    /// Whether vectors are scaled to length 1.
    pub normalise: bool,
}

impl Default for EmbeddingDefaults {
    fn default() -> Self {
        Self { pooling: PoolingKind::Last, normalise: true }
    }
}

/// Which hidden states of the prompt become its embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingKind {
    /// The last token's.
    Last,
    /// The mean of all.
    Mean,
}

/// Reads modules.json; `None` if the folder has none.
pub(crate) fn read(
    folder: &Path,
    hidden_size: u32,
) -> Result<Option<EmbeddingDefaults>, ModelError> {
    let Some(modules) = Json::optional(folder, "modules.json", MAX_BYTES)? else {
        return Ok(None);
    };
    refuse_lower_case(folder)?;
    let list = modules
        .value
        .as_array()
        .ok_or_else(|| ModelError::malformed(&modules.name, "not a list of modules".to_owned()))?;
    let mut names = Vec::new();
    let mut pooling = None;
    for module in list {
        let module = Fields::of_file(&modules.name, module)?;
        let kind = module.string("type")?.ok_or_else(|| module.missing("type"))?;
        let path = module.string("path")?.unwrap_or("");
        let name = kind.rsplit('.').next().unwrap_or(kind);
        match name {
            "Transformer" if path.is_empty() => {}
            "Transformer" => return Err(module.unsupported("path", path, "the folder itself")),
            "Pooling" => pooling = Some(read_pooling(folder, &module, path, hidden_size)?),
            "Normalize" => {}
            _ => return Err(module.unsupported("type", kind, SUPPORTED)),
        }
        names.push(name);
    }
    match (names.as_slice(), pooling) {
        (["Transformer", "Pooling"], Some(pooling)) => {
            Ok(Some(EmbeddingDefaults { pooling, normalise: false }))
        }
        (["Transformer", "Pooling", "Normalize"], Some(pooling)) => {
            Ok(Some(EmbeddingDefaults { pooling, normalise: true }))
        }
        _ => {
            let found = names.join(", ");
            Err(ModelError::unsupported(&modules.name, "the order of modules", found, SUPPORTED))
        }
    }
}

/// The tokenizer takes texts as they are.
fn refuse_lower_case(folder: &Path) -> Result<(), ModelError> {
    let Some(config) = Json::optional(folder, "sentence_bert_config.json", MAX_BYTES)? else {
        return Ok(());
    };
    let (config, key) = (config.fields()?, "do_lower_case");
    match config.bool(key)? {
        Some(true) => Err(config.unsupported(key, "true", "false")),
        Some(false) | None => Ok(()),
    }
}

fn read_pooling(
    folder: &Path,
    module: &Fields<'_>,
    path: &str,
    hidden_size: u32,
) -> Result<PoolingKind, ModelError> {
    // A module is a plain name in this folder: the list must not reach outside it.
    if path.is_empty() || path.contains(['/', '\\', '\0']) || path.starts_with('.') {
        return Err(module.unsupported("path", path, "a folder beside modules.json"));
    }
    let config = Json::required(&folder.join(path), "config.json", MAX_BYTES)?;
    let config = config.fields()?;
    for key in ["word_embedding_dimension", "embedding_dimension"] {
        if let Some(width) = config.u32(key, u32::MAX)?
            && width != hidden_size
        {
            let reason = format!("{width} differs from the model's width, {hidden_size}");
            return Err(config.error(key, reason));
        }
    }
    let mut found = Vec::new();
    for (key, value) in config.entries() {
        let mode = match key.strip_prefix("pooling_mode_") {
            Some(mode) if *value == Value::Bool(true) => mode,
            Some(_) if *value == Value::Bool(false) => continue,
            Some(_) => return Err(config.wrong(key, value, "true or false")),
            None if key == "pooling_mode" => {
                value.as_str().ok_or_else(|| config.wrong(key, value, "a name"))?
            }
            None => continue,
        };
        found.push((key, mode));
    }
    match found.as_slice() {
        [(_, "lasttoken")] => Ok(PoolingKind::Last),
        [(_, "mean_tokens" | "mean")] => Ok(PoolingKind::Mean),
        [(key, mode)] => Err(config.unsupported(key, mode, "lasttoken, mean")),
        [] => Err(config.missing("pooling_mode")),
        [(key, _), ..] => {
            let modes: Vec<&str> = found.iter().map(|(_, mode)| *mode).collect();
            Err(config.unsupported(key, modes.join(" and "), "one of lasttoken, mean"))
        }
    }
}

const MAX_BYTES: u64 = 1 << 20;
const SUPPORTED: &str = "Transformer, Pooling, then Normalize or nothing";
