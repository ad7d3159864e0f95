//! What a whole GGUF file describes, and descriptions that are refused.

use super::super::known;
use super::builder::{Gguf, Kv};
use crate::generation;
use crate::{
    ChatTemplates, EmbedsOnly, FeedForwardSpec, LayerWeight, PoolingKind, QkNorm, RopeKind,
    RopeStyle, WeightRole, WeightType,
};

#[test]
fn test_a_gguf_llama_without_an_output_tensor_is_tied() {
    let described = Gguf::llama().read();
    let spec = &described.spec;
    assert!(spec.tie_word_embeddings);
    assert_eq!((spec.vocab_size, spec.hidden_size, spec.head_dim), (256, 64, 16));
    assert_eq!((spec.num_attention_heads, spec.num_kv_heads), (4, 2));
    assert_eq!((spec.ropes[0].style, spec.ropes[0].theta), (RopeStyle::Interleaved, 10_000.0));
    assert_eq!((spec.ropes[0].rotary_dim, &spec.ropes[0].kind), (16, &RopeKind::Default));
    assert_eq!(spec.norm.eps, 1e-5);
    assert_eq!(spec.weight_type, WeightType::Q8_0);
    let query = &described.plan.tensors[&WeightRole::Layer(0, LayerWeight::Query)];
    assert_eq!((query.rows, query.cols, query.byte_len), (64, 64, 64 * 2 * 18));
    assert_eq!(query.weight_type, WeightType::Q4_0);
    let untied = Gguf::llama().with_tensor("output.weight", &[64, 256], 1).read();
    assert!(!untied.spec.tie_word_embeddings);
    assert_eq!(untied.plan.tensors[&WeightRole::LmHead].weight_type, WeightType::F16);
}

#[test]
fn test_missing_unused_and_misshapen_tensors_are_named() {
    for tensor in &Gguf::llama().tensors {
        let error = Gguf::llama().without_tensor(&tensor.name).refused();
        assert!(error.ends_with(&format!("tensor {} is missing", tensor.name)), "{error}");
    }
    let error = Gguf::llama().with_tensor("blk.1.attn_norm.weight", &[64], 0).refused();
    assert!(error.contains("blk.1.attn_norm.weight is not used by this model (1 such"), "{error}");
    let error = Gguf::llama().with_tensor("blk.0.ffn_up.weight", &[96, 64], 2).refused();
    assert!(
        error.contains("ffn_up.weight: shape is [64, 96], the model needs [96, 64]"),
        "{error}"
    );
    let rotation = Gguf::llama().with_tensor("blk.0.attn_rot_embd", &[8], 0).read();
    assert_eq!(rotation.plan.tensors.len(), 11);
}

#[test]
fn test_required_keys_are_named_and_typed() {
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    ] {
        let error = Gguf::llama().without_key(key).refused();
        assert_eq!(error, format!("x.gguf: {key} is missing"));
        let error = Gguf::llama().with(key, Kv::I32s(vec![1, 2])).refused();
        assert!(error.contains(&format!("{key}: is an array of integers, not ")), "{error}");
    }
    let mha = Gguf::llama().without_key("llama.attention.head_count_kv");
    assert!(mha.refused().contains("attn_k.weight: shape is [32, 64], the model needs [64, 64]"));
    for (key, value, reason) in [
        ("llama.block_count", Kv::U32(0), "0 is not from 1 to 1024"),
        ("llama.block_count", Kv::U64(1 << 40), "1099511627776 is outside 0 to"),
        ("llama.block_count", Kv::U32(1025), "1025 is not from 1 to 1024"),
        ("llama.attention.head_count", Kv::U32(3), "2 does not divide 3 query heads"),
        ("llama.attention.key_length", Kv::U32(15), "15 is not an even number"),
        ("llama.attention.value_length", Kv::U32(32), "32 differs from the width of keys, 16"),
        ("llama.vocab_size", Kv::U32(255), "255 differs from the 256 rows of token_embd.weight"),
        ("llama.rope.dimension_count", Kv::U32(32), "32 is not from 1 to 16"),
        ("llama.rope.dimension_count", Kv::U32(7), "7 is odd"),
        ("llama.rope.freq_base", Kv::F32(f32::NAN), "NaN is not a positive number"),
        ("llama.rope.freq_base", Kv::F32(0.5), "0.5 is not above 1"),
        ("llama.attention.layer_norm_rms_epsilon", Kv::F32(-1.0), "-1 is not a positive number"),
    ] {
        let error = Gguf::llama().with(key, value).refused();
        assert!(error.contains(reason), "{error}");
    }
    // Any integer width will do.
    Gguf::llama().with("llama.block_count", Kv::U64(1)).read();
}

