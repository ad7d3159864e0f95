//! Llama 4: what its config.json says of chunks, ropes, temperatures and experts.

use serde_json::{Value, json};

use super::families::experts;
use super::{family, refused, spec, with};
use crate::{FeedForwardSpec, ModelSpec, QkNorm, QueryScale, RopeStyle, RouterScores};

fn llama4(changes: Value) -> Value {
    let base = json!({"num_hidden_layers": 8, "head_dim": 16, "intermediate_size": 32,
        "intermediate_size_mlp": 48, "num_local_experts": 8, "attention_chunk_size": 64});
    with(family("llama4_text", "Llama4ForCausalLM", base), changes)
}

fn windows(spec: &ModelSpec) -> Vec<Option<u32>> {
    spec.layers.iter().map(|layer| layer.window).collect()
}

#[test]
fn test_layers_that_rotate_see_chunks_and_the_others_everything() {
    let read = spec(&llama4(json!({})));
    let chunk = Some(64);
    assert_eq!(windows(&read), [chunk, chunk, chunk, None, chunk, chunk, chunk, None]);
    let rotates = |spec: &ModelSpec| -> Vec<bool> {
        spec.layers.iter().map(|layer| layer.rope.is_some()).collect()
    };
    assert_eq!(rotates(&read), [true, true, true, false, true, true, true, false]);
    assert!(read.attention.chunks && read.ropes[0].style == RopeStyle::Interleaved);
    assert_eq!((read.attention.qk_norm, read.ropes[0].theta), (QkNorm::Unweighted, 5e5));
    let scale = QueryScale { beta: 0.1, length: 8192, without_rope: true };
    assert_eq!(read.attention.query_scale, Some(scale));
    assert_eq!((scale.at(8190), scale.at(8191)), (1.0, 1.0 + 0.1 * 2_f32.ln()));
    // An empty list is none; a written one is one.
    assert_eq!(spec(&llama4(json!({"no_rope_layers": []}))), read);
    let listed = spec(&llama4(json!({"no_rope_layers": [1, 0, 1, 1, 1, 1, 1, 1]})));
    assert_eq!((rotates(&listed)[1], windows(&listed)[1]), (false, None));
    let every = spec(&llama4(json!({"no_rope_layer_interval": 2})));
    assert_eq!(windows(&every)[..4], [chunk, None, chunk, None]);
    // Types say what a layer sees, not whether it rotates.
    let types = ["chunked_attention", "full_attention"].repeat(4);
    let typed = spec(&llama4(json!({"layer_types": types})));
    assert_eq!((windows(&typed)[1], rotates(&typed)[1]), (None, true));
    let whole = spec(&llama4(json!({"attention_chunk_size": null})));
    assert!(windows(&whole).iter().all(Option::is_none));
    let plain = spec(&llama4(json!({"use_qk_norm": false, "attn_temperature_tuning": false})));
    assert_eq!((plain.attention.qk_norm, plain.attention.query_scale), (QkNorm::None, None));
}

#[test]
fn test_experts_stand_in_some_layers_beside_a_network_for_all_tokens() {
    let read = spec(&llama4(json!({})));
    let moe = experts(&read, 0);
    assert_eq!((moe.num_experts, moe.experts_per_token, moe.intermediate_size), (8, 1, 32));
    assert_eq!((moe.shared_size, moe.router.scores), (Some(32), RouterScores::SigmoidOfChosen));
    assert!(moe.scales_input && !moe.router.normalise_top_k && !moe.shared_score);
    let is_dense = |spec: &ModelSpec| -> Vec<bool> {
        let dense = FeedForwardSpec::Dense { intermediate_size: 48, bias: false };
        spec.layers.iter().map(|layer| layer.feed_forward == dense).collect()
    };
    assert_eq!(is_dense(&read), [false; 8]);
    let stepped = spec(&llama4(json!({"interleave_moe_layer_step": 2})));
    assert_eq!(is_dense(&stepped)[..4], [true, false, true, false]);
    let listed = spec(&llama4(json!({"moe_layers": [0, 7]})));
    assert_eq!(is_dense(&listed), [false, true, true, true, true, true, true, false]);
}

#[test]
fn test_values_that_llama4_does_not_support_are_refused_by_name() {
    for (changes, reason) in [
        (json!({"moe_layers": [8]}), "moe_layers: a list is not a list of layer numbers below 8"),
        (json!({"interleave_moe_layer_step": 0}), "interleave_moe_layer_step: 0 is not"),
        (json!({"no_rope_layers": [1, 0]}), "no_rope_layers: has 2 entries for 8 layers"),
        (json!({"attention_chunk_size": 0}), "attention_chunk_size: 0 is not an integer"),
        (json!({"floor_scale": 0}), "floor_scale: 0 is not"),
        (json!({"attn_scale": -1.0}), "attn_scale: -1 is not a positive number"),
        (json!({"attn_temperature_tuning": 4}), "attn_temperature_tuning: 4 is not true or false"),
        (json!({"layer_types": vec!["sliding_attention"; 8]}), "full_attention, chunked_attention"),
        (
            json!({"layer_types": vec!["chunked_attention"; 8], "attention_chunk_size": null}),
            "layer_types: has chunked_attention, and there is no attention_chunk_size",
        ),
        (json!({"sliding_window": 8}), "sliding_window"),
        (json!({"-": ["num_local_experts"]}), "num_local_experts is missing"),
        (json!({"-": ["head_dim"]}), "head_dim is missing"),
    ] {
        let error = refused(&llama4(changes));
        assert!(error.contains(reason), "{error}");
    }
}
