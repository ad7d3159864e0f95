//! Folders with fp8 weights: every layout of scales, fused and stacked tensors, and what is wrong with a
//! scale.

#![allow(clippy::unwrap_used, reason = "a test helper may panic")]

mod common;

use common::{
    Folder, Tensors, bare, byte_len, file_of, folder, header, llama_config, llama_tensors,
};
use ingle_model::{
    KvFormat, KvScales, LayerWeight, Order, ScaleView, WeightRole, WeightType, open,
};
use serde_json::{Value, json};

/// The llama whose linear layers are fp8, with scales of the shape that `scale` gives.
fn tensors(suffix: &str, dtype: &'static str, scale: impl Fn(&[u64]) -> Vec<u64>) -> Tensors {
    let mut tensors = Tensors::new();
    for (name, (old, shape)) in llama_tensors() {
        if name.contains("_proj") {
            tensors.insert(format!("{name}{suffix}"), (dtype, scale(&shape)));
            tensors.insert(name, ("F8_E4M3", shape));
        } else {
            tensors.insert(name, (old, shape));
        }
    }
    tensors
}

fn fp8_folder(quantisation: Value, tensors: &Tensors) -> Folder {
    let mut config = llama_config();
    config["quantization_config"] = quantisation;
    folder_of(&config, tensors)
}

/// Elements are 1, scales 0.5.
fn folder_of(config: &Value, tensors: &Tensors) -> Folder {
    let folder = bare(config);
    let bytes = safetensors_of(tensors, |name| match tensors[name].0 {
        "F8_E4M3" => vec![0x38],
        "F32" => 0.5_f32.to_le_bytes().to_vec(),
        "F16" => vec![0, 0x38],
        _ => vec![0, 0x3f],
    });
    folder.write("model.safetensors", bytes);
    folder
}

/// A safetensors file in which every tensor's bytes repeat those of `element`.
fn safetensors_of(tensors: &Tensors, element: impl Fn(&str) -> Vec<u8>) -> Vec<u8> {
    let mut bytes = file_of(&header(tensors).to_string(), 0);
    for (name, tensor) in tensors {
        let len = bytes.len() + byte_len(tensor);
        bytes.extend(element(name).into_iter().cycle().take(byte_len(tensor)));
        assert_eq!(bytes.len(), len, "an element of {name}");
    }
    bytes
}

fn static_fp8() -> Value {
    json!({"quant_method": "fp8", "activation_scheme": "static"})
}

fn blocks(rows: u32, cols: u32) -> Value {
    json!({"quant_method": "fp8", "weight_block_size": [rows, cols]})
}