#[test]
fn test_what_we_lack_is_refused_by_name() {
    let other = Gguf::model("gemma3").refused();
    assert!(other.contains("general.architecture: gemma3 is not supported (supported: llama"));
    for (key, value) in [
        ("llama.attention.sliding_window", Kv::U32(4096)),
        ("llama.attention.scale", Kv::F32(0.1)),
        ("llama.logit_scale", Kv::F32(8.0)),
        ("llama.expert_shared_count", Kv::U32(1)),
        ("llama.expert_gating_func", Kv::U32(2)),
        ("llama.rope.dimension_sections", Kv::I32s(vec![1, 2])),
    ] {
        let error = Gguf::llama().with(key, value).refused();
        assert!(error.contains(key) && error.contains("is not supported"), "{error}");
    }
    for (key, value, shown) in [
        ("llama.frobnication_depth", Kv::U32(7), "7"),
        ("llama.attention.frobnicated", Kv::Bool(1), "true"),
        ("llama.frobnication", Kv::Texts(vec![]), "an array of strings"),
        ("general.type", Kv::Text("adapter".to_owned()), "adapter"),
    ] {
        let error = Gguf::llama().with(key, value).refused();
        assert!(error.contains(&format!("{key}: {shown} is not supported")), "{error}");
    }
    for (key, value) in [
        ("llama.attention.sliding_window", Kv::U32(0)),
        ("llama.logit_scale", Kv::F32(1.0)),
        ("llama.expert_gating_func", Kv::U32(1)),
        ("llama.expert_weights_norm", Kv::Bool(1)),
        ("llama.use_parallel_residual", Kv::Bool(0)),
        ("llama.tensor_data_layout", Kv::Text("Meta AI original pth".to_owned())),
        ("llama.attention.causal", Kv::Bool(1)),
        ("llama.pooling_type", Kv::U32(0)),
        ("general.type", Kv::Text("model".to_owned())),
        ("general.frobnication", Kv::U32(7)),
        ("qwen2.frobnication", Kv::U32(7)),
    ] {
        assert_eq!(Gguf::llama().with(key, value).read().spec, Gguf::llama().read().spec);
    }
}

#[test]
fn test_pooling_and_causality_of_embedding_models() {
    let described = Gguf::llama().with("llama.attention.causal", Kv::Bool(0)).read();
    assert!(!described.spec.attention.causal);
    assert_eq!(described.spec.embeds_only, Some(EmbedsOnly::Bidirectional));
    for (number, pooling) in [(1, PoolingKind::Mean), (3, PoolingKind::Last)] {
        let described = Gguf::llama().with("llama.pooling_type", Kv::U32(number)).read();
        assert!(described.spec.attention.causal);
        assert_eq!(described.spec.embeds_only, Some(EmbedsOnly::Pooled));
        let found = known::embeddings(&described.metadata, "llama").expect("read");
        assert_eq!(found.1, Some(pooling));
    }
    for number in [2, 4] {
        let error = Gguf::llama().with("llama.pooling_type", Kv::U32(number)).refused();
        assert!(error.contains(&format!("pooling_type: {number} is not supported")), "{error}");
    }
}

#[test]
fn test_yarn_extends_the_context() {
    let yarn = Gguf::llama()
        .with("llama.rope.scaling.type", Kv::Text("yarn".to_owned()))
        .with("llama.rope.scaling.factor", Kv::F32(4.0));
    assert_eq!(yarn.read().spec.max_position_embeddings, 8192);
    let declared = yarn.with("llama.rope.scaling.original_context_length", Kv::U32(512));
    assert_eq!(declared.read().spec.max_position_embeddings, 2048);
}

#[test]
fn test_rope_scaling_of_metadata() {
    let kind = |keys: &[(&str, Kv)]| {
        let mut file = Gguf::llama();
        for (key, value) in keys {
            file.set(&format!("llama.rope.{key}"), value.clone());
        }
        super::builder::read(&file.bytes()).map(|described| described.spec.ropes[0].kind.clone())
    };
    let text = |text: &str| Kv::Text(text.to_owned());
    assert_eq!(kind(&[("scaling.type", text("none"))]), Ok(RopeKind::Default));
    let linear = RopeKind::Linear { factor: 4.0 };
    let keys = [("scaling.type", text("linear")), ("scaling.factor", Kv::F32(4.0))];
    assert_eq!(kind(&keys), Ok(linear.clone()));
    assert_eq!(kind(&[("scale_linear", Kv::F32(4.0))]), Ok(linear));
    let yarn = kind(&[
        ("scaling.type", text("yarn")),
        ("scaling.factor", Kv::F32(4.0)),
        ("scaling.original_context_length", Kv::U32(512)),
    ]);
    assert_eq!(
        yarn,
        Ok(RopeKind::Yarn {
            factor: 4.0,
            original_max_position_embeddings: 512,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.138_629_4,
            truncate: true,
        })
    );
    let error = kind(&[("scaling.type", text("longrope")), ("scaling.factor", Kv::F32(4.0))]);
    assert!(error.unwrap_err().contains("llama.rope.scaling.type: longrope is not supported"));
    let error = kind(&[("scaling.type", text("yarn"))]).unwrap_err();
    assert!(error.contains("llama.rope.scaling.factor is missing"), "{error}");
}

