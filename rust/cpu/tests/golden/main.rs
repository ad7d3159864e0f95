//! Whole models against the reference cases of tests/golden (Hugging Face transformers in float32), and
//! against themselves: the same bits however a step is cut, batched or placed.

mod cases;
mod runs;

use cases::{Case, models};
use ingle_cpu::CpuPath;
use runs::Runner;

/// Every logit of the reference within this.
const TOLERANCE: f32 = 1e-3;

#[test]
fn test_logits_match_the_reference() {
    for (name, path, cases) in models() {
        let mut runner = Runner::new(&path, 16, CpuPath::Auto);
        for (index, case) in cases.iter().enumerate() {
            let logits = runner.plain(&case.forced());
            check(&name, index, case, &logits);
        }
    }
}

fn check(name: &str, index: usize, case: &Case, logits: &[Vec<f32>]) {
    let context = format!("{name}, case {index}");
    let near_tie = if name.starts_with("smollm2") { 0.01 } else { TOLERANCE };
    for (position, (ids, values)) in case.top_ids.iter().zip(&case.top_logits).enumerate() {
        for (id, value) in ids.iter().zip(values) {
            let ours = logits[position][*id as usize];
            assert!(
                (ours - value).abs() <= TOLERANCE,
                "{context}, position {position}, token {id}: logit {ours}, reference {value}"
            );
        }
    }
    for (step, id) in case.greedy_ids.iter().enumerate() {
        let row = &logits[case.ids.len() - 1 + step];
        let best = argmax(row);
        assert!(
            best == *id || case.greedy_gaps[step] < near_tie,
            "{context}, step {step}: token {best}, reference {id}, gap {}",
            case.greedy_gaps[step]
        );
        let ours = log_prob(row, *id);
        let reference = case.greedy_logprobs[step];
        assert!(
            (ours - reference).abs() <= TOLERANCE,
            "{context}, step {step}: log-prob {ours}, reference {reference}"
        );
    }
}

fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (id, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = id;
        }
    }
    best as u32
}

fn log_prob(row: &[f32], id: u32) -> f32 {
    let max = f64::from(row[argmax(row) as usize]);
    let sum: f64 = row.iter().map(|x| (f64::from(*x) - max).exp()).sum();
    (f64::from(row[id as usize]) - max - sum.ln()) as f32
}
