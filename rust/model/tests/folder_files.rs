//! Which files of a folder count, and what is said when they do not fit together: stray and missing
//! files, stale indices, pointers, other file kinds.

#![allow(clippy::unwrap_used, reason = "a test helper may panic")]

mod common;

use common::{Folder, Tensors, bare, folder, llama_config, llama_tensors, safetensors};
use ingle_model::{TokenizerFiles, WeightRole, open};
use serde_json::json;

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\n\
    oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";

/// Two shards and their index; `change` edits the index before it is written.
fn sharded(change: impl FnOnce(&mut serde_json::Value)) -> Folder {
    let folder = bare(&llama_config());
    let (first, second): (Tensors, Tensors) =
        llama_tensors().into_iter().partition(|(name, _)| name.contains("self_attn"));
    let mut map = serde_json::Map::new();
    for (number, shard) in [first, second].iter().enumerate() {
        let file = format!("model-{:05}-of-00002.safetensors", number + 1);
        folder.write(&file, safetensors(shard));
        map.extend(shard.keys().map(|name| (name.clone(), json!(file))));
    }
    let mut index = json!({"metadata": {"total_size": 0}, "weight_map": map});
    change(&mut index);
    folder.write("model.safetensors.index.json", index.to_string());
    folder
}

#[test]
fn test_a_single_file_opens() {
    let checkpoint = open(folder(&llama_config(), &llama_tensors()).path()).unwrap();
    assert_eq!(checkpoint.plan.tensors.len(), 12);
    assert_eq!(checkpoint.plan.files.len(), 1);
    assert!(checkpoint.plan.tensors.contains_key(&WeightRole::LmHead));
}

