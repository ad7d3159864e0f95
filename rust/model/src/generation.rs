//! A checkpoint's end tokens and sampling defaults.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use serde_json::Value;

use crate::GgufMetadata;
use crate::config::Fields;
use crate::error::ModelError;

/// A checkpoint's defaults; `None` where it has none. The tokenizer's end token is not included.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Union of config.json and generation_config.json (GGUF: eos, eot and eom), sorted.
    pub eos_token_ids: Vec<u32>,
    /// Put before a prompt by models that require it.
    pub bos_token_id: Option<u32>,
    /// The other keys of generation_config.json that are not null, unread: the engine knows which of
    /// them are sampling fields.
    pub others: serde_json::Map<String, Value>,
    /// False asks for the most likely token.
    pub do_sample: Option<bool>,
}

/// Reads both files; the second is optional.
pub(crate) fn from_config(
    config: &Fields<'_>,
    generation: Option<&Fields<'_>>,
) -> Result<GenerationDefaults, ModelError> {
    let mut defaults = GenerationDefaults {
        eos_token_ids: token_ids(config, "eos_token_id")?,
        bos_token_id: config.u32("bos_token_id", u32::MAX)?,
        ..GenerationDefaults::default()
    };
    // Of a multimodal model.
    if let Some(text) = config.object("text_config")? {
        defaults.eos_token_ids.extend(token_ids(&text, "eos_token_id")?);
        let bos = text.u32("bos_token_id", u32::MAX)?;
        defaults.bos_token_id = defaults.bos_token_id.or(bos);
    }
    if let Some(fields) = generation {
        defaults.eos_token_ids.extend(token_ids(fields, "eos_token_id")?);
        let bos = fields.u32("bos_token_id", u32::MAX)?;
        defaults.bos_token_id = bos.or(defaults.bos_token_id);
        defaults.do_sample = fields.bool("do_sample")?;
        defaults.others = fields
            .keys()
            .filter(|key| !READ_HERE.contains(key))
            .filter_map(|key| Some((key.to_owned(), fields.get(key)?.clone())))
            .collect();
    }
    tidy(&mut defaults.eos_token_ids);
    Ok(defaults)
}

/// End tokens of a GGUF file; it has no sampling defaults.
pub(crate) fn from_gguf(metadata: &GgufMetadata) -> Result<GenerationDefaults, ModelError> {
    let mut eos_token_ids = Vec::new();
    for name in ["eos", "eot", "eom"] {
        eos_token_ids.extend(metadata.u32(&format!("tokenizer.ggml.{name}_token_id"))?);
    }
    tidy(&mut eos_token_ids);
    let bos_token_id = metadata.u32("tokenizer.ggml.bos_token_id")?;
    Ok(GenerationDefaults { eos_token_ids, bos_token_id, ..GenerationDefaults::default() })
}

fn tidy(ids: &mut Vec<u32>) {
    ids.sort_unstable();
    ids.dedup();
}

/// An id or a list of ids.
fn token_ids(fields: &Fields<'_>, key: &str) -> Result<Vec<u32>, ModelError> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let Some(value) = fields.get(key) else { return Ok(Vec::new()) };
    let ids = match value {
        Value::Array(list) if list.len() <= MAX_EOS => list.iter().map(id).collect(),
        other => id(other).map(|id| vec![id]),
    };
    ids.ok_or_else(|| {
        fields.error(key, format!("not a token id nor a list of at most {MAX_EOS} of them"))
    })
}

const READ_HERE: [&str; 3] = ["eos_token_id", "bos_token_id", "do_sample"];
const MAX_EOS: usize = 1024;
