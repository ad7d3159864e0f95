//! What a family is described by: plain data. The families are in family/.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::{GroupScore, QkNorm, RopeStyle, RouterScores};

/// Which biases the attention's projections have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Biases {
    /// All four or none, depending on `attention_bias`.
    FromConfig,
    /// On q, k and v, whatever the config says.
    QueryKeyValue,
    /// On q, k and v, or none, depending on `attention_bias`.
    QueryKeyValueFromConfig,
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
    /// Chunks of `attention_chunk_size` in the layers that rotate, or as `layer_types` says; none if it is null.
    Chunks,
    /// All but every `every`-th; `sliding_window_pattern` may say another number in families that read it.
    Pattern { every: u32 },
}

/// Which rotation each layer has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ropes {
    /// All the same.
    One,
    /// The same, but none where `no_rope_layers` has a 0; without that list, in every
    /// `no_rope_layer_interval`-th layer (4 if absent).
    NoneInSome,
    /// One for the layers that see everything, which alone have the file's scaling, and the default one for
    /// those with a window. The field that states the base of the latter, and the base without it; where
    /// there is no such field, the base is the same.
    ByWindow { local: Option<(&'static str, f32)> },
}

/// Which layers have heads of other sizes than `head_dim` and `num_key_value_heads` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heads {
    /// None.
    Same,
    /// Those that see everything, as `global_head_dim` and `num_global_key_value_heads` say, or `per_layer_config`. With
    /// `attention_k_eq_v` their values are their keys, and the last `num_kv_shared_layers` layers read the keys of the
    /// last layer of their type before them.
    ByWindow,
}

/// The norms of a layer: names of their tensors, `None` where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Norms {
    /// Before attention and before the feed-forward part.
    pub(crate) before: Option<[&'static str; 2]>,
    /// After them, before the residual stream is added.
    pub(crate) after: Option<[&'static str; 2]>,
}

/// Fields by which a family scales what it computes (Granite).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Multipliers {
    pub(crate) embedding: &'static str,
    pub(crate) attention: &'static str,
    pub(crate) residual: &'static str,
    /// Divides.
    pub(crate) logits: &'static str,
}

/// What follows attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FeedForward {
    Dense,
    /// A mixture of experts in every layer, or as `decoder_sparse_step` and `mlp_only_layers` or
    /// `first_k_dense_replace` select.
    Experts(Experts),
}

/// The network beside the experts that every token visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shared {
    /// There is none.
    None,
    /// The field of the number of experts that make it up; it is as wide as they are together.
    Count(&'static str),
    /// The field of its width. Its weight is the sigmoid of a score of its own.
    Scored {
        /// The field.
        width: &'static str,
    },
    /// One that is as wide as an expert.
    One,
    /// The network that a layer without experts has; both see norms of their own.
    Usual,
}

impl Shared {
    /// Its name among tensors.
    pub(crate) fn tensors(self) -> &'static str {
        match self {
            Self::None | Self::Count(_) => "shared_experts",
            Self::Scored { .. } | Self::One => "shared_expert",
            Self::Usual => "mlp",
        }
    }
}

/// A family's mixture of experts: fields of config.json and names of tensors, the latter in `mlp` or
/// `block_sparse_moe` of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Experts {
    /// The field that says whether there are experts; without it there are.
    pub(crate) switch: Option<&'static str>,
    /// The field of the number of experts a token visits.
    pub(crate) chosen: &'static str,
    /// The field of an expert's width.
    pub(crate) width: &'static str,
    /// The field of the width of layers without experts.
    pub(crate) dense_width: &'static str,
    /// The field that says whether the chosen weights are scaled to sum to 1; without it they are, unless they multiply
    /// what experts get.
    pub(crate) normalises: Option<&'static str>,
    pub(crate) scores: RouterScores,
    /// The field by which the chosen weights are multiplied.
    pub(crate) scale: Option<&'static str>,
    pub(crate) shared: Shared,
    pub(crate) router: &'static str,
    /// The router and each expert have biases; gate and up alternate, and matrices are stored `[in, out]`.
    pub(crate) has_biases: bool,
    /// Weights multiply what experts get; stacked matrices are stored `[in, out]`, gate before up.
    pub(crate) scales_input: bool,
    /// The tensor that corrects scores for the choice.
    pub(crate) correction: Option<&'static str>,
    /// `n_group` and `topk_group` form groups of experts, which are judged by this.
    pub(crate) groups: Option<GroupScore>,
}

impl Experts {
    /// What most families have.
    pub(crate) const PLAIN: Self = Self {
        switch: None,
        chosen: "num_experts_per_tok",
        width: "intermediate_size",
        dense_width: "intermediate_size",
        normalises: None,
        scores: RouterScores::Softmax,
        scale: None,
        shared: Shared::None,
        router: "gate",
        has_biases: false,
        scales_input: false,
        correction: None,
        groups: None,
    };
}

