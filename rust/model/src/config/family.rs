//! The table of model families and their properties. Everything that differs by family is looked up
//! here, and messages that list supported families are built from it.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use super::Fields;
use crate::error::ModelError;

/// Which biases the attention's projections have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Biases {
    /// All four or none, depending on `attention_bias`.
    FromConfig,
    /// On q, k and v, whatever the config says.
    QueryKeyValue,
    None,
}

/// Which layers see only a window of the tokens before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Windows {
    /// None; a file that asks for one is refused.
    None,
    /// All, where `sliding_window` is not null. `by_default`: what an absent one means.
    All { by_default: Option<u32> },
    /// Where `use_sliding_window` is on; `from_layer`: only from layer `max_window_layers` on.
    Switched { from_layer: bool },
    /// All but every `sliding_window_pattern`-th.
    Pattern,
}

/// What follows attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedForward {
    Dense,
    /// A mixture of experts in every layer, or as `decoder_sparse_step` and `mlp_only_layers` select. The
    /// fields that name an expert's width and whether the chosen weights are scaled to sum to 1; without
    /// such a field they are.
    Experts {
        width: &'static str,
        normalises: Option<&'static str>,
    },
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Facts {
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
    /// of its own, and the file must state it.
    pub(crate) derives_head_dim: bool,
    /// A norm over each head of q and k.
    pub(crate) qk_norm: bool,
    pub(crate) windows: Windows,
    pub(crate) feed_forward: FeedForward,
    /// Norms multiply by 1 + weight, norms follow both parts of a layer, embeddings are scaled by the root
    /// of the width, and the head is the embedding unless the file says otherwise.
    pub(crate) is_gemma: bool,
    /// One tensor holds q, k and v, another one gate and up.
    pub(crate) is_fused: bool,
    /// Older names of the rope type `longrope`.
    pub(crate) long_rope_names: &'static [&'static str],
    /// Fields that change what the family computes, in addition to those that all families read.
    pub(crate) reads: &'static [&'static str],
}

static TABLE: &[Facts] = &[
    Facts {
        model_type: "llama",
        gguf: Some("llama"),
        class: "Llama",
        default_theta: 1e4,
        biases: Biases::FromConfig,
        activation: "hidden_act",
        derives_head_dim: true,
        qk_norm: false,
        windows: Windows::None,
        feed_forward: FeedForward::Dense,
        is_gemma: false,
        is_fused: false,
        long_rope_names: &[],
        reads: &["attention_bias", "mlp_bias"],
    },
    Facts {
        model_type: "mistral",
        gguf: None,
        class: "Mistral",
        default_theta: 1e4,
        biases: Biases::None,
        activation: "hidden_act",
        derives_head_dim: true,
        qk_norm: false,
        windows: Windows::All { by_default: Some(4096) },
        feed_forward: FeedForward::Dense,
        is_gemma: false,
        is_fused: false,
        long_rope_names: &[],
        reads: &[],
    },
    Facts {
        model_type: "qwen2",
        gguf: Some("qwen2"),
        class: "Qwen2",
        default_theta: 1e4,
        biases: Biases::QueryKeyValue,
        activation: "hidden_act",
        derives_head_dim: true,
        qk_norm: false,
        windows: Windows::Switched { from_layer: true },
        feed_forward: FeedForward::Dense,
        is_gemma: false,
        is_fused: false,
        long_rope_names: &[],
        reads: &["use_sliding_window", "max_window_layers"],
    },
    Facts {
        model_type: "qwen3",
        gguf: Some("qwen3"),
        class: "Qwen3",
        default_theta: 1e4,
        biases: Biases::FromConfig,
        activation: "hidden_act",
        derives_head_dim: false,
        qk_norm: true,
        windows: Windows::Switched { from_layer: true },
        feed_forward: FeedForward::Dense,
        is_gemma: false,
        is_fused: false,
        long_rope_names: &[],
        reads: &["attention_bias", "use_sliding_window", "max_window_layers"],
    },
    Facts {
        model_type: "phi3",
        gguf: None,
        class: "Phi3",
        default_theta: 1e4,
        biases: Biases::None,
        activation: "hidden_act",
        derives_head_dim: true,
        qk_norm: false,
        windows: Windows::All { by_default: None },
        feed_forward: FeedForward::Dense,
        is_gemma: false,
        is_fused: true,
        long_rope_names: &["su", "yarn"],
        reads: &[],
    },
    Facts {
        model_type: "gemma2",
        gguf: None,
        class: "Gemma2",
        default_theta: 1e4,
        biases: Biases::FromConfig,
        activation: "hidden_activation",
        derives_head_dim: false,
        qk_norm: false,
        windows: Windows::Pattern,
        feed_forward: FeedForward::Dense,
        is_gemma: true,
        is_fused: false,
        long_rope_names: &[],
        reads: &[
            "attention_bias",
            "query_pre_attn_scalar",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "sliding_window_pattern",
        ],
    },
    Facts {
        model_type: "mixtral",
        gguf: None,
        class: "Mixtral",
        default_theta: 1e6,
        biases: Biases::None,
        activation: "hidden_act",
        derives_head_dim: true,
        qk_norm: false,
        windows: Windows::All { by_default: None },
        feed_forward: FeedForward::Experts { width: "intermediate_size", normalises: None },
        is_gemma: false,
        is_fused: false,
        long_rope_names: &[],
        reads: &["num_local_experts", "num_experts", "num_experts_per_tok"],
    },
    Facts {
        model_type: "qwen3_moe",
        gguf: Some("qwen3moe"),
        class: "Qwen3Moe",
        default_theta: 1e4,
        biases: Biases::FromConfig,
        activation: "hidden_act",
        derives_head_dim: true,
        qk_norm: true,
        windows: Windows::Switched { from_layer: false },
        feed_forward: FeedForward::Experts {
            width: "moe_intermediate_size",
            normalises: Some("norm_topk_prob"),
        },
        is_gemma: false,
        is_fused: false,
        long_rope_names: &[],
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
    Facts {
        model_type: "seed_oss",
        gguf: None,
        class: "SeedOss",
        default_theta: 1e4,
        biases: Biases::QueryKeyValue,
        activation: "hidden_act",
        derives_head_dim: false,
        qk_norm: false,
        windows: Windows::None,
        feed_forward: FeedForward::Dense,
        is_gemma: false,
        is_fused: false,
        long_rope_names: &[],
        reads: &["mlp_bias"],
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

impl Facts {
    /// Whether the family's class reads the field.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.reads.contains(&field)
    }
}

impl Facts {
    /// The family of a config.json, and the class. `architectures`, where it is not empty, must agree.
    pub(crate) fn of(config: &Fields<'_>) -> Result<(&'static Self, Class), ModelError> {
        let name = config.string("model_type")?.ok_or_else(|| config.missing("model_type"))?;
        let Some(facts) = TABLE.iter().find(|facts| facts.model_type == name) else {
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
}

/// The supported values of `model_type`.
pub(crate) fn model_types() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|facts| facts.model_type)
}

/// The architectures of GGUF files that are read.
pub(crate) fn gguf_architectures() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter_map(|facts| facts.gguf)
}
