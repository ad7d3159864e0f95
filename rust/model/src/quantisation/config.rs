//! `quantization_config` of config.json, and ModelOpt's hf_quant_config.json, to a `Scheme`. Every field
//! is read, known to have no effect, or refused by name.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use serde_json::Value;

use super::scheme::{Layout, Scheme};
use crate::config::Fields;
use crate::error::{ModelError, shown};

/// The scheme of a checkpoint; `None` if neither file speaks of quantisation.
///
/// `model_opt`: hf_quant_config.json, if the folder has it.
pub(crate) fn read(
    config: &Fields<'_>,
    model_opt: Option<&Fields<'_>>,
) -> Result<Option<Scheme>, ModelError> {
    let exported = model_opt.map(exported).transpose()?;
    let Some(fields) = config.object(CONFIG)? else { return Ok(exported) };
    let method = fields.string("quant_method")?.ok_or_else(|| fields.missing("quant_method"))?;
    let scheme = match method {
        "compressed-tensors" => compressed_tensors(&fields)?,
        "fp8" => fp8(&fields)?,
        "modelopt" => model_opt_fields(&fields)?,
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

/// compressed-tensors, what llm-compressor writes: one or more groups, all of 8-bit floats.
fn compressed_tensors(fields: &Fields<'_>) -> Result<Scheme, ModelError> {
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
    )?;
    one_of(fields, "format", &["float-quantized", "naive-quantized"], FP8_ONLY)?;
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
    groups(fields)?.ok_or_else(|| fields.missing("config_groups"))
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
    )?;
    groups(fields)?;
    algorithm(fields)
}

/// hf_quant_config.json
fn exported(file: &Fields<'_>) -> Result<Scheme, ModelError> {
    known(file, &["quantization"], &["producer"])?;
    let fields = file.object("quantization")?.ok_or_else(|| file.missing("quantization"))?;
    known(&fields, &["quant_algo"], &["exclude_modules", "kv_cache_quant_algo"])?;
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

/// Refuses a value that is there and not one of these.
fn one_of(
    fields: &Fields<'_>,
    key: &str,
    allowed: &[&str],
    supported: &'static str,
) -> Result<(), ModelError> {
    match fields.string(key)? {
        Some(value) if !allowed.contains(&value) => Err(fields.unsupported(key, value, supported)),
        _ => Ok(()),
    }
}

/// Refuses a field that is neither read nor known to have no effect.
fn known(fields: &Fields<'_>, read: &[&str], no_effect: &[&str]) -> Result<(), ModelError> {
    for (key, value) in fields.entries() {
        if !read.contains(&key) && !no_effect.contains(&key) {
            let value = shown(&value.to_string());
            return Err(fields.unsupported(key, value, "fp8 without this field"));
        }
    }
    Ok(())
}

const CONFIG: &str = "quantization_config";
const METHODS: &str = "compressed-tensors, fp8 and modelopt, with weights of 8-bit floats; also \
                       unquantised weights, with --quantization fp8, and block formats in GGUF";
const FP8_ONLY: &str = "weights of 8-bit floats; also unquantised weights, with --quantization fp8, \
                        and block formats in GGUF";

#[cfg(test)]
mod tests;
