//! config.json: wrong or unusual fields that other engines mishandled, and refusals.
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "tests may panic")]

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use super::{Fields, model_spec};
use crate::{FeedForwardSpec, ModelSpec, RopeKind};

/// A llama config that is complete.
fn llama() -> Value {
    json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512,
        "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 4, "intermediate_size": 128, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "hidden_act": "silu"
    })
}

/// `base` with `changes`; the key "-" lists keys to remove.
fn with(mut base: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().expect("changes are an object") {
        if key == "-" {
            for removed in value.as_array().expect("a list") {
                base.as_object_mut().expect("an object").remove(removed.as_str().expect("a key"));
            }
        } else {
            base[key] = value.clone();
        }
    }
    base
}

fn family(name: &str, class: &str, changes: Value) -> Value {
    let base = with(llama(), json!({"model_type": name, "architectures": [class]}));
    with(base, changes)
}

fn read(config: &Value) -> Result<ModelSpec, String> {
    let fields = Fields::of_file("config.json", config).map_err(|e| e.to_string())?;
    model_spec(&fields).map(|described| described.spec).map_err(|error| error.to_string())
}

fn spec(config: &Value) -> ModelSpec {
    read(config).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(config: &Value) -> String {
    let error = read(config).expect_err("the config must be refused");
    assert!(!error.contains('\n') && error.starts_with("config.json: "), "{error}");
    error
}

fn rope(changes: Value) -> RopeKind {
    spec(&with(llama(), changes)).ropes.remove(0).kind
}

const LLAMA3: RopeKind = RopeKind::Llama3 {
    factor: 8.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original_max_position_embeddings: 2048,
};

#[test]
fn test_both_spellings_of_the_rope_type_are_read() {
    for spelling in ["type", "rope_type"] {
        let fields = json!({spelling: "llama3", "factor": 8, "low_freq_factor": 1,
            "high_freq_factor": 4, "original_max_position_embeddings": 2048});
        assert_eq!(rope(json!({"rope_scaling": fields})), LLAMA3);
        assert_eq!(rope(json!({"rope_parameters": fields, "rope_scaling": null})), LLAMA3);
    }
    let both = json!({"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.5}});
    assert_eq!(rope(both), RopeKind::Linear { factor: 2.5 });
    let torn = json!({"rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 2}});
    assert!(refused(&with(llama(), torn)).contains("linear contradicts type, which is yarn"));
    let unknown = json!({"rope_scaling": {"rope_type": "spiral", "factor": 2}});
    let error = refused(&with(llama(), unknown));
    assert!(error.contains("rope_scaling.rope_type: spiral is not supported"), "{error}");
    let extra = json!({"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1]}});
    assert!(refused(&with(llama(), extra)).contains("rope_parameters.mrope_section"));
    let nameless = json!({"rope_scaling": {"factor": 2}});
    assert!(refused(&with(llama(), nameless)).contains("rope_scaling.rope_type is missing"));
}

#[test]
fn test_rope_theta_comes_from_either_place_or_the_class() {
    let theta = |changes| spec(&with(llama(), changes)).ropes[0].theta;
    assert_eq!(theta(json!({})), 10_000.0);
    assert_eq!(theta(json!({"rope_theta": 500_000})), 500_000.0);
    let new = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 250_000.0}});
    assert_eq!(theta(new), 250_000.0);
    assert!(refused(&with(llama(), json!({"rope_theta": 1}))).contains("1 is not above 1"));
    let mixtral = family(
        "mixtral",
        "MixtralForCausalLM",
        json!({"num_local_experts": 4, "num_experts_per_tok": 2}),
    );
    assert_eq!(spec(&mixtral).ropes[0].theta, 1e6);
}

#[test]
fn test_a_rope_field_that_stands_twice_must_agree() {
    let long = |outer: Value| {
        let factors = vec![1.0; 8];
        let mut changes = json!({"rope_scaling": {"rope_type": "longrope", "short_factor": factors,
            "long_factor": factors, "original_max_position_embeddings": 4096}});
        changes["original_max_position_embeddings"] = outer;
        changes
    };
    spec(&with(llama(), long(json!(4096))));
    assert_eq!(
        refused(&with(llama(), long(json!(2048)))),
        "config.json: rope_scaling.original_max_position_embeddings: 4096 contradicts \
         original_max_position_embeddings outside of it, which is 2048"
    );
    for (key, same, other) in [("rope_theta", 5e5, 1e4), ("partial_rotary_factor", 0.5, 1.0)] {
        for object in ["rope_scaling", "rope_parameters"] {
            let twice = |outer: f64| json!({key: outer, object: {"rope_type": "default", "rope_theta": 5e5, key: same}});
            spec(&with(llama(), twice(same)));
            let error = refused(&with(llama(), twice(other)));
            assert!(
                error.starts_with(&format!("config.json: {object}.{key}: {same} contra")),
                "{error}"
            );
        }
    }
    let by_layer = json!({"rope_theta": 1e4, "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5e5}}});
    assert!(refused(&with(llama(), by_layer)).contains("rope_theta: 500000 contradicts"));
}

#[test]
fn test_rope_by_layer_type_is_refused_unless_equal() {
    let one = json!({"rope_type": "default", "rope_theta": 20_000});
    let equal = json!({"sliding_attention": one, "full_attention": one});
    assert_eq!(spec(&with(llama(), json!({"rope_parameters": equal}))).ropes[0].theta, 20_000.0);
    let other = json!({"rope_type": "linear", "factor": 8, "rope_theta": 20_000});
    let differing = json!({"sliding_attention": one, "full_attention": other});
    let error = refused(&with(llama(), json!({"rope_parameters": differing})));
    assert!(error.contains("rope that differs by layer is not supported"), "{error}");
    let contradiction = json!({"rope_scaling": other, "rope_parameters": one});
    assert!(refused(&with(llama(), contradiction)).contains("contradicts rope_scaling"));
}

#[test]
fn test_yarn_dynamic_and_linear_rope_are_read_with_their_numbers() {
    let yarn = rope(json!({"rope_scaling": {"type": "yarn", "factor": 4}}));
    let RopeKind::Yarn {
        factor,
        original_max_position_embeddings,
        beta_fast,
        beta_slow,
        attention_factor,
        truncate,
    } = yarn
    else {
        panic!("{yarn:?}")
    };
    assert_eq!((factor, original_max_position_embeddings), (4.0, 8192));
    assert_eq!((beta_fast, beta_slow, truncate), (32.0, 1.0, true));
    assert_eq!(attention_factor, 1.138_629_4); // 0.1 ln 4 + 1
    let dynamic = rope(json!({"rope_scaling": {"type": "dynamic", "factor": 2}}));
    let wanted = RopeKind::Dynamic { factor: 2.0, original_max_position_embeddings: 8192 };
    assert_eq!(dynamic, wanted);
    for (factor, reason) in [
        (json!("4"), "rope_scaling.factor: \"4\" is not a number"),
        (json!(0), "0 is not a positive number"),
        (json!(0.5), "0.5 is below 1"),
        (json!(-2), "-2 is not a positive number"),
        (json!(true), "true is not a number"),
        (json!(null), "rope_scaling.factor is missing"),
    ] {
        let error = refused(&with(
            llama(),
            json!({"rope_scaling": {"rope_type": "linear", "factor": factor}}),
        ));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_yarn_mscale_attention_factor_and_truncate() {
    let factor = |fields: Value| {
        let RopeKind::Yarn { attention_factor, truncate, .. } =
            rope(json!({"rope_scaling": with(json!({"type": "yarn", "factor": 40}), fields)}))
        else {
            panic!("not yarn")
        };
        (attention_factor, truncate)
    };
    // (0.1 * 0.707 * ln 40 + 1) / (0.1 * 1.0 * ln 40 + 1), numpy float64.
    let (both, truncate) =
        factor(json!({"mscale": 0.707, "mscale_all_dim": 1.0, "truncate": false}));
    assert!((both - 0.921_042_24).abs() < 1e-6 && !truncate, "{both}");
    assert_eq!(factor(json!({"mscale": 0.707})).0, factor(json!({})).0);
    assert_eq!(factor(json!({"attention_factor": 1.25})).0, 1.25);
}

#[test]
fn test_longrope_of_phi3() {
    let phi3 = |changes: Value| {
        let base = json!({"max_position_embeddings": 131_072,
            "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
            "hidden_size": 128, "rope_scaling": {"type": "su", "short_factor": vec![1.0; 12],
            "long_factor": vec![4.0; 12]}});
        family("phi3", "Phi3ForCausalLM", with(base, changes))
    };
    let spec = spec(&phi3(json!({})));
    assert_eq!(spec.ropes[0].rotary_dim, 24);
    let RopeKind::LongRope { short_factor, long_factor, attention_factor, .. } =
        &spec.ropes[0].kind
    else {
        panic!("{:?}", spec.ropes[0].kind)
    };
    assert_eq!((short_factor.len(), long_factor[11]), (12, 4.0));
    // sqrt(1 + ln 32 / ln 4096)
    assert!((attention_factor - 1.190_238_1).abs() < 1e-6, "{attention_factor}");
    let short = json!({"partial_rotary_factor": 1.0});
    assert!(refused(&phi3(short)).contains("short_factor: has 12 entries, not 16"));
    let zero = json!({"rope_scaling": {"type": "longrope", "short_factor": vec![0; 12],
        "long_factor": vec![1; 12]}});
    assert!(refused(&phi3(zero)).contains("short_factor: an element is not a positive number"));
    let nowhere = json!({"original_max_position_embeddings": null});
    assert!(refused(&phi3(nowhere)).contains("original_max_position_embeddings is missing"));
    let mscale = json!({"rope_scaling": {"type": "longrope", "short_mscale": 1.2}});
    assert!(refused(&phi3(mscale)).contains("rope_scaling.short_mscale"));
}

#[test]
fn test_an_explicit_head_dim_wins_and_null_is_absent() {
    assert_eq!(spec(&llama()).head_dim, 16);
    let explicit = with(llama(), json!({"head_dim": 32, "num_key_value_heads": 1}));
    assert_eq!((spec(&explicit).head_dim, spec(&explicit).num_kv_heads), (32, 1));
    assert_eq!(spec(&explicit).attention.scale, 1.0 / 32_f32.sqrt());
    assert_eq!(spec(&with(llama(), json!({"head_dim": null}))).head_dim, 16);
    let odd = json!({"head_dim": 15});
    assert!(refused(&with(llama(), odd)).contains("head_dim: 15 is not an even number"));
    let broken = json!({"num_attention_heads": 6, "num_key_value_heads": 6});
    assert!(refused(&with(llama(), broken)).contains("6 heads do not divide 64"));
    let kv = json!({"num_key_value_heads": 3});
    assert!(refused(&with(llama(), kv)).contains("3 does not divide 4 query heads"));
    let qwen3 = family("qwen3", "Qwen3ForCausalLM", json!({}));
    assert!(refused(&qwen3).contains("head_dim is missing"));
}

#[test]
fn test_biases_are_those_of_the_family_and_the_config() {
    let spec = spec(&with(llama(), json!({"attention_bias": true, "mlp_bias": true})));
    assert!(spec.attention.qkv_bias && spec.attention.o_bias);
    let dense = FeedForwardSpec::Dense { intermediate_size: 128, bias: true };
    assert_eq!(spec.layers[3].feed_forward, dense);
}

#[test]
fn test_seed_oss_has_biases_on_q_k_and_v_alone() {
    let seed = |changes| {
        let base = json!({"head_dim": 16, "attention_bias": true, "attention_out_bias": false});
        family("seed_oss", "SeedOssForCausalLM", with(base, changes))
    };
    let spec = spec(&seed(json!({})));
    assert!(spec.attention.qkv_bias && !spec.attention.o_bias);
    let error = refused(&seed(json!({"attention_out_bias": true})));
    assert!(error.contains("attention_out_bias: true is not supported"), "{error}");
    assert!(refused(&seed(json!({"-": ["head_dim"]}))).contains("head_dim is missing"));
}

#[test]
fn test_sliding_windows_are_read_by_layer() {
    let windows = |config: &Value| -> Vec<Option<u32>> {
        spec(config).layers.iter().map(|layer| layer.window).collect()
    };
    let mistral = |changes| family("mistral", "MistralForCausalLM", changes);
    assert_eq!(windows(&mistral(json!({"sliding_window": 8}))), [Some(8); 4]);
    assert_eq!(windows(&mistral(json!({"sliding_window": null}))), [None; 4]);
    // The class default, as Hugging Face reads a file without the key.
    assert_eq!(windows(&mistral(json!({}))), [Some(4096); 4]);
    let nested = mistral(json!({"text_config": {"sliding_window": 8}}));
    assert!(refused(&nested).contains("(supported: mistral without this field)"));
    assert!(refused(&mistral(json!({"sliding_window": 0}))).contains("sliding_window: 0"));
    assert!(refused(&mistral(json!({"sliding_window": "8"}))).contains("sliding_window: \"8\""));
    assert!(refused(&with(llama(), json!({"sliding_window": 8}))).contains("sliding_window: 8"));

    let qwen2 = |changes| family("qwen2", "Qwen2ForCausalLM", changes);
    let off = json!({"use_sliding_window": false, "sliding_window": 8, "max_window_layers": 0});
    assert_eq!(windows(&qwen2(off)), [None; 4]);
    let on = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 3});
    assert_eq!(windows(&qwen2(on)), [None, None, None, Some(8)]);
    let lost = json!({"use_sliding_window": true, "sliding_window": 8});
    assert!(refused(&qwen2(lost)).contains("max_window_layers is missing"));
    let types = json!(["sliding_attention", "full_attention", "full_attention", "full_attention"]);
    let typed = json!({"use_sliding_window": true, "sliding_window": 8, "layer_types": types});
    assert_eq!(windows(&qwen2(typed)), [Some(8), None, None, None]);
    let torn = json!({"layer_types": types});
    assert!(refused(&qwen2(torn)).contains("layer_types: has sliding_attention"));
    let short = json!({"layer_types": ["full_attention"]});
    assert!(refused(&qwen2(short)).contains("has 1 entries for 4 layers"));
    let unknown = json!({"layer_types": ["linear_attention", "full_attention", "full_attention",
        "full_attention"]});
    assert!(refused(&qwen2(unknown)).contains("linear_attention is not supported"));
}

fn gemma2(changes: Value) -> Value {
    let base = json!({"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8,
        "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0, "-": ["hidden_act"]});
    family("gemma2", "Gemma2ForCausalLM", with(base, changes))
}

#[test]
fn test_gemma2_windows_and_class_defaults() {
    let windows = |changes| -> Vec<bool> {
        spec(&gemma2(changes)).layers.iter().map(|layer| layer.window.is_some()).collect()
    };
    assert_eq!(windows(json!({})), [true, false, true, false]);
    assert_eq!(windows(json!({"sliding_window_pattern": 4})), [true, true, true, false]);
    let spec = spec(&gemma2(json!({"final_logit_softcapping": null})));
    assert_eq!((spec.final_logit_softcap, spec.attention.logit_softcap), (None, Some(50.0)));
    assert!(spec.tie_word_embeddings && spec.embedding_scale == 8.0);
    let both = gemma2(json!({"use_bidirectional_attention": true}));
    assert!(refused(&both).contains("use_bidirectional_attention: true is not supported"));
    let scalar = gemma2(json!({"query_pre_attn_scalar": null}));
    assert!(refused(&scalar).contains("query_pre_attn_scalar is missing"));
}

#[test]
fn test_qwen3_moe_chooses_layers_and_names_of_counts() {
    let qwen = |changes| {
        let base = json!({"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "norm_topk_prob": false});
        family("qwen3_moe", "Qwen3MoeForCausalLM", with(base, changes))
    };
    let sparse = |changes| -> Vec<bool> {
        let spec = spec(&qwen(changes));
        let is_moe = |part| matches!(part, FeedForwardSpec::Moe(_));
        spec.layers.iter().map(|layer| is_moe(layer.feed_forward)).collect()
    };
    assert_eq!(sparse(json!({})), [true; 4]);
    assert_eq!(sparse(json!({"decoder_sparse_step": 2})), [false, true, false, true]);
    assert_eq!(sparse(json!({"mlp_only_layers": [0, 3]})), [false, true, true, false]);
    let renamed = json!({"num_local_experts": 8, "-": ["num_experts"]});
    assert_eq!(sparse(renamed), [true; 4]);
    let torn = refused(&qwen(json!({"num_local_experts": 4})));
    assert!(torn.contains("4 contradicts num_experts, which is 8"), "{torn}");
    assert!(refused(&qwen(json!({"num_experts_per_tok": 9}))).contains("num_experts_per_tok: 9"));
    assert!(refused(&qwen(json!({"norm_topk_prob": null}))).contains("norm_topk_prob is missing"));
}

#[test]
fn test_extra_config_fields_are_ignored_and_missing_ones_named() {
    let extras = json!({"architectures": [], "task_specific_params": {"a": {"b": [1, null]}},
        "torch_dtype": "bfloat16", "dtype": "float32", "tie_word_embeddings": null});
    assert_eq!(spec(&with(llama(), extras)), spec(&llama()));
    for key in [
        "model_type",
        "vocab_size",
        "hidden_size",
        "num_attention_heads",
        "num_hidden_layers",
        "intermediate_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "hidden_act",
    ] {
        let error = refused(&with(llama(), json!({"-": [key]})));
        assert_eq!(error, format!("config.json: {key} is missing"));
        assert_eq!(refused(&with(llama(), json!({key: null}))), error);
        assert!(refused(&with(llama(), json!({key: [1]}))).contains(key));
    }
    for (key, value) in [
        ("hidden_size", json!(u64::MAX)),
        ("num_hidden_layers", json!(1e9)),
        ("vocab_size", json!(-1)),
        ("num_attention_heads", json!(0)),
        ("rms_norm_eps", json!(0)),
    ] {
        assert!(refused(&with(llama(), json!({key: value}))).contains(key));
    }
}

#[test]
fn test_what_we_lack_is_refused_by_name() {
    for (changes, reason) in [
        (json!({"model_type": "mamba"}), "model_type: mamba is not supported"),
        (json!({"architectures": ["LlamaForSequenceClassification"]}), "LlamaForSequenceClass"),
        (json!({"hidden_act": "gelu"}), "hidden_act: gelu is not supported"),
        (json!({"compression_config": {}}), "compression_config: an object is not supported"),
        (json!({"torch_dtype": "int8"}), "torch_dtype: int8 is not supported"),
        (json!({"final_logit_softcapping": 30}), "final_logit_softcapping: 30"),
        (json!({"model_type": "a\nb"}), "model_type: a\\nb is not supported"),
    ] {
        let error = refused(&with(llama(), changes));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_remote_code_is_not_looked_at() {
    let remote = json!({"auto_map": {"AutoModelForCausalLM": "evil.py--Model"},
        "trust_remote_code": true});
    assert_eq!(spec(&with(llama(), remote)), spec(&llama()));
}

/// Values that a field should not have, and some that it may.
fn value() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        Just(json!(0)),
        Just(json!(1)),
        Just(json!(2)),
        Just(json!(7)),
        Just(json!(-1)),
        Just(json!(u32::MAX)),
        Just(json!(u64::MAX)),
        Just(json!(1e-300)),
        Just(json!(3e38)),
        Just(json!(1e300)),
        Just(json!(0.75)),
        any::<u16>().prop_map(|number| json!(number)),
    ];
    prop_oneof![
        6 => number,
        1 => Just(json!(null)),
        1 => any::<bool>().prop_map(|flag| json!(flag)),
        1 => prop_oneof![Just("linear"), Just("dynamic"), Just("llama3"), Just("yarn"),
            Just("longrope"), Just("qwen2"), Just("gemma2"), Just("mixtral"), Just("qwen3_moe"),
            Just("x\u{7}")].prop_map(|text| json!(text)),
        1 => prop::collection::vec(any::<u8>(), 0..5).prop_map(|list| json!(list)),
        1 => Just(json!({"rope_type": "default"})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(2026),
        ..Default::default()
    })]

    /// Fields changed at random: a spec whose rope tables are numbers, or an error, never a panic.
    #[test]
    fn test_changed_fields_never_panic(
        base in 0..3_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..4),
        kind in prop_oneof![Just("linear"), Just("dynamic"), Just("llama3"), Just("yarn")],
        rope in prop::collection::vec((any::<prop::sample::Index>(), value()), 0..3),
    ) {
        let moe = family("qwen3_moe", "Qwen3MoeForCausalLM", json!({"head_dim": 16,
            "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "norm_topk_prob": false, "decoder_sparse_step": 1, "mlp_only_layers": []}));
        let mut config = [llama(), gemma2(json!({"layer_types": null})), moe][base].clone();
        let mut scaling = json!({"rope_type": kind, "factor": 8, "low_freq_factor": 1,
            "high_freq_factor": 4, "original_max_position_embeddings": 256, "mscale": 1,
            "mscale_all_dim": 1, "beta_fast": 32, "beta_slow": 1, "attention_factor": null});
        change(&mut scaling, rope);
        config["rope_scaling"] = scaling;
        config["rope_theta"] = json!(10_000);
        config["partial_rotary_factor"] = json!(1);
        change(&mut config, changes);
        if let Ok(spec) = read(&config) {
            for length in [1, spec.max_position_embeddings] {
                let tables = spec.ropes[0].tables(length);
                prop_assert!(tables.inv_freq.iter().all(|f| f.is_finite()), "{:?}", spec.ropes);
                prop_assert!(tables.attention_factor.is_finite(), "{:?}", spec.ropes);
            }
        }
    }
}

fn change(object: &mut Value, changes: Vec<(prop::sample::Index, Value)>) {
    let map = object.as_object_mut().expect("an object");
    for (place, value) in changes {
        let key = map.keys().nth(place.index(map.len())).expect("a key").clone();
        map.insert(key, value);
    }
}

mod families;
mod fields;
mod latent;
mod llama4;
