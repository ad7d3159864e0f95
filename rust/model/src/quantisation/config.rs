//! `quantization_config` of config.json, and ModelOpt's hf_quant_config.json, to a `Quantisation`.
//! Every field is read, known to have no effect, or refused by name.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use serde_json::Value;

use super::checks::{known, one_of};
use super::four_bit::{self, FourBit};
use super::scheme::{Layout, Scheme};
use crate::Packing;
use crate::config::Fields;
use crate::error::ModelError;

/// How the matrices of a checkpoint are quantised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Quantisation {
    /// fp8 with these scales.
    Fp8(Scheme),
    /// 4-bit codes in groups.
    FourBit(FourBit),
}

impl Quantisation {
    /// Whether AutoGPTQ's tensors hold the matrices.
    pub(crate) fn is_gptq(&self) -> bool {
        matches!(self, Self::FourBit(FourBit::Linear(form)) if form.packing == Packing::Gptq)
    }
}

/// How a checkpoint is quantised; `None` if neither file speaks of it.
///
/// `model_opt`: hf_quant_config.json, if the folder has it.
pub(crate) fn read(
    config: &Fields<'_>,
    model_opt: Option<&Fields<'_>>,
) -> Result<Option<Quantisation>, ModelError> {
    use Quantisation::{FourBit, Fp8};
    let exported = model_opt.map(exported).transpose()?.map(Fp8);
    let Some(fields) = config.object(CONFIG)? else { return Ok(exported) };
    let method = fields.string("quant_method")?.ok_or_else(|| fields.missing("quant_method"))?;
    let scheme = match method {
        "compressed-tensors" => compressed_tensors(&fields)?,
        "fp8" => Fp8(fp8(&fields)?),
        "modelopt" => Fp8(model_opt_fields(&fields)?),
        "awq" => FourBit(four_bit::awq(&fields)?),
        "gptq" => FourBit(four_bit::gptq(&fields)?),
        "mxfp4" => FourBit(four_bit::mxfp4(&fields)?),
        other => return Err(fields.unsupported("quant_method", other, METHODS)),
    };
    match exported {
        Some(exported) if exported != scheme => {
            let reason = "hf_quant_config.json says something else";
            Err(config.error(CONFIG, reason))
        }
        _ => Ok(Some(scheme)),
    }
}

/// compressed-tensors, what llm-compressor writes: one or more groups, all of 8-bit floats or
/// all of 4-bit integers.
fn compressed_tensors(fields: &Fields<'_>) -> Result<Quantisation, ModelError> {
    known(
        fields,
        &["quant_method", "format", "config_groups", "sparsity_config", "transform_config"],
        &[
            "ignore",
            "kv_cache_scheme",
            "quantization_status",
            "global_compression_ratio",
            "version",
        ],
        FP8_WITHOUT,
    )?;
    let formats = ["float-quantized", "naive-quantized", PACKED];
    one_of(fields, "format", &formats, FORMATS)?;
    // Weights left out, or inputs rotated, would need other arithmetic.
    for key in ["sparsity_config", "transform_config"] {
        if let Some(object) = fields.object(key)? {
            let format = object.string("format")?;
            if format != Some("dense") && object.keys().next().is_some() {
                return Err(fields.unsupported(
                    key,
                    format.unwrap_or("an object"),
                    "an empty object",
                ));
            }
        }
    }
    let missing = || fields.missing("config_groups");
    if fields.string("format")? == Some(PACKED) {
        return packed_groups(fields)?.map(Quantisation::FourBit).ok_or_else(missing);
    }
    groups(fields)?.map(Quantisation::Fp8).ok_or_else(missing)
}

/// `config_groups` of 4-bit integers: all alike, for nothing but names says which matrix is of which group.
fn packed_groups(fields: &Fields<'_>) -> Result<Option<FourBit>, ModelError> {
    let Some(groups) = fields.object("config_groups")? else { return Ok(None) };
    let mut found = None;
    for name in groups.keys() {
        let group = groups.object(name)?.ok_or_else(|| groups.missing(name))?;
        let read = ["weights", "input_activations", "output_activations", "format"];
        known(&group, &read, &["targets"], "4-bit weights without this field")?;
        one_of(&group, "format", &[PACKED], PACKED)?;
        for key in ["input_activations", "output_activations"] {
            if group.get(key).is_some() {
                return Err(group.unsupported(key, "an object", "null"));
            }
        }
        let weights = group.object("weights")?.ok_or_else(|| group.missing("weights"))?;
        let own = four_bit::packed_weights(&weights)?;
        if *found.get_or_insert(own) != own {
            return Err(groups.error(name, "packs its weights otherwise than the group before"));
        }
    }
    match found {
        Some(found) => Ok(Some(found)),
        None => Err(fields.error("config_groups", "no group")),
    }
}

/// DeepSeek, Qwen and transformers (blocks, or one scale a tensor), AutoFP8 and Mistral (one a tensor).
fn fp8(fields: &Fields<'_>) -> Result<Scheme, ModelError> {
    known(
        fields,
        &["quant_method", "fmt", "activation_scheme", "weight_block_size"],
        &[
            "modules_to_not_convert",
            "ignored_layers",
            "kv_cache_scheme",
            // How activations would be rounded, and whether transformers keeps fp8 in memory.
            "scale_fmt",
            "dequantize",
        ],
        FP8_WITHOUT,
    )?;
    one_of(fields, "fmt", &["e4m3", "float8_e4m3fn"], "e4m3")?;
    one_of(fields, "activation_scheme", &["dynamic", "static"], "dynamic, static")?;
    let layout = block(fields, "weight_block_size")?.unwrap_or(Layout::Tensor);
    Ok(Scheme { layouts: vec![layout] })
}

