//! What this machine has and what it lacks, for `ingle doctor`. Any thread; reads only.

use serde_json::{Value, json};

use crate::device::{Places, devices};
use crate::error::EngineError;
use crate::memory::Memory;

/// A JSON report: processor, memory, devices and kernel, each with what is missing and what it costs.
/// `places` is a JSON document of `device::Places`, as the options have them.
/// Blocking, up to a second a GPU.
///
/// # Errors
/// `EngineError::Model` if the document is not one.
pub fn doctor(places: &[u8]) -> Result<Vec<u8>, EngineError> {
    let places: Places = serde_json::from_slice(places)
        .map_err(|error| EngineError::Model(format!("doctor: {error}")))?;
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "cpu": cpu(),
        "memory": memory(),
        "devices": devices(&places),
        "kernel": {
            "release": first_line("/proc/sys/kernel/osrelease"),
            "open_files": open_files(limit(&limits, "Max open files")),
            "locked_memory": locked_memory(limit(&limits, "Max locked memory")),
        },
    });
    Ok(report.to_string().into_bytes())
}

/// What this process could take, and which limit is the least.
fn memory() -> Value {
    let room = Memory::open().room();
    json!({ "available_bytes": room.bytes, "limit": room.limit })
}

/// The limit on descriptors, each connection being one or two; the server raises the soft one to the hard.
fn open_files(limits: Option<(String, String)>) -> Value {
    let Some((soft, hard)) = limits else { return Value::Null };
    let shown = format!("{soft} / {hard}");
    match hard.parse::<u64>() {
        Ok(hard) if hard < FEW_FILES => json!({
            "value": shown,
            "cost": format!("about {} connections at once at most", hard / 2),
        }),
        _ => json!(shown),
    }
}

/// The limit on locked memory, which people raise for GPUs; the driver's pinned buffers do not count.
fn locked_memory(limits: Option<(String, String)>) -> Value {
    let Some((soft, hard)) = limits else { return Value::Null };
    let shown = format!("{soft} / {hard}");
    if soft == "unlimited" { json!(shown) } else { json!({ "value": shown, "cost": NO_LOCKS }) }
}

/// Soft and hard limit of this process, as the kernel writes them; `text` is its list.
fn limit(text: &str, name: &str) -> Option<(String, String)> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let mut words = line.split_whitespace().map(str::to_owned);
    Some((words.next()?, words.next()?))
}

fn cpu() -> Value {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    json!({
        "model": processor_name(),
        "usable_cores": cores,
        "instructions": or_slow(&ingle_cpu::usable_paths()),
        "cpu_precision": precisions(ingle_cpu::fast_lacks()),
    })
}

/// The instruction sets that the CPU executor can use, with what those that are missing cost. The factors are measured
/// with SmolLM2-135M on Zen 4 (docs/BENCHMARKS.md).
fn or_slow(paths: &[&str]) -> Value {
    let cost = if !paths.contains(&"avx2") {
        "without AVX2, FMA and F16C a prompt takes about 3 times and a sequence about 8 times as long on the cpu device"
    } else if !paths.contains(&"avx512") {
        "without AVX-512 (F, BW, DQ and VL) the cpu device uses AVX2, which was as fast on Zen 4"
    } else {
        return json!(paths);
    };
    json!({ "value": paths, "cost": cost })
}

/// The values of `--cpu-precision` that work here.
fn precisions(lack: Option<&str>) -> Value {
    match lack {
        None => json!(["exact", "fast"]),
        Some(_) => json!({
            "value": ["exact"],
            "cost": "without AVX-512 BF16 and VNNI there is no --cpu-precision fast; prompts took 0.6 to 0.7 of the time with it on Zen 4",
        }),
    }
}

fn processor_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Fewer are worth a word.
const FEW_FILES: u64 = 4096;
const NO_LOCKS: &str =
    "none: the engine locks no memory, and the driver's pinned buffers do not count";

fn first_line(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_limits_say_what_they_cost() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max open files            1024                 4000                 files\n\
                    Max locked memory         8388608              unlimited            bytes\n";
        assert_eq!(
            open_files(limit(text, "Max open files")),
            json!({ "value": "1024 / 4000", "cost": "about 2000 connections at once at most" })
        );
        assert_eq!(
            locked_memory(limit(text, "Max locked memory")),
            json!({ "value": "8388608 / unlimited", "cost": NO_LOCKS })
        );
        assert_eq!(limit(text, "Max nothing"), None);
        assert_eq!(open_files(None), Value::Null);
        let free = || Some(("unlimited".to_owned(), "unlimited".to_owned()));
        assert_eq!(open_files(free()), "unlimited / unlimited");
        assert_eq!(locked_memory(free()), "unlimited / unlimited");
    }

    #[test]
    fn test_small_findings() {
        assert_eq!(precisions(None), json!(["exact", "fast"]));
        assert!(precisions(Some("processor lacks"))["cost"].to_string().contains("VNNI"));
        assert!(or_slow(&["portable"])["cost"].to_string().contains("AVX2"));
        assert!(or_slow(&["avx2", "portable"])["cost"].to_string().contains("AVX-512"));
        let all = ["avx512", "avx2", "portable"];
        assert_eq!(or_slow(&all), json!(all));
    }

    #[test]
    fn test_this_machine_has_a_report() {
        let report: Value = serde_json::from_slice(&doctor(b"{}").unwrap()).unwrap();
        assert_eq!(report["devices"]["cpu"]["usable"], true);
        assert!(report["memory"]["available_bytes"].as_u64().unwrap() > 0);
        let bad = doctor(br#"{"site_packages": []}"#).unwrap_err().to_string();
        assert!(bad.contains("site_packages"), "{bad}");
    }
}
