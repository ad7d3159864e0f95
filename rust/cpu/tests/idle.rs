//! What an executor costs when there is nothing to do. Alone in its process, whose threads it counts.

#[path = "executor/harness.rs"]
#[allow(dead_code, reason = "shared with the executor's tests")]
mod harness;

use std::time::Duration;

use harness::{Harness, Request, config};
use ingle_core::SamplingParams;

#[test]
fn test_an_idle_executor_costs_no_cpu() {
    let mut config = config(16);
    config.threads = 3;
    let mut harness = Harness::new("llama-gqa4-headdim32", &config);
    let mut requests = [Request::new(0, &[3; 40], SamplingParams::default())];
    harness.generate(&mut requests, 5, 100);
    // Long enough for the workers to stop spinning even on a busy machine.
    std::thread::sleep(Duration::from_millis(100));
    let before = cpu_ns();
    std::thread::sleep(Duration::from_millis(500));
    let spent = cpu_ns() - before;
    assert!(spent < 2_000_000, "{spent} ns on the processor in half a second without work");
}

/// Time on a processor of all threads of this process.
fn cpu_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("tasks");
    tasks
        .flatten()
        .map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).expect("schedstat");
            text.split(' ').next().expect("a number").parse::<u64>().expect("nanoseconds")
        })
        .sum()
}