/// ModelOpt's fields as they stand in config.json.
fn model_opt_fields(fields: &Fields<'_>) -> Result<Scheme, ModelError> {
    known(
        fields,
        &["quant_method", "quant_algo", "config_groups"],
        &["ignore", "exclude_modules", "kv_cache_scheme", "kv_cache_quant_algo", "producer"],
        FP8_WITHOUT,
    )?;
    groups(fields)?;
    algorithm(fields)
}

/// hf_quant_config.json
fn exported(file: &Fields<'_>) -> Result<Scheme, ModelError> {
    known(file, &["quantization"], &["producer"], FP8_WITHOUT)?;
    let fields = file.object("quantization")?.ok_or_else(|| file.missing("quantization"))?;
    known(&fields, &["quant_algo"], &["exclude_modules", "kv_cache_quant_algo"], FP8_WITHOUT)?;
    algorithm(&fields)
}

fn algorithm(fields: &Fields<'_>) -> Result<Scheme, ModelError> {
    let key = "quant_algo";
    let layout = match fields.string(key)?.ok_or_else(|| fields.missing(key))? {
        "FP8" => Layout::Tensor,
        "FP8_PER_CHANNEL_PER_TOKEN" => Layout::Channel,
        other => return Err(fields.unsupported(key, other, "FP8, FP8_PER_CHANNEL_PER_TOKEN")),
    };
    Ok(Scheme { layouts: vec![layout] })
}

/// `config_groups`: which modules (seen from their types instead) have which numbers.
fn groups(fields: &Fields<'_>) -> Result<Option<Scheme>, ModelError> {
    let Some(groups) = fields.object("config_groups")? else { return Ok(None) };
    let mut layouts = Vec::new();
    for name in groups.keys() {
        let group = groups.object(name)?.ok_or_else(|| groups.missing(name))?;
        known(
            &group,
            &["weights", "input_activations", "output_activations", "format"],
            &["targets"],
            FP8_WITHOUT,
        )?;
        one_of(&group, "format", &["float-quantized", "naive-quantized"], FP8_ONLY)?;
        if group.get("output_activations").is_some() {
            return Err(group.unsupported("output_activations", "an object", "null"));
        }
        if let Some(activations) = group.object("input_activations")? {
            // Activations are not rounded with these numbers, but those of another kind show a format
            // that is not this one.
            eight_bit_float(&activations)?;
        }
        let weights = group.object("weights")?.ok_or_else(|| group.missing("weights"))?;
        let layout = weights_layout(&weights)?;
        if !layouts.contains(&layout) {
            layouts.push(layout);
        }
    }
    if layouts.is_empty() {
        return Err(fields.error("config_groups", "no group"));
    }
    Ok(Some(Scheme { layouts }))
}

fn weights_layout(weights: &Fields<'_>) -> Result<Layout, ModelError> {
    eight_bit_float(weights)?;
    if weights.bool("dynamic")?.unwrap_or(false) {
        return Err(weights.unsupported("dynamic", "true", "false"));
    }
    let key = "strategy";
    match weights.string(key)?.unwrap_or("tensor") {
        "tensor" => Ok(Layout::Tensor),
        "channel" => Ok(Layout::Channel),
        "block" => {
            block(weights, "block_structure")?.ok_or_else(|| weights.missing("block_structure"))
        }
        other => Err(weights.unsupported(key, other, "tensor, channel, block")),
    }
}

/// Refuses numbers that are not symmetric 8-bit floats.
fn eight_bit_float(fields: &Fields<'_>) -> Result<(), ModelError> {
    known(
        fields,
        &["num_bits", "type", "symmetric", "strategy", "dynamic", "block_structure", "actorder"],
        // How the scales were found, and how inputs would be grouped.
        &["group_size", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"],
        FP8_WITHOUT,
    )?;
    if fields.u32("num_bits", 64)? != Some(8) {
        let bits = fields.get("num_bits").map_or_else(|| "null".to_owned(), Value::to_string);
        return Err(fields.unsupported("num_bits", bits, FP8_ONLY));
    }
    one_of(fields, "type", &["float"], FP8_ONLY)?;
    if !fields.bool("symmetric")?.unwrap_or(true) {
        return Err(fields.unsupported("symmetric", "false", "true"));
    }
    if let Some(order) = fields.get("actorder") {
        return Err(fields.unsupported("actorder", order.to_string(), "null"));
    }
    Ok(())
}

/// Two numbers, rows and columns of a block.
fn block(fields: &Fields<'_>, key: &str) -> Result<Option<Layout>, ModelError> {
    let Some(value) = fields.get(key) else { return Ok(None) };
    let numbers: Option<Vec<u32>> = value.as_array().and_then(|list| {
        list.iter().map(|n| n.as_u64().and_then(|n| u32::try_from(n).ok())).collect()
    });
    match numbers.as_deref() {
        Some(&[rows, cols]) if rows > 0 && cols > 0 => Ok(Some(Layout::Block(rows, cols))),
        _ => Err(fields.wrong(key, value, "two sizes, such as [128, 128]")),
    }
}

const CONFIG: &str = "quantization_config";
const METHODS: &str = "compressed-tensors, fp8, modelopt, awq, gptq and mxfp4; also unquantised weights, with \
                       --quantization fp8, and block formats in GGUF";
const PACKED: &str = "pack-quantized";
const FORMATS: &str = "float-quantized, naive-quantized, pack-quantized; also unquantised weights, with \
                       --quantization fp8, and block formats in GGUF";
const FP8_WITHOUT: &str = "fp8 without this field";
const FP8_ONLY: &str = "weights of 8-bit floats; also unquantised weights, with --quantization fp8, \
                        and block formats in GGUF";

#[cfg(test)]
mod tests;
