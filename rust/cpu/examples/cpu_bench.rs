//! Measures the CPU executor's model on a checkpoint: prompt and decode speed, GFLOP/s and GB/s.
//!
//! `cargo run --release -p ingle-cpu --example cpu_bench -- MODEL [THREADS [PART [PATH [fast]]]]`, PART a
//! prefix of `prompt512` or `decode16/` (`decode1/` is one sequence alone), PATH `auto`, `avx512`, `avx2` or `portable`
#![allow(clippy::print_stdout, reason = "a command-line program")]

use std::path::Path;
use std::time::Instant;

use ingle_core::{BlockId, SlotId, TokenId};
use ingle_cpu::{CpuConfig, CpuPath, CpuPrecision, Model, Sequence};

const CONTEXT: u32 = 1024;
const PROMPT: u32 = 512;
const BLOCK: u32 = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: cpu_bench MODEL [THREADS [PART [PATH]]]")?;
    let threads = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let only = arguments.next();
    let path_wanted = match arguments.next().as_deref() {
        None | Some("auto") => CpuPath::Auto,
        Some("avx512") => CpuPath::Avx512,
        Some("avx2") => CpuPath::Avx2,
        Some(_) => CpuPath::Portable,
    };
    let precision = match arguments.next().as_deref() {
        Some("fast") => CpuPrecision::Fast,
        _ => CpuPrecision::Exact,
    };
    let wanted = |part: &str| only.as_deref().is_none_or(|only| part.starts_with(only));
    let start = Instant::now();
    let checkpoint = ingle_model::open(Path::new(&path))?;
    let opened = start.elapsed().as_secs_f64();
    let config = CpuConfig {
        threads,
        path: path_wanted,
        precision,
        num_blocks: 17 * CONTEXT / BLOCK,
        block_size: BLOCK,
        max_model_len: CONTEXT,
        max_num_batched_tokens: PROMPT.max(512),
        ..CpuConfig::default()
    };
    let mut model = Model::load(&checkpoint.spec, &checkpoint.plan, &*checkpoint.source, &config)?;
    let (vector_path, threads) = model.description();
    println!(
        "headers {opened:.2} s, loaded in {:.2} s, path {vector_path}, {threads} threads",
        start.elapsed().as_secs_f64()
    );
    let weights = model.weight_bytes() as f64;
    let elements: u64 = checkpoint
        .plan
        .tensors
        .values()
        .filter(|view| view.rows > 1)
        .map(|view| u64::from(view.rows) * u64::from(view.cols))
        .sum();
    let head = u64::from(checkpoint.spec.vocab_size) * u64::from(checkpoint.spec.hidden_size);
    let embedding = if checkpoint.spec.tie_word_embeddings { 0 } else { head };
    let body = (elements - embedding - head) as f64;
    for length in [128, PROMPT].into_iter().filter(|length| wanted(&format!("prompt{length}"))) {
        let cost = prompt(&mut model, length);
        let flops = 2.0 * (body * f64::from(length) + head as f64);
        println!(
            "prompt {length}: {:.1} tok/s, {:.1} GFLOP/s in the matrices, CPU {:.0} us/token",
            f64::from(length) / cost.wall,
            flops / cost.wall / 1e9,
            cost.cpu * 1e6 / f64::from(length)
        );
    }
    for batch in [1, 2, 4, 8, 16].into_iter().filter(|batch| wanted(&format!("decode{batch}/"))) {
        let cost = decode(&mut model, batch);
        let flops = 2.0 * f64::from(batch) * (body + head as f64);
        println!(
            "decode batch {batch}: {:.1} tok/s, {:.2} ms a step, {:.1} GB/s of weights, {:.1} GFLOP/s, \
             CPU {:.0} us/token",
            f64::from(batch) / cost.wall,
            cost.wall * 1e3,
            weights / cost.wall / 1e9,
            flops / cost.wall / 1e9,
            cost.cpu * 1e6 / f64::from(batch)
        );
    }
    Ok(())
}

fn blocks(place: u32) -> Vec<BlockId> {
    (0..CONTEXT / BLOCK).map(|i| BlockId(place * (CONTEXT / BLOCK) + i)).collect()
}

/// Wall and CPU seconds.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    cpu: f64,
}

fn measure(work: impl FnOnce()) -> Cost {
    let (start, cpu) = (Instant::now(), cpu_seconds());
    work();
    Cost { wall: start.elapsed().as_secs_f64(), cpu: cpu_seconds() - cpu }
}

/// Time on a processor of all threads, from the kernel's scheduler statistics.
fn cpu_seconds() -> f64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return f64::NAN };
    let nanoseconds = tasks.flatten().filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() / 1e9
}

fn middle(mut costs: Vec<Cost>) -> Cost {
    costs.sort_by(|a, b| a.cpu.total_cmp(&b.cpu));
    let cpu = costs[costs.len() / 2].cpu;
    costs.sort_by(|a, b| a.wall.total_cmp(&b.wall));
    Cost { wall: costs[costs.len() / 2].wall, cpu }
}

/// The middle of several runs.
fn prompt(model: &mut Model, length: u32) -> Cost {
    let tokens: Vec<TokenId> = (0..length).map(|i| TokenId(i * 7 % 400)).collect();
    let tables = [blocks(0)];
    let runs = (0..5).map(|_| {
        measure(|| {
            model.forward(&[Sequence {
                tokens: &tokens,
                start: 0,
                tables: &tables,
                slot: SlotId::first(0),
                saves: &[],
            }]);
            model.compute_logits(&[length as usize - 1]);
        })
    });
    middle(runs.collect())
}

/// The middle step of 64 from context 128 on.
fn decode(model: &mut Model, batch: u32) -> Cost {
    let tables: Vec<Vec<BlockId>> = (0..batch).map(blocks).collect();
    let tokens = [TokenId(5)];
    let rows: Vec<usize> = (0..batch as usize).collect();
    let steps = (128..192).map(|position| {
        let sequences: Vec<Sequence<'_>> = tables
            .iter()
            .map(|table| Sequence {
                tokens: &tokens,
                start: position,
                tables: std::slice::from_ref(table),
                slot: SlotId::first(0),
                saves: &[],
            })
            .collect();
        measure(|| {
            model.forward(&sequences);
            model.compute_logits(&rows);
        })
    });
    middle(steps.collect())
}
