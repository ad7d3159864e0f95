//! Folders with 4-bit weights: which tensors stand for a matrix, fused and stacked ones, and what is wrong
//! with one of them.

#![allow(clippy::unwrap_used, reason = "a test helper may panic")]

mod common;

use common::{
    Folder, Tensors, bare, byte_len, file_of, folder, header, llama_config, llama_tensors,
};
use ingle_model::{GroupView, LayerWeight, Packing, ScaleType, WeightRole, WeightType, Zero, open};
use serde_json::{Value, json};

fn gptq() -> Value {
    json!({"quant_method": "gptq", "bits": 4, "group_size": 4, "sym": true, "desc_act": true})
}

fn awq() -> Value {
    json!({"quant_method": "awq", "bits": 4, "group_size": 4, "zero_point": true, "version": "gemm"})
}

fn compressed(symmetric: bool) -> Value {
    let weights = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 4,
        "symmetric": symmetric});
    json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}})
}

/// The tensors of a matrix `[rows, cols]` in groups of 4 columns.
fn packed(form: &Value, stem: &str, [rows, cols]: [u64; 2]) -> Tensors {
    let groups = cols / 4;
    let tensors = match form["quant_method"].as_str().unwrap() {
        "gptq" => vec![
            ("qweight", ("I32", vec![cols / 8, rows])),
            ("qzeros", ("I32", vec![groups, rows / 8])),
            ("scales", ("F16", vec![groups, rows])),
            ("g_idx", ("I32", vec![cols])),
        ],
        "awq" => vec![
            ("qweight", ("I32", vec![cols, rows / 8])),
            ("qzeros", ("I32", vec![groups, rows / 8])),
            ("scales", ("F16", vec![groups, rows])),
        ],
        _ => vec![
            ("weight_packed", ("I32", vec![rows, cols / 8])),
            ("weight_scale", ("BF16", vec![rows, groups])),
            ("weight_zero_point", ("I32", vec![rows.div_ceil(8), groups])),
            ("weight_shape", ("I64", vec![2])),
        ],
    };
    tensors.into_iter().map(|(part, tensor)| (format!("{stem}.{part}"), tensor)).collect()
}

const FUSED: [(&str, [u64; 2]); 4] = [
    ("self_attn.qkv_proj", [16, 8]),
    ("self_attn.o_proj", [8, 8]),
    ("mlp.gate_up_proj", [32, 8]),
    ("mlp.down_proj", [8, 16]),
];
const LAYER: &str = "model.layers.0";

/// A phi3, whose q, k and v are one matrix, packed so.
fn tensors(form: &Value) -> Tensors {
    let mut tensors: Tensors =
        llama_tensors().into_iter().filter(|(name, _)| !name.contains("_proj")).collect();
    for (part, shape) in FUSED {
        tensors.extend(packed(form, &format!("{LAYER}.{part}"), shape));
    }
    let is_symmetric = form["config_groups"]["group_0"]["weights"]["symmetric"] == json!(true);
    tensors.retain(|name, _| !(is_symmetric && name.ends_with("zero_point")));
    tensors
}

