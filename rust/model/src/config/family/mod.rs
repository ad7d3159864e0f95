//! The model families. A family is one file that states its names and everything in which it differs
//! from the others; messages that list supported families are built from the table of them.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod deepseek_v2;
mod deepseek_v3;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4_moe;
mod glm4_moe_lite;
mod gpt_oss;
mod granite;
mod llama;
mod llama4;
mod minimax_m2;
mod ministral3;
mod mistral;
mod mistral4;
mod mixtral;
mod olmo2;
mod olmo3;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod seed_oss;
mod smollm3;

use super::Fields;
use super::facts::{Facts, Wrapper};
use crate::error::ModelError;

static TABLE: &[&Facts] = &[
    &deepseek_v2::FACTS,
    &deepseek_v3::FACTS,
    &deepseek_v3::KIMI_K2,
    &gemma2::FACTS,
    &gemma3::FACTS,
    &gemma4::FACTS,
    &gemma4::UNIFIED,
    &glm4_moe::FACTS,
    &glm4_moe_lite::FACTS,
    &gpt_oss::FACTS,
    &granite::FACTS,
    &llama::FACTS,
    &llama4::FACTS,
    &minimax_m2::FACTS,
    &ministral3::FACTS,
    &mistral::FACTS,
    &mistral4::FACTS,
    &mixtral::FACTS,
    &olmo2::FACTS,
    &olmo3::FACTS,
    &phi3::FACTS,
    &qwen2::FACTS,
    &qwen3::FACTS,
    &qwen3_5::FACTS,
    &qwen3_5_moe::FACTS,
    &qwen3_moe::FACTS,
    &qwen3_next::FACTS,
    &seed_oss::FACTS,
    &smollm3::FACTS,
];

static WRAPPERS: &[&Wrapper] = &[
    &gemma3::WRAPPER,
    &gemma4::WRAPPER,
    &gemma4::UNIFIED_WRAPPER,
    &llama4::WRAPPER,
    &ministral3::WRAPPER,
    &qwen3_5::WRAPPER,
    &qwen3_5_moe::WRAPPER,
];

/// The class that a config.json names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Or none, which means the same.
    CausalLm,
    /// The model without its output layer.
    Base,
}

/// What a config.json describes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) facts: &'static Facts,
    pub(crate) class: Class,
    /// The multimodal model whose text half is served.
    pub(crate) wrapper: Option<&'static Wrapper>,
}

impl Family {
    /// The family of a config.json, and the class. `architectures`, where it is not empty, must agree.
    pub(crate) fn of(config: &Fields<'_>) -> Result<Self, ModelError> {
        let name = model_type(config)?;
        let Some(wrapper) = WRAPPERS.iter().copied().find(|wrapper| wrapper.model_type == name)
        else {
            let facts = facts_of(config, name, model_types())?;
            let class = class_of(config, facts.class, "ForCausalLM")?;
            return Ok(Self { facts, class, wrapper: None });
        };
        let class = class_of(config, wrapper.class, "ForConditionalGeneration")?;
        let key = "text_config";
        let text = config.object(key)?.ok_or_else(|| config.missing(key))?;
        let facts = facts_of(&text, model_type(&text)?, wrapper.texts.iter().copied())?;
        Ok(Self { facts, class, wrapper: Some(wrapper) })
    }
}

fn model_type<'a>(config: &Fields<'a>) -> Result<&'a str, ModelError> {
    config.string("model_type")?.ok_or_else(|| config.missing("model_type"))
}

/// The family of this name, which must be one of `allowed`.
fn facts_of(
    config: &Fields<'_>,
    name: &str,
    allowed: impl Iterator<Item = &'static str> + Clone,
) -> Result<&'static Facts, ModelError> {
    let is_allowed = allowed.clone().any(|allowed| allowed == name);
    let facts = TABLE.iter().copied().find(|facts| is_allowed && facts.model_type == name);
    facts.ok_or_else(|| {
        config.unsupported("model_type", name, allowed.collect::<Vec<_>>().join(", "))
    })
}

fn class_of(config: &Fields<'_>, class: &str, ending: &str) -> Result<Class, ModelError> {
    let classes = match config.get("architectures") {
        None => return Ok(Class::CausalLm),
        Some(value) => value
            .as_array()
            .ok_or_else(|| config.wrong("architectures", value, "a list of names"))?,
    };
    let (generating, base) = (format!("{class}{ending}"), format!("{class}Model"));
    let has = |class: &str| classes.iter().any(|value| value.as_str() == Some(class));
    if classes.is_empty() || has(&generating) {
        return Ok(Class::CausalLm);
    }
    if has(&base) {
        return Ok(Class::Base);
    }
    let found = classes.iter().find_map(serde_json::Value::as_str).unwrap_or("not a name");
    Err(config.unsupported("architectures", found, format!("{generating}, {base}")))
}

/// The supported values of `model_type`.
pub(crate) fn model_types() -> impl Iterator<Item = &'static str> + Clone {
    let texts = TABLE.iter().map(|facts| facts.model_type);
    texts.chain(WRAPPERS.iter().map(|wrapper| wrapper.model_type))
}

/// The architectures of GGUF files that are read.
pub(crate) fn gguf_architectures() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter_map(|facts| facts.gguf)
}
