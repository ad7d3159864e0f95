//! Measures the CPU executor's model on a checkpoint: prompt and decode speed, GFLOP/s and GB/s.
//!
//! `cargo run --release -p ingle-cpu --example cpu_bench -- MODEL [THREADS]`
#![allow(clippy::print_stdout, reason = "a command-line program")]

use std::path::Path;
use std::time::Instant;

use ingle_core::{BlockId, TokenId};
use ingle_cpu::{CpuConfig, Model, Sequence};

const CONTEXT: u32 = 1024;
const PROMPT: u32 = 512;
const BLOCK: u32 = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: cpu_bench MODEL [THREADS]")?;
    let threads = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let start = Instant::now();
    let checkpoint = ingle_model::open(Path::new(&path))?;
    let config = CpuConfig {
        threads,
        num_blocks: 17 * CONTEXT / BLOCK,
        block_size: BLOCK,
        max_model_len: CONTEXT,
        max_num_batched_tokens: PROMPT.max(512),
        ..CpuConfig::default()
    };
    let mut model = Model::load(&checkpoint.spec, &checkpoint.plan, &*checkpoint.source, &config)?;
    let (vector_path, threads) = model.description();
    println!(
        "loaded in {:.2} s, path {vector_path}, {threads} threads",
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
    for length in [128, PROMPT] {
        let seconds = prompt(&mut model, length);
        let flops = 2.0 * (body * f64::from(length) + head as f64);
        println!(
            "prompt {length}: {:.1} tok/s, {:.1} GFLOP/s in the matrices",
            f64::from(length) / seconds,
            flops / seconds / 1e9
        );
    }
    for batch in [1, 2, 4, 8, 16] {
        let seconds = decode(&mut model, batch);
        let flops = 2.0 * f64::from(batch) * (body + head as f64);
        println!(
            "decode batch {batch}: {:.1} tok/s, {:.2} ms a step, {:.1} GB/s of weights, {:.1} GFLOP/s",
            f64::from(batch) / seconds,
            seconds * 1e3,
            weights / seconds / 1e9,
            flops / seconds / 1e9
        );
    }
    Ok(())
}

fn blocks(place: u32) -> Vec<BlockId> {
    (0..CONTEXT / BLOCK).map(|i| BlockId(place * (CONTEXT / BLOCK) + i)).collect()
}

/// Best of several runs, in seconds.
fn prompt(model: &mut Model, length: u32) -> f64 {
    let tokens: Vec<TokenId> = (0..length).map(|i| TokenId(i * 7 % 400)).collect();
    let blocks = blocks(0);
    (0..5)
        .map(|_| {
            let start = Instant::now();
            model.forward(&[Sequence { tokens: &tokens, start: 0, blocks: &blocks }]);
            model.compute_logits(&[length as usize - 1]);
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

/// Median seconds of a step, at context 128 to 256.
fn decode(model: &mut Model, batch: u32) -> f64 {
    let tables: Vec<Vec<BlockId>> = (0..batch).map(blocks).collect();
    let tokens = [TokenId(5)];
    let mut seconds: Vec<f64> = (128..192)
        .map(|position| {
            let sequences: Vec<Sequence<'_>> = tables
                .iter()
                .map(|blocks| Sequence { tokens: &tokens, start: position, blocks })
                .collect();
            let rows: Vec<usize> = (0..batch as usize).collect();
            let start = Instant::now();
            model.forward(&sequences);
            model.compute_logits(&rows);
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