#[test]
fn test_rope_factors_are_read_from_their_tensor() {
    let divisors: Vec<f32> = (1..=8_u8).map(f32::from).collect();
    let data = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut file = Gguf::llama().with_tensor("rope_freqs.weight", &[8], 0);
    file.data = Some(("rope_freqs.weight".to_owned(), data(&divisors)));
    let described = file.read();
    assert_eq!(described.spec.ropes[0].kind, RopeKind::Factors { divisors: divisors.clone() });
    assert_eq!(described.plan.tensors.len(), 11);
    let scaled = file
        .clone()
        .with("llama.rope.scaling.type", Kv::Text("linear".to_owned()))
        .with("llama.rope.scaling.factor", Kv::F32(2.0));
    assert!(scaled.refused().contains("contradicts the tensor rope_freqs.weight"));
    file.data = None;
    assert!(file.refused().contains("rope_freqs.weight: 0 is not a positive number"));
    let short = Gguf::llama().with_tensor("rope_freqs.weight", &[4], 0);
    assert!(short.refused().contains("rope_freqs.weight: shape is [4], the model needs [8]"));
    let half = Gguf::llama().with_tensor("rope_freqs.weight", &[8], 1);
    assert!(half.refused().contains("rope_freqs.weight: is not F32"));
}

#[test]
fn test_qwen2_has_biases_and_half_split_rope() {
    let mut file = Gguf::model("qwen2");
    let error = file.refused();
    assert!(error.contains("blk.0.attn_q.bias is missing"), "{error}");
    for (part, len) in [("q", 64), ("k", 32), ("v", 32)] {
        file.tensor(&format!("blk.0.attn_{part}.bias"), &[len], 0);
    }
    let described = file.read();
    assert!(described.spec.attention.qkv_bias && !described.spec.attention.o_bias);
    assert_eq!(described.spec.ropes[0].style, RopeStyle::HalfSplit);
}

#[test]
fn test_qwen3_has_head_norms_and_its_own_head_width() {
    let mut file = Gguf::model("qwen3")
        .with("qwen3.attention.key_length", Kv::U32(32))
        .with("qwen3.attention.value_length", Kv::U32(32));
    for (part, rows) in [("q", 128), ("k", 64), ("v", 64)] {
        file.tensor(&format!("blk.0.attn_{part}.weight"), &[64, rows], 2);
    }
    file.tensor("blk.0.attn_output.weight", &[128, 64], 2);
    for part in ["q", "k"] {
        file.tensor(&format!("blk.0.attn_{part}_norm.weight"), &[32], 0);
    }
    let described = file.read();
    assert_eq!(described.spec.head_dim, 32);
    assert_eq!(described.spec.attention.qk_norm, QkNorm::Head);
    assert_eq!(described.spec.attention.scale, 1.0 / 32_f32.sqrt());
}

/// Llama with experts (Mixtral) and qwen3moe share the stacked layout.
#[test]
fn test_stacked_experts_become_one_view_per_expert() {
    let mut file = Gguf::llama()
        .with("llama.expert_count", Kv::U32(3))
        .with("llama.expert_used_count", Kv::U32(2));
    for part in ["gate", "up", "down"] {
        file = file.without_tensor(&format!("blk.0.ffn_{part}.weight"));
    }
    file.tensor("blk.0.ffn_gate_inp.weight", &[64, 3], 0);
    file.tensor("blk.0.ffn_gate_exps.weight", &[64, 96, 3], 2);
    file.tensor("blk.0.ffn_up_exps.weight", &[64, 96, 3], 2);
    file.tensor("blk.0.ffn_down_exps.weight", &[96, 64, 3], 2);
    let described = file.read();
    let FeedForwardSpec::Moe(moe) = described.spec.layers[0].feed_forward else {
        panic!("a mixture")
    };
    assert_eq!((moe.num_experts, moe.experts_per_token, moe.intermediate_size), (3, 2, 96));
    let view = |part| &described.plan.tensors[&WeightRole::Layer(0, part)];
    let (first, last) = (view(LayerWeight::ExpertDown(0)), view(LayerWeight::ExpertDown(2)));
    assert_eq!((last.rows, last.cols, last.byte_len), (64, 96, 64 * 3 * 18));
    assert_eq!(last.offset, first.offset + 2 * first.byte_len);
    file.set("llama.expert_used_count", Kv::U32(4));
    assert!(file.refused().contains("llama.expert_used_count: 4 is not from 1 to 3"));
    let none = Gguf::model("qwen3moe").refused();
    assert!(none.contains("qwen3moe.expert_count is missing"), "{none}");
}

