//! Qwen3.5, 3.6 and 3.8, dense: three of four layers are gated delta nets, the others have an output gate and
//! rotate a quarter of a head. Published with a vision tower around the text model.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::QkNorm;
use crate::config::facts::{Facts, IMAGE_TOWERS, PLAIN, Wrapper};

pub(super) const FACTS: Facts = Facts {
    model_type: "qwen3_5_text",
    class: "Qwen3_5",
    default_theta: 1e7,
    derives_head_dim: false,
    qk_norm: QkNorm::Head,
    adds_one: true,
    has_delta_nets: true,
    default_rotary: 0.25,
    defaults: &[("head_dim", "256"), ("hidden_act", "\"silu\""), ("rms_norm_eps", "1e-6")],
    // Newer files name the gate of the delta nets' norm; no class reads it.
    fixed: &[
        ("attn_output_gate", "true"),
        ("mamba_ssm_dtype", "\"float32\""),
        ("output_gate_type", "\"swish\""),
    ],
    // Positions of text are the same in all three sections; layers that predict several tokens are not used.
    ignores: &[
        "mrope_section",
        "mrope_interleaved",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
    ],
    ..PLAIN
};

pub(super) const WRAPPER: Wrapper = Wrapper {
    model_type: "qwen3_5",
    class: "Qwen3_5",
    texts: &["qwen3_5_text"],
    ignores: &[],
    towers: IMAGE_TOWERS,
};
