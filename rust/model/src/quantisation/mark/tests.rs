//! Which matrices are marked, and which plans are refused.
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")]

use std::collections::BTreeMap;

use super::*;
use crate::Order;

fn plan(views: &[(WeightRole, WeightType)]) -> CopyPlan {
    let view = |weight_type| TensorView {
        name: "t".to_owned(),
        file: 0,
        offset: 0,
        byte_len: 0,
        weight_type,
        rows: 3,
        cols: 256,
        scale: None,
        groups: None,
        order: Order::Rows,
        quantise: false,
    };
    let tensors: BTreeMap<_, _> =
        views.iter().map(|(role, weight_type)| (*role, view(*weight_type))).collect();
    CopyPlan { files: vec!["f".to_owned()], tensors }
}

#[test]
fn test_linear_layers_alone_are_marked() {
    let layer = |part| WeightRole::Layer(0, part);
    let linear = [
        layer(LayerWeight::Query),
        layer(LayerWeight::Output),
        layer(LayerWeight::Gate),
        layer(LayerWeight::ExpertDown(3)),
    ];
    let others = [
        WeightRole::Embedding,
        WeightRole::LmHead,
        WeightRole::FinalNorm,
        layer(LayerWeight::Router),
        layer(LayerWeight::InputNorm),
        layer(LayerWeight::QueryBias),
    ];
    for stored in [WeightType::F32, WeightType::F16, WeightType::Bf16] {
        let views: Vec<_> = linear.iter().chain(&others).map(|role| (*role, stored)).collect();
        let mut plan = plan(&views);
        assert!(plan.quantise_fp8().unwrap());
        assert!(linear.iter().all(|role| plan.tensors[role].quantise));
        assert!(others.iter().all(|role| !plan.tensors[role].quantise));
        assert_eq!(plan.tensors[&linear[0]].loaded_bytes(), 3 * (256 + 4));
    }
}

#[test]
fn test_block_formats_are_refused_and_fp8_stays_as_it_is() {
    let (query, key) =
        (WeightRole::Layer(0, LayerWeight::Query), WeightRole::Layer(0, LayerWeight::Key));
    let mut blocks = plan(&[(query, WeightType::F32), (key, WeightType::Q4K)]);
    let before = blocks.clone();
    let error = blocks.quantise_fp8().unwrap_err().to_string();
    assert_eq!(
        error,
        "f: quantization fp8 of tensor t: Q4K is not supported (supported: F32, F16, BF16, F8_E4M3)"
    );
    assert_eq!(blocks, before);
    let mut fp8 = plan(&[(query, WeightType::F8E4M3), (key, WeightType::Bf16)]);
    let before = fp8.clone();
    assert!(!fp8.quantise_fp8().unwrap());
    assert_eq!(fp8, before);
    // A block format elsewhere, as in some GGUF files, is no matter.
    let mut head = plan(&[(query, WeightType::F16), (WeightRole::LmHead, WeightType::Q6K)]);
    assert!(head.quantise_fp8().unwrap());
}
