//! Published forms of 4-bit checkpoints' quantization_config, and what is refused.
#![allow(clippy::indexing_slicing, reason = "a test may panic")]

use serde_json::{Value, json};

use super::{FourBit, LinearForm};
use crate::Packing;
use crate::config::Fields;
use crate::quantisation::{Quantisation, read};

fn read_config(quantisation: &Value) -> Result<FourBit, String> {
    let config = json!({"quantization_config": quantisation});
    let config = Fields::of_file("config.json", &config).unwrap();
    match read(&config, None).map_err(|error| error.to_string())? {
        Some(Quantisation::FourBit(form)) => Ok(form),
        other => panic!("{other:?}"),
    }
}

/// The value with the field at `path` replaced.
fn with(mut value: Value, path: &str, field: Value) -> Value {
    let (parent, key) = path.rsplit_once('/').unwrap();
    value.pointer_mut(parent).unwrap()[key] = field;
    value
}

/// As llm-compressor writes W4A16.
fn compressed() -> Value {
    json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "quantization_status": "compressed", "kv_cache_scheme": null, "sparsity_config": {},
        "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": null,
            "output_activations": null, "format": "pack-quantized",
            "weights": {"actorder": null, "block_structure": null, "dynamic": false,
                "group_size": 128, "num_bits": 4, "observer": "minmax", "observer_kwargs": {},
                "strategy": "group", "symmetric": true, "type": "int"}}}})
}

fn awq() -> Value {
    json!({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true,
        "version": "gemm", "modules_to_not_convert": null})
}

fn gptq() -> Value {
    json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "damp_percent": 0.01,
        "desc_act": false, "static_groups": false, "sym": true, "true_sequential": true,
        "lm_head": false, "checkpoint_format": "gptq", "model_name_or_path": null,
        "model_file_base_name": "model"})
}

#[test]
fn test_published_forms_say_how_matrices_are_packed() {
    let weights = "/config_groups/group_0/weights";
    let form = |packing, group, stored_zeros| {
        Ok(FourBit::Linear(LinearForm { packing, group, stored_zeros }))
    };
    let symmetric = || form(Packing::Rows, Some(128), None);
    assert_eq!(read_config(&compressed()), symmetric());
    let asymmetric = with(compressed(), &format!("{weights}/symmetric"), json!(false));
    assert_eq!(read_config(&asymmetric), form(Packing::Rows, Some(128), Some(0)));
    let ordered = with(compressed(), &format!("{weights}/actorder"), json!("group"));
    assert_eq!(read_config(&ordered), symmetric());
    let channel = with(compressed(), &format!("{weights}/strategy"), json!("channel"));
    assert_eq!(read_config(&channel), form(Packing::Rows, None, None));
    let mut two = compressed();
    two["config_groups"]["group_1"] = two["config_groups"]["group_0"].clone();
    assert_eq!(read_config(&two), symmetric());

    assert_eq!(read_config(&awq()), form(Packing::Awq, Some(128), Some(0)));
    assert_eq!(read_config(&gptq()), form(Packing::Gptq, Some(128), Some(1)));
    let v2 = with(gptq(), "/checkpoint_format", json!("gptq_v2"));
    assert_eq!(read_config(&v2), form(Packing::Gptq, Some(128), Some(0)));
    let whole = with(gptq(), "/group_size", json!(-1));
    assert_eq!(read_config(&whole), form(Packing::Gptq, None, Some(1)));
    let experts = json!({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]});
    assert_eq!(read_config(&experts), Ok(FourBit::Mxfp4));
}

#[test]
fn test_other_values_and_unknown_fields_are_refused_by_name() {
    for (form, path, value, reason) in [
        (awq(), "/bits", json!(8), "quantization_config.bits: 8 is not supported (supported: 4)"),
        (awq(), "/bits", json!(null), "quantization_config.bits is missing"),
        (awq(), "/zero_point", json!(false), "zero_point: false is not supported"),
        (awq(), "/version", json!("gemv"), "version: gemv is not supported (supported: gemm)"),
        (awq(), "/group_size", json!(0), "group_size: 0 is not an integer from 1"),
        (awq(), "/group_size", json!(null), "group_size is missing"),
        (awq(), "/rotation", json!(1), "rotation: 1 is not supported (supported: 4-bit weights"),
        (gptq(), "/bits", json!(3), "quantization_config.bits: 3"),
        (gptq(), "/checkpoint_format", json!("marlin"), "checkpoint_format: marlin"),
        (gptq(), "/is_marlin_format", json!(true), "is_marlin_format: true"),
        (gptq(), "/pack_dtype", json!("int8"), "pack_dtype: int8"),
        (gptq(), "/dynamic", json!({"-:lm": {}}), "quantization_config.dynamic"),
        (json!({"quant_method": "mxfp4"}), "/bits", json!(4), "quantization_config.bits: 4"),
    ] {
        let error = read_config(&with(form, path, value)).unwrap_err();
        assert!(
            error.starts_with("config.json: quantization_config") && error.contains(reason),
            "{error}"
        );
    }
    for (part, value, reason) in [
        ("weights/num_bits", json!(8), "weights.num_bits: 8 is not supported"),
        ("weights/type", json!("float"), "weights.type: float is not supported"),
        ("weights/strategy", json!("tensor"), "weights.strategy: tensor is not supported"),
        ("weights/strategy", json!(null), "weights.strategy is missing"),
        ("weights/group_size", json!(null), "weights.group_size is missing"),
        ("weights/dynamic", json!(true), "weights.dynamic: true"),
        ("weights/actorder", json!("dynamic"), "weights.actorder: dynamic"),
        ("weights/block_structure", json!([1, 2]), "weights.block_structure: [1,2]"),
        ("input_activations", json!({"num_bits": 8}), "group_0.input_activations: an object"),
        ("format", json!("float-quantized"), "group_0.format: float-quantized"),
        ("weights", json!(null), "group_0.weights is missing"),
    ] {
        let path = format!("/config_groups/group_0/{part}");
        let error = read_config(&with(compressed(), &path, value)).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    let mut two = compressed();
    two["config_groups"]["group_1"] = two["config_groups"]["group_0"].clone();
    two["config_groups"]["group_1"]["weights"]["group_size"] = json!(64);
    let error = read_config(&two).unwrap_err();
    assert!(error.contains("config_groups.group_1: packs its weights otherwise"), "{error}");
    let none = with(compressed(), "/config_groups", json!({}));
    assert!(read_config(&none).unwrap_err().contains("config_groups: no group"));
}
