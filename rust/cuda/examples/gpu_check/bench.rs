//! Step times of a full-size model, and its log-probs for comparison with another implementation.

use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

use ingle_core::{SampleMode, SamplingParams, TokenId, Wants};

use crate::harness::{Harness, Options, Sequence, greedy};

/// Reads lines of ids, prints for each the log-prob of every token given its prefix.
pub(crate) fn score(options: &Options, model: &str) {
    let mut harness = Harness::load(options, Path::new(model), None);
    for line in std::io::stdin().lock().lines() {
        let ids: Vec<u32> =
            line.unwrap().split_whitespace().map(|id| id.parse().unwrap()).collect();
        let mut values = Vec::new();
        let mut sequence = None;
        harness.reset_blocks();
        let chunk = options.max_num_batched_tokens as usize;
        for (index, part) in ids.chunks(chunk).enumerate() {
            let mut plan = harness.plan();
            let mut seq = match sequence.take() {
                Some(seq) => seq,
                None => harness.open(&mut plan, 0, &greedy(None)),
            };
            let next = ids.get(index * chunk + part.len()).map(|id| TokenId(*id));
            let wants =
                Wants { prompt_log_probs: Some(0), next_prompt_token: next, ..Wants::default() };
            harness.prefill(&mut plan, &mut seq, part, wants);
            let output = harness.run(plan);
            values.extend(output.rows[0].prompt_log_probs.iter().map(|entry| entry.log_prob));
            sequence = Some(seq);
        }
        println!("{values:?}");
    }
}

/// Start table, decode steps by batch and context, prefill steps, mixed steps.
pub(crate) fn run(options: &Options, model: &str) {
    let start = Instant::now();
    let mut harness = Harness::load(options, Path::new(model), None);
    println!("{}", harness.report);
    for phase in &harness.report.phases {
        println!("{:<40} {:>8.1} ms", phase.name, phase.time.as_secs_f64() * 1e3);
    }
    println!("loaded in {:.2} s", start.elapsed().as_secs_f64());
    let first = Instant::now();
    let mut plan = harness.plan();
    let mut seq = harness.open(&mut plan, 0, &greedy(None));
    harness.prefill(&mut plan, &mut seq, &ids(128, 1), sampled());
    harness.run(plan);
    println!("first token after {:.1} ms", first.elapsed().as_secs_f64() * 1e3);
    let graphs = Instant::now();
    harness.executor.wait_for_graphs();
    println!(
        "graphs in {:.2} s: {:?}",
        graphs.elapsed().as_secs_f64(),
        harness.executor.graph_stats()
    );
    for (batch, context) in
        [(1, 128), (1, 1024), (8, 256), (32, 256), (64, 256), (128, 256), (200, 320)]
    {
        decode(&mut harness, batch, context, &greedy(None), "greedy");
    }
    let sampling = SamplingParams { temperature: 0.8, top_p: 0.95, seed: 7, ..greedy(None) };
    decode(&mut harness, 64, 256, &sampling, "top_p");
    for tokens in [128, 512, 1024, 2048] {
        prefill(&mut harness, tokens);
    }
    mixed(&mut harness, 200, &[220, 57, 121, 185, 249, 313, 441]);
}

/// One decode step of 1 row and one of 200, one mixed step and one long prefill, each between the
/// driver's profiler marks (`ncu --profile-from-start off`).
pub(crate) fn profile(options: &Options, model: &str) {
    let mut harness = Harness::load(options, Path::new(model), None);
    // SAFETY: the library is the driver's own, already loaded, and stays open to the end.
    let driver = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    let mark = |name: &[u8]| {
        // SAFETY: cuProfilerStart and cuProfilerStop take nothing and return a result code.
        unsafe { driver.get::<unsafe extern "C" fn() -> i32>(name).unwrap()() };
    };
    let sizes = [(1, 1024, 0), (200, 320, 0), (200, 320, 220), (0, 0, 2048)];
    for (batch, context, prompt) in sizes {
        let mut sequences = fill(&mut harness, batch, context, &greedy(None));
        let mut plan = harness.plan();
        for seq in sequences.iter_mut().skip(usize::from(prompt > 0)) {
            harness.decode(&mut plan, seq);
        }
        if prompt > 0 {
            let mut seq = harness.open(&mut plan, 0, &greedy(None));
            harness.prefill(&mut plan, &mut seq, &ids(prompt, 3), sampled());
        }
        mark(b"cuProfilerStart\0");
        harness.run(plan);
        mark(b"cuProfilerStop\0");
    }
}

