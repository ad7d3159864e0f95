//! Determines which layers use a sliding window.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use serde_json::Value;

use super::facts::Windows;
use super::layer_ropes::rotating_layers;
use super::{Facts, Fields, limits};
use crate::error::ModelError;

const KEY: &str = "sliding_window";

/// One entry per layer.
pub(super) fn windows(
    config: &Fields<'_>,
    facts: &Facts,
    layers: u32,
) -> Result<Vec<Option<u32>>, ModelError> {
    if facts.windows == Windows::Chunks {
        return chunks(config, facts, layers);
    }
    let window = config.positive(KEY, u32::MAX)?.map(|window| window.min(limits::POSITIONS));
    let types = layer_types(config, layers, "sliding_attention")?;
    match facts.windows {
        Windows::None | Windows::Chunks => {
            if let Some(window) = window {
                return Err(config.unsupported(KEY, window.to_string(), "null in this family"));
            }
            by_type(config, types, None, layers)
        }
        Windows::All { by_default } => {
            let window = if config.is_written(KEY) { window } else { by_default };
            match types {
                None => Ok(all(window, layers)),
                // Hugging Face does not read layer_types here; only agreement is safe.
                Some(types) if types.iter().all(|sliding| *sliding == window.is_some()) => {
                    Ok(all(window, layers))
                }
                Some(_) => {
                    Err(config.error("layer_types", format!("contradicts {KEY} in this family")))
                }
            }
        }
        Windows::Switched { from_layer } => {
            let window = qwen_window(config, window)?;
            if types.is_some() {
                return by_type(config, types, window, layers);
            }
            let first = match window {
                Some(_) if from_layer => {
                    let key = "max_window_layers";
                    config.u32(key, u32::MAX)?.ok_or_else(|| config.missing(key))?
                }
                _ => 0,
            };
            Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect())
        }
        Windows::Pattern { every } => {
            let window = Some(window.ok_or_else(|| config.missing(KEY))?);
            if types.is_some() {
                return by_type(config, types, window, layers);
            }
            // Every pattern-th layer sees everything, the others a window.
            let pattern =
                config.positive("sliding_window_pattern", limits::LAYERS)?.unwrap_or(every);
            Ok((1..=layers)
                .map(|number| window.filter(|_| !number.is_multiple_of(pattern)))
                .collect())
        }
    }
}

/// Chunks are windows that do not move.
fn chunks(config: &Fields<'_>, facts: &Facts, layers: u32) -> Result<Vec<Option<u32>>, ModelError> {
    if let Some(window) = config.positive(KEY, u32::MAX)? {
        return Err(config.unsupported(KEY, window.to_string(), "null in this family"));
    }
    let key = "attention_chunk_size";
    let size = config.positive(key, u32::MAX)?.map(|size| size.min(limits::POSITIONS));
    let types = layer_types(config, layers, "chunked_attention")?;
    if size.is_none() && types.as_ref().is_some_and(|types| types.contains(&true)) {
        let reason = format!("has chunked_attention, and there is no {key}");
        return Err(config.error("layer_types", reason));
    }
    let types = match types {
        Some(types) => types,
        None => rotating_layers(config, facts, usize::try_from(layers).unwrap_or(0))?,
    };
    Ok(types.into_iter().map(|in_chunks| size.filter(|_| in_chunks)).collect())
}

fn qwen_window(config: &Fields<'_>, window: Option<u32>) -> Result<Option<u32>, ModelError> {
    if !config.bool("use_sliding_window")?.unwrap_or(false) {
        return Ok(None);
    }
    if config.is_written(KEY) { Ok(window) } else { Err(config.missing(KEY)) }
}

fn all(window: Option<u32>, layers: u32) -> Vec<Option<u32>> {
    (0..layers).map(|_| window).collect()
}

fn by_type(
    config: &Fields<'_>,
    types: Option<Vec<bool>>,
    window: Option<u32>,
    layers: u32,
) -> Result<Vec<Option<u32>>, ModelError> {
    let Some(types) = types else { return Ok(all(window, layers)) };
    if window.is_none() && types.contains(&true) {
        let reason = format!("has sliding_attention, and there is no {KEY}");
        return Err(config.error("layer_types", reason));
    }
    Ok(types.into_iter().map(|sliding| window.filter(|_| sliding)).collect())
}

/// For each layer whether it is of the type `limited`, not one that sees everything.
fn layer_types(
    config: &Fields<'_>,
    layers: u32,
    limited: &str,
) -> Result<Option<Vec<bool>>, ModelError> {
    let key = "layer_types";
    let list = match config.get(key) {
        None => return Ok(None),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(config.wrong(key, other, "a list of names")),
    };
    if u32::try_from(list.len()) != Ok(layers) {
        let reason = format!("has {} entries for {layers} layers", list.len());
        return Err(config.error(key, reason));
    }
    list.iter()
        .map(|value| match value.as_str() {
            Some("full_attention") => Ok(false),
            Some(name) if name == limited => Ok(true),
            Some(other) => {
                Err(config.unsupported(key, other, format!("full_attention, {limited}")))
            }
            None => Err(config.wrong(key, value, "a name")),
        })
        .collect::<Result<_, _>>()
        .map(Some)
}
