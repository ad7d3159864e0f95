//! Published forms of quantization_config, and what is refused.
#![allow(clippy::indexing_slicing, reason = "a test may panic")]

use serde_json::json;

use super::*;

fn scheme(config: Value, exported: Option<Value>) -> Result<Option<Scheme>, String> {
    let config = Fields::of_file("config.json", &config).unwrap();
    let exported = exported.as_ref().map(|e| Fields::of_file("hf_quant_config.json", e).unwrap());
    match read(&config, exported.as_ref()).map_err(|error| error.to_string())? {
        Some(Quantisation::Fp8(scheme)) => Ok(Some(scheme)),
        None => Ok(None),
        Some(other) => panic!("{other:?}"),
    }
}

fn layouts(quantisation: Value) -> Vec<Layout> {
    let found = scheme(json!({"quantization_config": quantisation}), None);
    found.unwrap().unwrap().layouts
}

fn refused(quantisation: Value) -> String {
    scheme(json!({"quantization_config": quantisation}), None).unwrap_err()
}

/// The value with the field at `path` replaced.
fn with(mut value: Value, path: &str, field: Value) -> Value {
    let (parent, key) = path.rsplit_once('/').unwrap();
    value.pointer_mut(parent).unwrap()[key] = field;
    value
}

/// As llm-compressor writes FP8_DYNAMIC.
fn compressed() -> Value {
    let numbers = |strategy: &str, dynamic: bool| {
        json!({"actorder": null, "block_structure": null, "dynamic": dynamic, "group_size": null,
            "num_bits": 8, "observer": "minmax", "observer_kwargs": {}, "scale_dtype": null,
            "strategy": strategy, "symmetric": true, "type": "float", "zp_dtype": null})
    };
    json!({"quant_method": "compressed-tensors", "format": "float-quantized", "version": "0.12",
        "global_compression_ratio": null, "ignore": ["lm_head", "re:.*mlp.gate$"],
        "kv_cache_scheme": null, "quantization_status": "compressed", "sparsity_config": {},
        "transform_config": {},
        "config_groups": {"group_0": {"targets": ["Linear"], "format": "float-quantized",
            "weights": numbers("channel", false), "output_activations": null,
            "input_activations": numbers("token", true)}}})
}

const WEIGHTS: &str = "/config_groups/group_0/weights";

#[test]
fn test_published_forms_give_their_layouts() {
    assert_eq!(layouts(compressed()), [Layout::Channel]);
    let tensor = with(compressed(), &format!("{WEIGHTS}/strategy"), json!("tensor"));
    assert_eq!(layouts(tensor), [Layout::Tensor]);
    let blocks = with(compressed(), &format!("{WEIGHTS}/strategy"), json!("block"));
    let blocks = with(blocks, &format!("{WEIGHTS}/block_structure"), json!([128, 128]));
    let inputs = "/config_groups/group_0/input_activations";
    let blocks = with(blocks, &format!("{inputs}/strategy"), json!("group"));
    let blocks = with(blocks, &format!("{inputs}/group_size"), json!(128));
    assert_eq!(layouts(blocks), [Layout::Block(128, 128)]);
    let cache = json!({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false});
    assert_eq!(layouts(with(compressed(), "/kv_cache_scheme", cache)), [Layout::Channel]);
    let mut two = compressed();
    two["config_groups"]["group_1"] = two["config_groups"]["group_0"].clone();
    two["config_groups"]["group_1"]["weights"]["strategy"] = json!("tensor");
    assert_eq!(layouts(two), [Layout::Channel, Layout::Tensor]);

    let qwen = json!({"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
        "modules_to_not_convert": ["lm_head"], "weight_block_size": [128, 128]});
    assert_eq!(layouts(qwen.clone()), [Layout::Block(128, 128)]);
    assert_eq!(layouts(with(qwen, "/scale_fmt", json!("ue8m0"))), [Layout::Block(128, 128)]);
    let mistral = json!({"quant_method": "fp8", "activation_scheme": "static",
        "dequantize": false, "modules_to_not_convert": ["lm_head"], "weight_block_size": null});
    assert_eq!(layouts(mistral), [Layout::Tensor]);
    let older = json!({"quant_method": "fp8", "activation_scheme": "static",
        "ignored_layers": ["re:.*lm_head"], "kv_cache_scheme": "static"});
    assert_eq!(layouts(older), [Layout::Tensor]);
}

