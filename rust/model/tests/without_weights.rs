//! Folders with a config.json and no weights (`--load-format dummy`): the shapes of published models, and the
//! numbers that stand for their weights.

#![allow(clippy::unwrap_used, reason = "a test helper may panic")]

#[allow(dead_code, reason = "what other tests make of weights is not needed here")]
mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use common::{Folder, llama_config};
use ingle_model::{
    Checkpoint, LayerWeight, TensorView, TokenizerFiles, VocabularyFile, WeightRole, WeightType,
    dequantise, e4m3_to_f32, open, open_without_weights,
};
use serde_json::{Value, json};

fn published() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/published")
}

fn opened(name: &str) -> Checkpoint {
    open_without_weights(&published().join(name)).unwrap()
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(of).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

/// `model_type` of a folder, of its text half if it has one.
fn model_type(folder: &Path) -> String {
    let config: Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let text = config.get("text_config").unwrap_or(&config);
    text["model_type"].as_str().unwrap().to_owned()
}

/// Parameters in thousands of millions, as the models' names and reports say.
const SIZES: [(&str, f64); 42] = [
    ("deepseek-v2-lite", 15.7),
    ("deepseek-v3", 671.0),
    ("gemma-2-9b", 9.24),
    ("gemma-3-27b", 27.0),
    ("gemma-4-12b", 11.9),
    ("gemma-4-26b-a4b", 25.2),
    ("gemma-4-31b", 30.7),
    // 4.5 without the embeddings of layers.
    ("gemma-4-e4b", 7.46),
    ("glm-4.5-air", 106.9),
    ("glm-4.7-flash", 29.9),
    ("gpt-oss-120b", 116.8),
    ("gpt-oss-20b", 20.9),
    ("granite-3.3-8b", 8.17),
    ("kimi-k2", 1026.0),
    ("llama-3.1-70b", 70.55),
    ("llama-3.1-70b-w4a16", 70.55),
    ("llama-3.1-8b", 8.03),
    ("llama-3.1-8b-awq", 8.03),
    ("llama-3.1-8b-fp8", 8.03),
    ("llama-3.1-8b-gptq", 8.03),
    ("llama-3.1-8b-w4a16", 8.03),
    ("llama-3.2-1b", 1.24),
    ("llama-4-maverick", 400.7),
    ("llama-4-scout", 107.8),
    ("minimax-m2", 228.7),
    ("ministral-3-8b", 8.49),
    ("mistral-7b-v0.3", 7.25),
    ("mistral-small-4-119b", 119.0),
    ("mixtral-8x7b", 46.7),
    ("olmo-2-13b", 13.7),
    ("olmo-3-7b", 7.3),
    ("phi-4", 14.7),
    ("qwen2.5-7b", 7.62),
    ("qwen3.5-27b", 26.9),
    ("qwen3.6-27b", 26.9),
    ("qwen3.6-35b-a3b", 34.7),
    ("qwen3-next-80b-a3b", 79.7),
    ("qwen3-30b-a3b", 30.5),
    ("qwen3-30b-a3b-fp8", 30.5),
    ("qwen3-8b", 8.19),
    ("seed-oss-36b", 36.2),
    ("smollm3-3b", 3.08),
];

#[test]
fn test_every_family_has_a_published_shape_and_all_have_their_sizes() {
    let mut families = BTreeSet::new();
    let mut names = BTreeSet::new();
    for folder in folders(&published()) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let checkpoint = open_without_weights(&folder).unwrap();
        assert!(!checkpoint.has_weights && checkpoint.notes[0].starts_with("load_format dummy: "));
        families.insert(model_type(&folder));
        let Some((_, billions)) = SIZES.iter().find(|(of, _)| *of == name) else {
            panic!("{name}: how many parameters?")
        };
        let size = |view: &TensorView| f64::from(view.rows) * f64::from(view.cols);
        let found = checkpoint.plan.tensors.values().map(size).sum::<f64>() / 1e9;
        assert!((found / billions - 1.0).abs() < 0.015, "{name}: {found}, not {billions}");
        names.insert(name);
    }
    assert_eq!(names.len(), SIZES.len());
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models");
    for folder in folders(&models) {
        assert!(families.contains(&model_type(&folder)), "no published shape of {folder:?}");
    }
}

#[test]
fn test_quantised_shapes_are_quantised_where_the_published_models_are() {
    let kinds = |name| {
        let tensors = opened(name).plan.tensors;
        [
            WeightRole::LmHead,
            WeightRole::Layer(0, LayerWeight::Query),
            WeightRole::Layer(0, LayerWeight::InputNorm),
        ]
        .map(|role| tensors[&role].weight_type)
    };
    use WeightType::{Bf16, F4E2M1, F8E4M3, F16, Int4};
    assert_eq!(kinds("llama-3.1-8b"), [Bf16; 3]);
    assert_eq!(kinds("llama-3.1-8b-w4a16"), [Bf16, Int4, Bf16]);
    assert_eq!(kinds("llama-3.1-8b-awq"), [F16, Int4, F16]);
    assert_eq!(kinds("llama-3.1-8b-gptq"), [F16, Int4, F16]);
    assert_eq!(kinds("llama-3.1-8b-fp8"), [Bf16, F8E4M3, Bf16]);
    assert_eq!(kinds("gpt-oss-20b"), [Bf16; 3]);
    let experts = opened("gpt-oss-120b");
    let down = &experts.plan.tensors[&WeightRole::Layer(35, LayerWeight::ExpertDown(127))];
    assert_eq!((down.weight_type, down.rows, down.cols), (F4E2M1, 2880, 2880));
    assert_eq!(experts.spec.weight_type, F4E2M1);
}