fn ids(count: usize, salt: u32) -> Vec<u32> {
    (0..count as u32).map(|i| 1000 + (i * 7919 + salt * 104_729) % 100_000).collect()
}

fn sampled() -> Wants {
    Wants { sample: SampleMode::Now, ..Wants::default() }
}

fn fill(
    harness: &mut Harness,
    batch: u32,
    context: usize,
    sampling: &SamplingParams,
) -> Vec<Sequence> {
    harness.reset_blocks();
    let mut sequences = Vec::new();
    for slot in 0..batch {
        let mut plan = harness.plan();
        let mut seq = harness.open(&mut plan, slot, sampling);
        harness.prefill(&mut plan, &mut seq, &ids(context, slot), sampled());
        harness.run(plan);
        sequences.push(seq);
    }
    sequences
}

/// Times decode steps, one step ahead as the engine does.
fn decode(
    harness: &mut Harness,
    batch: u32,
    context: usize,
    sampling: &SamplingParams,
    name: &str,
) {
    let mut sequences = fill(harness, batch, context, sampling);
    let mut times = Vec::new();
    let mut host = 0.0;
    let steps = 60;
    let mut last = Instant::now();
    for step in 0..=steps {
        if step < steps {
            let mut plan = harness.plan();
            for seq in &mut sequences {
                harness.decode(&mut plan, seq);
            }
            let before = Instant::now();
            harness.submit(plan);
            host += before.elapsed().as_secs_f64();
        }
        if step > 0 {
            harness.wait();
            times.push(last.elapsed().as_secs_f64() * 1e3);
            last = Instant::now();
        }
    }
    times.drain(..5);
    times.sort_by(f64::total_cmp);
    println!(
        "{{\"decode\":\"{name}\",\"batch\":{batch},\"context\":{context},\"ms_mean\":{:.3},\
         \"ms_p50\":{:.3},\"ms_min\":{:.3},\"ms_max\":{:.3},\"submit_us\":{:.1}}}",
        times.iter().sum::<f64>() / times.len() as f64,
        times[times.len() / 2],
        times[0],
        times[times.len() - 1],
        host / f64::from(steps) * 1e6
    );
}

fn prefill(harness: &mut Harness, tokens: usize) {
    let mut times = Vec::new();
    for round in 0..5 {
        harness.reset_blocks();
        let mut plan = harness.plan();
        let mut seq = harness.open(&mut plan, 0, &greedy(None));
        harness.prefill(&mut plan, &mut seq, &ids(tokens, round), sampled());
        let start = Instant::now();
        harness.run(plan);
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!("{{\"prefill\":{tokens},\"ms\":{:.2},\"ms_min\":{:.2}}}", times[2], times[0]);
}

/// Steady state of a busy server: every step `batch` decode rows and the prompt of one new request
/// that takes the place of one that ends. Lengths of prompts in turn.
fn mixed(harness: &mut Harness, batch: u32, prompts: &[usize]) {
    for &prompt in prompts {
        let sequences = fill(harness, batch, 320, &greedy(None));
        mixed_steps(harness, sequences, prompt);
    }
}

fn mixed_steps(harness: &mut Harness, mut sequences: Vec<Sequence>, prompt: usize) {
    let batch = sequences.len() as u32;
    let mut times = Vec::new();
    let mut last = Instant::now();
    let steps = 60u32;
    for step in 0..=steps {
        if step < steps {
            let victim = step % batch;
            let mut plan = harness.plan();
            for (index, seq) in sequences.iter_mut().enumerate() {
                if index as u32 != victim {
                    harness.decode(&mut plan, seq);
                }
            }
            let mut seq = harness.open(&mut plan, victim, &greedy(None));
            harness.prefill(&mut plan, &mut seq, &ids(prompt, step), sampled());
            sequences[victim as usize] = seq;
            harness.submit(plan);
        }
        if step > 0 {
            harness.wait();
            times.push(last.elapsed().as_secs_f64() * 1e3);
            last = Instant::now();
        }
    }
    times.drain(..5);
    times.sort_by(f64::total_cmp);
    println!(
        "{{\"mixed\":{batch},\"prompt\":{prompt},\"ms_mean\":{:.3},\"ms_p50\":{:.3},\
         \"ms_min\":{:.3},\"ms_max\":{:.3}}}",
        times.iter().sum::<f64>() / times.len() as f64,
        times[times.len() / 2],
        times[0],
        times[times.len() - 1]
    );
}
