//! What a checkpoint says about how to generate: end tokens and sampling defaults.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use serde_json::Value;

use crate::GgufMetadata;
use crate::config::Fields;
use crate::error::ModelError;

/// Defaults of a checkpoint; `None` where it says nothing. The tokenizer's own end token is not here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Union of config.json and generation_config.json (GGUF: eos, eot and eom), sorted.
    pub eos_token_ids: Vec<u32>,
    /// Put before a prompt by models that want it.
    pub bos_token_id: Option<u32>,
    /// 0 or more.
    pub temperature: Option<f32>,
    /// 0 is off.
    pub top_k: Option<u32>,
    /// Above 0, at most 1.
    pub top_p: Option<f32>,
    /// From 0 to 1.
    pub min_p: Option<f32>,
    /// Above 0; 1 is off.
    pub repetition_penalty: Option<f32>,
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
    if let Some(fields) = generation {
        defaults.eos_token_ids.extend(token_ids(fields, "eos_token_id")?);
        let bos = fields.u32("bos_token_id", u32::MAX)?;
        defaults.bos_token_id = bos.or(defaults.bos_token_id);
        defaults.temperature = number(fields, "temperature", |v| v >= 0.0)?;
        defaults.top_k = fields.u32("top_k", u32::MAX)?;
        defaults.top_p = number(fields, "top_p", |v| v > 0.0 && v <= 1.0)?;
        defaults.min_p = number(fields, "min_p", |v| (0.0..=1.0).contains(&v))?;
        defaults.repetition_penalty =
            number(fields, "repetition_penalty", |v| (0.01..=100.0).contains(&v))?;
        defaults.do_sample = fields.bool("do_sample")?;
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

fn number(
    fields: &Fields<'_>,
    key: &str,
    fits: impl Fn(f32) -> bool,
) -> Result<Option<f32>, ModelError> {
    match fields.f64(key)? {
        None => Ok(None),
        Some(value) => match crate::config::to_f32(value) {
            Some(number) if fits(number) => Ok(Some(number)),
            _ => Err(fields.error(key, format!("{value} is out of range"))),
        },
    }
}

const MAX_EOS: usize = 1024;
