//! `quantization_config` of checkpoints with 4-bit weights: AWQ, GPTQ, compressed-tensors' pack-quantized
//! and gpt-oss's MXFP4. Which matrices are quantised is seen from the names of their tensors.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use serde_json::Value;

use super::checks::{known, one_of};
use crate::Packing;
use crate::config::Fields;
use crate::error::ModelError;

/// How a checkpoint's 4-bit matrices lie in tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FourBit {
    /// Linear layers, each with tensors of its own.
    Linear(LinearForm),
    /// `_blocks` and `_scales` of stacked experts.
    Mxfp4,
}

/// How a linear layer is packed. `Packing::Rows` has `weight_packed`, `weight_scale` and
/// `weight_zero_point`; the others have `qweight`, `scales` and `qzeros`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinearForm {
    pub(crate) packing: Packing,
    /// Columns of a group; `None` for all.
    pub(crate) group: Option<u32>,
    /// What is added to stored zeros; `None` if none are stored and all are 8.
    pub(crate) stored_zeros: Option<u8>,
}

/// AutoAWQ, and what llm-compressor's and Intel's writers make in its form.
pub(super) fn awq(fields: &Fields<'_>) -> Result<FourBit, ModelError> {
    known(
        fields,
        &["quant_method", "bits", "group_size", "zero_point", "version", "backend"],
        &[
            "modules_to_not_convert",
            // How kernels of other programs run.
            "do_fuse",
            "modules_to_fuse",
            "fuse_max_seq_len",
            "exllama_config",
        ],
        SUPPORTED,
    )?;
    four_bits(fields)?;
    one_of(fields, "version", &["gemm", "GEMM"], "gemm")?;
    one_of(fields, "backend", &["autoawq"], "autoawq")?;
    if fields.bool("zero_point")? == Some(false) {
        return Err(fields.unsupported("zero_point", "false", "true"));
    }
    let group = group_size(fields)?;
    Ok(FourBit::Linear(LinearForm { packing: Packing::Awq, group, stored_zeros: Some(0) }))
}

/// AutoGPTQ and GPTQModel.
pub(super) fn gptq(fields: &Fields<'_>) -> Result<FourBit, ModelError> {
    known(
        fields,
        &[
            "quant_method",
            "bits",
            "group_size",
            "checkpoint_format",
            "format",
            "is_marlin_format",
            "pack_dtype",
        ],
        &[
            // The tensors show them: `g_idx` the order, `qzeros` the zeros, names the layers.
            "desc_act",
            "sym",
            "lm_head",
            "modules_in_block_to_quantize",
            "block_name_to_quantize",
            "module_name_preceding_first_block",
            // How the codes were found.
            "act_group_aware",
            "batch_size",
            "cache_block_outputs",
            "damp_auto_increment",
            "damp_percent",
            "dataset",
            "meta",
            "model_seqlen",
            "mse",
            "pad_token_id",
            "quantizer",
            "static_groups",
            "tokenizer",
            "true_sequential",
            "model_file_base_name",
            "model_name_or_path",
            // How kernels of other programs run.
            "backend",
            "disable_exllama",
            "exllama_config",
            "max_input_length",
            "use_exllama",
        ],
        SUPPORTED,
    )?;
    four_bits(fields)?;
    one_of(fields, "pack_dtype", &["int32"], "int32")?;
    if fields.bool("is_marlin_format")? == Some(true) {
        return Err(fields.unsupported("is_marlin_format", "true", "false"));
    }
    let mut add = 1;
    for key in ["checkpoint_format", "format"] {
        one_of(fields, key, &["gptq", "gptq_v2"], "gptq, gptq_v2")?;
        if fields.string(key)? == Some("gptq_v2") {
            add = 0;
        }
    }
    let group = group_size(fields)?;
    Ok(FourBit::Linear(LinearForm { packing: Packing::Gptq, group, stored_zeros: Some(add) }))
}

/// gpt-oss as OpenAI publishes it.
pub(super) fn mxfp4(fields: &Fields<'_>) -> Result<FourBit, ModelError> {
    let no_effect = ["modules_to_not_convert", "dequantize", "use_kernels"];
    known(fields, &["quant_method"], &no_effect, SUPPORTED)?;
    Ok(FourBit::Mxfp4)
}

/// `weights` of a group of compressed-tensors' config whose format is pack-quantized.
pub(super) fn packed_weights(weights: &Fields<'_>) -> Result<FourBit, ModelError> {
    known(
        weights,
        &["num_bits", "type", "symmetric", "strategy", "dynamic", "group_size", "actorder"],
        &["observer", "observer_kwargs", "scale_dtype", "zp_dtype"],
        SUPPORTED,
    )?;
    bits(weights, "num_bits")?;
    one_of(weights, "type", &["int"], "int")?;
    // With "group" the tensors have `weight_g_idx`; with "weight" and "static" columns lie as they were.
    one_of(weights, "actorder", &["group", "weight", "static"], "group, weight, static, null")?;
    if weights.bool("dynamic")?.unwrap_or(false) {
        return Err(weights.unsupported("dynamic", "true", "false"));
    }
    let key = "strategy";
    let group = match weights.string(key)?.ok_or_else(|| weights.missing(key))? {
        "group" => Some(weights.required("group_size", MAX_GROUP)?),
        "channel" => None,
        other => return Err(weights.unsupported(key, other, "group, channel")),
    };
    let is_symmetric = weights.bool("symmetric")?.unwrap_or(true);
    let stored_zeros = (!is_symmetric).then_some(0);
    Ok(FourBit::Linear(LinearForm { packing: Packing::Rows, group, stored_zeros }))
}

fn four_bits(fields: &Fields<'_>) -> Result<(), ModelError> {
    bits(fields, "bits")
}

fn bits(fields: &Fields<'_>, key: &str) -> Result<(), ModelError> {
    match fields.u32(key, 64)? {
        Some(4) => Ok(()),
        None => Err(fields.missing(key)),
        Some(other) => Err(fields.unsupported(key, other.to_string(), "4")),
    }
}

/// `group_size`; -1 stands for all columns.
fn group_size(fields: &Fields<'_>) -> Result<Option<u32>, ModelError> {
    if fields.get("group_size").and_then(Value::as_i64) == Some(-1) {
        return Ok(None);
    }
    fields.required("group_size", MAX_GROUP).map(Some)
}

const SUPPORTED: &str = "4-bit weights without this field";
/// Far above published ones, which are 32, 64 and 128.
const MAX_GROUP: u32 = 1 << 20;

#[cfg(test)]
mod tests;
