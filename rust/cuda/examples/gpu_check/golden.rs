//! The reference cases, teacher-forced and freely generated, compared with what the executor says.

use std::path::Path;

use ingle_core::{SampleMode, TokenLogProbs, Wants};
use serde_json::Value;

use crate::harness::{Harness, Options, greedy};

struct Case {
    ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    greedy_log_probs: Vec<f64>,
    greedy_gaps: Vec<f64>,
    top_ids: Vec<Vec<u32>>,
    top_logits: Vec<Vec<f64>>,
}

/// Prints one JSON line a model.
pub(crate) fn run(options: &Options, cases: &str, models: &str, names: &[&str]) {
    let mut files: Vec<_> = std::fs::read_dir(cases).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let model = Path::new(models).join(&name);
        if model.is_dir() && (names.is_empty() || names.contains(&name.as_str())) {
            let cases = read(&file);
            check_model(options, &name, &model, &cases);
        }
    }
}

fn read(file: &Path) -> Vec<Case> {
    let json: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let floats = |value: &Value| -> Vec<f64> {
        value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let cases = json["cases"].as_array().unwrap();
    cases
        .iter()
        .map(|case| Case {
            ids: ids(&case["ids"]),
            greedy_ids: ids(&case["greedy_ids"]),
            greedy_log_probs: floats(&case["greedy_logprobs"]),
            greedy_gaps: floats(&case["greedy_gaps"]),
            top_ids: case["top_ids"].as_array().unwrap().iter().map(ids).collect(),
            top_logits: case["top_logits"].as_array().unwrap().iter().map(floats).collect(),
        })
        .collect()
}

fn check_model(options: &Options, name: &str, model: &Path, cases: &[Case]) {
    let mut small = Options { max_num_seqs: 16, max_num_batched_tokens: 256, ..Options::default() };
    small.max_model_len = 1024;
    small.site.clone_from(&options.site);
    small.cache.clone_from(&options.cache);
    small.prebuilt.clone_from(&options.prebuilt);
    small.eager = options.eager;
    let mut harness = Harness::load(&small, model, Some(256 << 20));
    harness.executor.wait_for_graphs();
    let mut logit_diffs = Vec::new();
    let mut log_prob_diffs = Vec::new();
    let mut chunk_diffs = Vec::new();
    let (mut wrong, mut generated_wrong, mut repeats) = (0, 0, true);
    for case in cases {
        harness.reset_blocks();
        let whole = forced(&mut harness, case, usize::MAX);
        let again = forced(&mut harness, case, usize::MAX);
        repeats &= whole == again;
        let chunked = forced(&mut harness, case, 7);
        for (a, b) in whole.iter().zip(&chunked) {
            chunk_diffs.push(f64::from((a.log_prob - b.log_prob).abs()));
        }
        compare_logits(case, &whole, &mut logit_diffs);
        for (index, reference) in case.greedy_log_probs.iter().enumerate() {
            let ours = &whole[case.ids.len() - 1 + index];
            log_prob_diffs.push((f64::from(ours.log_prob) - reference).abs());
            if ours.rank != 1 && case.greedy_gaps[index] > 0.15 {
                wrong += 1;
            }
        }
        generated_wrong += generate(&mut harness, case);
    }
    let (mean, p99, max) = summary(&mut log_prob_diffs);
    let (_, logit_p99, logit_max) = summary(&mut logit_diffs);
    let (_, _, chunk_max) = summary(&mut chunk_diffs);
    let stats = harness.executor.graph_stats();
    println!(
        "{{\"model\":\"{name}\",\"log_prob_mean\":{mean:.4},\"log_prob_p99\":{p99:.4},\
         \"log_prob_max\":{max:.4},\"logit_p99\":{logit_p99:.4},\"logit_max\":{logit_max:.4},\
         \"argmax_wrong\":{wrong},\"generated_wrong\":{generated_wrong},\
         \"chunked_max\":{chunk_max:.5},\"repeats\":{repeats},\"graphs\":{},\"graph_error\":{:?}}}",
        stats.launches.graphs_ready, stats.last_error
    );
}

/// Log-probs of every token of prompt and reference output, given its prefix.
fn forced(harness: &mut Harness, case: &Case, chunk: usize) -> Vec<TokenLogProbs> {
    let ids: Vec<u32> = case.ids.iter().chain(&case.greedy_ids).copied().collect();
    let mut results = Vec::new();
    let mut sequence = None;
    for (index, part) in ids.chunks(chunk.min(200)).enumerate() {
        let mut plan = harness.plan();
        let mut seq = match sequence.take() {
            Some(seq) => seq,
            None => harness.open(&mut plan, 0, &greedy(None)),
        };
        let end = index * chunk.min(200) + part.len();
        let wants = Wants {
            prompt_log_probs: Some(20),
            next_prompt_token: ids.get(end).map(|id| ingle_core::TokenId(*id)),
            ..Wants::default()
        };
        harness.prefill(&mut plan, &mut seq, part, wants);
        let output = harness.run(plan);
        results.extend(output.rows[0].prompt_log_probs.iter().cloned());
        sequence = Some(seq);
    }
    assert_eq!(results.len(), ids.len() - 1);
    results
}

/// Differences of logits up to the constant that log-probs lack.
fn compare_logits(case: &Case, ours: &[TokenLogProbs], diffs: &mut Vec<f64>) {
    for (position, ids) in case.top_ids.iter().enumerate().take(ours.len()) {
        let pairs: Vec<f64> = ids
            .iter()
            .zip(&case.top_logits[position])
            .filter_map(|(id, logit)| {
                let found = ours[position].top.iter().find(|(token, _)| token.0 == *id);
                found.map(|(_, value)| f64::from(*value) - logit)
            })
            .collect();
        if pairs.len() < 4 {
            diffs.push(f64::INFINITY);
            continue;
        }
        let mean = pairs.iter().sum::<f64>() / pairs.len() as f64;
        diffs.extend(pairs.iter().map(|pair| (pair - mean).abs()));
    }
}

/// Generates freely, one step ahead of the results; counts tokens that differ before the first
/// near-tie of the reference.
fn generate(harness: &mut Harness, case: &Case) -> usize {
    let mut plan = harness.plan();
    let mut seq = harness.open(&mut plan, 1, &greedy(Some(2)));
    let wants = Wants { sample: SampleMode::Now, ..Wants::default() };
    harness.prefill(&mut plan, &mut seq, &case.ids, wants);
    harness.submit(plan);
    let mut tokens = Vec::new();
    for index in 0..case.greedy_ids.len() {
        if index + 1 < case.greedy_ids.len() {
            let mut plan = harness.plan();
            harness.decode(&mut plan, &mut seq);
            harness.submit(plan);
        }
        tokens.extend(harness.wait().tokens.iter().map(|token| token.0));
    }
    let mut wrong = 0;
    for (index, token) in case.greedy_ids.iter().enumerate() {
        if tokens.get(index) != Some(token) {
            wrong += usize::from(case.greedy_gaps[index] > 0.15);
            break;
        }
    }
    wrong
}

/// Mean, 99th percentile and maximum.
pub(crate) fn summary(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let p99 = values.get(values.len() * 99 / 100).copied().unwrap_or(0.0);
    (mean, p99, values.last().copied().unwrap_or(0.0))
}