#[test]
fn test_biases_follow_the_tensors_and_must_be_whole() {
    let mut file = Gguf::llama();
    file.tensor("blk.0.attn_q.bias", &[64], 0);
    assert!(file.refused().contains("blk.0.attn_k.bias is missing"));
    file.tensor("blk.0.attn_k.bias", &[32], 0);
    file.tensor("blk.0.attn_v.bias", &[32], 0);
    file.tensor("blk.0.attn_output.bias", &[64], 0);
    let spec = file.read().spec;
    assert!(spec.attention.qkv_bias && spec.attention.o_bias);
}

#[test]
fn test_end_tokens_of_a_gguf_file_are_read() {
    let metadata = Gguf::llama()
        .with("tokenizer.ggml.eos_token_id", Kv::U32(9))
        .with("tokenizer.ggml.eot_token_id", Kv::U32(4))
        .with("tokenizer.ggml.eom_token_id", Kv::U32(9))
        .with("tokenizer.ggml.bos_token_id", Kv::U32(1))
        .read()
        .metadata;
    let defaults = generation::from_gguf(&metadata).unwrap();
    assert_eq!((defaults.eos_token_ids, defaults.bos_token_id), (vec![4, 9], Some(1)));
}

#[test]
fn test_typed_getters() {
    let metadata = Gguf::llama()
        .with("t.texts", Kv::Texts(vec!["a".to_owned(), String::new()]))
        .with("t.ints", Kv::I32s(vec![-1, 2]))
        .with("t.floats", Kv::F32s(vec![0.5]))
        .with("t.flag", Kv::Bool(1))
        .with("t.big", Kv::U64(u64::MAX))
        .read()
        .metadata;
    assert_eq!(metadata.strings("t.texts").unwrap().unwrap(), ["a", ""]);
    assert_eq!(metadata.i32s("t.ints").unwrap().unwrap(), [-1, 2]);
    assert_eq!(metadata.f32s("t.floats").unwrap().unwrap(), [0.5]);
    assert_eq!(metadata.bool("t.flag").unwrap(), Some(true));
    assert_eq!(metadata.bool("t.absent").unwrap(), None);
    assert!(metadata.u32("t.big").unwrap_err().to_string().contains("is outside 0 to"));
    assert!(metadata.strings("t.ints").is_err() && metadata.string("t.flag").is_err());
    assert!(metadata.contains("t.flag") && metadata.keys().any(|key| key == "t.big"));
}

#[test]
fn test_named_chat_templates_of_a_gguf_are_read() {
    let text = |text: &str| Kv::Text(text.to_owned());
    let list = Kv::Texts(vec!["rag".to_owned()]);
    let one = Gguf::llama().with("tokenizer.chat_template", text("d"));
    let both = one.clone().with("tokenizer.chat_templates", list);
    let missing = ChatTemplates::of_gguf(&both.read().metadata).unwrap_err().to_string();
    assert!(missing.contains("tokenizer.chat_template.rag"), "{missing}");
    let both = both.with("tokenizer.chat_template.rag", text("r"));
    let named = |file: &Gguf| ChatTemplates::of_gguf(&file.read().metadata).unwrap().named;
    assert_eq!(named(&one).into_iter().collect::<Vec<_>>(), [("default".into(), "d".into())]);
    assert_eq!(named(&both).len(), 2);
    assert_eq!(named(&both)["rag"], "r");
    assert!(named(&Gguf::llama()).is_empty());
    let default = one.with("tokenizer.chat_templates", Kv::Texts(vec!["default".to_owned()]));
    let torn = default.with("tokenizer.chat_template.default", text("other"));
    let error = ChatTemplates::of_gguf(&torn.read().metadata).unwrap_err().to_string();
    assert!(
        error.contains("chat_template.default: contradicts tokenizer.chat_template"),
        "{error}"
    );
}
