//! The model families. A family is one file that states its names and everything in which it differs
//! from the others; messages that list supported families are built from the table of them.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod gemma2;
mod llama;
mod mistral;
mod mixtral;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod seed_oss;
mod smollm3;

use super::Fields;
use super::facts::Facts;
use crate::error::ModelError;

static TABLE: &[&Facts] = &[
    &gemma2::FACTS,
    &llama::FACTS,
    &mistral::FACTS,
    &mixtral::FACTS,
    &phi3::FACTS,
    &qwen2::FACTS,
    &qwen3::FACTS,
    &qwen3_moe::FACTS,
    &seed_oss::FACTS,
    &smollm3::FACTS,
];

/// The class that a config.json names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Or none, which means the same.
    CausalLm,
    /// The model without its output layer.
    Base,
}

/// The family of a config.json, and the class. `architectures`, where it is not empty, must agree.
pub(crate) fn family_of(config: &Fields<'_>) -> Result<(&'static Facts, Class), ModelError> {
    let name = config.string("model_type")?.ok_or_else(|| config.missing("model_type"))?;
    let Some(facts) = TABLE.iter().copied().find(|facts| facts.model_type == name) else {
        let supported = model_types().collect::<Vec<_>>().join(", ");
        return Err(config.unsupported("model_type", name, supported));
    };
    let classes = match config.get("architectures") {
        None => return Ok((facts, Class::CausalLm)),
        Some(value) => value
            .as_array()
            .ok_or_else(|| config.wrong("architectures", value, "a list of names"))?,
    };
    let causal_lm = format!("{}ForCausalLM", facts.class);
    let base = format!("{}Model", facts.class);
    let has = |class: &str| classes.iter().any(|value| value.as_str() == Some(class));
    if classes.is_empty() || has(&causal_lm) {
        return Ok((facts, Class::CausalLm));
    }
    if has(&base) {
        return Ok((facts, Class::Base));
    }
    let found = classes.iter().find_map(serde_json::Value::as_str).unwrap_or("not a name");
    Err(config.unsupported("architectures", found, format!("{causal_lm}, {base}")))
}

/// The supported values of `model_type`.
pub(crate) fn model_types() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|facts| facts.model_type)
}

/// The architectures of GGUF files that are read.
pub(crate) fn gguf_architectures() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter_map(|facts| facts.gguf)
}
