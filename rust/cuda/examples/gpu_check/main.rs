//! Runs the CUDA executor without the rest of the engine, on a machine with a GPU and no Rust.
//!
//! gpu_check probe
//! gpu_check golden CASES_DIR MODELS_DIR [NAME...]     reference cases, as its README defines equal
//! gpu_check features MODEL_DIR                        sampler, masks, pooling, cached blocks, refusals
//! gpu_check score MODEL_DIR < ids                     log-prob of every prompt token, JSON lines
//! gpu_check bench MODEL_DIR                           step times, JSON lines
//! gpu_check profile MODEL_DIR                         one step of each kind between profiler marks, for ncu
//! Options: --site DIR (site-packages), --cache DIR, --prebuilt DIR, --eager, --deterministic, --seqs N, --tokens N, --len N

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measuring program, not the engine")]

mod bench;
mod features;
mod golden;
mod harness;

use std::path::PathBuf;

use harness::Options;

fn main() {
    let mut words = Vec::new();
    let mut options = Options::default();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_default();
        match arg.as_str() {
            "--site" => options.site = Some(PathBuf::from(value())),
            "--cache" => options.cache = Some(PathBuf::from(value())),
            "--seqs" => options.max_num_seqs = value().parse().unwrap(),
            "--tokens" => options.max_num_batched_tokens = value().parse().unwrap(),
            "--len" => options.max_model_len = value().parse().unwrap(),
            "--prebuilt" => options.prebuilt = Some(PathBuf::from(value())),
            "--eager" => options.eager = true,
            "--deterministic" => options.deterministic = true,
            _ => words.push(arg),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["probe"] => println!("{:#?}", ingle_cuda::probe(0, &options.libraries())),
        ["golden", cases, models, names @ ..] => golden::run(&options, cases, models, names),
        ["features", model] => features::run(&options, model),
        ["score", model] => bench::score(&options, model),
        ["profile", model] => bench::profile(&options, model),
        ["bench", model] => bench::run(&options, model),
        _ => println!("usage: see the head of gpu_check.rs"),
    }
}