fn channels() -> Value {
    let weights = json!({"num_bits": 8, "type": "float", "strategy": "channel"});
    json!({"quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}})
}

fn scale(folder: &Folder, part: LayerWeight) -> ScaleView {
    let checkpoint = open(folder.path()).unwrap();
    let view = &checkpoint.plan.tensors[&WeightRole::Layer(0, part)];
    assert_eq!(view.weight_type, WeightType::F8E4M3);
    assert_eq!(view.byte_len, u64::from(view.rows) * u64::from(view.cols));
    let scale = view.scale.clone().unwrap();
    let values = scale.read(checkpoint.source.as_ref()).unwrap();
    assert_eq!(values, vec![0.5; (scale.rows * scale.cols) as usize], "{scale:?}");
    scale
}

fn sizes(scale: &ScaleView) -> [u32; 4] {
    [scale.rows, scale.cols, scale.block_rows, scale.block_cols]
}

#[test]
fn test_every_layout_gives_scales_and_their_blocks() {
    // gate_proj is [16, 8].
    for shape in [vec![], vec![1], vec![1, 1]] {
        for (suffix, dtype) in [("_scale", "F32"), ("_scale_inv", "BF16"), ("_scale", "F16")] {
            let folder = fp8_folder(static_fp8(), &tensors(suffix, dtype, |_| shape.clone()));
            let scale = scale(&folder, LayerWeight::Gate);
            assert_eq!(sizes(&scale), [1, 1, 16, 8]);
            assert_eq!(scale.name, format!("model.layers.0.mlp.gate_proj.weight{suffix}"));
        }
    }
    let rows = |shape: &[u64]| vec![shape[0], 1];
    let per_row = fp8_folder(channels(), &tensors("_scale", "BF16", rows));
    assert_eq!(sizes(&scale(&per_row, LayerWeight::Gate)), [16, 1, 1, 8]);
    // Blocks of 6 x 5: the last of both directions partial.
    let cut = |shape: &[u64]| vec![shape[0].div_ceil(6), shape[1].div_ceil(5)];
    let folder = fp8_folder(blocks(6, 5), &tensors("_scale_inv", "F32", cut));
    assert_eq!(sizes(&scale(&folder, LayerWeight::Gate)), [3, 2, 6, 5]);
    assert_eq!(sizes(&scale(&folder, LayerWeight::Down)), [2, 4, 6, 5]);
}

#[test]
fn test_plain_matrices_may_stand_among_fp8_ones() {
    let mut mixed = tensors("_scale", "F32", |_| vec![]);
    let name = "model.layers.0.mlp.gate_proj.weight";
    mixed.remove(&format!("{name}_scale")).unwrap();
    mixed.insert(name.to_owned(), ("BF16", vec![16, 8]));
    // The head of a checkpoint can be fp8 as well.
    mixed.insert("lm_head.weight".to_owned(), ("F8_E4M3", vec![32, 8]));
    mixed.insert("lm_head.weight_scale".to_owned(), ("F32", vec![]));
    let folder = fp8_folder(static_fp8(), &mixed);
    let plan = open(folder.path()).unwrap().plan;
    let gate = &plan.tensors[&WeightRole::Layer(0, LayerWeight::Gate)];
    assert_eq!((gate.weight_type, &gate.scale), (WeightType::Bf16, &None));
    let head = plan.tensors[&WeightRole::LmHead].scale.as_ref().unwrap();
    assert_eq!(sizes(head), [1, 1, 32, 8]);
    assert_eq!(open(folder.path()).unwrap().spec.weight_type, WeightType::Bf16);
}

#[test]
fn test_scales_of_activations_and_of_the_cache_change_nothing() {
    let mut more = tensors("_scale", "F32", |_| vec![]);
    let plain = open(fp8_folder(static_fp8(), &more).path()).unwrap().plan.tensors.len();
    let attention = "model.layers.0.self_attn";
    for name in ["q_proj.input_scale", "q_proj.activation_scale", "k_proj.k_scale", "v_scale"] {
        more.insert(format!("{attention}.{name}"), ("F32", vec![]));
    }
    more.insert(format!("{attention}.k_proj.output_scale"), ("BF16", vec![1]));
    assert_eq!(open(fp8_folder(static_fp8(), &more).path()).unwrap().plan.tensors.len(), plain);
    // One that is no single number, one of a name that means nothing, and any without a scheme.
    for (name, shape) in [("q_proj.input_scale", vec![8]), ("q_proj.weight_zero_point", vec![])] {
        let mut odd = more.clone();
        odd.insert(format!("{attention}.{name}"), ("F32", shape));
        let error = fp8_folder(static_fp8(), &odd).refused();
        assert!(error.contains(&format!("{name} is not used by this model")), "{error}");
    }
    let mut unquantised = llama_tensors();
    unquantised.insert(format!("{attention}.k_proj.k_scale"), ("F32", vec![]));
    let error = folder_of(&llama_config(), &unquantised).refused();
    assert!(error.contains("k_scale is not used by this model"), "{error}");
}

#[test]
fn test_scales_of_the_cache_are_found_by_every_name_they_are_published_under() {
    let plain = tensors("_scale", "F32", |_| vec![]);
    let names = [
        ["k_scale", "v_scale"],
        ["attn.k_scale", "attn.v_scale"],
        ["k_proj.k_scale", "v_proj.v_scale"],
        ["qkv_proj.k_scale", "qkv_proj.v_scale"],
        ["k_proj.output_scale", "v_proj.output_scale"],
    ];
    for [key, value] in names {
        let mut more = plain.clone();
        for name in [key, value] {
            more.insert(format!("model.layers.0.self_attn.{name}"), ("BF16", vec![1]));
        }
        let folder = fp8_folder(static_fp8(), &more);
        let mut checkpoint = open(folder.path()).unwrap();
        assert_eq!(checkpoint.spec.kv_format, KvFormat::Device);
        assert!(checkpoint.keep_kv_in_fp8().unwrap(), "{key}");
        let found = checkpoint.spec.kv_format.scales(0).unwrap();
        assert!(found.key != 1.0 && found.value != 1.0, "{key}, {value}: {found:?}");
    }
    let mut without = open(fp8_folder(static_fp8(), &plain).path()).unwrap();
    assert!(!without.keep_kv_in_fp8().unwrap());
    let ones = vec![KvScales { key: 1.0, value: 1.0 }; without.spec.layers.len()];
    assert_eq!(without.spec.kv_format, KvFormat::Fp8(ones));
    let mut odd = plain.clone();
    odd.insert("model.layers.0.self_attn.k_scale".to_owned(), ("I64", vec![]));
    let error = fp8_folder(static_fp8(), &odd).refused();
    assert!(error.contains("type of tensor model.layers.0.self_attn.k_scale"), "{error}");
}

fn phi3(quantisation: Value, block: Option<[u64; 2]>) -> (Value, Tensors) {
    let mut config = llama_config();
    config["model_type"] = json!("phi3");
    config["quantization_config"] = quantisation;
    let mut tensors: Tensors =
        llama_tensors().into_iter().filter(|(name, _)| !name.contains("_proj")).collect();
    for (part, shape) in [
        ("self_attn.qkv_proj", [16_u64, 8]),
        ("self_attn.o_proj", [8, 8]),
        ("mlp.gate_up_proj", [32, 8]),
        ("mlp.down_proj", [8, 16]),
    ] {
        let name = format!("model.layers.0.{part}.weight");
        let scale = match block {
            Some([rows, cols]) => vec![shape[0].div_ceil(rows), shape[1].div_ceil(cols)],
            None => vec![],
        };
        tensors.insert(format!("{name}_scale"), ("F32", scale));
        tensors.insert(name, ("F8_E4M3", shape.to_vec()));
    }
    (config, tensors)
}

#[test]
fn test_fused_matrices_are_cut_with_their_scales() {
    // qkv is 8 rows of q, 4 of k, 4 of v.
    let (config, tensors) = phi3(blocks(4, 8), Some([4, 8]));
    let folder = folder_of(&config, &tensors);
    let [query, key, value, up] =
        [LayerWeight::Query, LayerWeight::Key, LayerWeight::Value, LayerWeight::Up]
            .map(|part| scale(&folder, part));
    assert_eq!(
        [&query, &key, &value, &up].map(sizes),
        [[2, 1, 4, 8], [1, 1, 4, 8], [1, 1, 4, 8], [4, 1, 4, 8]]
    );
    assert_eq!((key.offset, value.offset), (query.offset + 8, query.offset + 12));

    let (config, tensors) = phi3(static_fp8(), None);
    let folder = folder_of(&config, &tensors);
    let [query, value] = [LayerWeight::Query, LayerWeight::Value].map(|part| scale(&folder, part));
    assert_eq!([&query, &value].map(sizes), [[1, 1, 8, 8], [1, 1, 4, 8]]);
    assert_eq!(query.offset, value.offset);

    let (config, tensors) = phi3(blocks(8, 8), Some([8, 8]));
    let error = folder_of(&config, &tensors).refused();
    let reason = "tensor model.layers.0.self_attn.qkv_proj.weight_scale: row 12 of [16, 8] begins \
                  inside a block of scales";
    assert!(error.contains(reason), "{error}");
}

#[test]
fn test_stacked_and_single_experts_have_scales() {
    let mut config = llama_config();
    for (key, value) in [
        ("model_type", json!("qwen3_moe")),
        ("head_dim", json!(4)),
        ("num_experts", json!(3)),
        ("num_experts_per_tok", json!(2)),
        ("moe_intermediate_size", json!(6)),
        ("norm_topk_prob", json!(true)),
        ("quantization_config", blocks(3, 8)),
    ] {
        config[key] = value;
    }
    let cut = |shape: &[u64]| vec![shape[0].div_ceil(3), shape[1].div_ceil(8)];
    let mut base: Tensors = tensors("_scale_inv", "F32", cut)
        .into_iter()
        .filter(|(name, _)| !name.contains(".mlp."))
        .collect();
    for part in ["q_norm", "k_norm"] {
        base.insert(format!("model.layers.0.self_attn.{part}.weight"), ("BF16", vec![4]));
    }
    base.insert("model.layers.0.mlp.gate.weight".to_owned(), ("BF16", vec![3, 8]));

    let mut stacked = base.clone();
    let experts = "model.layers.0.mlp.experts";
    stacked.insert(format!("{experts}.gate_up_proj"), ("F8_E4M3", vec![3, 12, 8]));
    stacked.insert(format!("{experts}.gate_up_proj_scale_inv"), ("F32", vec![3, 4, 1]));
    stacked.insert(format!("{experts}.down_proj"), ("F8_E4M3", vec![3, 8, 6]));
    stacked.insert(format!("{experts}.down_proj_scale_inv"), ("F32", vec![3, 3, 1]));
    let folder = folder_of(&config, &stacked);
    let first = scale(&folder, LayerWeight::ExpertGate(0));
    let up = scale(&folder, LayerWeight::ExpertUp(2));
    assert_eq!([&first, &up].map(sizes), [[2, 1, 3, 8]; 2]);
    assert_eq!(up.offset, first.offset + (2 * 4 + 2) * 4);
    assert_eq!(sizes(&scale(&folder, LayerWeight::ExpertDown(1))), [3, 1, 3, 8]);

    let mut single = base;
    for expert in 0..3 {
        for (part, shape) in [("gate_proj", [6, 8]), ("up_proj", [6, 8]), ("down_proj", [8, 6])] {
            let name = format!("{experts}.{expert}.{part}.weight");
            single.insert(format!("{name}_scale_inv"), ("F32", cut(&shape)));
            single.insert(name, ("F8_E4M3", shape.to_vec()));
        }
    }
    assert_eq!(
        sizes(&scale(&folder_of(&config, &single), LayerWeight::ExpertDown(2))),
        [3, 1, 3, 8]
    );
    let router = "model.layers.0.mlp.gate.weight".to_owned();
    single.insert(router, ("F8_E4M3", vec![3, 8]));
    let error = folder_of(&config, &single).refused();
    assert!(
        error.contains("type of tensor model.layers.0.mlp.gate.weight: F8_E4M3 is not"),
        "{error}"
    );
}

#[test]
fn test_what_is_wrong_with_a_scale_is_named() {
    let name = "model.layers.0.mlp.gate_proj.weight";
    let whole = || tensors("_scale", "F32", |_| vec![]);

    let mut missing = whole();
    missing.remove(&format!("{name}_scale")).unwrap();
    let error = fp8_folder(static_fp8(), &missing).refused();
    let reason =
        format!("tensor {name}: F8_E4M3, but there is neither {name}_scale nor {name}_scale_inv");
    assert!(error.ends_with(&reason), "{error}");

    let mut longer = whole();
    longer.insert(format!("{name}_scale"), ("F32", vec![2]));
    let error = fp8_folder(static_fp8(), &longer).refused();
    let reason = format!("{name}_scale: shape is [2], the scale of [16, 8] is [] or [1] or [1, 1]");
    assert!(error.ends_with(&reason), "{error}");
    let error = fp8_folder(blocks(8, 8), &whole()).refused();
    assert!(error.contains("weight_scale: shape is [], the scale of [8, 8] is [1, 1]"), "{error}");

    let mut exponents = whole();
    exponents.insert(format!("{name}_scale"), ("F8_E8M0", vec![]));
    let error = fp8_folder(static_fp8(), &exponents).refused();
    assert!(error.contains(&format!("type of tensor {name}_scale: F8_E8M0 is not")), "{error}");

    let mut twice = whole();
    twice.insert(format!("{name}_scale_inv"), ("F32", vec![]));
    let error = fp8_folder(static_fp8(), &twice).refused();
    assert!(error.contains(&format!("{name}_scale_inv is not used by this model")), "{error}");

    let mut stray = llama_tensors();
    stray.insert(format!("{name}_scale"), ("F32", vec![]));
    let error = fp8_folder(static_fp8(), &stray).refused();
    assert!(error.contains(&format!("{name}_scale is not used by this model")), "{error}");

    let error = folder_of(&llama_config(), &whole()).refused();
    assert!(error.contains("F8_E4M3, but no quantization_config says how it is scaled"), "{error}");

    for name in ["model.embed_tokens.weight", "model.norm.weight"] {
        let mut odd = whole();
        odd.get_mut(name).unwrap().0 = "F8_E4M3";
        odd.insert(format!("{name}_scale"), ("F32", vec![]));
        let error = fp8_folder(static_fp8(), &odd).refused();
        assert!(error.contains(&format!("type of tensor {name}: F8_E4M3 is not")), "{error}");
    }
}

#[test]
fn test_a_scale_that_is_no_positive_number_is_named() {
    for (value, shown) in [
        (f32::NAN, "NaN"),
        (-0.5, "-0.5"),
        (f32::INFINITY, "inf"),
        (2e30, "2000000000000000000000000000000"),
    ] {
        let tensors = tensors("_scale", "F32", |_| vec![]);
        let mut config = llama_config();
        config["quantization_config"] = static_fp8();
        let folder = bare(&config);
        let bytes = safetensors_of(&tensors, |name| match tensors[name].0 {
            "F8_E4M3" => vec![0x38],
            "F32" if name.contains("up_proj") => value.to_le_bytes().to_vec(),
            "F32" => 0.5_f32.to_le_bytes().to_vec(),
            _ => vec![0, 0x3f],
        });
        folder.write("model.safetensors", bytes);
        let error = folder.refused();
        let reason =
            format!("tensor model.layers.0.mlp.up_proj.weight_scale: holds {shown}; a scale");
        assert!(error.contains(&reason), "{error}");
    }
    let mut config = llama_config();
    config["quantization_config"] = static_fp8();
    let zeros = folder(&config, &tensors("_scale", "F32", |_| vec![]));
    assert!(zeros.refused().contains("weight_scale: holds 0; a scale is a number above 0"));
}

/// A layer of Qwen3-Next whose fused projection is fp8: two key heads of 4, four value heads of 8, so that a band
/// is 4 rows of q, 4 of k, 16 of v, 16 of the gate.
fn fused_projection(quantisation: Value, scale: (&str, Vec<u64>)) -> Folder {
    let config = json!({"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"],
        "vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "full_attention_interval": 2,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4,
        "linear_value_head_dim": 8, "linear_conv_kernel_dim": 2, "max_position_embeddings": 64,
        "num_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 4,
        "shared_expert_intermediate_size": 4, "norm_topk_prob": true, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "rope_theta": 1e7, "partial_rotary_factor": 0.5,
        "quantization_config": quantisation});
    let mut tensors = Tensors::new();
    let mut add = |name: &str, shape: &[u64]| {
        tensors.insert(name.to_owned(), ("BF16", shape.to_vec()));
    };
    add("model.embed_tokens.weight", &[32, 8]);
    add("model.norm.weight", &[8]);
    add("lm_head.weight", &[32, 8]);
    for layer in ["model.layers.0", "model.layers.1"] {
        let mut part = |name: &str, shape: &[u64]| add(&format!("{layer}.{name}"), shape);
        part("input_layernorm.weight", &[8]);
        part("post_attention_layernorm.weight", &[8]);
        part("mlp.gate.weight", &[1, 8]);
        part("mlp.shared_expert_gate.weight", &[1, 8]);
        for network in ["mlp.shared_expert", "mlp.experts.0"] {
            part(&format!("{network}.gate_proj.weight"), &[4, 8]);
            part(&format!("{network}.up_proj.weight"), &[4, 8]);
            part(&format!("{network}.down_proj.weight"), &[8, 4]);
        }
    }
    for (name, rows) in [("q", 32), ("k", 8), ("v", 8)] {
        add(&format!("model.layers.1.self_attn.{name}_proj.weight"), &[rows, 8]);
    }
    add("model.layers.1.self_attn.o_proj.weight", &[8, 16]);
    add("model.layers.1.self_attn.q_norm.weight", &[8]);
    add("model.layers.1.self_attn.k_norm.weight", &[8]);
    let mut net = |name: &str, shape: &[u64]| {
        add(&format!("model.layers.0.linear_attn.{name}"), shape);
    };
    net("in_proj_ba.weight", &[8, 8]);
    net("conv1d.weight", &[48, 1, 2]);
    net("A_log", &[4]);
    net("dt_bias", &[4]);
    net("norm.weight", &[8]);
    net("out_proj.weight", &[8, 32]);
    let name = "model.layers.0.linear_attn.in_proj_qkvz.weight";
    tensors.insert(name.to_owned(), ("F8_E4M3", vec![80, 8]));
    tensors.insert(format!("{name}{}", scale.0), ("F32", scale.1));
    folder_of(&config, &tensors)
}

#[test]
fn test_scales_of_parts_that_alternate_alternate_too() {
    let bands = |rows, stride| Order::Bands { rows, stride };
    let parts = |folder: &Folder| {
        use LayerWeight::{DeltaGate, DeltaKey, DeltaQuery, DeltaValue};
        [DeltaQuery, DeltaKey, DeltaValue, DeltaGate].map(|part| scale(folder, part))
    };
    let by_row = fused_projection(channels(), ("_scale", vec![80, 1]));
    let [query, key, value, gate] = parts(&by_row);
    assert_eq!((sizes(&query), sizes(&value)), ([8, 1, 1, 8], [32, 1, 1, 8]));
    assert_eq!([query.order, gate.order], [bands(4, 40), bands(16, 40)]);
    let rows_from = |scale: &ScaleView| (scale.offset - query.offset) / 4;
    assert_eq!([&key, &value, &gate].map(rows_from), [4, 8, 24]);

    let by_block = fused_projection(blocks(4, 8), ("_scale_inv", vec![20, 1]));
    let [query, _, value, _] = parts(&by_block);
    assert_eq!((sizes(&query), query.order), ([2, 1, 4, 8], bands(1, 10)));
    assert_eq!((sizes(&value), value.order), ([8, 1, 4, 8], bands(4, 10)));
    let whole = fused_projection(static_fp8(), ("_scale", vec![]));
    let [_, key, ..] = parts(&whole);
    assert_eq!((sizes(&key), key.order), ([1, 1, 8, 8], Order::Rows));

    // Blocks of 8 rows hold rows of q and of k.
    let cut = fused_projection(blocks(8, 8), ("_scale_inv", vec![10, 1]));
    let error = open(cut.path()).unwrap_err().to_string();
    let reason = "a band of 4 rows of [80, 8] begins inside a block of scales";
    assert!(error.contains(reason), "{error}");
}
