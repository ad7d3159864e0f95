//! Determines the sizes of each layer's heads, and which layers read the keys of others.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use super::facts::Heads;
use super::{Facts, Fields, limits};
use crate::HeadSizes;
use crate::error::ModelError;

/// What layers have instead of the model's sizes.
pub(super) struct LayerHeads {
    /// `None` where they are the model's.
    pub(super) sizes: Option<HeadSizes>,
    /// The layer whose keys and values this one reads.
    pub(super) keys_of: Option<u32>,
    pub(super) values_are_keys: bool,
}

/// One entry per layer; `windows` has one too.
pub(super) fn layer_heads(
    config: &Fields<'_>,
    facts: &Facts,
    of_model: HeadSizes,
    windows: &[Option<u32>],
) -> Result<Vec<LayerHeads>, ModelError> {
    if facts.heads == Heads::Same {
        let same =
            |_: &Option<u32>| LayerHeads { sizes: None, keys_of: None, values_are_keys: false };
        return Ok(windows.iter().map(same).collect());
    }
    if windows.last().is_some_and(Option::is_some) {
        let supported = "full_attention in the last layer";
        return Err(config.unsupported("layer_types", "sliding_attention there", supported));
    }
    let values_are_keys = config.bool("attention_k_eq_v")?.unwrap_or(false);
    let full = sizes_of_full(config, of_model, windows, values_are_keys)?;
    let sources = sources(config, windows)?;
    let layers = windows.iter().zip(sources).map(|(window, keys_of)| LayerHeads {
        sizes: (window.is_none() && full != of_model).then_some(full),
        keys_of,
        values_are_keys: values_are_keys && window.is_none(),
    });
    Ok(layers.collect())
}

/// Of the layers that see everything.
fn sizes_of_full(
    config: &Fields<'_>,
    of_model: HeadSizes,
    windows: &[Option<u32>],
    values_are_keys: bool,
) -> Result<HeadSizes, ModelError> {
    let Some(by_layer) = config.object(BY_LAYER)? else {
        let head_dim = config.required("global_head_dim", limits::HEAD_DIM)?;
        let kv_heads = config.positive("num_global_key_value_heads", limits::HEADS)?;
        let num_kv_heads = kv_heads.filter(|_| values_are_keys).unwrap_or(of_model.num_kv_heads);
        return checked(config, HeadSizes { num_kv_heads, head_dim });
    };
    let is_layer = |key: &&str| key.parse().is_ok_and(|layer: usize| layer < windows.len());
    if let Some(key) = by_layer.keys().find(|key| !is_layer(key)) {
        return Err(by_layer.unsupported(key, "an entry", "numbers of layers"));
    }
    let mut found: Option<HeadSizes> = None;
    for (layer, window) in windows.iter().enumerate() {
        let key = by_layer.keys().find(|key| key.parse() == Ok(layer));
        let sizes = match key.map(|key| by_layer.object(key)).transpose()?.flatten() {
            None => of_model,
            Some(fields) => {
                if let Some(key) = fields.keys().find(|key| !SIZES.contains(key)) {
                    return Err(fields.unsupported(key, "a value by layer", SIZES.join(", ")));
                }
                let head_dim = fields.positive("head_dim", limits::HEAD_DIM)?;
                let kv_heads = fields.positive("num_key_value_heads", limits::HEADS)?;
                HeadSizes {
                    num_kv_heads: kv_heads.unwrap_or(of_model.num_kv_heads),
                    head_dim: head_dim.unwrap_or(of_model.head_dim),
                }
            }
        };
        let wanted = if window.is_some() { of_model } else { *found.get_or_insert(sizes) };
        if sizes != wanted {
            let reason = format!("layer {layer} differs from the others of its type");
            return Err(config.error(BY_LAYER, reason));
        }
    }
    checked(config, found.unwrap_or(of_model))
}

fn checked(config: &Fields<'_>, sizes: HeadSizes) -> Result<HeadSizes, ModelError> {
    let heads = config.required("num_attention_heads", limits::HEADS)?;
    if !heads.is_multiple_of(sizes.num_kv_heads) {
        let reason = format!("{} does not divide {heads} query heads", sizes.num_kv_heads);
        return Err(config.error("num_global_key_value_heads", reason));
    }
    if !sizes.head_dim.is_multiple_of(2) {
        return Err(config.error("global_head_dim", format!("{} is odd", sizes.head_dim)));
    }
    Ok(sizes)
}

/// For each layer the one whose keys it reads: the last layers have none of their own.
fn sources(config: &Fields<'_>, windows: &[Option<u32>]) -> Result<Vec<Option<u32>>, ModelError> {
    let key = "num_kv_shared_layers";
    let shared = config.u32(key, limits::LAYERS)?.unwrap_or(0);
    let own = windows.len().checked_sub(usize::try_from(shared).unwrap_or(usize::MAX));
    let Some(own) = own.filter(|own| *own > 0) else {
        return Err(config.error(key, format!("{shared} leaves no layer with keys")));
    };
    let (with_keys, without) = windows.split_at(own);
    let mut sources = vec![None; own];
    for window in without {
        let source = with_keys.iter().rposition(|other| other == window);
        let Some(source) = source.and_then(|source| u32::try_from(source).ok()) else {
            let reason = format!("{shared} leaves no layer with keys of the same type");
            return Err(config.error(key, reason));
        };
        sources.push(Some(source));
    }
    Ok(sources)
}

/// As transformers 5 writes the sizes.
const BY_LAYER: &str = "per_layer_config";
const SIZES: [&str; 2] = ["head_dim", "num_key_value_heads"];
