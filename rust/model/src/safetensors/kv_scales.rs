//! Finds the scales of an fp8 KV cache among the tensors of a checkpoint.

use super::plan::Found;
use crate::catalogue::Catalogue;
use crate::error::ModelError;
use crate::kv_format::{LayerScales, ScaleTensor};

/// Where llm-compressor, ModelOpt, AutoFP8 and vLLM write the scales of keys and of values, behind
/// `layers.N.self_attn.`
const NAMES: [[&str; 2]; 5] = [
    ["k_scale", "v_scale"],
    ["attn.k_scale", "attn.v_scale"],
    ["k_proj.k_scale", "v_proj.v_scale"],
    ["qkv_proj.k_scale", "qkv_proj.v_scale"],
    ["k_proj.output_scale", "v_proj.output_scale"],
];

/// The scales of each layer, of which those with one number count.
///
/// # Errors
/// A scale of a type that is no number.
pub(crate) fn kv_scales(
    found: Found,
    catalogue: &Catalogue,
    num_layers: usize,
) -> Result<Vec<LayerScales>, ModelError> {
    let find = |layer: usize, part: usize| {
        let name = |names: &[&str; 2]| {
            found.layer_name(layer, &format!("self_attn.{}", names.get(part).unwrap_or(&"")))
        };
        let tensors = NAMES.iter().map(name).map(|name| tensor(catalogue, name));
        tensors.filter_map(Result::transpose).next().transpose()
    };
    let of_layer = |layer| Ok(LayerScales { key: find(layer, 0)?, value: find(layer, 1)? });
    (0..num_layers).map(of_layer).collect()
}

fn tensor(catalogue: &Catalogue, name: String) -> Result<Option<ScaleTensor>, ModelError> {
    let Some(entry) = catalogue.entry(&name) else { return Ok(None) };
    if entry.shape.iter().any(|dimension| *dimension != 1) {
        return Ok(None);
    }
    let weight_type = catalogue.number_type(&name, entry)?;
    Ok(Some(ScaleTensor { file: entry.file, offset: entry.offset, weight_type, name }))
}
