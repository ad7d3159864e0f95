//! Whole models against the reference cases of tests/golden (Hugging Face transformers in float32), and
//! against themselves: the same bits however a step is cut, batched or placed.
#![allow(clippy::print_stderr, reason = "a skipped case must be seen")]

mod cases;
mod runs;

use cases::{Case, models};
use ingle_cpu::CpuPath;
use runs::{Runner, Running};

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

#[test]
fn test_other_paths_match_the_reference_too() {
    for vector_path in [CpuPath::Avx2, CpuPath::Portable] {
        for (name, path, cases) in models().into_iter().filter(|(name, ..)| is_tiny(name)) {
            let Some(mut runner) = Runner::try_new(&path, 16, vector_path) else {
                eprintln!("SKIPPED {vector_path:?}: this processor lacks it");
                break;
            };
            for (index, case) in cases.iter().enumerate() {
                let logits = runner.plain(&case.forced());
                check(&format!("{name} ({vector_path:?})"), index, case, &logits);
            }
        }
    }
}

#[test]
fn test_models_divided_among_ranks_match_the_reference() {
    let mut divided = [0; 5];
    for (name, path, mut cases) in models() {
        if !is_tiny(&name) {
            cases.truncate(2);
        }
        for (ranks, spread) in [(2, false), (2, true), (4, false), (4, true)] {
            let Some(mut runner) = Runner::of_ranks(&path, ranks, spread) else { continue };
            divided[ranks as usize] += 1;
            for (index, case) in cases.iter().enumerate() {
                let logits = runner.plain(&case.forced());
                check(&format!("{name} on {ranks} ranks"), index, case, &logits);
            }
        }
    }
    assert!(divided[2] > 30 && divided[4] > 5, "{divided:?}");
}

#[test]
fn test_no_way_of_running_changes_a_bit() {
    for (name, path, mut cases) in models() {
        if !is_tiny(&name) {
            // The real model adds block formats and a long vocabulary; a few cases show that.
            cases.truncate(2);
        }
        let mut expected: Option<Vec<Vec<Vec<f32>>>> = None;
        for block_size in [4, 16] {
            let mut runner = Runner::new(&path, block_size, CpuPath::Auto);
            let context = format!("{name}, block size {block_size}");
            let plain: Vec<_> = cases.iter().map(|case| runner.plain(&case.forced())).collect();
            let expected = expected.get_or_insert_with(|| plain.clone());
            compare(&context, "plain", expected, &plain);
            compare(&context, "chunks of 5", expected, &in_chunks(&mut runner, &cases));
            compare(&context, "one batch", expected, &in_a_batch(&mut runner, &cases));
            compare(&context, "cached prefix", expected, &after_a_prefix(&mut runner, &cases));
            compare(&context, "preempted", expected, &preempted(&mut runner, &cases));
        }
    }
}

/// Prompt by 5 tokens, answer by 1.
fn in_chunks(runner: &mut Runner, cases: &[Case]) -> Vec<Vec<Vec<f32>>> {
    let run = |case: &Case| {
        let ids = case.forced();
        let mut running = runner.running(&ids, 0);
        while running.done < ids.len() {
            let left = case.ids.len().saturating_sub(running.done);
            let count = left.clamp(1, 5);
            runner.step(&mut [(&mut running, count)]);
        }
        running.logits
    };
    cases.iter().map(run).collect()
}

/// All prompts in one step, then one token of each a step, as they last.
fn in_a_batch(runner: &mut Runner, cases: &[Case]) -> Vec<Vec<Vec<f32>>> {
    let mut all: Vec<Running> =
        (0..).zip(cases).map(|(place, case)| runner.running(&case.forced(), place)).collect();
    let mut parts: Vec<(&mut Running, usize)> =
        all.iter_mut().zip(cases).map(|(running, case)| (running, case.ids.len())).collect();
    runner.step(&mut parts);
    loop {
        let mut parts: Vec<(&mut Running, usize)> = all
            .iter_mut()
            .filter(|running| running.done < running.tokens.len())
            .map(|running| (running, 1))
            .collect();
        if parts.is_empty() {
            break;
        }
        runner.step(&mut parts);
    }
    all.into_iter().map(|running| running.logits).collect()
}

/// The full blocks of a first run, and a copy of the state after them, serve a second one.
fn after_a_prefix(runner: &mut Runner, cases: &[Case]) -> Vec<Vec<Vec<f32>>> {
    let run = |case: &Case| {
        let ids = case.forced();
        let full = (ids.len() - 1) / runner.block_size();
        let mut first = runner.running(&ids, 0);
        first.saves = vec![runner.copy(&first, full * runner.block_size())];
        runner.step(&mut [(&mut first, ids.len())]);
        let mut second = runner.running(&ids, 1);
        runner.restore(&runner.copy(&second, full * runner.block_size()));
        for (to, from) in second.tables.iter_mut().zip(&first.tables) {
            to[..full].copy_from_slice(&from[..full]);
        }
        second.done = full * runner.block_size();
        second.logits = first.logits[..second.done].to_vec();
        let rest = ids.len() - second.done;
        runner.step(&mut [(&mut second, rest)]);
        second.logits
    };
    cases.iter().map(run).collect()
}

/// Half of the answer is computed, its blocks are lost, all of it is computed again elsewhere.
fn preempted(runner: &mut Runner, cases: &[Case]) -> Vec<Vec<Vec<f32>>> {
    let run = |case: &Case| {
        let ids = case.forced();
        let mut running = runner.running(&ids, 2);
        runner.step(&mut [(&mut running, case.ids.len())]);
        while running.done < case.ids.len() + case.greedy_ids.len() / 2 {
            runner.step(&mut [(&mut running, 1)]);
        }
        let before = running.logits;
        let mut again = runner.running(&ids, 3);
        let done = running.done;
        runner.step(&mut [(&mut again, done)]);
        assert!(before == again.logits, "recomputed logits");
        while again.done < ids.len() {
            runner.step(&mut [(&mut again, 1)]);
        }
        again.logits
    };
    cases.iter().map(run).collect()
}

fn compare(context: &str, way: &str, expected: &[Vec<Vec<f32>>], found: &[Vec<Vec<f32>>]) {
    for (case, (expected, found)) in expected.iter().zip(found).enumerate() {
        assert_eq!(expected.len(), found.len(), "{context}, {way}, case {case}");
        for (position, (expected, found)) in expected.iter().zip(found).enumerate() {
            let differs = expected.iter().zip(found).position(|(a, b)| a.to_bits() != b.to_bits());
            assert_eq!(differs, None, "{context}, {way}, case {case}, position {position}");
        }
    }
}

fn is_tiny(name: &str) -> bool {
    !name.starts_with("smollm2")
}

fn check(name: &str, index: usize, case: &Case, logits: &[Vec<f32>]) {
    let context = format!("{name}, case {index}");
    let near_tie = if is_tiny(name) { TOLERANCE } else { 0.01 };
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
