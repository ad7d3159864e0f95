//! What this machine offers and what it lacks, for `ingle doctor`. Any thread; reads, changes nothing.

use serde_json::{Value, json};

use ingle_cuda::{DeviceProbe, LibraryPaths, probe};

use crate::device_cuda::library_paths;
use crate::error::EngineError;
use crate::options::CudaLibraries;
use crate::sizes::available_memory;

/// A JSON report: processor, memory, devices and kernel, each with what is missing and what it costs.
/// `libraries` is the JSON document `cuda_libraries` of the options. Blocking, up to a second.
///
/// # Errors
/// `EngineError::Model` if the document is not one.
pub fn doctor(libraries: &[u8]) -> Result<Vec<u8>, EngineError> {
    let libraries: CudaLibraries = serde_json::from_slice(libraries)
        .map_err(|error| EngineError::Model(format!("cuda_libraries: {error}")))?;
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "cpu": cpu(),
        "memory": { "available_bytes": available_memory() },
        "devices": {
            "cpu": { "usable": true },
            "sim": { "usable": true },
            "cuda": cuda(&library_paths(&libraries)),
        },
        "kernel": {
            "release": first_line("/proc/sys/kernel/osrelease"),
            "landlock": has_security_module("landlock"),
            "seccomp": first_line("/proc/sys/kernel/seccomp/actions_avail").is_some(),
            "open_files": limit("Max open files"),
            "locked_memory": limit("Max locked memory"),
        },
    });
    Ok(report.to_string().into_bytes())
}

/// What was found of a GPU, and for each lack what it costs.
fn cuda(libraries: &LibraryPaths) -> Value {
    let found = probe(0, libraries);
    json!({
        "usable": found.driver_version.is_ok() && found.device_count > 0 && found.cublaslt.is_ok(),
        "driver": or_lack(&found.driver_version, "no GPU: the cpu device is used"),
        "device_count": found.device_count,
        "device_0": found.name,
        "compute_capability": found.compute_capability,
        "free_bytes": found.free_bytes,
        "total_bytes": found.total_bytes,
        "nvrtc": or_lack(&found.nvrtc, "kernels cannot be compiled for a model"),
        "cublaslt": or_lack(&found.cublaslt, "no matrix products: the GPU cannot be used"),
        "untested": is_untested(&found),
    })
}

fn or_lack<T: serde::Serialize>(finding: &Result<T, String>, cost: &str) -> Value {
    match finding {
        Ok(value) => json!(value),
        Err(why) => json!({ "missing": why, "cost": cost }),
    }
}

/// Only compute capability 9.0 has been measured.
fn is_untested(found: &DeviceProbe) -> bool {
    found.compute_capability.is_some_and(|capability| capability != (9, 0))
}

fn has_security_module(name: &str) -> bool {
    std::fs::read_to_string("/sys/kernel/security/lsm")
        .is_ok_and(|text| text.trim().split(',').any(|module| module == name))
}

/// Soft and hard limit of this process, as the kernel writes them.
fn limit(name: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let words: Vec<&str> = line.split_whitespace().take(2).collect();
    Some(words.join(" / "))
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
