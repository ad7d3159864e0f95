//! What is special about the newer families, and the values that each of them refuses.

use serde_json::{Value, json};

use super::{family, refused, spec, with};
use crate::{
    Activation, FeedForwardSpec, HeadSizes, LayerSpec, ModelSpec, MoeSpec, QkNorm, QueryScale,
    RopeKind, RouterScores, TokenInputSpec,
};

#[test]
fn test_smollm3_rotates_where_its_list_says_so() {
    let smollm3 = |changes: Value| family("smollm3", "SmolLM3ForCausalLM", changes);
    let rotating = |changes: Value| -> Vec<bool> {
        spec(&smollm3(changes)).layers.iter().map(|layer| layer.rope.is_some()).collect()
    };
    assert_eq!(rotating(json!({})), [true, true, true, false]);
    assert_eq!(rotating(json!({"no_rope_layer_interval": 2})), [true, false, true, false]);
    let list = json!({"no_rope_layers": [0, 1, 1, 1], "no_rope_layer_interval": 2});
    assert_eq!(rotating(list), [false, true, true, true]);
    let spec = spec(&smollm3(json!({})));
    assert_eq!(spec.ropes[0].theta, 2e6);
    assert!(spec.tie_word_embeddings);
    for (changes, reason) in [
        (json!({"no_rope_layers": [1, 0]}), "no_rope_layers: has 2 entries for 4 layers"),
        (json!({"no_rope_layers": [1, 0, 2, 1]}), "is not a list with 0 or 1 for each layer"),
        (json!({"no_rope_layer_interval": 0}), "no_rope_layer_interval: 0"),
        (json!({"use_sliding_window": true}), "use_sliding_window: true is not supported"),
        (json!({"sliding_window": 8}), "sliding_window: 8 is not supported"),
    ] {
        let error = refused(&with(smollm3(json!({})), changes));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_granite_keeps_its_residual_stream_in_units_of_the_multiplier() {
    let granite = |changes: Value| {
        let base = json!({"embedding_multiplier": 12.0, "attention_multiplier": 0.0078125,
            "residual_multiplier": 0.25, "logits_scaling": 16.0});
        family("granite", "GraniteForCausalLM", with(base, changes))
    };
    let spec = spec(&granite(json!({})));
    assert_eq!((spec.embedding_scale, spec.attention.scale), (48.0, 0.007_812_5));
    assert_eq!((spec.norm.eps, spec.logit_scale), (1.6e-4, 0.0625));
    for field in ["embedding_multiplier", "residual_multiplier", "logits_scaling"] {
        let error = refused(&granite(json!({field: 0})));
        assert!(error.contains(&format!("{field}: 0 is not a positive number")), "{error}");
    }
    let error = refused(&granite(json!({"residual_multiplier": 1e-30})));
    assert!(error.contains("residual_multiplier: gives"), "{error}");
    // The class multiplies scores by 1 where the file says nothing.
    let plain = super::spec(&family("granite", "GraniteForCausalLM", json!({})));
    assert_eq!((plain.attention.scale, plain.embedding_scale, plain.logit_scale), (1.0, 1.0, 1.0));
}

fn gemma3(changes: Value) -> Value {
    let base = json!({"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16,
        "num_hidden_layers": 12, "hidden_activation": "gelu_pytorch_tanh", "-": ["hidden_act"]});
    with(family("gemma3_text", "Gemma3ForCausalLM", base), changes)
}

#[test]
fn test_gemma3_layers_with_a_window_have_a_rope_of_their_own() {
    let sixth: Vec<bool> = (1..=12).map(|number| number % 6 == 0).collect();
    let scaling = json!({"rope_theta": 5e5, "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8}});
    let published = spec(&gemma3(scaling));
    let full: Vec<bool> = published.layers.iter().map(|layer| layer.window.is_none()).collect();
    assert_eq!(full, sixth);
    for layer in &published.layers {
        assert_eq!(layer.rope, Some(usize::from(layer.window.is_some())));
    }
    let [outer, inner] = &published.ropes[..] else { panic!("{:?}", published.ropes) };
    assert_eq!((outer.theta, &outer.kind), (5e5, &RopeKind::Linear { factor: 8.0 }));
    assert_eq!((inner.theta, &inner.kind), (2e4, &RopeKind::Default));
    let both = json!({"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}});
    assert_eq!(spec(&gemma3(both)), published);
    let defaults = spec(&gemma3(json!({})));
    assert_eq!((defaults.ropes[0].theta, defaults.ropes[1].theta), (1e6, 1e4));
    assert_eq!((defaults.attention.qk_norm, defaults.norm.plus_one), (QkNorm::Head, true));
    assert!(defaults.pre_norms && defaults.post_norms && defaults.tie_word_embeddings);
    let third = spec(&gemma3(json!({"sliding_window_pattern": 3})));
    assert_eq!(third.layers.iter().filter(|layer| layer.window.is_none()).count(), 4);
    for (changes, reason) in [
        (json!({"rope_local_base_freq": 1}), "1 is not above 1"),
        (json!({"rope_parameters": {"linear_attention": {}}}), "linear_attention: a rope"),
        (json!({"use_bidirectional_attention": true}), "use_bidirectional_attention: true"),
    ] {
        let error = refused(&gemma3(changes));
        assert!(error.contains(reason), "{error}");
    }
}

/// A multimodal config around `text`.
fn wrapped(model_type: &str, class: &str, text: Value, changes: Value) -> Value {
    let mut text = text;
    text.as_object_mut().expect("an object").remove("architectures");
    let around = json!({"model_type": model_type, "architectures": [class],
        "vision_config": {"model_type": "any"}, "text_config": text});
    with(around, changes)
}

#[test]
fn test_the_text_half_of_a_multimodal_model_is_that_family() {
    let class = "Gemma3ForConditionalGeneration";
    let gemma = |changes| wrapped("gemma3", class, gemma3(json!({})), changes);
    assert_eq!(spec(&gemma(json!({"image_token_index": 3}))), spec(&gemma3(json!({}))));
    // What published files leave out has the value of the class.
    let short = json!({"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34,
        "intermediate_size": 10240, "sliding_window": 1024});
    let short = spec(&wrapped("gemma3", class, short, json!({})));
    assert_eq!((short.vocab_size, short.head_dim, short.num_kv_heads), (262_208, 256, 4));
    assert_eq!((short.attention.scale, short.max_position_embeddings), (0.0625, 131_072));

    let mistral = |text: Value, changes: Value| {
        let text = family("mistral", "MistralForCausalLM", text);
        wrapped("mistral3", "Mistral3ForConditionalGeneration", text, changes)
    };
    assert!(!spec(&mistral(json!({}), json!({}))).tie_word_embeddings);
    assert!(spec(&mistral(json!({}), json!({"tie_word_embeddings": true}))).tie_word_embeddings);
    let inner =
        mistral(json!({"tie_word_embeddings": false}), json!({"tie_word_embeddings": true}));
    assert!(!spec(&inner).tie_word_embeddings);
    for (config, reason) in [
        (gemma(json!({"audio_config": {}})), "config.json: audio_config: {} is not supported"),
        (gemma(json!({"-": ["text_config"]})), "config.json: text_config is missing"),
        (gemma(json!({"architectures": ["Gemma3ForCausalLM"]})), "Gemma3ForConditionalGeneration"),
        (
            mistral(json!({"model_type": "llama"}), json!({})),
            "(supported: mistral, ministral3, mistral4)",
        ),
        (mistral(json!({"hidden_size": 0}), json!({})), "config.json: text_config.hidden_size: 0"),
        (mistral(json!({"quantization_config": {}}), json!({})), "beside text_config"),
        (
            mistral(json!({"rope_scaling": {"rope_type": "spiral"}}), json!({})),
            "text_config.rope_scaling.rope_type: spiral",
        ),
    ] {
        let error = refused(&config);
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_olmo2_has_norms_after_each_part_and_over_all_heads() {
    let olmo2 = |changes: Value| family("olmo2", "Olmo2ForCausalLM", changes);
    let plain = spec(&olmo2(json!({})));
    assert!(!plain.pre_norms && plain.post_norms && !plain.norm.plus_one);
    assert_eq!((plain.attention.qk_norm, plain.ropes[0].theta), (QkNorm::Full, 1e4));
    assert!(plain.layers.iter().all(|layer| layer.window.is_none() && layer.rope == Some(0)));
    assert!(!plain.attention.qkv_bias && !plain.tie_word_embeddings);
    let biased = spec(&olmo2(json!({"attention_bias": true})));
    assert!(biased.attention.qkv_bias && biased.attention.o_bias);
    for (changes, reason) in [
        (json!({"sliding_window": 8}), "sliding_window: 8 is not supported"),
        (json!({"clip_qkv": 8}), "clip_qkv: 8 is not supported"),
        (json!({"mlp_bias": true}), "mlp_bias: true is not supported"),
        (json!({"use_qk_norm": false}), "use_qk_norm: false is not supported"),
    ] {
        let error = refused(&olmo2(changes));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_olmo3_norms_and_ropes() {
    let olmo3 = |changes: Value| {
        let base = json!({"sliding_window": 8, "rope_theta": 5e5,
            "rope_scaling": {"rope_type": "yarn", "factor": 8}});
        family("olmo3", "Olmo3ForCausalLM", with(base, changes))
    };
    let spec = spec(&olmo3(json!({})));
    assert!(!spec.pre_norms && spec.post_norms && !spec.norm.plus_one);
    assert_eq!(spec.attention.qk_norm, QkNorm::Full);
    let layers: Vec<_> = spec.layers.iter().map(|layer| (layer.window, layer.rope)).collect();
    let inner = (Some(8), Some(1));
    assert_eq!(layers, [inner, inner, inner, (None, Some(0))]);
    assert!(matches!(spec.ropes[0].kind, RopeKind::Yarn { .. }));
    assert_eq!((spec.ropes[1].theta, &spec.ropes[1].kind), (5e5, &RopeKind::Default));
    let error = refused(&olmo3(json!({"rope_theta": 1e6})));
    assert!(error.contains("rope_theta: 1000000 is not supported"), "{error}");
}

#[test]
fn test_ministral3_scales_queries_by_position() {
    let ministral3 = |rope: Value| {
        let base = json!({"rope_type": "yarn", "factor": 16, "rope_theta": 1e6,
            "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1});
        let rope = json!({"head_dim": 16, "rope_parameters": with(base, rope)});
        family("ministral3", "Ministral3ForCausalLM", rope)
    };
    let scale = spec(&ministral3(json!({}))).attention.query_scale.expect("a scale");
    assert_eq!(scale, QueryScale { beta: 0.1, length: 16, without_rope: false });
    assert_eq!((scale.at(0), scale.at(15)), (1.0, 1.0));
    assert_eq!(scale.at(33), 1.0 + 0.1 * 3_f32.ln());
    let off = spec(&ministral3(json!({"llama_4_scaling_beta": 0})));
    assert_eq!(off.attention.query_scale, None);
    for (rope, reason) in [
        (json!({"-": ["llama_4_scaling_beta"]}), "llama_4_scaling_beta is missing"),
        (json!({"llama_4_scaling_beta": -1}), "llama_4_scaling_beta: -1 is below 0"),
        (json!({"-": ["original_max_position_embeddings"]}), "position_embeddings is missing"),
    ] {
        let error = refused(&ministral3(rope));
        assert!(error.contains(reason), "{error}");
    }
    let llama = with(super::llama(), json!({"rope_scaling": {"llama_4_scaling_beta": 0.1}}));
    assert!(refused(&llama).contains("llama_4_scaling_beta: 0.1 is not supported"));
}

/// The experts of a layer.
pub(super) fn experts(spec: &ModelSpec, layer: usize) -> MoeSpec {
    match spec.layers[layer].feed_forward {
        FeedForwardSpec::Moe(moe) => moe,
        FeedForwardSpec::Dense { .. } => panic!("layer {layer} has no experts"),
    }
}

#[test]
fn test_gpt_oss_has_sinks_windows_and_biases() {
    let gpt_oss = |changes: Value| {
        let base = json!({"head_dim": 16, "sliding_window": 8, "num_local_experts": 4,
            "num_experts_per_tok": 2, "experts_per_token": 2, "swiglu_limit": 5.0});
        family("gpt_oss", "GptOssForCausalLM", with(base, changes))
    };
    let read = spec(&gpt_oss(json!({})));
    let windows: Vec<_> = read.layers.iter().map(|layer| layer.window).collect();
    assert_eq!(windows, [Some(8), None, Some(8), None]);
    assert!(read.attention.sinks && read.attention.qkv_bias && read.attention.o_bias);
    assert_eq!(read.activation, Activation::ClampedSwiglu { limit: 5.0 });
    assert_eq!(read.ropes[0].theta, 150_000.0);
    let moe = experts(&read, 3);
    assert!(moe.bias && moe.router.bias && moe.router.normalise_top_k && !moe.router.correction);
    assert_eq!((moe.router.scores, moe.shared_size), (RouterScores::Softmax, None));
    let limit = spec(&gpt_oss(json!({"-": ["swiglu_limit"], "swiglu_alpha": 1.702})));
    assert_eq!(limit.activation, Activation::ClampedSwiglu { limit: 7.0 });
    for (changes, reason) in [
        (json!({"experts_per_token": 4}), "experts_per_token: 4 contradicts num_experts_per_tok"),
        (json!({"swiglu_alpha": 1}), "swiglu_alpha: 1 is not supported (supported: 1.702"),
        (json!({"hidden_act": "gelu_new"}), "hidden_act: gelu_new is not supported"),
        (json!({"-": ["head_dim"]}), "head_dim is missing"),
    ] {
        let error = refused(&gpt_oss(changes));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_glm4_moe_has_dense_first_layers_and_a_network_for_all_tokens() {
    let glm = |changes: Value| {
        let base = json!({"head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "n_shared_experts": 2, "norm_topk_prob": true,
            "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "n_group": 1,
            "topk_group": 1, "attention_bias": true, "use_qk_norm": true});
        family("glm4_moe", "Glm4MoeForCausalLM", with(base, changes))
    };
    let read = spec(&glm(json!({})));
    let dense = FeedForwardSpec::Dense { intermediate_size: 128, bias: false };
    assert_eq!(read.layers[0].feed_forward, dense);
    let moe = experts(&read, 1);
    assert_eq!((moe.num_experts, moe.intermediate_size, moe.shared_size), (8, 32, Some(64)));
    assert_eq!((moe.router.scores, moe.router.scale), (RouterScores::Sigmoid, 2.5));
    assert!(moe.router.correction && !moe.router.bias && !moe.bias);
    assert!(read.attention.qkv_bias && !read.attention.o_bias);
    // Half of a head rotates unless the file says otherwise.
    assert_eq!((read.ropes[0].rotary_dim, read.attention.qk_norm), (8, QkNorm::Head));
    let whole = json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1}});
    assert_eq!(spec(&glm(whole)).ropes[0].rotary_dim, 16);
    let plain = json!({"use_qk_norm": false, "attention_bias": false, "n_shared_experts": 0});
    let plain = spec(&glm(plain));
    assert_eq!((plain.attention.qk_norm, plain.attention.qkv_bias), (QkNorm::None, false));
    assert_eq!(experts(&plain, 2).shared_size, None);
    for (changes, reason) in [
        (json!({"n_group": 2}), "n_group: 2 is not supported (supported: 1 in glm4_moe"),
        (json!({"num_local_experts": 4}), "n_routed_experts: 8 contradicts num_local_experts"),
        (json!({"-": ["first_k_dense_replace"]}), "first_k_dense_replace is missing"),
        (json!({"routed_scaling_factor": 0}), "routed_scaling_factor: 0 is not a positive number"),
    ] {
        let error = refused(&glm(changes));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_minimax_m2_states_how_much_of_a_head_rotates() {
    let minimax = |changes: Value| {
        let base = json!({"head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2,
            "rotary_dim": 8, "attn_type_list": [1, 1, 1, 1], "scoring_func": "sigmoid"});
        family("minimax_m2", "MiniMaxM2ForCausalLM", with(base, changes))
    };
    let read = spec(&minimax(json!({})));
    assert_eq!((read.ropes[0].rotary_dim, read.attention.qk_norm), (8, QkNorm::Full));
    let router = experts(&read, 0).router;
    assert_eq!((router.scores, router.scale), (RouterScores::Sigmoid, 1.0));
    assert!(router.correction && router.normalise_top_k);
    let factor = json!({"-": ["rotary_dim"], "partial_rotary_factor": 0.5});
    assert_eq!(spec(&minimax(factor)), read);
    for (changes, reason) in [
        (json!({"partial_rotary_factor": 0.25}), "rotary_dim: 8 contradicts partial_rotary"),
        (json!({"attn_type_list": [1, 0, 1, 1]}), "attn_type_list: [1,0,1,1] is not supported"),
        (json!({"scoring_func": "softmax"}), "scoring_func: \"softmax\" is not supported"),
        (json!({"use_qk_norm": false}), "use_qk_norm: false is not supported"),
        (json!({"shared_intermediate_size": 64}), "shared_intermediate_size: 64"),
    ] {
        let error = refused(&minimax(changes));
        assert!(error.contains(reason), "{error}");
    }
}

fn qwen3_5(changes: Value) -> Value {
    let base = json!({"head_dim": 64, "num_hidden_layers": 8, "linear_num_key_heads": 2,
        "linear_num_value_heads": 6, "linear_key_head_dim": 128, "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.25});
    family("qwen3_5_text", "Qwen3_5ForCausalLM", with(base, changes))
}

#[test]
fn test_qwen3_5_has_gated_delta_nets_between_layers_of_attention() {
    let config = spec(&qwen3_5(json!({"full_attention_interval": 3})));
    let is_net: Vec<bool> = config.layers.iter().map(|layer| layer.delta_net.is_some()).collect();
    assert_eq!(is_net, [true, true, false, true, true, false, true, true]);
    assert!(config.layers.iter().all(|layer| layer.rope.is_none() == layer.delta_net.is_some()));
    assert!(config.norm.plus_one && config.attention.output_gate);
    assert_eq!((config.embedding_scale, config.ropes[0].rotary_dim), (1.0, 16));
    let net = config.layers[0].delta_net.unwrap();
    assert_eq!((net.key_width(), net.value_width(), net.channels()), (256, 384, 896));
    assert_eq!(net.state_len(), 3 * 896 + 6 * 128 * 64);
    // Only layers with keys are in KV groups.
    let layout = crate::KvLayout::of(&config);
    assert_eq!((layout.num_groups(), layout.layers_per_group), (1, 2));
    assert_eq!((layout.places[2].index, layout.places[5].index), (0, 1));

    let listed =
        json!({"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]});
    let listed = spec(&qwen3_5(listed));
    assert!(listed.layers[0].delta_net.is_none() && listed.layers[1].delta_net.is_some());
    for (changes, wanted) in [
        (
            json!({"layer_types": vec!["chunked_attention"; 8]}),
            "chunked_attention is not supported",
        ),
        (json!({"full_attention_interval": 9}), "no layer has full_attention"),
        (json!({"linear_num_key_heads": 4}), "linear_num_key_heads: 4 does not divide 6"),
        (json!({"linear_key_head_dim": 512}), "linear_key_head_dim"),
        (json!({"linear_conv_kernel_dim": 1}), "linear_conv_kernel_dim: 1 is below 2"),
        (json!({"-": ["linear_num_value_heads"]}), "linear_num_value_heads"),
        (json!({"attn_output_gate": false}), "attn_output_gate: false is not supported"),
        (json!({"sliding_window": 8}), "sliding_window"),
    ] {
        let error = refused(&qwen3_5(changes));
        assert!(error.contains(wanted), "{error} should say {wanted}");
    }
}

#[test]
fn test_experts_of_qwen3_5_stand_beside_a_network_with_a_score() {
    let base = json!({"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48, "-": ["intermediate_size"]});
    let moe = |changes: Value| {
        let nets = with(
            qwen3_5(json!({"model_type": "qwen3_5_moe_text", "architectures": []})),
            base.clone(),
        );
        with(nets, changes)
    };
    let read = spec(&moe(json!({})));
    let experts = experts(&read, 3);
    assert_eq!((experts.num_experts, experts.intermediate_size), (8, 32));
    assert_eq!((experts.shared_size, experts.shared_score), (Some(48), true));
    assert!(experts.router.normalise_top_k && read.layers[3].delta_net.is_none());
    for (changes, wanted) in [
        (json!({"norm_topk_prob": false}), "norm_topk_prob: false is not supported"),
        (json!({"decoder_sparse_step": 2}), "decoder_sparse_step: 2 is not supported"),
        (json!({"mlp_only_layers": [0]}), "mlp_only_layers: [0] is not supported"),
        (json!({"output_gate_type": "sigmoid"}), "output_gate_type: \"sigmoid\" is not supported"),
        (json!({"-": ["shared_expert_intermediate_size"]}), "shared_expert_intermediate_size is"),
    ] {
        let error = refused(&moe(changes));
        assert!(error.contains(wanted), "{error} should say {wanted}");
    }

    let next = |changes: Value| {
        let fields = json!({"model_type": "qwen3_next", "norm_topk_prob": true,
            "intermediate_size": 128, "decoder_sparse_step": 2, "mlp_only_layers": [3]});
        with(moe(fields), changes)
    };
    let is_dense = |layer: &LayerSpec| matches!(layer.feed_forward, FeedForwardSpec::Dense { .. });
    let dense: Vec<bool> = spec(&next(json!({}))).layers.iter().map(is_dense).collect();
    assert_eq!(dense, [true, false, true, true, true, false, true, false]);
    assert!(refused(&next(json!({"-": ["norm_topk_prob"]}))).contains("norm_topk_prob is missing"));
    assert!(refused(&next(json!({"-": ["intermediate_size"]}))).contains("intermediate_size is"));
}

fn gemma4(changes: Value) -> Value {
    let base = json!({"num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "global_head_dim": 32, "sliding_window": 8, "attention_k_eq_v": true,
        "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
        "hidden_activation": "gelu_pytorch_tanh", "-": ["hidden_act", "rope_theta"]});
    with(family("gemma4_text", "Gemma4ForCausalLM", base), changes)
}

#[test]
fn test_gemma4_layers_that_see_everything_have_heads_of_their_own() {
    let published = spec(&gemma4(json!({})));
    let wide = HeadSizes { num_kv_heads: 1, head_dim: 32 };
    let heads: Vec<_> = published.layers.iter().map(|layer| layer.heads).collect();
    assert_eq!(heads, [None, None, None, None, None, Some(wide)]);
    let same: Vec<bool> = published.layers.iter().map(|layer| layer.values_are_keys).collect();
    assert_eq!(same, [false, false, false, false, false, true]);
    assert_eq!((published.attention.scale, published.attention.value_norm), (1.0, true));
    assert!(published.scales_layers && !published.norm.plus_one && published.widest_head() == 32);
    let [full, window] = &published.ropes[..] else { panic!("{:?}", published.ropes) };
    assert_eq!(full.kind, RopeKind::Proportional { pairs: 4, factor: 1.0 });
    assert_eq!((full.rotary_dim, full.theta, window.rotary_dim, window.theta), (32, 1e6, 16, 1e4));
    let turning = full.tables(64).inv_freq;
    assert!(turning[..4].iter().all(|f| *f > 0.0) && turning[4..] == [0.0; 12], "{turning:?}");
    // As transformers 5 writes the same.
    let by_layer = json!({"per_layer_config": {"5": {"head_dim": 32, "num_key_value_heads": 1}},
        "-": ["global_head_dim", "num_global_key_value_heads"]});
    assert_eq!(spec(&gemma4(by_layer)), published);
    // Without shared keys and values the number of heads is the model's.
    let apart = spec(&gemma4(json!({"attention_k_eq_v": false})));
    assert_eq!(apart.heads(&apart.layers[5]), HeadSizes { num_kv_heads: 2, head_dim: 32 });
    for (changes, reason) in [
        (json!({"global_head_dim": 33}), "global_head_dim: 33 is odd"),
        (
            json!({"num_global_key_value_heads": 3}),
            "num_global_key_value_heads: 3 does not divide 4",
        ),
        (json!({"per_layer_config": {"6": {}}}), "6: an entry is not supported"),
        (
            json!({"per_layer_config": {"5": {"sliding_window": 4}}}),
            "sliding_window: a value by layer",
        ),
        (json!({"per_layer_config": {"1": {"head_dim": 32}}}), "layer 1 differs from the others"),
        (
            json!({"rope_parameters": {"rope_theta": 1e4}}),
            "one rope for all layers is not supported",
        ),
        (json!({"use_bidirectional_attention": "all"}), "use_bidirectional_attention: \"all\""),
        (json!({"use_bidirectional_attention": []}), "use_bidirectional_attention: []"),
        (json!({"use_bidirectional_attention": ["vision"]}), "use_bidirectional_attention: ["),
        (
            json!({"layer_types": ["full_attention", "full_attention", "full_attention",
            "full_attention", "full_attention", "sliding_attention"]}),
            "layer_types: sliding_attention there",
        ),
    ] {
        let error = refused(&gemma4(changes));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_gemma4_layers_share_keys_and_get_the_token_itself() {
    let shared = json!({"num_hidden_layers": 7, "num_kv_shared_layers": 3,
        "use_double_wide_mlp": true, "hidden_size_per_layer_input": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "sliding_attention", "full_attention"]});
    let model = with(gemma4(shared), json!({"vocab_size_per_layer_input": 100, "vocab_size": 100}));
    let found = spec(&model);
    let keys_of: Vec<_> = found.layers.iter().map(|layer| layer.keys_of).collect();
    assert_eq!(keys_of, [None, None, None, None, Some(2), Some(2), Some(3)]);
    let width = |layer: usize| match found.layers[layer].feed_forward {
        FeedForwardSpec::Dense { intermediate_size, .. } => intermediate_size,
        FeedForwardSpec::Moe(_) => 0,
    };
    assert_eq!(width(6), 2 * width(0));
    assert_eq!(found.token_input, Some(TokenInputSpec { size: 8 }));
    let layout = crate::KvLayout::of(&found);
    assert_eq!(layout.places[4], layout.places[2]);
    assert_eq!(layout.places[6], layout.places[3]);
    for (changes, reason) in [
        (json!({"num_kv_shared_layers": 7}), "num_kv_shared_layers: 7 leaves no layer with keys"),
        (json!({"num_kv_shared_layers": 6}), "6 leaves no layer with keys of the same type"),
        (
            json!({"vocab_size_per_layer_input": 99}),
            "vocab_size_per_layer_input: 99 is not supported",
        ),
    ] {
        let error = refused(&with(model.clone(), changes));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_gemma4_experts_stand_beside_the_usual_network() {
    let model =
        spec(&gemma4(json!({"enable_moe_block": true, "num_experts": 8, "top_k_experts": 2,
        "moe_intermediate_size": 16})));
    let moe = experts(&model, 0);
    assert!(moe.own_norms && moe.router.normalise_top_k && !moe.shared_score);
    assert_eq!((moe.num_experts, moe.experts_per_token, moe.intermediate_size), (8, 2, 16));
    assert!(moe.shared_size.is_some());
    let error = refused(&gemma4(json!({"enable_moe_block": true, "num_experts": 8})));
    assert!(error.contains("top_k_experts"), "{error}");
    let error = refused(&gemma4(json!({"enable_moe_block": true, "top_k_experts": 2})));
    assert!(error.contains("num_experts is missing"), "{error}");
}

#[test]
fn test_a_factor_of_a_rope_is_a_positive_number_in_every_type() {
    let rope = |kind: &str, factor: Value| {
        let full = json!({"rope_type": kind, "rope_theta": 1e6, "factor": factor});
        json!({"rope_parameters": {"full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}})
    };
    for kind in ["default", "proportional"] {
        for factor in [json!(0), json!(-2.0), json!("8"), json!([8]), json!(1e39)] {
            let error = refused(&gemma4(rope(kind, factor)));
            assert!(error.contains("rope_parameters.full_attention.factor"), "{error}");
        }
        spec(&gemma4(rope(kind, json!(8.0))));
    }
}

#[test]
fn test_gemma4_unified_has_neither_experts_nor_embeddings_of_layers() {
    let unified = |changes| {
        let class = json!({"model_type": "gemma4_unified_text",
            "architectures": ["Gemma4UnifiedForCausalLM"]});
        with(with(gemma4(json!({})), class), changes)
    };
    let mut found = spec(&unified(json!({"enable_moe_block": false})));
    found.architecture = "gemma4_text".into();
    assert_eq!(found, spec(&gemma4(json!({}))));
    for (changes, field) in [
        (json!({"enable_moe_block": true}), "enable_moe_block: true"),
        (json!({"hidden_size_per_layer_input": 8}), "hidden_size_per_layer_input: 8"),
        (json!({"num_experts": 8}), "num_experts"),
    ] {
        let error = refused(&unified(changes));
        assert!(error.contains(field), "{error}");
    }
}
