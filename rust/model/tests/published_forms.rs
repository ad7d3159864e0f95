//! Checkpoints in the forms in which they are published: the output layer twice, under one name or not at
//! all, sentence-transformers files, a folder around a GGUF file.

#![allow(clippy::unwrap_used, reason = "a test helper may panic")]

mod common;

use common::{Folder, Tensors, bare, folder, llama_config, llama_tensors, safetensors};
use ingle_model::{EmbedsOnly, PoolingKind, WeightRole, open};
use serde_json::{Value, json};

fn config(changes: Value) -> Value {
    let mut config = llama_config();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// Names without `model.` and no output layer, as the class without one saves it.
fn bare_tensors() -> Tensors {
    let tensors = llama_tensors().into_iter().filter(|(name, _)| name != "lm_head.weight");
    tensors
        .map(|(name, tensor)| (name.strip_prefix("model.").unwrap().to_owned(), tensor))
        .collect()
}

/// The file with one byte of a tensor changed, of which all are zero.
fn with_byte(tensors: &Tensors, name: &str, at: u64) -> Vec<u8> {
    let mut bytes = safetensors(tensors);
    let sizes = tensors.iter().take_while(|(other, _)| *other != name);
    let start: u64 = sizes.map(|(_, (_, shape))| shape.iter().product::<u64>() * 2).sum();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
    bytes[usize::try_from(header + start + at).unwrap()] = 1;
    bytes
}

#[test]
fn test_a_tied_head_with_other_bytes_is_used() {
    let tied = config(json!({"tie_word_embeddings": true}));
    let last = 32 * 8 * 2 - 1;
    for (name, at) in [("lm_head.weight", 0), ("lm_head.weight", last)] {
        let folder = bare(&tied);
        folder.write("model.safetensors", with_byte(&llama_tensors(), name, at));
        let checkpoint = open(folder.path()).unwrap();
        assert!(!checkpoint.spec.tie_word_embeddings);
        let head = &checkpoint.plan.tensors[&WeightRole::LmHead];
        assert_eq!(head.name, "lm_head.weight");
        assert!(checkpoint.notes[0].starts_with("lm_head.weight: differs from the embedding"));
    }
    // The same bytes are the same matrix, and another type is another one.
    let folder_of = |dtype| {
        let mut tensors = llama_tensors();
        tensors.insert("lm_head.weight".to_owned(), (dtype, vec![32, 8]));
        folder(&tied, &tensors)
    };
    let equal = open(folder_of("BF16").path()).unwrap();
    assert!(equal.spec.tie_word_embeddings && equal.notes.is_empty());
    assert!(!equal.plan.tensors.contains_key(&WeightRole::LmHead));
    assert!(!open(folder_of("F16").path()).unwrap().spec.tie_word_embeddings);
}

#[test]
fn test_tied_weights_may_be_saved_under_the_head_s_name() {
    let mut tensors = llama_tensors();
    tensors.remove("model.embed_tokens.weight").unwrap();
    let tied = config(json!({"tie_word_embeddings": true}));
    let checkpoint = open(folder(&tied, &tensors).path()).unwrap();
    assert_eq!(checkpoint.plan.tensors[&WeightRole::Embedding].name, "lm_head.weight");
    assert!(checkpoint.spec.tie_word_embeddings && checkpoint.spec.embeds_only.is_none());
    let error = folder(&llama_config(), &tensors).refused();
    assert!(error.ends_with("tensor model.embed_tokens.weight is missing"), "{error}");
}

#[test]
fn test_checkpoints_without_an_output_layer_make_embeddings_only() {
    let base = json!({"architectures": ["LlamaModel"]});
    for (changes, tensors) in [
        (base.clone(), bare_tensors()),
        (json!({"architectures": ["LlamaForCausalLM"]}), bare_tensors()),
        (json!({"tie_word_embeddings": true}), bare_tensors()),
        // The class has no head, whatever the file holds.
        (base, llama_tensors()),
    ] {
        let checkpoint = open(folder(&config(changes), &tensors).path()).unwrap();
        assert_eq!(checkpoint.spec.embeds_only, Some(EmbedsOnly::NoOutputLayer));
        assert_eq!(checkpoint.plan.tensors.len(), 11);
    }
    for name in bare_tensors().keys() {
        let mut tensors = bare_tensors();
        tensors.remove(name).unwrap();
        let error = folder(&llama_config(), &tensors).refused();
        assert!(error.contains("is missing"), "{name}: {error}");
    }
    let mut tensors = bare_tensors();
    tensors.insert("layers.1.mlp.up_proj.weight".to_owned(), ("BF16", vec![16, 8]));
    let error = folder(&llama_config(), &tensors).refused();
    assert!(error.contains("layers.1.mlp.up_proj.weight is not used"), "{error}");
}

fn sentence_transformer(modules: &[&str], pooling: &Value) -> Folder {
    let folder = folder(&llama_config(), &bare_tensors());
    let paths = ["", "1_Pooling", "2_Normalize"];
    let list: Vec<Value> = modules
        .iter()
        .zip(paths)
        .enumerate()
        .map(|(idx, (name, path))| {
            let kind = format!("sentence_transformers.models.{name}");
            json!({"idx": idx, "name": idx.to_string(), "path": path, "type": kind})
        })
        .collect();
    folder.write("modules.json", Value::Array(list).to_string());
    std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    folder.write("1_Pooling/config.json", pooling.to_string());
    folder
}

#[test]
fn test_sentence_transformers_files_decide_the_pooling() {
    let pooling = |mode: &str| {
        let mut config = json!({"word_embedding_dimension": 8, "include_prompt": true});
        for name in ["cls_token", "mean_tokens", "max_tokens", "lasttoken"] {
            config[format!("pooling_mode_{name}")] = json!(name == mode);
        }
        config
    };
    let all = ["Transformer", "Pooling", "Normalize"];
    for (modules, mode, kind, normalise) in [
        (&all[..], "lasttoken", PoolingKind::Last, true),
        (&all[..2], "mean_tokens", PoolingKind::Mean, false),
    ] {
        let checkpoint = open(sentence_transformer(modules, &pooling(mode)).path()).unwrap();
        let embedding = checkpoint.embedding;
        assert_eq!((embedding.pooling, embedding.normalise), (kind, normalise));
        assert_eq!(checkpoint.spec.embeds_only, Some(EmbedsOnly::SentenceTransformers));
    }
    let newer = json!({"embedding_dimension": 8, "pooling_mode": "lasttoken"});
    assert!(open(sentence_transformer(&all, &newer).path()).is_ok());
    let plain = open(folder(&llama_config(), &llama_tensors()).path()).unwrap().embedding;
    assert_eq!((plain.pooling, plain.normalise), (PoolingKind::Last, true));

    let wide = json!({"word_embedding_dimension": 9, "pooling_mode": "mean"});
    for (modules, pooling, reason) in [
        (&all[..], pooling("cls_token"), "pooling_mode_cls_token: cls_token is not supported"),
        (&all[..], pooling("none"), "1_Pooling/config.json: pooling_mode is missing"),
        (&all[..], wide, "word_embedding_dimension: 9 differs from the model's width, 8"),
        (&["Transformer", "Pooling", "Dense"], newer.clone(), "models.Dense is not supported"),
        (&["Transformer"], newer.clone(), "the order of modules: Transformer is not supported"),
        (&["Pooling", "Transformer"], newer, "path:  is not supported"),
    ] {
        let error = sentence_transformer(modules, &pooling).refused();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_lower_case_is_refused() {
    let pooling = json!({"pooling_mode": "lasttoken"});
    let folder = sentence_transformer(&["Transformer", "Pooling"], &pooling);
    folder.write("sentence_bert_config.json", r#"{"max_seq_length": 8, "do_lower_case": false}"#);
    assert!(open(folder.path()).is_ok());
    folder.write("sentence_bert_config.json", r#"{"do_lower_case": true}"#);
    let error = folder.refused();
    assert!(error.contains("do_lower_case: true is not supported"), "{error}");
}

#[test]
fn test_folders_that_are_no_checkpoint_are_named_as_what_they_are() {
    for (file, reason) in [
        ("README.md", ": config.json is missing"),
        ("adapter_config.json", ": is a LoRA adapter, not a model: merge it"),
        ("params.json", "own format, which is not read"),
    ] {
        let folder = Folder::new();
        folder.write(file, "{}");
        let error = folder.refused();
        assert!(error.contains(reason), "{error}");
    }
    let cache = Folder::new();
    std::fs::create_dir(cache.path().join("snapshots")).unwrap();
    assert!(cache.refused().ends_with("give the one below snapshots/"));
}

#[test]
fn test_a_default_prompt_is_named() {
    let folder = folder(&llama_config(), &llama_tensors());
    folder.write("config_sentence_transformers.json", r#"{"default_prompt_name": null}"#);
    assert!(open(folder.path()).unwrap().notes.is_empty());
    folder.write("config_sentence_transformers.json", r#"{"default_prompt_name": "query"}"#);
    let notes = open(folder.path()).unwrap().notes;
    assert!(notes[0].contains("default_prompt_name is query"), "{notes:?}");
}

#[test]
fn test_a_folder_with_one_gguf_is_that_file() {
    let folder = Folder::new();
    folder.write("README.md", "");
    folder.write("model-Q4_0.gguf", "GGUF and then nothing");
    let error = folder.refused();
    assert!(error.contains("/model-Q4_0.gguf: "), "{error}");
    folder.write("model-Q8_0.gguf", "GGUF");
    let error = folder.refused();
    let reason = "2 .gguf files (model-Q4_0.gguf, model-Q8_0.gguf, ...): name one of them";
    assert!(error.ends_with(reason), "{error}");
    // Beside safetensors they are other forms of the same weights.
    folder.write("config.json", llama_config().to_string());
    folder.write("tokenizer.json", "{}");
    folder.write("model.safetensors", safetensors(&llama_tensors()));
    assert!(open(folder.path()).is_ok());
}

#[test]
fn test_an_empty_path_is_named() {
    let error = open("".as_ref()).unwrap_err().to_string();
    assert_eq!(error, "model: the path is empty: a folder or a .gguf file is needed");
}

/// A multimodal model whose text half is the llama model of the other tests, as `mistral`.
fn multimodal() -> Value {
    let mut text = llama_config();
    text["model_type"] = json!("mistral");
    text.as_object_mut().unwrap().remove("architectures");
    text.as_object_mut().unwrap().remove("eos_token_id");
    json!({"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": text, "vision_config": {"model_type": "pixtral"}, "eos_token_id": 7})
}

/// The text tensors with `prefix` before them, `head` as the output layer, and two of the vision tower.
fn composite(prefix: &str, head: &str, tower: &str) -> Tensors {
    let rename = |name: String| match name.strip_prefix("model.") {
        Some(rest) => format!("{prefix}{rest}"),
        None => head.to_owned(),
    };
    let text = llama_tensors().into_iter().map(|(name, tensor)| (rename(name), tensor));
    let images = ["vision_tower.ln_pre.weight", "multi_modal_projector.norm.weight"];
    let images = images.map(|name| (format!("{tower}{name}"), ("BF16", vec![4])));
    text.chain(images).collect()
}

#[test]
fn test_the_text_half_of_a_multimodal_checkpoint_is_found_under_its_names() {
    let old = composite("language_model.model.", "language_model.lm_head.weight", "");
    let new = composite("model.language_model.", "lm_head.weight", "model.");
    for tensors in [&old, &new] {
        let checkpoint = open(folder(&multimodal(), tensors).path()).unwrap();
        assert_eq!(checkpoint.plan.tensors.len(), llama_tensors().len());
        assert_eq!(checkpoint.spec.architecture, "mistral");
        assert!(!checkpoint.spec.tie_word_embeddings && checkpoint.spec.embeds_only.is_none());
        assert_eq!(checkpoint.generation.eos_token_ids, [7]);
        assert_eq!(checkpoint.notes, ["mistral3: its text model is served; images are refused"]);
        let mut unknown = tensors.clone();
        unknown.insert("audio_tower.bias".to_owned(), ("BF16", vec![4]));
        let error = folder(&multimodal(), &unknown).refused();
        assert!(error.contains("audio_tower.bias is not used"), "{error}");
    }
    // A text model has no part that sees images.
    let error = folder(&multimodal()["text_config"], &new).refused();
    assert!(error.contains("is not used"), "{error}");
    // Saved without its output layer.
    let base = composite("language_model.", "unused", "");
    let base = base.into_iter().filter(|(name, _)| name != "unused").collect();
    let mut config = multimodal();
    config["architectures"] = json!(["Mistral3Model"]);
    let checkpoint = open(folder(&config, &base).path()).unwrap();
    assert_eq!(checkpoint.spec.embeds_only, Some(EmbedsOnly::NoOutputLayer));
}

/// The golden glm4_moe model with one layer less, the last one as a layer that predicts several tokens.
#[test]
fn test_layers_that_predict_several_tokens_are_left_out_as_far_as_the_config_names_them() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/glm4_moe");
    let golden = std::path::Path::new(golden);
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(golden.join("config.json")).unwrap()).unwrap();
    config["num_hidden_layers"] = json!(2);
    for (later, opens) in [(1, true), (0, false)] {
        config["num_nextn_predict_layers"] = json!(later);
        let folder = Folder::new();
        for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(golden.join(file), folder.path().join(file)).unwrap();
        }
        folder.write("config.json", config.to_string());
        if opens {
            let plan = open(folder.path()).unwrap().plan;
            assert!(!plan.tensors.keys().any(|role| matches!(role, WeightRole::Layer(2, _))));
        } else {
            let error = folder.refused();
            assert!(error.contains("model.layers.2.") && error.contains("is not used"), "{error}");
        }
    }
}
