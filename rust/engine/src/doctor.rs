//! What this machine offers and what it lacks, for `ingle doctor`. Any thread; reads, changes nothing.

use serde_json::{Value, json};

use crate::sizes::available_memory;

/// A JSON report: processor, memory, devices, each with what is missing and why.
#[must_use]
pub fn doctor() -> Vec<u8> {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "cpu": cpu(),
        "memory": { "available_bytes": available_memory() },
        "devices": {
            "cpu": { "usable": true },
            "sim": { "usable": true },
            "cuda": { "usable": false, "reason": "not built into this version" },
        },
        "kernel": first_line("/proc/sys/kernel/osrelease"),
    })
    .to_string()
    .into_bytes()
}

fn cpu() -> Value {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    json!({
        "model": processor_name(),
        "usable_cores": cores,
        "instructions": instructions(),
    })
}

/// The instruction sets that the CPU executor can use, widest first.
fn instructions() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        let mut found = Vec::new();
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            found.push("avx512");
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            found.push("avx2");
        }
        found.push("portable");
        found
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        vec!["portable"]
    }
}

fn processor_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn first_line(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().next().map(str::to_owned)
}