#[test]
fn test_model_opt_is_read_from_either_file() {
    let exported = json!({"producer": {"name": "modelopt", "version": "0.29"}, "quantization":
        {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}});
    let inline = json!({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"],
        "producer": {"name": "modelopt"},
        "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},
        "config_groups": {"group_0": {"targets": ["Linear"],
            "weights": {"dynamic": false, "num_bits": 8, "type": "float"},
            "input_activations": {"dynamic": false, "num_bits": 8, "type": "float"}}}});
    let tensor = Some(Scheme { layouts: vec![Layout::Tensor] });
    assert_eq!(scheme(json!({}), Some(exported.clone())), Ok(tensor.clone()));
    let both = json!({"quantization_config": inline.clone()});
    assert_eq!(scheme(both.clone(), None), Ok(tensor.clone()));
    assert_eq!(scheme(both.clone(), Some(exported.clone())), Ok(tensor));
    let channel = "FP8_PER_CHANNEL_PER_TOKEN";
    assert_eq!(layouts(with(inline, "/quant_algo", json!(channel))), [Layout::Channel]);
    let other = with(exported.clone(), "/quantization/quant_algo", json!(channel));
    assert_eq!(
        scheme(both, Some(other)).unwrap_err(),
        "config.json: quantization_config: hf_quant_config.json says something else"
    );
    let nvfp4 = with(exported, "/quantization/quant_algo", json!("NVFP4"));
    assert_eq!(
        scheme(json!({}), Some(nvfp4)).unwrap_err(),
        "hf_quant_config.json: quantization.quant_algo: NVFP4 is not supported (supported: FP8, \
         FP8_PER_CHANNEL_PER_TOKEN)"
    );
    assert_eq!(scheme(json!({}), None), Ok(None));
}

#[test]
fn test_other_methods_and_values_are_refused_by_name() {
    for method in ["bitsandbytes", "aqlm", "fbgemm_fp8"] {
        let error = refused(json!({"quant_method": method, "bits": 4}));
        let start = format!(
            "config.json: quantization_config.quant_method: {method} is not supported (supported: \
             compressed-tensors, fp8, modelopt, awq, gptq and mxfp4"
        );
        assert!(error.starts_with(&start), "{error}");
        assert!(error.contains("--quantization fp8"), "{error}");
    }
    assert!(refused(json!({})).contains("quantization_config.quant_method is missing"));
    let group = "/config_groups/group_0";
    for (path, value, reason) in [
        (
            "/format",
            json!("nvfp4-pack-quantized"),
            "quantization_config.format: nvfp4-pack-quantized",
        ),
        ("/format", json!("pack-quantized"), "group_0.format: float-quantized"),
        ("/sparsity_config", json!({"format": "sparse-24"}), "sparsity_config: sparse-24"),
        ("/transform_config", json!({"config_groups": {}}), "transform_config: an object"),
        ("/config_groups", json!({}), "quantization_config.config_groups: no group"),
        ("/config_groups", json!(null), "quantization_config.config_groups is missing"),
        ("/rotation", json!(1), "quantization_config.rotation: 1 is not supported"),
    ] {
        let error = refused(with(compressed(), path, value));
        assert!(error.contains(reason), "{error}");
    }
    for (part, value, reason) in [
        ("weights/num_bits", json!(4), "weights.num_bits: 4 is not supported"),
        ("weights/num_bits", json!(null), "weights.num_bits: null is not supported"),
        ("weights/type", json!("int"), "weights.type: int is not supported"),
        ("weights/strategy", json!("group"), "weights.strategy: group is not supported"),
        ("weights/strategy", json!("block"), "weights.block_structure is missing"),
        ("weights/symmetric", json!(false), "weights.symmetric: false is not supported"),
        ("weights/dynamic", json!(true), "weights.dynamic: true is not supported"),
        ("weights/actorder", json!("group"), "weights.actorder: \"group\" is not"),
        ("weights/extra", json!([1]), "weights.extra: [1] is not supported"),
        ("weights", json!(null), "group_0.weights is missing"),
        ("input_activations/num_bits", json!(4), "input_activations.num_bits: 4"),
        ("output_activations", json!({}), "group_0.output_activations: an object is not"),
        ("format", json!("nvfp4-pack-quantized"), "group_0.format: nvfp4-pack-quantized"),
    ] {
        let error = refused(with(compressed(), &format!("{group}/{part}"), value));
        assert!(error.contains(reason), "{error}");
    }
    for (field, value, reason) in [
        ("fmt", json!("e5m2"), "quantization_config.fmt: e5m2 is not supported"),
        ("activation_scheme", json!("token"), "activation_scheme: token is not supported"),
        ("weight_block_size", json!([128]), "weight_block_size: a list is not two sizes"),
        ("weight_block_size", json!([0, 128]), "weight_block_size: a list is not two sizes"),
        ("weight_block_size", json!(128), "weight_block_size: 128 is not two sizes"),
        ("bits", json!(8), "quantization_config.bits: 8 is not supported"),
    ] {
        let mut config = json!({"quant_method": "fp8"});
        config[field] = value;
        let error = refused(config);
        assert!(error.contains(reason), "{error}");
    }
}
