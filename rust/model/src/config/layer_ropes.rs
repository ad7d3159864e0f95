//! Determines how each layer rotates queries and keys. rope.rs reads the numbers of one rotation.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use serde_json::Value;

use super::facts::{Heads, Ropes, Windows};
use super::rope::{QUERY_SCALE, rope_spec, rope_with_theta, source};
use super::{Facts, Fields, limits, to_f32};
use crate::error::ModelError;
use crate::{QueryScale, RopeSpec};

/// The rotations of a model: the different ones, and which of them each layer has.
pub(super) struct LayerRopes {
    pub(super) ropes: Vec<RopeSpec>,
    /// One per layer: an index into `ropes`, `None` for a layer without positions.
    pub(super) of_layer: Vec<Option<usize>>,
}

/// Reads the rope fields; `windows` has an entry for each layer. Widths of heads: of layers that see everything, and of
/// those with a window.
pub(super) fn layer_ropes(
    config: &Fields<'_>,
    facts: &Facts,
    (head_dim, windowed_head_dim): (u32, u32),
    windows: &[Option<u32>],
) -> Result<LayerRopes, ModelError> {
    let one = || Ok(vec![rope_spec(config, facts, source(config)?, head_dim)?]);
    match facts.ropes {
        Ropes::One => {
            Ok(LayerRopes { ropes: one()?, of_layer: windows.iter().map(|_| Some(0)).collect() })
        }
        Ropes::NoneInSome => {
            let of_layer = rotating_layers(config, facts, windows.len())?;
            let of_layer = of_layer.into_iter().map(|rotates| rotates.then_some(0)).collect();
            Ok(LayerRopes { ropes: one()?, of_layer })
        }
        Ropes::ByWindow { local } => {
            let ropes = ropes_by_window(config, facts, (head_dim, windowed_head_dim), local)?;
            let of_layer = windows.iter().map(|window| Some(usize::from(window.is_some())));
            Ok(LayerRopes { ropes, of_layer: of_layer.collect() })
        }
    }
}

/// Of the layers that see everything, then of those with a window.
fn ropes_by_window(
    config: &Fields<'_>,
    facts: &Facts,
    (head_dim, windowed_head_dim): (u32, u32),
    local: Option<(&'static str, f32)>,
) -> Result<Vec<RopeSpec>, ModelError> {
    let local_theta = match local {
        Some((key, default)) => config.positive_f32(key)?.unwrap_or(default),
        None => facts.default_theta,
    };
    let rope = config.object("rope_parameters")?;
    let by_type = rope.filter(|rope| rope.keys().any(|key| key.ends_with("_attention")));
    if let Some(rope) = by_type {
        if let Some(key) = rope.keys().find(|key| !LAYER_TYPES.contains(key)) {
            return Err(rope.unsupported(key, "a rope", LAYER_TYPES.join(", ")));
        }
        let [full, window] = LAYER_TYPES;
        let full = rope_spec(config, facts, rope.object(full)?, head_dim)?;
        let window = rope.object(window)?;
        let theta = window.map(|rope| rope.positive_f32("rope_theta")).transpose()?.flatten();
        let theta = theta.unwrap_or(local_theta);
        return Ok(vec![full, rope_with_theta(config, facts, window, (theta, windowed_head_dim))?]);
    }
    if facts.heads == Heads::ByWindow {
        let found = "one rope for all layers";
        return Err(config.unsupported("rope_parameters", found, LAYER_TYPES.join(", ")));
    }
    let full = rope_spec(config, facts, source(config)?, head_dim)?;
    #[expect(clippy::float_cmp, reason = "the very number that the class has")]
    if local.is_none() && full.theta != facts.default_theta {
        // Releases of transformers disagree about the layers with a window.
        let supported = format!("{}, or rope_parameters by layer type", facts.default_theta);
        return Err(config.unsupported("rope_theta", full.theta.to_string(), supported));
    }
    let window = rope_with_theta(config, facts, None, (local_theta, head_dim))?;
    Ok(vec![full, window])
}

/// How queries grow with their position.
pub(super) fn query_scale(
    config: &Fields<'_>,
    facts: &Facts,
) -> Result<Option<QueryScale>, ModelError> {
    if facts.has(TEMPERATURE) {
        return temperature(config);
    }
    if !facts.scales_queries {
        return Ok(None);
    }
    let rope = source(config)?.ok_or_else(|| config.missing("rope_parameters"))?;
    let beta = rope.f64(QUERY_SCALE)?.ok_or_else(|| rope.missing(QUERY_SCALE))?;
    let key = "original_max_position_embeddings";
    let length = rope.required(key, limits::POSITIONS)?;
    match to_f32(beta).filter(|beta| *beta >= 0.0) {
        Some(beta) => Ok((beta > 0.0).then_some(QueryScale { beta, length, without_rope: false })),
        None => Err(rope.error(QUERY_SCALE, format!("{beta} is below 0"))),
    }
}

/// As Llama 4 states it.
fn temperature(config: &Fields<'_>) -> Result<Option<QueryScale>, ModelError> {
    if !config.bool(TEMPERATURE)?.unwrap_or(true) {
        return Ok(None);
    }
    let beta = config.required_positive("attn_scale")?;
    let length = config.required("floor_scale", limits::POSITIONS)?;
    Ok(Some(QueryScale { beta, length, without_rope: true }))
}

const TEMPERATURE: &str = "attn_temperature_tuning";

/// For each layer whether it rotates: `no_rope_layers` has a 1 for those that do.
pub(super) fn rotating_layers(
    config: &Fields<'_>,
    facts: &Facts,
    layers: usize,
) -> Result<Vec<bool>, ModelError> {
    let key = "no_rope_layers";
    // Published files of Llama 4 have an empty list, which means that there is none.
    let is_empty = |value: &&Value| value.as_array().is_some_and(Vec::is_empty);
    let is_stated = |value: &&Value| facts.windows != Windows::Chunks || !is_empty(value);
    let Some(value) = config.get(key).filter(is_stated) else {
        let interval = config.positive("no_rope_layer_interval", limits::LAYERS)?.unwrap_or(4);
        let numbers = (1_u32..).take(layers);
        return Ok(numbers.map(|number| !number.is_multiple_of(interval)).collect());
    };
    let wanted = "a list with 0 or 1 for each layer";
    let list = value.as_array().ok_or_else(|| config.wrong(key, value, wanted))?;
    let flag = |value: &Value| match value.as_u64() {
        Some(flag @ (0 | 1)) => Ok(flag == 1),
        _ => Err(config.wrong(key, value, wanted)),
    };
    if list.len() != layers {
        return Err(config.error(key, format!("has {} entries for {layers} layers", list.len())));
    }
    list.iter().map(flag).collect()
}

/// Names in `rope_parameters`: of the layers that see everything, and of those with a window.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];
