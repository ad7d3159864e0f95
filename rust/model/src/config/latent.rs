//! Reads multi-head latent attention: the sizes of its parts, and its scale. rope.rs reads its rotation.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use super::rope::source;
use super::{Facts, Fields, limits, to_f32};
use crate::LatentSpec;
use crate::error::ModelError;

/// The classes give these norms the default of their norm class, whatever `rms_norm_eps` says.
const NORM_EPS: f32 = 1e-6;

/// The sizes, in families that have them.
pub(super) fn latent(config: &Fields<'_>, facts: &Facts) -> Result<Option<LatentSpec>, ModelError> {
    if !facts.has_latent {
        return Ok(None);
    }
    let latent = LatentSpec {
        query_rank: config.positive("q_lora_rank", limits::WIDTH)?,
        rank: config.required("kv_lora_rank", limits::LATENT)?,
        rope_dim: config.required("qk_rope_head_dim", limits::HEAD_DIM)?,
        plain_dim: config.required("qk_nope_head_dim", limits::HEAD_DIM)?,
        value_dim: config.required("v_head_dim", limits::HEAD_DIM)?,
        norm_eps: NORM_EPS,
    };
    if !latent.rope_dim.is_multiple_of(2) {
        return Err(config.error("qk_rope_head_dim", format!("{} is odd", latent.rope_dim)));
    }
    let query_dim = latent.query_dim();
    // Nothing is computed with these: releases of transformers write one or another of two sizes.
    for (key, sizes) in
        [("qk_head_dim", [query_dim, query_dim]), ("head_dim", [latent.rope_dim, query_dim])]
    {
        if let Some(stated) = config.u32(key, limits::WIDTH)?
            && !sizes.contains(&stated)
        {
            let reason = format!("{stated} contradicts qk_nope_head_dim and qk_rope_head_dim");
            return Err(config.error(key, reason));
        }
    }
    let heads = config.required("num_attention_heads", limits::HEADS)?;
    let key = "num_key_value_heads";
    if let Some(kv_heads) = config.positive(key, limits::HEADS)?
        && kv_heads != heads
    {
        let supported = format!("{heads}, which is num_attention_heads");
        return Err(config.unsupported(key, kv_heads.to_string(), supported));
    }
    Ok(Some(latent))
}

/// What scores are multiplied by: where the rope is scaled, YaRN's factor for `mscale_all_dim` counts twice.
pub(super) fn scale(config: &Fields<'_>, latent: &LatentSpec) -> Result<f32, ModelError> {
    let plain = 1.0 / f64::from(latent.query_dim()).sqrt();
    let term = match source(config)? {
        Some(rope) if rope.string("rope_type")?.or(rope.string("type")?) != Some("default") => {
            let factor = rope.f64("factor")?.unwrap_or(1.0).max(1.0);
            let all = rope.f64("mscale_all_dim")?.unwrap_or(0.0);
            0.1 * all * factor.ln() + 1.0
        }
        _ => 1.0,
    };
    let scale = to_f32(plain * term * term).filter(|scale| *scale > 0.0);
    scale.ok_or_else(|| config.error("rope_scaling.mscale_all_dim", "gives no positive factor"))
}
