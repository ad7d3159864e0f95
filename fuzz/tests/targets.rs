//! Every fuzz target: its corpus and some seconds of inputs that are mutated from it.
//!
//! `INGLE_FUZZ_SECONDS=n` runs each target n seconds, `INGLE_FUZZ_SEED=n` with other inputs,
//! `INGLE_FUZZ_TARGET=name` only one of them. Each runs in a process of its own, since it looks at that
//! process's memory and time; as many at once as there are cores.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test reports what it measured")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use ingle_fuzz::cost::CountingAllocator;
use ingle_fuzz::{driver, targets};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const ONE: &str = "INGLE_FUZZ_ONE";

#[test]
fn test_no_input_gets_past_a_target() {
    run("test_no_input_gets_past_a_target", 5.0, 1);
}

#[test]
#[ignore = "long"]
fn test_no_input_gets_past_a_target_in_a_minute_each() {
    run("test_no_input_gets_past_a_target_in_a_minute_each", 60.0, 2);
}

#[test]
fn test_each_target_has_a_corpus_and_an_entry_for_libfuzzer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names_in = |folder: &str| {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.unwrap().path();
            path.file_stem().unwrap().to_str().unwrap().to_owned()
        };
        entries.map(name).collect::<BTreeSet<String>>()
    };
    let names: BTreeSet<String> = targets::NAMES.map(str::to_owned).into();
    assert_eq!(names_in("corpus"), names);
    assert_eq!(names_in("fuzz_targets"), names);
    for name in targets::NAMES {
        let entry = std::fs::read_to_string(root.join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(entry.contains(&format!("libfuzzer::run(\"{name}\", input)")), "{name}");
        let num_inputs = std::fs::read_dir(root.join("corpus").join(name)).unwrap().count();
        assert!(num_inputs >= 2, "{name}: {num_inputs}");
    }
}

fn from_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn run(test: &str, seconds: f64, seed: u64) {
    let seconds = from_env("INGLE_FUZZ_SECONDS").map_or(seconds, |text| text.parse().unwrap());
    let seed = from_env("INGLE_FUZZ_SEED").map_or(seed, |text| text.parse().unwrap());
    match from_env(ONE) {
        Some(name) => run_one(&name, seconds, seed),
        None => run_each(test),
    }
}

fn run_one(name: &str, seconds: f64, seed: u64) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let scratch = std::env::temp_dir().join(format!("ingle-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let all = targets::all(&root.join(".."), &scratch);
    let mut target = all.into_iter().find(|target| target.name() == name).unwrap();
    let time = Duration::from_secs_f64(seconds);
    let report = driver::fuzz(&mut *target, &root.join("corpus"), seed, time);
    println!("{name:15} {report:?}");
    assert!(report.num_outcomes > 1, "{name}: all inputs have one outcome");
    std::fs::remove_dir_all(&scratch).ok();
}

/// This test again, in a process for each target.
fn run_each(test: &str) {
    let only = from_env("INGLE_FUZZ_TARGET");
    let mut names: Vec<&str> =
        targets::NAMES.into_iter().filter(|name| only.as_ref().is_none_or(|o| o == name)).collect();
    assert!(!names.is_empty(), "{only:?}: the targets are {:?}", targets::NAMES);
    names.reverse();
    let (left, failed) = (Mutex::new(names), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(name) = { left.lock().unwrap().pop() } {
                    let Output { status, stdout, stderr } =
                        Command::new(std::env::current_exe().unwrap())
                            .args(["--exact", test, "--include-ignored", "--nocapture"])
                            .env(ONE, name)
                            .stdin(Stdio::null())
                            .output()
                            .unwrap();
                    let text = String::from_utf8_lossy(&stdout);
                    text.lines().filter(|l| l.contains("Report")).for_each(|l| println!("{l}"));
                    if !status.success() {
                        let errors = String::from_utf8_lossy(&stderr).into_owned();
                        failed.lock().unwrap().push(format!("{name}: {status}\n{text}{errors}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
