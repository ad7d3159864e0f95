//! The model families that config.json can name, and how they differ from llama.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use super::Fields;
use crate::error::ModelError;

/// A value of `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Phi3,
    Gemma2,
    Mixtral,
    Qwen3Moe,
}

impl Family {
    /// The family of a config.json. `architectures`, where it is not empty, must agree.
    pub(crate) fn of(config: &Fields<'_>) -> Result<Self, ModelError> {
        let name = config.string("model_type")?.ok_or_else(|| config.missing("model_type"))?;
        let Some(&(family, _, class)) = FAMILIES.iter().find(|(_, other, _)| *other == name) else {
            return Err(config.unsupported("model_type", name, SUPPORTED));
        };
        let classes = match config.get("architectures") {
            None => return Ok(family),
            Some(value) => value
                .as_array()
                .ok_or_else(|| config.wrong("architectures", value, "a list of names"))?,
        };
        if classes.is_empty() || classes.iter().any(|value| value.as_str() == Some(class)) {
            return Ok(family);
        }
        let found = classes.iter().find_map(serde_json::Value::as_str).unwrap_or("not a name");
        Err(config.unsupported("architectures", found, class))
    }

    pub(crate) fn model_type(self) -> &'static str {
        FAMILIES.iter().find(|(family, _, _)| *family == self).map_or("", |(_, name, _)| name)
    }

    pub(crate) fn is_moe(self) -> bool {
        matches!(self, Self::Mixtral | Self::Qwen3Moe)
    }

    /// Families whose class reads `attention_bias`; the others have fixed biases.
    pub(crate) fn reads_attention_bias(self) -> bool {
        matches!(self, Self::Llama | Self::Qwen3 | Self::Gemma2 | Self::Qwen3Moe)
    }

    /// The class default of `rope_theta`, which older checkpoints leave out.
    pub(crate) fn default_theta(self) -> f32 {
        if self == Self::Mixtral { 1e6 } else { 1e4 }
    }
}

const FAMILIES: [(Family, &str, &str); 8] = [
    (Family::Llama, "llama", "LlamaForCausalLM"),
    (Family::Mistral, "mistral", "MistralForCausalLM"),
    (Family::Qwen2, "qwen2", "Qwen2ForCausalLM"),
    (Family::Qwen3, "qwen3", "Qwen3ForCausalLM"),
    (Family::Phi3, "phi3", "Phi3ForCausalLM"),
    (Family::Gemma2, "gemma2", "Gemma2ForCausalLM"),
    (Family::Mixtral, "mixtral", "MixtralForCausalLM"),
    (Family::Qwen3Moe, "qwen3_moe", "Qwen3MoeForCausalLM"),
];

const SUPPORTED: &str = "llama, mistral, qwen2, qwen3, phi3, gemma2, mixtral, qwen3_moe";
