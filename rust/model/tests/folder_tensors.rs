//! Tensors of a folder: wrong, missing, unused, doubled, harmless and mixed ones, and the layouts of
//! experts.

#![allow(clippy::unwrap_used, reason = "a test helper may panic")]

mod common;

use common::{Tensors, bare, folder, llama_config, llama_tensors, safetensors};
use ingle_model::{FeedForwardSpec, LayerWeight, WeightRole, WeightType, open};
use serde_json::{Value, json};

fn changed(name: &str, dtype: &'static str, shape: &[u64]) -> Tensors {
    let mut tensors = llama_tensors();
    tensors.insert(name.to_owned(), (dtype, shape.to_vec()));
    tensors
}

fn without(name: &str) -> Tensors {
    let mut tensors = llama_tensors();
    tensors.remove(name).unwrap();
    tensors
}

fn config(changes: Value) -> Value {
    let mut config = llama_config();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn test_every_missing_tensor_is_named() {
    for name in llama_tensors().keys() {
        let error = folder(&llama_config(), &without(name)).refused();
        assert!(error.ends_with(&format!("tensor {name} is missing")), "{error}");
    }
}

#[test]
fn test_every_wrong_shape_is_named() {
    for (name, (_, shape)) in llama_tensors() {
        let mut longer = shape.clone();
        longer[0] += 1;
        for wrong in [longer, [&[1], shape.as_slice()].concat()] {
            let error = folder(&llama_config(), &changed(&name, "BF16", &wrong)).refused();
            let reason = format!("tensor {name}: shape is {wrong:?}, the model needs {shape:?}");
            assert!(error.ends_with(&reason), "{error}");
        }
    }
}

#[test]
fn test_vocabulary_must_equal_the_rows() {
    let error = folder(&config(json!({"vocab_size": 33})), &llama_tensors()).refused();
    assert!(error.contains("embed_tokens.weight: shape is [32, 8], the model needs [33, 8]"));
}

#[test]
fn test_a_tensor_that_nothing_uses_is_refused() {
    let mut tensors = changed("model.layers.0.self_attn.q_proj.bias", "BF16", &[8]);
    let error = folder(&llama_config(), &tensors).refused();
    assert!(error.contains("q_proj.bias is not used by this model (1 such"), "{error}");
    for part in ["k_proj", "v_proj"] {
        let name = format!("model.layers.0.self_attn.{part}.bias");
        tensors.insert(name, ("BF16", vec![4]));
    }
    tensors.insert("model.layers.0.self_attn.o_proj.bias".to_owned(), ("BF16", vec![8]));
    let folder = folder(&config(json!({"attention_bias": true})), &tensors);
    let checkpoint = open(folder.path()).unwrap();
    let bias = &checkpoint.plan.tensors[&WeightRole::Layer(0, LayerWeight::KeyBias)];
    assert_eq!((bias.rows, bias.cols), (1, 4));
    assert!(checkpoint.spec.attention.o_bias);
}

#[test]
fn test_a_layer_too_many_is_refused() {
    let error =
        folder(&llama_config(), &changed("model.layers.1.mlp.up_proj.weight", "BF16", &[16, 8]))
            .refused();
    assert!(error.contains("model.layers.1.mlp.up_proj.weight is not used"), "{error}");
}

#[test]
fn test_known_extra_tensors_are_ignored() {
    let mut tensors = changed("model.layers.0.self_attn.rotary_emb.inv_freq", "F64", &[2]);
    tensors.insert("rope_freqs.weight".to_owned(), ("F32", vec![2]));
    tensors.insert("model.layers.0.self_attn.masked_bias".to_owned(), ("F32", vec![]));
    tensors.insert("model.layers.0.attn.bias".to_owned(), ("BOOL", vec![1, 1, 8, 8]));
    let checkpoint = open(folder(&llama_config(), &tensors).path()).unwrap();
    assert_eq!(checkpoint.plan.tensors.len(), 12);
    // A bias that is not a mask is a bias.
    tensors.insert("model.layers.0.attn.bias".to_owned(), ("BF16", vec![8]));
    assert!(folder(&llama_config(), &tensors).refused().contains("attn.bias is not used"));
}

#[test]
fn test_tied_models_need_no_head_and_may_carry_one() {
    let tied = config(json!({"tie_word_embeddings": true}));
    for tensors in [llama_tensors(), without("lm_head.weight")] {
        let checkpoint = open(folder(&tied, &tensors).path()).unwrap();
        assert!(checkpoint.spec.tie_word_embeddings);
        assert!(!checkpoint.plan.tensors.contains_key(&WeightRole::LmHead));
    }
    let error = folder(&tied, &changed("lm_head.weight", "BF16", &[16, 8])).refused();
    assert!(error.contains("lm_head.weight: shape is [16, 8]"), "{error}");
    let error = folder(&llama_config(), &without("lm_head.weight")).refused();
    assert!(error.contains("lm_head.weight is missing"), "{error}");
}

#[test]
fn test_tensor_types_may_be_mixed_and_unknown_ones_are_named() {
    let mut tensors = changed("model.norm.weight", "F32", &[8]);
    tensors.insert("lm_head.weight".to_owned(), ("F16", vec![32, 8]));
    let checkpoint = open(folder(&llama_config(), &tensors).path()).unwrap();
    assert_eq!(checkpoint.spec.weight_type, WeightType::Bf16);
    assert_eq!(checkpoint.plan.tensors[&WeightRole::LmHead].weight_type, WeightType::F16);
    assert_eq!(checkpoint.plan.tensors[&WeightRole::FinalNorm].weight_type, WeightType::F32);
    let error = folder(&llama_config(), &changed("model.norm.weight", "F8_E4M3", &[8])).refused();
    assert!(error.contains("type of tensor model.norm.weight: F8_E4M3 is not supported"));
}

#[test]
fn test_a_name_in_two_shards_is_refused() {
    let folder = bare(&llama_config());
    let mut map = serde_json::Map::new();
    for shard in ["a.safetensors", "b.safetensors"] {
        folder.write(shard, safetensors(&llama_tensors()));
    }
    map.extend(llama_tensors().keys().map(|name| (name.clone(), json!("a.safetensors"))));
    map.insert("other".to_owned(), json!("b.safetensors"));
    folder.write("model.safetensors.index.json", json!({"weight_map": map}).to_string());
    let error = folder.refused();
    assert!(error.contains("is in b.safetensors, the index says a.safetensors"), "{error}");
}

fn moe_config(changes: Value) -> Value {
    let mut moe = config(json!({"model_type": "qwen3_moe", "head_dim": 4, "num_experts": 3,
        "num_experts_per_tok": 2, "moe_intermediate_size": 6, "norm_topk_prob": true}));
    for (key, value) in changes.as_object().unwrap() {
        moe[key] = value.clone();
    }
    moe
}

/// Tensors of the qwen3_moe layer without its experts.
fn moe_tensors() -> Tensors {
    let mut tensors: Tensors =
        llama_tensors().into_iter().filter(|(name, _)| !name.contains(".mlp.")).collect();
    for part in ["q_norm", "k_norm"] {
        tensors.insert(format!("model.layers.0.self_attn.{part}.weight"), ("BF16", vec![4]));
    }
    tensors.insert("model.layers.0.mlp.gate.weight".to_owned(), ("BF16", vec![3, 8]));
    tensors
}

#[test]
fn test_stacked_experts_become_one_view_per_part() {
    let mut tensors = moe_tensors();
    let name = "model.layers.0.mlp.experts.gate_up_proj".to_owned();
    tensors.insert(name, ("BF16", vec![3, 12, 8]));
    tensors.insert("model.layers.0.mlp.experts.down_proj".to_owned(), ("BF16", vec![3, 8, 6]));
    let checkpoint = open(folder(&moe_config(json!({})), &tensors).path()).unwrap();
    let view = |part| &checkpoint.plan.tensors[&WeightRole::Layer(0, part)];
    let first = view(LayerWeight::ExpertGate(0)).offset;
    for expert in 0..3 {
        let (gate, up) =
            (view(LayerWeight::ExpertGate(expert)), view(LayerWeight::ExpertUp(expert)));
        let down = view(LayerWeight::ExpertDown(expert));
        assert_eq!((gate.rows, gate.cols, up.rows, up.cols), (6, 8, 6, 8));
        assert_eq!((down.rows, down.cols), (8, 6));
        assert_eq!(gate.offset, first + u64::from(expert) * 12 * 8 * 2);
        assert_eq!(up.offset, gate.offset + gate.byte_len);
        let first_down = view(LayerWeight::ExpertDown(0)).offset;
        assert_eq!(down.offset, first_down + u64::from(expert) * 8 * 6 * 2);
    }
}

#[test]
fn test_single_experts_and_their_absence() {
    let mut tensors = moe_tensors();
    for expert in 0..3 {
        for (part, shape) in [("gate_proj", [6, 8]), ("up_proj", [6, 8]), ("down_proj", [8, 6])] {
            let name = format!("model.layers.0.mlp.experts.{expert}.{part}.weight");
            tensors.insert(name, ("BF16", shape.to_vec()));
        }
    }
    let checkpoint = open(folder(&moe_config(json!({})), &tensors).path()).unwrap();
    let FeedForwardSpec::Moe(moe) = checkpoint.spec.layers[0].feed_forward else {
        panic!("a mixture")
    };
    assert_eq!((moe.num_experts, moe.intermediate_size), (3, 6));
    let name = "model.layers.0.mlp.experts.2.up_proj.weight";
    tensors.remove(name).unwrap();
    let error = folder(&moe_config(json!({})), &tensors).refused();
    assert!(error.ends_with(&format!("tensor {name} is missing")), "{error}");
    let error = folder(&moe_config(json!({"num_experts": 2})), &tensors).refused();
    assert!(error.contains("mlp.gate.weight: shape is [3, 8], the model needs [2, 8]"), "{error}");
}

/// Sizes are taken from config.json only after a tensor of that size was found, so that a huge model
/// without weights costs nothing.
#[test]
fn test_a_huge_config_without_weights_is_refused_at_once() {
    let huge = moe_config(json!({"num_experts": 1024, "num_hidden_layers": 1024}));
    assert!(folder(&huge, &moe_tensors()).refused().contains("the model needs [1024, 8]"));
}
