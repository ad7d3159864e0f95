//! Llama 4: chunks of attention in the layers that rotate, a norm of their heads, queries that grow with their position
//! in the others, experts whose score scales what they get, beside a network that all tokens visit. Published with a
//! vision tower.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::facts::{
    Biases, Experts, Facts, FeedForward, IMAGE_TOWERS, PLAIN, Ropes, Shared, Windows, Wrapper,
};
use crate::{QkNorm, RopeStyle, RouterScores};

pub(super) const FACTS: Facts = Facts {
    model_type: "llama4_text",
    class: "Llama4",
    default_theta: 500_000.0,
    biases: Biases::FromConfig,
    derives_head_dim: false,
    qk_norm: QkNorm::Unweighted,
    has_qk_norm: Some("use_qk_norm"),
    windows: Windows::Chunks,
    ropes: Ropes::NoneInSome,
    rope_style: RopeStyle::Interleaved,
    feed_forward: FeedForward::Experts(Experts {
        dense_width: "intermediate_size_mlp",
        scores: RouterScores::SigmoidOfChosen,
        shared: Shared::One,
        router: "router",
        scales_input: true,
        ..Experts::PLAIN
    }),
    network: "feed_forward",
    defaults: &[
        ("attention_chunk_size", "8192"),
        ("attn_scale", "0.1"),
        ("attn_temperature_tuning", "true"),
        ("floor_scale", "8192"),
        ("intermediate_size_mlp", "16384"),
        ("num_experts_per_tok", "1"),
        ("use_qk_norm", "true"),
    ],
    ignores: &["for_llm_compressor"],
    reads: &[
        "attention_bias",
        "attention_chunk_size",
        "attn_scale",
        "attn_temperature_tuning",
        "floor_scale",
        "interleave_moe_layer_step",
        "intermediate_size_mlp",
        "moe_layers",
        "no_rope_layer_interval",
        "no_rope_layers",
        "num_experts_per_tok",
        "num_local_experts",
        "use_qk_norm",
    ],
    ..PLAIN
};

pub(super) const WRAPPER: Wrapper = Wrapper {
    model_type: "llama4",
    class: "Llama4",
    texts: &["llama4_text"],
    ignores: &["boi_token_index", "eoi_token_index", "image_token_index"],
    towers: IMAGE_TOWERS,
};
