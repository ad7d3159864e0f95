//! Latent attention: what a config.json says of its sizes, its rope, its scale and its groups of experts.

use serde_json::{Value, json};

use super::families::experts;
use super::{family, refused, spec, with};
use crate::{
    ExpertGroups, GroupScore, KvLayout, LatentSpec, QueryScale, RopeKind, RopeStyle, RouterScores,
};

fn sizes() -> Value {
    json!({"num_attention_heads": 6, "num_key_value_heads": 6, "kv_lora_rank": 32,
        "q_lora_rank": 24, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 20,
        "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
        "moe_intermediate_size": 16, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2})
}

fn deepseek(changes: Value) -> Value {
    with(family("deepseek_v3", "DeepseekV3ForCausalLM", sizes()), changes)
}

fn yarn(changes: Value) -> Value {
    let base = json!({"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096});
    json!({"rope_scaling": with(base, changes)})
}

#[test]
fn test_one_head_of_keys_holds_the_latent_and_what_rotates() {
    let read = spec(&deepseek(json!({})));
    assert_eq!((read.num_kv_heads, read.head_dim, read.num_attention_heads), (1, 40, 6));
    let latent = LatentSpec {
        query_rank: Some(24),
        rank: 32,
        rope_dim: 8,
        plain_dim: 24,
        value_dim: 20,
        norm_eps: 1e-6,
    };
    assert_eq!(read.attention.latent, Some(latent));
    assert_eq!((latent.query_dim(), latent.kept_dim(), latent.up_rows()), (32, 40, 44));
    assert_eq!((read.ropes[0].rotary_dim, read.ropes[0].style), (8, RopeStyle::Interleaved));
    assert_eq!(read.attention.scale, 1.0 / 32_f32.sqrt());
    let layout = KvLayout::of(&read);
    assert_eq!((layout.num_groups(), layout.unit_width), (1, 40));
    let plain = spec(&deepseek(json!({"q_lora_rank": null, "rope_interleave": false})));
    assert_eq!(plain.attention.latent.unwrap().query_rank, None);
    assert_eq!(plain.ropes[0].style, RopeStyle::HalfSplit);
    // What releases of transformers write beside these sizes changes nothing.
    for more in [json!({"head_dim": 8, "qk_head_dim": 32}), json!({"head_dim": 32})] {
        assert_eq!(spec(&deepseek(more)), read);
    }
    let share = json!({"partial_rotary_factor": 0.25});
    assert_eq!(spec(&deepseek(share)).ropes, read.ropes);
    for (changes, reason) in [
        (json!({"kv_lora_rank": 0}), "kv_lora_rank: 0 is not an integer"),
        (json!({"v_head_dim": null}), "v_head_dim is missing"),
        (json!({"qk_rope_head_dim": 7}), "qk_rope_head_dim: 7 is odd"),
        (json!({"head_dim": 64}), "head_dim: 64 contradicts qk_nope_head_dim"),
        (json!({"qk_head_dim": 8}), "qk_head_dim: 8 contradicts"),
        (json!({"num_key_value_heads": 3}), "num_key_value_heads: 3 is not supported"),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor: 0.5 is not supported"),
        (json!({"sliding_window": 8}), "sliding_window: 8 is not supported"),
    ] {
        let error = refused(&deepseek(changes));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_the_scale_of_scores_takes_in_the_stretch_of_the_rope() {
    let read = spec(&deepseek(yarn(json!({}))));
    let term = 0.1 * 40_f64.ln() + 1.0;
    let want = term * term / 32_f64.sqrt();
    assert!((f64::from(read.attention.scale) / want - 1.0).abs() < 1e-6);
    let RopeKind::Yarn { attention_factor, .. } = read.ropes[0].kind else { panic!("no YaRN") };
    assert_eq!((attention_factor, read.max_position_embeddings), (1.0, 163_840));
    let without = spec(&deepseek(yarn(json!({"mscale_all_dim": 0}))));
    assert_eq!(without.attention.scale, 1.0 / 32_f32.sqrt());
    let default = json!({"rope_parameters": {"rope_type": "default", "mscale_all_dim": 1.0}});
    assert_eq!(spec(&deepseek(default)).attention.scale, 1.0 / 32_f32.sqrt());
    let error = refused(&deepseek(yarn(json!({"mscale_all_dim": -3.0}))));
    assert!(error.contains("mscale"), "{error}");
}

#[test]
fn test_experts_form_groups_where_a_token_visits_some_of_them() {
    let router = experts(&spec(&deepseek(json!({}))), 1).router;
    let groups = ExpertGroups { num_groups: 4, chosen: 2, score: GroupScore::BestTwo };
    assert_eq!((router.scores, router.groups), (RouterScores::Sigmoid, Some(groups)));
    assert!(router.correction && router.normalise_top_k);
    for all in [json!({"topk_group": 4}), json!({"n_group": 1, "topk_group": 1})] {
        assert_eq!(experts(&spec(&deepseek(all)), 1).router.groups, None);
    }
    let v2 = |changes: Value| {
        let base = with(sizes(), json!({"norm_topk_prob": false}));
        with(family("deepseek_v2", "DeepseekV2ForCausalLM", base), changes)
    };
    let greedy = experts(&spec(&v2(json!({"topk_method": "greedy"}))), 1).router;
    assert_eq!((greedy.scores, greedy.groups), (RouterScores::Softmax, None));
    assert!(!greedy.correction && !greedy.normalise_top_k);
    let limited = v2(json!({"topk_method": "group_limited_greedy"}));
    let groups = ExpertGroups { score: GroupScore::Best, ..groups };
    assert_eq!(experts(&spec(&limited), 1).router.groups, Some(groups));
    for (config, reason) in [
        (deepseek(json!({"n_group": 3})), "n_group: 3 groups of 8 experts are uneven"),
        (deepseek(json!({"n_group": 8})), "n_group: 8 groups of 8 experts are uneven or too small"),
        (deepseek(json!({"topk_group": 5})), "topk_group: 5 is not an integer from 0 to 4"),
        (deepseek(json!({"topk_group": 1})), "topk_group: 1 groups of 2 experts hold fewer"),
        (deepseek(json!({"topk_method": "greedy"})), "topk_method: \"greedy\" is not supported"),
        (deepseek(json!({"scoring_func": "softmax"})), "scoring_func: \"softmax\""),
        (v2(json!({"topk_method": "noaux_tc"})), "topk_method: noaux_tc is not supported"),
        (v2(json!({"norm_topk_prob": true})), "norm_topk_prob: true is not supported"),
    ] {
        let error = refused(&config);
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_dense_layers_are_counted_or_listed() {
    let listed = json!({"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]});
    let read = spec(&deepseek(json!({})));
    assert_eq!(spec(&deepseek(listed.clone())), read);
    let alone = with(listed, json!({"first_k_dense_replace": null}));
    assert_eq!(spec(&deepseek(alone)), read);
    for (changes, reason) in [
        (json!({"first_k_dense_replace": null}), "first_k_dense_replace is missing"),
        (
            json!({"mlp_layer_types": ["dense", "dense", "sparse", "sparse"]}),
            "mlp_layer_types: contradicts first_k_dense_replace",
        ),
        (json!({"mlp_layer_types": ["dense"]}), "a list with dense or sparse for each of 4"),
        (json!({"mlp_layer_types": ["dense", "x", "sparse", "sparse"]}), "a list with dense or"),
    ] {
        let error = refused(&deepseek(changes));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_mistral4_grows_its_queries_and_scores_by_softmax() {
    let rope = json!({"rope_type": "yarn", "type": "yarn", "factor": 128.0, "rope_theta": 1e4,
        "original_max_position_embeddings": 8192, "max_position_embeddings": 1048576,
        "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 0.25});
    let changes = json!({"rope_parameters": rope});
    let read = spec(&with(family("mistral4", "Mistral4ForCausalLM", sizes()), changes));
    let scale = QueryScale { beta: 0.1, length: 8192, without_rope: false };
    assert_eq!(read.attention.query_scale, Some(scale));
    let router = experts(&read, 1).router;
    assert_eq!((router.scores, router.correction), (RouterScores::Softmax, false));
    assert_eq!(read.ropes[0].rotary_dim, 8);
}
