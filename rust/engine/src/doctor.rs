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
            "landlock": or_lack(&security_module("landlock"), NO_LOCK_DOWN),
            "seccomp": or_lack(&seccomp(), NO_LOCK_DOWN),
            "open_files": open_files(),
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
        "nvrtc": or_lack(&found.nvrtc, "slower kernels, built ahead for any model, if the wheel has them"),
        "cublaslt": or_lack(&found.cublaslt, "no matrix products: the GPU cannot be used"),
        "tested": tested(&found),
    })
}

fn or_lack<T: serde::Serialize>(finding: &Result<T, String>, cost: &str) -> Value {
    match finding {
        Ok(value) => json!(value),
        Err(why) => json!({ "missing": why, "cost": cost }),
    }
}

/// Whether a card of this kind has been measured; nothing without a card.
fn tested(found: &DeviceProbe) -> Value {
    match found.compute_capability {
        None => Value::Null,
        Some((9, 0)) => json!(true),
        Some((major, minor)) => json!({
            "missing": format!("compute capability {major}.{minor} has not been measured"),
            "cost": "a warning at start; kernels are those of sm_80 and were only compiled for it",
        }),
    }
}

fn security_module(name: &str) -> Result<bool, String> {
    let text = std::fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
    if text.trim().split(',').any(|module| module == name) {
        Ok(true)
    } else {
        Err("not among the kernel's security modules".to_owned())
    }
}

fn seccomp() -> Result<bool, String> {
    match first_line("/proc/sys/kernel/seccomp/actions_avail") {
        Some(_) => Ok(true),
        None => Err("not built into the kernel".to_owned()),
    }
}

/// The limit on descriptors, each connection being one or two; the server raises the soft one to the hard.
fn open_files() -> Value {
    let limits = limit("Max open files");
    let hard = limits.as_deref().and_then(|text| text.rsplit(' ').next());
    match hard.and_then(|hard| hard.parse::<u64>().ok()) {
        Some(hard) if hard < FEW_FILES => json!({
            "value": limits,
            "cost": format!("about {} connections at once at most", hard / 2),
        }),
        _ => json!(limits),
    }
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
        "instructions": match instructions().as_slice() {
            found @ [_, ..] if found.len() > 1 => json!(found),
            found => json!({ "value": found, "cost": "the cpu device computes without AVX2: slowly" }),
        },
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

/// Fewer are worth a word.
const FEW_FILES: u64 = 4096;
const NO_LOCK_DOWN: &str = "none in this version, which does not lock itself down yet";

fn first_line(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().next().map(str::to_owned)
}