/// The bytes of a tensor: zeros, apart from small ones that say how others are read.
fn contents(name: &str, tensor: &(&'static str, Vec<u64>)) -> Vec<u8> {
    if name.ends_with("weight_shape") {
        let (_, shape) = FUSED.iter().find(|(part, _)| name.contains(part)).unwrap();
        return shape.iter().flat_map(|size| size.to_le_bytes()).collect();
    }
    if name.ends_with("g_idx") {
        let cols = i32::try_from(tensor.1[0]).unwrap();
        return (0..cols).flat_map(|column| (column / 4).to_le_bytes()).collect();
    }
    vec![0; byte_len(tensor)]
}

fn phi3(form: &Value) -> Value {
    let mut config = llama_config();
    config["model_type"] = json!("phi3");
    config["quantization_config"] = form.clone();
    config
}

fn folder_with(
    form: &Value,
    tensors: &Tensors,
    contents: impl Fn(&str, &(&'static str, Vec<u64>)) -> Vec<u8>,
) -> Folder {
    let folder = bare(&phi3(form));
    let mut bytes = file_of(&header(tensors).to_string(), 0);
    for (name, tensor) in tensors {
        let own = contents(name, tensor);
        assert_eq!(own.len(), byte_len(tensor), "{name}");
        bytes.extend(own);
    }
    folder.write("model.safetensors", bytes);
    folder
}

fn groups(folder: &Folder, part: LayerWeight) -> GroupView {
    let checkpoint = open(folder.path()).unwrap();
    let view = &checkpoint.plan.tensors[&WeightRole::Layer(0, part)];
    assert_eq!(view.weight_type, WeightType::Int4);
    view.read_grouped(checkpoint.source.as_ref(), 0, view.rows as usize).unwrap();
    view.groups.clone().unwrap()
}

#[test]
fn test_every_form_is_read_and_fused_matrices_are_cut() {
    for (form, packing, scale_type) in [
        (gptq(), Packing::Gptq, WeightType::F16),
        (awq(), Packing::Awq, WeightType::F16),
        (compressed(true), Packing::Rows, WeightType::Bf16),
        (compressed(false), Packing::Rows, WeightType::Bf16),
    ] {
        let folder = folder_with(&form, &tensors(&form), contents);
        // qkv is 8 rows of q, 4 of k, 4 of v.
        for (part, first_row) in
            [(LayerWeight::Query, 0), (LayerWeight::Key, 8), (LayerWeight::Value, 12)]
        {
            let view = groups(&folder, part);
            assert_eq!((view.packing, view.first_row, view.tensor_rows), (packing, first_row, 16));
            assert_eq!((view.group, view.row_step), (4, 1));
            assert_eq!(view.scale_type, ScaleType::Number(scale_type));
            // The usual order needs no list.
            assert_eq!(view.groups_of_columns, None);
        }
        let mut plan = open(folder.path()).unwrap().plan;
        let error = plan.quantise_fp8().unwrap_err().to_string();
        assert!(error.contains("Int4 is not supported"), "{error}");
        let zero = groups(&folder, LayerWeight::Down).zero;
        match form["quant_method"].as_str().unwrap() {
            "gptq" => assert!(matches!(zero, Zero::Stored { add: 1, .. })),
            "awq" => assert!(matches!(zero, Zero::Stored { add: 0, .. })),
            _ if form == compressed(true) => assert_eq!(zero, Zero::Constant(8)),
            _ => assert!(matches!(zero, Zero::Stored { add: 0, .. })),
        }
    }
}

#[test]
fn test_another_order_of_columns_is_kept_and_checked() {
    let form = gptq();
    let name = format!("{LAYER}.mlp.down_proj.g_idx");
    let with = |last: i32| {
        folder_with(&form, &tensors(&form), |tensor, shape| {
            let mut bytes = contents(tensor, shape);
            if tensor == name {
                let at = bytes.len() - 4;
                bytes[at..].copy_from_slice(&last.to_le_bytes());
            }
            bytes
        })
    };
    let folder = with(0);
    assert_eq!(groups(&folder, LayerWeight::Down).groups_of_columns.unwrap().name, name);
    assert_eq!(groups(&folder, LayerWeight::Gate).groups_of_columns, None);
    for group in [4, -1] {
        let error = with(group).refused();
        let reason = format!("tensor {name}: column 15 is in group {group} of 4");
        assert!(error.ends_with(&reason), "{error}");
    }
}

#[test]
fn test_what_is_wrong_with_a_tensor_is_named() {
    let (gptq, awq, packed) = (gptq(), awq(), compressed(false));
    let down = |part: &str| format!("{LAYER}.mlp.down_proj.{part}");
    for (form, part, tensor, reason) in [
        (&gptq, "qweight", ("I32", vec![8, 2]), "shape is [8, 2], the model needs [2, 8]"),
        (&gptq, "qzeros", ("I32", vec![1, 4]), "shape is [1, 4], the model needs [4, 1]"),
        (&gptq, "scales", ("F16", vec![8, 4]), "shape is [8, 4], the model needs [4, 8]"),
        (&gptq, "scales", ("I32", vec![4, 8]), "I32 is not supported (supported: F32, F16, BF16)"),
        (&gptq, "g_idx", ("I32", vec![8]), "shape is [8], the model needs [16]"),
        (&awq, "qweight", ("F32", vec![16, 1]), "F32 is not supported (supported: I32)"),
        (&awq, "qzeros", ("I32", vec![2, 1]), "shape is [2, 1], the model needs [4, 1]"),
        (&packed, "weight_packed", ("I32", vec![8, 4]), "shape is [8, 4], the model needs [8, 2]"),
        (&packed, "weight_zero_point", ("I32", vec![8, 4]), "the model needs [1, 4]"),
        (&packed, "weight_scale", ("BF16", vec![8, 1]), "the model needs [8, 4]"),
    ] {
        let mut odd = tensors(form);
        odd.insert(down(part), tensor);
        let error = folder(&phi3(form), &odd).refused();
        assert!(error.contains(&down(part)) && error.contains(reason), "{error}");
    }
    for (form, part) in [
        (&gptq, "qzeros"),
        (&awq, "scales"),
        (&packed, "weight_scale"),
        (&packed, "weight_zero_point"),
    ] {
        let mut missing = tensors(form);
        missing.remove(&down(part)).unwrap();
        let error = folder_with(form, &missing, contents).refused();
        assert!(error.contains(&format!("tensor {} is missing", down(part))), "{error}");
    }
    let shape = down("weight_shape");
    let error = folder_with(&packed, &tensors(&packed), |name, tensor| {
        if name == shape { vec![0; 16] } else { contents(name, tensor) }
    });
    let reason = format!("tensor {shape}: holds [0, 0], the model needs [8, 16]");
    assert!(error.refused().ends_with(&reason));
}

#[test]
fn test_a_packed_tensor_that_nothing_reads_is_refused() {
    // Zeros of a symmetric form, a matrix stored twice, a packed embedding, codes without a config.
    let symmetric = compressed(true);
    let zeros = format!("{LAYER}.mlp.down_proj.weight_zero_point");
    let mut more = tensors(&symmetric);
    more.insert(zeros.clone(), ("I32", vec![1, 4]));
    let error = folder_with(&symmetric, &more, contents).refused();
    assert!(error.contains(&format!("{zeros} is not used by this model")), "{error}");

    let mut twice = tensors(&awq());
    twice.insert(format!("{LAYER}.mlp.down_proj.weight"), ("F16", vec![8, 16]));
    let error = folder_with(&awq(), &twice, contents).refused();
    assert!(error.contains("down_proj.qweight is not used by this model (3 such"), "{error}");

    let mut embedding = tensors(&awq());
    embedding.remove("model.embed_tokens.weight").unwrap();
    embedding.extend(packed_embedding());
    let error = folder_with(&awq(), &embedding, contents).refused();
    assert!(error.contains("model.embed_tokens.weight is missing"), "{error}");

    let error = folder_with(&Value::Null, &tensors(&awq()), contents).refused();
    assert!(error.contains("qkv_proj.weight is missing"), "{error}");
}

#[test]
fn test_a_bias_of_zeros_in_a_gptq_file_changes_nothing() {
    let name = format!("{LAYER}.mlp.down_proj.bias");
    for (form, value, is_read) in [(gptq(), 0, true), (gptq(), 0x3c, false), (awq(), 0, false)] {
        let mut more = tensors(&form);
        more.insert(name.clone(), ("F16", vec![8]));
        let folder = folder_with(&form, &more, |tensor, shape| {
            if tensor == name { vec![value; 16] } else { contents(tensor, shape) }
        });
        if is_read {
            open(folder.path()).unwrap();
        } else {
            let error = folder.refused();
            assert!(error.contains(&format!("{name} is not used by this model")), "{error}");
        }
    }
}

fn packed_embedding() -> Tensors {
    packed(&awq(), "model.embed_tokens", [32, 8])
}
