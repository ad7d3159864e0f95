//! Every fuzz target: its corpus and some seconds of inputs that are mutated from it.
//!
//! `INGLE_FUZZ_SECONDS=n` runs each target n seconds, `INGLE_FUZZ_SEED=n` with other inputs,
//! `INGLE_FUZZ_TARGET=name` only one of them. One test, since it looks at the memory of the process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test reports what it measured")]

use std::path::Path;
use std::time::Duration;

use ingle_fuzz::cost::CountingAllocator;
use ingle_fuzz::{driver, targets};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn test_no_input_gets_past_a_target() {
    run(1.5, 1);
}

#[test]
#[ignore = "long"]
fn test_no_input_gets_past_a_target_in_a_minute_each() {
    run(60.0, 2);
}

fn run(seconds: f64, seed: u64) {
    let from_env = |name| std::env::var(name).ok();
    let seconds = from_env("INGLE_FUZZ_SECONDS").map_or(seconds, |text| text.parse().unwrap());
    let seed = from_env("INGLE_FUZZ_SEED").map_or(seed, |text| text.parse().unwrap());
    let only = from_env("INGLE_FUZZ_TARGET");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let scratch = std::env::temp_dir().join(format!("ingle-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    for mut target in targets::all(&root.join(".."), &scratch) {
        let name = target.name();
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let time = Duration::from_secs_f64(seconds);
        let report = driver::fuzz(&mut *target, &root.join("corpus"), seed, time);
        println!("{name:15} {report:?}");
        assert!(report.num_outcomes > 1, "{name}: all inputs have one outcome");
    }
    std::fs::remove_dir_all(&scratch).ok();
}