#[test]
fn test_shards_open_by_their_index() {
    let folder = sharded(|_| ());
    let checkpoint = open(folder.path()).unwrap();
    assert_eq!((checkpoint.plan.tensors.len(), checkpoint.plan.files.len()), (12, 2));
    for view in checkpoint.plan.tensors.values() {
        let first = view.name.contains("self_attn");
        assert_eq!(view.file, usize::from(!first), "{}", view.name);
        let mut bytes = vec![1; usize::try_from(view.byte_len).unwrap()];
        checkpoint.source.read_at(view.file, view.offset, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn test_stray_files_beside_an_index_are_not_read() {
    let folder = sharded(|_| ());
    folder.write("consolidated.safetensors", "stray");
    folder.write("model.safetensors", "stray");
    assert_eq!(open(folder.path()).unwrap().plan.files.len(), 2);
}

#[test]
fn test_several_candidates_without_an_index_are_refused() {
    let folder = bare(&llama_config());
    folder.write("consolidated.safetensors", safetensors(&llama_tensors()));
    folder.write("weights.safetensors", safetensors(&llama_tensors()));
    let error = folder.refused();
    assert!(error.contains("2 .safetensors files (consolidated.safetensors, weights.safetensors"));
    assert!(error.contains("no model.safetensors.index.json"), "{error}");
}

#[test]
fn test_other_forms_of_the_weights_beside_model_safetensors_are_left_alone() {
    let folder = folder(&llama_config(), &llama_tensors());
    folder.write("consolidated.safetensors", "not even a header");
    let checkpoint = ingle_model::open(folder.path()).unwrap();
    assert!(checkpoint.plan.files[0].ends_with("/model.safetensors"));
}

#[test]
fn test_stale_indices_are_refused() {
    let missing_file = sharded(|index| {
        index["weight_map"]["model.norm.weight"] = json!("model-00003-of-00003.safetensors");
    });
    let error = missing_file.refused();
    assert!(error.contains("index does not match the folder"), "{error}");
    assert!(error.contains("model-00003-of-00003.safetensors, which is missing"), "{error}");

    let moved = sharded(|index| {
        index["weight_map"]["model.norm.weight"] = json!("model-00001-of-00002.safetensors");
    });
    let error = moved.refused();
    assert!(error.contains("model.norm.weight is in model-00002-of-00002"), "{error}");

    let too_many = sharded(|index| {
        index["weight_map"]["model.layers.1.extra"] = json!("model-00001-of-00002.safetensors");
    });
    let error = too_many.refused();
    assert!(error.contains("it names 13 tensors, the files hold 12"), "{error}");
    assert!(error.contains("model.layers.1.extra is not in model-00001"), "{error}");

    let too_few = sharded(|index| {
        index["weight_map"].as_object_mut().unwrap().remove("model.norm.weight");
    });
    assert!(too_few.refused().contains("model.norm.weight of model-00002"));
}

#[test]
fn test_an_index_does_not_reach_outside_its_folder() {
    for shard in ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "weights.bin"] {
        let folder = sharded(|index| index["weight_map"]["model.norm.weight"] = json!(shard));
        let error = folder.refused();
        assert!(error.contains("is not the name of a .safetensors file"), "{error}");
    }
    let empty = sharded(|index| index["weight_map"] = json!({}));
    assert!(empty.refused().contains("weight_map is empty"));
    let wrong = sharded(|index| index["weight_map"] = json!([1]));
    assert!(wrong.refused().contains("model.safetensors.index.json: invalid type"));
}

#[test]
fn test_git_lfs_pointers_are_named_as_such() {
    for name in ["model.safetensors", "config.json", "tokenizer.json"] {
        let folder = folder(&llama_config(), &llama_tensors());
        folder.write(name, POINTER);
        let error = folder.refused();
        assert!(error.contains(&format!("{name}: this is a Git LFS pointer")), "{error}");
    }
    let folder = sharded(|_| ());
    folder.write("model.safetensors.index.json", POINTER);
    assert!(folder.refused().contains("index.json: this is a Git LFS pointer"));
    let gguf = Folder::new();
    gguf.write("model.gguf", POINTER);
    let error = open(&gguf.path().join("model.gguf")).unwrap_err().to_string();
    assert!(error.contains("model.gguf: this is a Git LFS pointer"), "{error}");
}

#[test]
fn test_a_key_that_a_file_has_twice_is_refused_by_name() {
    let config = llama_config().to_string();
    let twice = |extra: &str| config.replacen('{', &format!("{{{extra},"), 1);
    for (file, text, key) in [
        ("config.json", twice("\"hidden_size\": 8"), "hidden_size"),
        ("config.json", twice("\"id2label\": {\"a\": 1, \"a\": 1}"), "a"),
        ("generation_config.json", "{\"top_k\": 1, \"top_k\": 2}".to_owned(), "top_k"),
        (
            "tokenizer_config.json",
            "{\"chat_template\": \"a\", \"chat_template\": \"b\"}".to_owned(),
            "chat_template",
        ),
    ] {
        let folder = folder(&llama_config(), &llama_tensors());
        folder.write(file, text);
        let error = folder.refused();
        assert!(error.contains(&format!("{file}: {key}: duplicate key at line 1")), "{error}");
    }
}

#[test]
fn test_missing_files_are_named() {
    let empty = Folder::new();
    assert!(empty.refused().contains("config.json is missing"));
    assert!(bare(&llama_config()).refused().contains("no .safetensors file"));
    let folder = folder(&llama_config(), &llama_tensors());
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    assert!(folder.refused().contains("tokenizer.json is missing"));
    let error = open(&folder.path().join("nowhere")).unwrap_err().to_string();
    assert!(error.contains("nowhere: cannot open"), "{error}");
    folder.write("model.bin", "x");
    let error = open(&folder.path().join("model.bin")).unwrap_err().to_string();
    assert!(error.contains("neither a folder nor a .gguf file"), "{error}");
}

#[test]
fn test_a_fifo_does_not_block_and_a_folder_is_not_a_file() {
    let folder = bare(&llama_config());
    let fifo = folder.path().join("model.safetensors");
    let status = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(status.success());
    assert!(folder.refused().contains("model.safetensors: not a regular file"));
    std::fs::remove_file(&fifo).unwrap();
    std::fs::create_dir(&fifo).unwrap();
    assert!(folder.refused().contains("model.safetensors: not a regular file"));
}

#[test]
fn test_files_that_are_too_large_are_refused_unread() {
    let folder = folder(&llama_config(), &llama_tensors());
    let config = std::fs::File::create(folder.path().join("config.json")).unwrap();
    config.set_len(1 << 40).unwrap();
    let error = folder.refused();
    assert!(error.contains("size in bytes is 1099511627776, the limit is 1048576"), "{error}");
}

#[test]
fn test_a_file_that_shrinks_after_opening_is_named() {
    let folder = folder(&llama_config(), &llama_tensors());
    let checkpoint = open(folder.path()).unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1000).unwrap();
    let view = &checkpoint.plan.tensors[&WeightRole::FinalNorm];
    let mut bytes = vec![0; usize::try_from(view.byte_len).unwrap()];
    let error = checkpoint.source.read_at(0, view.offset, &mut bytes).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    assert!(error.to_string().contains("model.safetensors became shorter"), "{error}");
    let error = checkpoint.source.read_at(1, 0, &mut bytes).unwrap_err().to_string();
    assert!(error.contains("no file number 1"), "{error}");
}

#[test]
fn test_a_file_that_is_written_to_after_opening_is_named_and_not_used() {
    let folder = folder(&llama_config(), &llama_tensors());
    let checkpoint = open(folder.path()).unwrap();
    let view = &checkpoint.plan.tensors[&WeightRole::FinalNorm];
    let mut bytes = vec![0; usize::try_from(view.byte_len).unwrap()];
    checkpoint.source.read_at(0, view.offset, &mut bytes).unwrap();
    let path = folder.path().join("model.safetensors");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let before = file.metadata().unwrap().modified().unwrap();
    // As a write does. Clocks of file systems are too coarse for a write just after the opening.
    file.set_modified(before + std::time::Duration::from_secs(1)).unwrap();
    let error = checkpoint.source.read_at(0, view.offset, &mut bytes).unwrap_err().to_string();
    assert!(error.contains("model.safetensors was written to since it was opened"), "{error}");
    file.set_modified(before).unwrap();
    checkpoint.source.read_at(0, view.offset, &mut bytes).unwrap();
}

#[test]
fn test_chat_templates_from_each_place() {
    let template = |folder: &Folder| match open(folder.path()).unwrap().tokenizer {
        TokenizerFiles::HuggingFace { chat_templates, .. } => chat_templates.named,
        TokenizerFiles::Gguf { .. } => panic!("a folder"),
    };
    let folder = folder(&llama_config(), &llama_tensors());
    let named = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    };
    assert_eq!(template(&folder), named(&[]));
    folder.write("tokenizer_config.json", r#"{"chat_template": null}"#);
    assert_eq!(template(&folder), named(&[]));
    folder.write("chat_template.json", r#"{"chat_template": "zero"}"#);
    assert_eq!(template(&folder), named(&[("default", "zero")]));
    folder.write("tokenizer_config.json", r#"{"chat_template": "one"}"#);
    assert_eq!(template(&folder), named(&[("default", "one")]));
    let list = json!({"chat_template": [{"name": "tool_use", "template": "t"},
        {"name": "default", "template": "two"}]});
    folder.write("tokenizer_config.json", list.to_string());
    assert_eq!(template(&folder), named(&[("default", "two"), ("tool_use", "t")]));
    folder.write("chat_template.jinja", "three");
    std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    folder.write("additional_chat_templates/rag.jinja", "r");
    folder.write("additional_chat_templates/README.md", "no template");
    let all = named(&[("default", "three"), ("rag", "r"), ("tool_use", "t")]);
    assert_eq!(template(&folder), all);
    folder.write("chat_template.jinja", [0xff, 0xfe]);
    assert!(folder.refused().contains("chat_template.jinja: not UTF-8"));
    std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    folder.write("tokenizer_config.json", r#"{"chat_template": [{"name": "rag"}]}"#);
    assert!(folder.refused().contains("an entry without name or template"));
    let twice = json!({"chat_template": [{"name": "rag", "template": "a"},
        {"name": "rag", "template": "a"}]});
    folder.write("tokenizer_config.json", twice.to_string());
    let error = folder.refused();
    assert!(error.ends_with("chat_template: has two templates of the name rag"), "{error}");
}

#[test]
fn test_end_tokens_are_the_union_of_both_files() {
    let folder = folder(&llama_config(), &llama_tensors());
    assert_eq!(open(folder.path()).unwrap().generation.eos_token_ids, [7]);
    let generation = json!({"eos_token_id": [9, 7, 3], "bos_token_id": 1, "temperature": 0.6,
        "top_k": 20, "top_p": 0.95, "min_p": null, "do_sample": true});
    folder.write("generation_config.json", generation.to_string());
    let defaults = open(folder.path()).unwrap().generation;
    assert_eq!(defaults.eos_token_ids, [3, 7, 9]);
    assert_eq!((defaults.bos_token_id, defaults.do_sample), (Some(1), Some(true)));
    // The engine reads these.
    let others = json!({"temperature": 0.6, "top_k": 20, "top_p": 0.95});
    assert_eq!(serde_json::Value::Object(defaults.others), others);
    for (key, value) in
        [("eos_token_id", json!("</s>")), ("eos_token_id", json!([1, -1])), ("do_sample", json!(1))]
    {
        folder.write("generation_config.json", json!({key: value}).to_string());
        let error = folder.refused();
        assert!(error.contains(&format!("generation_config.json: {key}: ")), "{error}");
    }
}
