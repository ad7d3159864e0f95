//! Which fields are known: published configs are read, others are refused by name.

use serde_json::{Value, json};

use super::super::{Class, Fields, model_spec};
use super::{family, llama, read, refused, spec, with};
use crate::EmbedsOnly;

/// Facts of files on the Hugging Face hub, in short: lists of factors are made up.
const PUBLISHED: &str = include_str!("../../../tests/data/published_configs.json");

fn published() -> serde_json::Map<String, Value> {
    serde_json::from_str(PUBLISHED).expect("JSON")
}

#[test]
fn test_published_configs_of_all_families_are_read() {
    let configs = published();
    let mut families: Vec<&str> = Vec::new();
    for (name, config) in &configs {
        let read = read(config);
        assert!(read.is_ok(), "{name}: {read:?}");
        families.push(config["model_type"].as_str().expect("a name"));
    }
    families.sort_unstable();
    families.dedup();
    let mut supported: Vec<&str> = super::super::family::model_types().collect();
    supported.sort_unstable();
    assert_eq!(families, supported, "every family has a published config.json");
    assert!(configs.len() >= 35);
}

#[test]
fn test_contexts_of_published_configs() {
    let configs = published();
    for (name, context) in [
        ("Qwen/Qwen2.5-7B-Instruct", 32_768),
        ("Qwen/Qwen2.5-7B-Instruct with the YaRN lines of its card", 131_072),
        ("Qwen/Qwen3-8B with the YaRN lines of its card", 131_072),
        ("NousResearch/Yarn-Llama-2-7b-128k", 131_072),
        ("meta-llama/Llama-3.1-8B-Instruct", 131_072),
        ("microsoft/Phi-3.5-mini-instruct", 131_072),
        ("lmsys/vicuna-7b-v1.5-16k", 4096),
        ("ByteDance-Seed/Seed-OSS-36B-Instruct", 524_288),
    ] {
        assert_eq!(spec(&configs[name]).max_position_embeddings, context, "{name}");
    }
    let huge = json!({"rope_scaling": {"type": "yarn", "factor": 3e38}});
    assert_eq!(spec(&with(llama(), huge)).max_position_embeddings, 1 << 28);
}

#[test]
fn test_a_field_that_is_not_known_is_refused_by_name_with_its_value() {
    for (name, config) in published() {
        let other = refused(&with(config, json!({"frobnication_depth": {"a": [1, "b"]}})));
        let wanted = "frobnication_depth: {\"a\":[1,\"b\"]} is not supported (supported: ";
        assert!(
            other.contains(wanted) && other.ends_with(" without this field)"),
            "{name}: {other}"
        );
    }
    let null = json!({"frobnication_depth": null});
    assert_eq!(spec(&with(llama(), null)), spec(&llama()));
}

#[test]
fn test_fields_of_other_families_pass_only_where_they_change_nothing() {
    let mistral = |changes| family("mistral", "MistralForCausalLM", changes);
    for (field, off, on) in [
        ("attention_bias", json!(false), json!(true)),
        ("mlp_bias", json!(false), json!(true)),
        ("use_sliding_window", json!(false), json!(true)),
        ("use_qk_norm", json!(false), json!(true)),
        ("rope_interleaved", json!(false), json!(true)),
        ("shared_expert_intermediate_size", json!(0), json!(64)),
        ("num_local_experts", json!(0), json!(8)),
        ("logits_scaling", json!(1.0), json!(8)),
        ("full_attn_mod", json!(1), json!(2)),
        ("pruned_heads", json!({}), json!({"1": [0]})),
        ("query_pre_attn_scalar", json!(null), json!(256)),
        ("sparse_attention_config", json!({}), json!({"block_size": 64})),
    ] {
        assert_eq!(spec(&mistral(json!({field: off}))), spec(&mistral(json!({}))), "{field}");
        let error = refused(&mistral(json!({field: on})));
        assert!(error.contains(&format!("{field}: {on} is not supported")), "{error}");
    }
    // Their classes have these whatever the file says.
    spec(&family("qwen2", "Qwen2ForCausalLM", json!({"attention_bias": true})));
    let qwen3 = |flag: bool| json!({"head_dim": 16, "use_qk_norm": flag});
    spec(&family("qwen3", "Qwen3ForCausalLM", qwen3(true)));
    assert!(refused(&family("qwen3", "Qwen3ForCausalLM", qwen3(false))).contains("use_qk_norm"));
}

#[test]
fn test_second_names_of_a_field_must_agree() {
    let gemma2 = |changes| super::gemma2(changes);
    spec(&gemma2(json!({"sliding_window": 64, "sliding_window_size": 64})));
    let window = refused(&gemma2(json!({"sliding_window": 64, "sliding_window_size": 32})));
    assert_eq!(
        window,
        "config.json: sliding_window_size: 32 contradicts sliding_window, which is 64"
    );
    let activation = refused(&gemma2(json!({"hidden_act": "silu"})));
    assert!(
        activation.contains("hidden_act: \"silu\" contradicts hidden_activation"),
        "{activation}"
    );
}

#[test]
fn test_absent_kv_heads_mean_one_for_each_query_head() {
    for absent in [json!({"-": ["num_key_value_heads"]}), json!({"num_key_value_heads": null})] {
        assert_eq!(spec(&with(llama(), absent)).num_kv_heads, 4);
    }
}

#[test]
fn test_classes_without_an_output_layer_are_known() {
    for (name, class) in [("llama", "LlamaModel"), ("mistral", "MistralModel")] {
        let config = family(name, class, json!({}));
        let fields = Fields::of_file("config.json", &config).expect("an object");
        assert_eq!(model_spec(&fields).expect("read").family.class, Class::Base);
    }
    let error = refused(&family("qwen2", "Qwen2ForTokenClassification", json!({})));
    let supported = "(supported: Qwen2ForCausalLM, Qwen2Model)";
    assert!(
        error.contains("architectures: Qwen2ForTokenClassification") && error.ends_with(supported)
    );
}

#[test]
fn test_bidirectional_models_have_no_windows() {
    let qwen2 = |changes| family("qwen2", "Qwen2ForCausalLM", changes);
    let both = spec(&qwen2(json!({"is_causal": false})));
    assert!(!both.attention.causal);
    assert_eq!(both.embeds_only, Some(EmbedsOnly::Bidirectional));
    let causal = spec(&qwen2(json!({"is_causal": true})));
    assert!(causal.attention.causal && causal.embeds_only.is_none());
    let window = json!({"is_causal": false, "sliding_window": 8});
    let error = refused(&family("mistral", "MistralForCausalLM", window));
    assert!(error.contains("is_causal: false is not supported"), "{error}");
}
