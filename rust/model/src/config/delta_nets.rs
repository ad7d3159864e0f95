//! Determines which layers are gated delta nets, and their sizes.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use serde_json::Value;

use super::{Facts, Fields, limits};
use crate::DeltaNetSpec;
use crate::error::ModelError;

/// One entry per layer.
pub(super) fn delta_nets(
    config: &Fields<'_>,
    facts: &Facts,
    layers: u32,
) -> Result<Vec<Option<DeltaNetSpec>>, ModelError> {
    if !facts.has_delta_nets {
        return Ok((0..layers).map(|_| None).collect());
    }
    if let Some(window) = config.positive("sliding_window", u32::MAX)? {
        let supported = "null in this family";
        return Err(config.unsupported("sliding_window", window.to_string(), supported));
    }
    let required = |key, most| config.required(key, most);
    let net = DeltaNetSpec {
        num_key_heads: required("linear_num_key_heads", limits::HEADS)?,
        num_value_heads: required("linear_num_value_heads", limits::HEADS)?,
        key_dim: required("linear_key_head_dim", HEAD_DIM)?,
        value_dim: required("linear_value_head_dim", HEAD_DIM)?,
        conv_kernel: required("linear_conv_kernel_dim", CONV_KERNEL)?,
    };
    if !net.num_value_heads.is_multiple_of(net.num_key_heads) {
        let reason = format!("{} does not divide {}", net.num_key_heads, net.num_value_heads);
        return Err(config.error("linear_num_key_heads", reason));
    }
    if net.conv_kernel < 2 {
        return Err(config.error("linear_conv_kernel_dim", "1 is below 2"));
    }
    let is_net = is_delta_net(config, layers)?;
    if is_net.iter().all(|is_net| *is_net) {
        return Err(config.error("layer_types", "no layer has full_attention"));
    }
    Ok(is_net.into_iter().map(|is_net| is_net.then_some(net)).collect())
}

/// For each layer whether it is one.
fn is_delta_net(config: &Fields<'_>, layers: u32) -> Result<Vec<bool>, ModelError> {
    let key = "layer_types";
    let list = match config.get(key) {
        None => {
            let interval =
                config.positive("full_attention_interval", limits::LAYERS)?.unwrap_or(INTERVAL);
            return Ok((1..=layers).map(|number| !number.is_multiple_of(interval)).collect());
        }
        Some(Value::Array(list)) => list,
        Some(other) => return Err(config.wrong(key, other, "a list of names")),
    };
    if u32::try_from(list.len()) != Ok(layers) {
        let reason = format!("has {} entries for {layers} layers", list.len());
        return Err(config.error(key, reason));
    }
    let types = list.iter().map(|value| match value.as_str() {
        Some("full_attention") => Ok(false),
        Some("linear_attention") => Ok(true),
        Some(other) => Err(config.unsupported(key, other, "full_attention, linear_attention")),
        None => Err(config.wrong(key, value, "a name")),
    });
    types.collect()
}

/// Without `full_attention_interval`.
const INTERVAL: u32 = 4;
/// Widest head that executors take.
const HEAD_DIM: u32 = 256;
/// Longest convolution.
const CONV_KERNEL: u32 = 16;
