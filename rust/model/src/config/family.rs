//! The model families: the one table of what a family is and has. Everything that differs by family is
//! asked here, and messages that list what is supported are made from it.
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

/// Which biases the attention's projections have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Biases {
    /// All four or none, as `attention_bias` says.
    FromConfig,
    /// On q, k and v, whatever the config says.
    QueryKeyValue,
    None,
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) family: Family,
    /// `model_type` of config.json.
    pub(crate) model_type: &'static str,
    /// `general.architecture` of GGUF files that are read, where the family has one of its own.
    pub(crate) gguf: Option<&'static str>,
    /// Its classes are this and `ForCausalLM`, or this and `Model`.
    pub(crate) class: &'static str,
    /// The class default of `rope_theta`, which older checkpoints leave out.
    pub(crate) default_theta: f32,
    pub(crate) biases: Biases,
    /// The field that names the activation.
    pub(crate) activation: &'static str,
    /// Whether `head_dim` defaults to the quotient of width and heads; otherwise the class has a constant
    /// of its own, and the file must say it.
    pub(crate) derives_head_dim: bool,
    /// A norm over each head of q and k.
    pub(crate) qk_norm: bool,
    /// The feed-forward part is a mixture of experts, at least in some layers.
    pub(crate) is_moe: bool,
    /// Fields that change what the family computes, beside those that all families read.
    pub(crate) reads: &'static [&'static str],
}

const TABLE: [Facts; 8] = [
    Facts {
        family: Family::Llama,
        model_type: "llama",
        gguf: Some("llama"),
        class: "Llama",
        default_theta: 1e4,
        biases: Biases::FromConfig,
        activation: "hidden_act",
        derives_head_dim: true,
        qk_norm: false,
        is_moe: false,
        reads: &["attention_bias", "mlp_bias"],
    },
    Facts {
        family: Family::Mistral,
        model_type: "mistral",
        gguf: None,
        class: "Mistral",
        default_theta: 1e4,
        biases: Biases::None,
        activation: "hidden_act",
        derives_head_dim: true,
        qk_norm: false,
        is_moe: false,
        reads: &[],
    },
    Facts {
        family: Family::Qwen2,
        model_type: "qwen2",
        gguf: Some("qwen2"),
        class: "Qwen2",
        default_theta: 1e4,
        biases: Biases::QueryKeyValue,
        activation: "hidden_act",
        derives_head_dim: true,
        qk_norm: false,
        is_moe: false,
        reads: &["use_sliding_window", "max_window_layers"],
    },
    Facts {
        family: Family::Qwen3,
        model_type: "qwen3",
        gguf: Some("qwen3"),
        class: "Qwen3",
        default_theta: 1e4,
        biases: Biases::FromConfig,
        activation: "hidden_act",
        derives_head_dim: false,
        qk_norm: true,
        is_moe: false,
        reads: &["attention_bias", "use_sliding_window", "max_window_layers"],
    },
    Facts {
        family: Family::Phi3,
        model_type: "phi3",
        gguf: None,
        class: "Phi3",
        default_theta: 1e4,
        biases: Biases::None,
        activation: "hidden_act",
        derives_head_dim: true,
        qk_norm: false,
        is_moe: false,
        reads: &[],
    },
    Facts {
        family: Family::Gemma2,
        model_type: "gemma2",
        gguf: None,
        class: "Gemma2",
        default_theta: 1e4,
        biases: Biases::FromConfig,
        activation: "hidden_activation",
        derives_head_dim: false,
        qk_norm: false,
        is_moe: false,
        reads: &[
            "attention_bias",
            "query_pre_attn_scalar",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "sliding_window_pattern",
        ],
    },
    Facts {
        family: Family::Mixtral,
        model_type: "mixtral",
        gguf: None,
        class: "Mixtral",
        default_theta: 1e6,
        biases: Biases::None,
        activation: "hidden_act",
        derives_head_dim: true,
        qk_norm: false,
        is_moe: true,
        reads: &["num_local_experts", "num_experts", "num_experts_per_tok"],
    },
    Facts {
        family: Family::Qwen3Moe,
        model_type: "qwen3_moe",
        gguf: Some("qwen3moe"),
        class: "Qwen3Moe",
        default_theta: 1e4,
        biases: Biases::FromConfig,
        activation: "hidden_act",
        derives_head_dim: true,
        qk_norm: true,
        is_moe: true,
        reads: &[
            "attention_bias",
            "use_sliding_window",
            "num_local_experts",
            "num_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "norm_topk_prob",
            "decoder_sparse_step",
            "mlp_only_layers",
        ],
    },
];

/// The class that a config.json names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Or none, which means the same.
    CausalLm,
    /// The model without its output layer.
    Base,
}

impl Family {
    /// The family of a config.json, and the class. `architectures`, where it is not empty, must agree.
    pub(crate) fn of(config: &Fields<'_>) -> Result<(Self, Class), ModelError> {
        let name = config.string("model_type")?.ok_or_else(|| config.missing("model_type"))?;
        let Some(facts) = TABLE.iter().find(|facts| facts.model_type == name) else {
            return Err(config.unsupported("model_type", name, model_types()));
        };
        let classes = match config.get("architectures") {
            None => return Ok((facts.family, Class::CausalLm)),
            Some(value) => value
                .as_array()
                .ok_or_else(|| config.wrong("architectures", value, "a list of names"))?,
        };
        let causal_lm = format!("{}ForCausalLM", facts.class);
        let base = format!("{}Model", facts.class);
        let has = |class: &str| classes.iter().any(|value| value.as_str() == Some(class));
        if classes.is_empty() || has(&causal_lm) {
            return Ok((facts.family, Class::CausalLm));
        }
        if has(&base) {
            return Ok((facts.family, Class::Base));
        }
        let found = classes.iter().find_map(serde_json::Value::as_str).unwrap_or("not a name");
        Err(config.unsupported("architectures", found, format!("{causal_lm}, {base}")))
    }

    /// Its row of the table.
    pub(crate) fn facts(self) -> &'static Facts {
        // The table has each family once, in the order of the enum; a test holds it.
        TABLE.iter().find(|facts| facts.family == self).unwrap_or(&TABLE[0])
    }
}

/// The supported values of `model_type`.
pub(crate) fn model_types() -> String {
    TABLE.map(|facts| facts.model_type).join(", ")
}

/// The architectures of GGUF files that are read.
pub(crate) fn gguf_architectures() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter_map(|facts| facts.gguf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_every_family_has_one_row() {
        use Family::{Gemma2, Llama, Mistral, Mixtral, Phi3, Qwen2, Qwen3, Qwen3Moe};
        let families = [Llama, Mistral, Qwen2, Qwen3, Phi3, Gemma2, Mixtral, Qwen3Moe];
        assert_eq!(TABLE.map(|facts| facts.family), families);
        assert!(families.iter().all(|family| family.facts().family == *family));
    }
}