/// The rows from `first` on, widened.
fn rows(checkpoint: &Checkpoint, role: WeightRole, first: u32, count: u32) -> Vec<f32> {
    let (view, source) = (&checkpoint.plan.tensors[&role], checkpoint.source.as_ref());
    let mut values = vec![0.0; (count * view.cols) as usize];
    if let Some(groups) = &view.groups {
        let column_groups = groups.column_groups(source, view.cols).unwrap();
        let rows = view.read_grouped(source, first as usize, count as usize).unwrap();
        rows.widen(view.weight_type, &column_groups, &mut values);
        return values;
    }
    let block = view.weight_type.block_bytes();
    let mut stored = vec![0; values.len() * block];
    view.read(source, u64::from(first * view.cols), &mut stored).unwrap();
    if let Some(scale) = &view.scale {
        let scales = scale.read(source).unwrap();
        for (index, (value, byte)) in values.iter_mut().zip(&stored).enumerate() {
            let (row, column) = (index / view.cols as usize, index % view.cols as usize);
            let row = (first as usize + row) / scale.block_rows as usize;
            let scale = scales[row * scale.cols as usize + column / scale.block_cols as usize];
            *value = e4m3_to_f32(*byte) * scale;
        }
    } else {
        dequantise(view.weight_type, &stored, &mut values);
    }
    values
}

#[test]
fn test_products_with_made_matrices_keep_the_size_of_what_goes_in() {
    use LayerWeight as W;
    for (name, weights) in [
        ("llama-3.1-8b", vec![W::Query, W::Down]),
        ("llama-3.1-8b-fp8", vec![W::Query, W::Down]),
        ("llama-3.1-8b-w4a16", vec![W::Query, W::Down]),
        ("llama-3.1-8b-awq", vec![W::Query, W::Down]),
        ("llama-3.1-8b-gptq", vec![W::Query, W::Down]),
        ("qwen3-30b-a3b-fp8", vec![W::Router, W::ExpertGate(7), W::ExpertDown(127)]),
        ("gpt-oss-20b", vec![W::Router, W::ExpertUp(3), W::ExpertDown(31)]),
        ("gemma-2-9b", vec![W::Value]),
    ] {
        let checkpoint = opened(name);
        for weight in weights {
            let values = rows(&checkpoint, WeightRole::Layer(2, weight), 3, 40);
            let of_row = values.len() as f32 / 40.0;
            let squares: f32 = values.iter().map(|value| value * value).sum();
            let gain = (squares / 40.0).sqrt();
            assert!((0.2..5.0).contains(&gain), "{name} {weight:?}: {gain}");
            let sum: f32 = values.iter().sum();
            assert!(sum.abs() < 0.6 * squares.sqrt() * of_row.sqrt() * 6.0, "{name} {weight:?}");
        }
    }
}

#[test]
fn test_made_numbers_depend_on_name_and_place_alone_and_are_not_zero() {
    let checkpoint = opened("llama-3.1-8b");
    let again = opened("llama-3.1-8b");
    let role = |layer| WeightRole::Layer(layer, LayerWeight::Key);
    let whole = rows(&checkpoint, role(0), 0, 8);
    assert!(whole.iter().all(|value| *value != 0.0 && value.is_finite()));
    let distinct: BTreeSet<u32> = whole.iter().map(|value| value.to_bits()).collect();
    assert!(distinct.len() > 400, "{}", distinct.len());
    for first in 0..8 {
        assert_eq!(rows(&again, role(0), first, 1), whole[first as usize * 4096..][..4096]);
    }
    assert_ne!(rows(&checkpoint, role(1), 0, 8), whole);
    // In pieces of any length.
    let view = &checkpoint.plan.tensors[&role(0)];
    let read = |at: usize, len: usize| {
        let mut bytes = vec![0; len];
        checkpoint.source.read_at(view.file, view.offset + at as u64, &mut bytes).unwrap();
        bytes
    };
    let bytes = read(0, 100);
    for (at, len) in [(0, 3), (1, 1), (3, 20), (5, 3), (7, 93), (8, 8), (13, 0)] {
        assert_eq!(read(at, len), bytes[at..at + len], "{at} {len}");
    }
    // A norm multiplies; Gemma's stores what it multiplies by, less 1.
    let norm = |name| rows(&opened(name), WeightRole::FinalNorm, 0, 1);
    assert!(norm("llama-3.1-8b").iter().all(|weight| (0.5..2.0).contains(weight)));
    assert!(norm("gemma-2-9b").iter().all(|weight| weight.abs() < 0.25));
}

#[test]
fn test_a_vocabulary_is_made_where_the_folder_has_none() {
    let folder = Folder::new();
    let mut config = llama_config();
    config["vocab_size"] = json!(1000);
    folder.write("config.json", config.to_string());
    assert!(open(folder.path()).unwrap_err().to_string().contains("tokenizer.json is missing"));
    let vocabulary = |folder: &Folder| match open_without_weights(folder.path()).unwrap().tokenizer
    {
        TokenizerFiles::HuggingFace {
            vocabulary: VocabularyFile::TokenizerJson(bytes), ..
        } => bytes,
        other => panic!("{other:?}"),
    };
    let made: Value = serde_json::from_slice(&vocabulary(&folder)).unwrap();
    let vocab = made["model"]["vocab"].as_object().unwrap();
    let ids: BTreeSet<u64> = vocab.values().map(|id| id.as_u64().unwrap()).collect();
    assert_eq!(ids, (0..1000).collect());
    folder.write("tokenizer.json", "{}");
    assert_eq!(vocabulary(&folder), b"{}");
    folder.write("model.gguf", "no weights are read");
    let file = folder.path().join("model.gguf");
    let refused = open_without_weights(&file).unwrap_err().to_string();
    assert!(refused.ends_with("only a folder with a config.json can be opened"), "{refused}");
}