/// Everything that differs by family.
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
    pub(crate) qk_norm: QkNorm,
    /// The field that says whether there is that norm; without it there is.
    pub(crate) has_qk_norm: Option<&'static str>,
    /// What scores are multiplied by, where it is not the root of the head's width.
    pub(crate) attention_scale: Option<f32>,
    /// Each head of the values has a norm without weights.
    pub(crate) has_value_norm: bool,
    pub(crate) windows: Windows,
    pub(crate) heads: Heads,
    pub(crate) ropes: Ropes,
    pub(crate) rope_style: RopeStyle,
    pub(crate) feed_forward: FeedForward,
    /// What follows attention, among tensors.
    pub(crate) network: &'static str,
    pub(crate) norms: Norms,
    /// Norms multiply by 1 + weight, and embeddings are scaled by the root of the width.
    pub(crate) is_gemma: bool,
    /// Norms multiply by 1 + weight.
    pub(crate) adds_one: bool,
    /// Embeddings are scaled by the root of the width.
    pub(crate) scales_embedding: bool,
    /// Each layer has a number by which it multiplies the residual stream.
    pub(crate) scales_layers: bool,
    /// Layers get `hidden_size_per_layer_input` numbers of the token itself, unless that field is 0.
    pub(crate) has_token_input: bool,
    /// `linear_attention` among `layer_types`, or all but each `full_attention_interval`-th layer, is a gated
    /// delta net; attention has an output gate.
    pub(crate) has_delta_nets: bool,
    /// Of a gated delta net one tensor holds q, k, v and the gate, another what the other two projections
    /// give; the parts of a key head lie together.
    pub(crate) fuses_delta_nets: bool,
    /// Attention keeps a latent.
    pub(crate) has_latent: bool,
    pub(crate) multipliers: Option<Multipliers>,
    /// Queries are scaled by position, as `llama_4_scaling_beta` among the rope's fields says.
    pub(crate) scales_queries: bool,
    /// The head is the embedding unless the file says otherwise.
    pub(crate) ties_by_default: bool,
    /// One tensor holds q, k and v, another one gate and up.
    pub(crate) is_fused: bool,
    /// Each query head has a sink.
    pub(crate) has_sinks: bool,
    /// The gate is the clamped one of gpt-oss.
    pub(crate) clamps_gate: bool,
    /// The share of a head that rotates, where the file does not say it.
    pub(crate) default_rotary: f64,
    /// Older names of the rope type `longrope`.
    pub(crate) long_rope_names: &'static [&'static str],
    /// Class defaults of fields that published files leave out, as JSON.
    pub(crate) defaults: &'static [(&'static str, &'static str)],
    /// Fields with the value, as JSON, that alone is supported; of a list, every element.
    pub(crate) fixed: &'static [(&'static str, &'static str)],
    /// Fields that change nothing.
    pub(crate) ignores: &'static [&'static str],
    /// Fields that change what the family computes, in addition to those that all families read.
    pub(crate) reads: &'static [&'static str],
}

/// What most families have; each family's file states what is different.
pub(crate) const PLAIN: Facts = Facts {
    model_type: "",
    gguf: None,
    class: "",
    default_theta: 1e4,
    biases: Biases::None,
    activation: "hidden_act",
    derives_head_dim: true,
    qk_norm: QkNorm::None,
    has_qk_norm: None,
    attention_scale: None,
    has_value_norm: false,
    windows: Windows::None,
    heads: Heads::Same,
    ropes: Ropes::One,
    rope_style: RopeStyle::HalfSplit,
    feed_forward: FeedForward::Dense,
    network: "mlp",
    norms: Norms { before: Some(["input_layernorm", "post_attention_layernorm"]), after: None },
    is_gemma: false,
    adds_one: false,
    scales_embedding: false,
    scales_layers: false,
    has_token_input: false,
    has_delta_nets: false,
    fuses_delta_nets: false,
    has_latent: false,
    multipliers: None,
    scales_queries: false,
    is_fused: false,
    ties_by_default: false,
    has_sinks: false,
    clamps_gate: false,
    default_rotary: 1.0,
    long_rope_names: &[],
    defaults: &[],
    fixed: &[],
    ignores: &[],
    reads: &[],
};

/// What each family with gated delta nets reads besides.
const DELTA_NET_FIELDS: [&str; 6] = [
    "full_attention_interval",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
];

/// What each family with latent attention reads besides.
const LATENT_FIELDS: [&str; 7] = [
    "kv_lora_rank",
    "q_lora_rank",
    "qk_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "rope_interleave",
    "v_head_dim",
];

impl Facts {
    /// Whether the family's class reads the field.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.reads.contains(&field)
            || self.has_delta_nets && DELTA_NET_FIELDS.contains(&field)
            || self.has_latent && LATENT_FIELDS.contains(&field)
    }
}

/// A multimodal model, of which the text half is served. Its config.json holds a family's in `text_config`.
#[derive(Debug)]
pub(crate) struct Wrapper {
    pub(crate) model_type: &'static str,
    /// Its classes are this and `ForConditionalGeneration`, or this and `Model`.
    pub(crate) class: &'static str,
    /// The families of its text half.
    pub(crate) texts: &'static [&'static str],
    /// Fields beside `text_config` that concern images and sound alone.
    pub(crate) ignores: &'static [&'static str],
    /// First parts of the names of its tensors for them, after `model.` if that is there.
    pub(crate) towers: &'static [&'static str],
}

/// `Wrapper::towers` of models that see images.
pub(crate) const IMAGE_TOWERS: &[&str] =
    &["vision_tower.", "vision_model.", "multi_modal_projector.", "visual."];
