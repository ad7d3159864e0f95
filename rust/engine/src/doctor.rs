//! What this machine offers and what it lacks, for `ingle doctor`. Any thread; reads, changes nothing.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use ingle_cuda::{DeviceProbe, probe};

use crate::device_cuda::library_paths;
use crate::error::EngineError;
use crate::options::CudaLibraries;
use crate::sizes::available_memory;

/// Where an engine would look: the options of the same names.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Places {
    cuda_libraries: CudaLibraries,
    prebuilt_kernels: Option<PathBuf>,
}

/// A JSON report: processor, memory, devices and kernel, each with what is missing and what it costs.
/// `places` is a JSON document of `cuda_libraries` and `prebuilt_kernels`, as the options have them.
/// Blocking, up to a second a GPU.
///
/// # Errors
/// `EngineError::Model` if the document is not one.
pub fn doctor(places: &[u8]) -> Result<Vec<u8>, EngineError> {
    let places: Places = serde_json::from_slice(places)
        .map_err(|error| EngineError::Model(format!("doctor: {error}")))?;
    let libraries = library_paths(&places.cuda_libraries);
    let first = probe(0, &libraries);
    let others: Vec<_> = (1..first.device_count).map(|device| probe(device, &libraries)).collect();
    let gpus: Vec<_> = std::iter::once(first).chain(others).collect();
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let modules = std::fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
    let seccomp = first_line("/proc/sys/kernel/seccomp/actions_avail");
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "cpu": cpu(),
        "memory": { "available_bytes": available_memory() },
        "devices": {
            "cpu": { "usable": true },
            "sim": { "usable": true },
            "cuda": cuda(&gpus, &prebuilt(places.prebuilt_kernels.as_deref())),
        },
        "kernel": {
            "release": first_line("/proc/sys/kernel/osrelease"),
            "landlock": or_lack(&security_module(&modules, "landlock"), NO_LOCK_DOWN),
            "seccomp": or_lack(&seccomp.map(|_| true).ok_or("not built into the kernel"), NO_LOCK_DOWN),
            "open_files": open_files(limit(&limits, "Max open files")),
            "locked_memory": locked_memory(limit(&limits, "Max locked memory")),
        },
    });
    Ok(report.to_string().into_bytes())
}

/// Kernels in the wheel's folder, or why there are none.
fn prebuilt(folder: Option<&Path>) -> Result<usize, String> {
    let folder = folder.ok_or("this build carries none")?;
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let is_kernel = |path: &Path| path.extension().is_some_and(|e| e == "cubin" || e == "ptx");
    match entries.flatten().filter(|entry| is_kernel(&entry.path())).count() {
        0 => Err(format!("{} is empty", folder.display())),
        count => Ok(count),
    }
}

/// The GPUs, the first of which stands for the machine: libraries are looked for once.
fn cuda(gpus: &[DeviceProbe], prebuilt: &Result<usize, String>) -> Value {
    let Some(first) = gpus.first() else { return Value::Null };
    let usable = gpus.iter().any(|gpu| gpu.lack(prebuilt.is_ok()).is_none());
    let instead = |present, what| if present { what } else { NO_KERNELS };
    let mut report = json!({
        "usable": usable,
        "driver": or_lack(&first.driver_version, "no GPU: the cpu device is used"),
        "device_count": first.device_count,
        "nvrtc": or_lack(&first.nvrtc, instead(prebuilt.is_ok(), "slower kernels, built ahead for any model")),
        "prebuilt_kernels": or_lack(prebuilt, instead(first.nvrtc.is_ok(), "none while NVRTC is there")),
    });
    if let Value::Object(report) = &mut report {
        let numbered = gpus.iter().take(first.device_count as usize).enumerate();
        report.extend(numbered.map(|(i, gpu)| (format!("cuda:{i}"), card(gpu, prebuilt.is_ok()))));
    }
    report
}

/// One GPU.
fn card(gpu: &DeviceProbe, has_prebuilt: bool) -> Value {
    let capability = gpu.compute_capability.map(|(major, minor)| format!("{major}.{minor}"));
    let mut report = Map::new();
    let mut say = |name: &str, value: Value| report.insert(name.to_owned(), value);
    say("usable", json!(gpu.lack(has_prebuilt).is_none()));
    say("name", json!(gpu.name));
    say("compute_capability", json!(capability));
    say("free_bytes", json!(gpu.free_bytes));
    say("total_bytes", json!(gpu.total_bytes));
    if gpu.supported.is_err() {
        say("supported", or_lack(&gpu.supported, "this GPU cannot be used"));
    } else {
        say("cublaslt", or_lack(&gpu.cublaslt, "no matrix products: this GPU cannot be used"));
        say("tested", tested(gpu));
    }
    Value::Object(report)
}

fn or_lack<T: serde::Serialize, E: serde::Serialize>(finding: &Result<T, E>, cost: &str) -> Value {
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
            "cost": "a warning at start; its kernels were compiled and never run",
        }),
    }
}

/// `modules`: the kernel's list, with commas.
fn security_module(modules: &str, name: &str) -> Result<bool, &'static str> {
    let found = modules.trim().split(',').any(|module| module == name);
    if found { Ok(true) } else { Err("not among the kernel's security modules") }
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
        "instructions": or_slow(&instructions()),
    })
}

fn or_slow(instructions: &[&str]) -> Value {
    if instructions.len() > 1 {
        return json!(instructions);
    }
    json!({ "value": instructions, "cost": "the cpu device computes without AVX2: slowly" })
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
const NO_KERNELS: &str = "no kernels: no GPU can be used";
const NO_LOCKS: &str =
    "none: the engine locks no memory, and the driver's pinned buffers do not count";
const NO_LOCK_DOWN: &str = "none in this version, which does not lock itself down yet";

fn first_line(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h200() -> DeviceProbe {
        DeviceProbe {
            is_absent: false,
            driver_version: Ok(13000),
            device_count: 1,
            name: Some("NVIDIA H200".to_owned()),
            compute_capability: Some((9, 0)),
            supported: Ok(()),
            free_bytes: Some(100 << 30),
            total_bytes: Some(141 << 30),
            nvrtc: Ok("13.0 /lib/libnvrtc.so.13".to_owned()),
            cublaslt: Ok("13.1 /lib/libcublasLt.so.13".to_owned()),
        }
    }

    fn absent(why: &str) -> Result<String, String> {
        Err(why.to_owned())
    }

    fn usable(gpus: &[DeviceProbe], prebuilt: &Result<usize, String>) -> bool {
        cuda(gpus, prebuilt)["usable"] == true
    }

    #[test]
    fn test_a_whole_machine_has_no_costs() {
        let report = cuda(&[h200()], &Ok(400));
        assert!(!report.to_string().contains("cost"), "{report}");
        assert_eq!(report["usable"], true);
        assert_eq!(report["prebuilt_kernels"], 400);
        assert_eq!(report["cuda:0"]["usable"], true);
        assert_eq!(report["cuda:0"]["compute_capability"], "9.0");
        assert_eq!(report["cuda:0"]["tested"], true);
    }

    /// One of the two ways to kernels is enough; without either no GPU is usable.
    #[test]
    fn test_kernels_come_from_nvrtc_or_the_wheel() {
        let none = Err("this build carries none".to_owned());
        let bare = [DeviceProbe { nvrtc: absent("no libnvrtc"), ..h200() }];
        assert!(usable(&[h200()], &none));
        assert!(usable(&bare, &Ok(400)));
        assert!(!usable(&bare, &none));

        let cost = |report: Value, name: &str| report[name]["cost"].clone();
        assert_eq!(cost(cuda(&[h200()], &none), "prebuilt_kernels"), "none while NVRTC is there");
        assert!(cost(cuda(&bare, &Ok(400)), "nvrtc").to_string().contains("slower kernels"));
        let report = cuda(&bare, &none);
        assert_eq!(report["nvrtc"], json!({ "missing": "no libnvrtc", "cost": NO_KERNELS }));
        assert_eq!(report["prebuilt_kernels"]["cost"], NO_KERNELS);
        assert_eq!(report["cuda:0"]["usable"], false);
    }

    #[test]
    fn test_every_gpu_is_described_and_one_that_is_usable_is_enough() {
        let old = DeviceProbe {
            name: Some("Tesla T4".to_owned()),
            compute_capability: Some((7, 5)),
            supported: Err("Tesla T4 has compute capability 7.5".to_owned()),
            device_count: 2,
            ..h200()
        };
        let young = DeviceProbe { compute_capability: Some((12, 0)), device_count: 2, ..h200() };
        let report = cuda(&[old.clone(), young], &Ok(400));
        assert_eq!(report["usable"], true);
        assert_eq!(report["cuda:0"]["usable"], false);
        assert_eq!(report["cuda:0"]["name"], "Tesla T4");
        assert_eq!(
            report["cuda:0"]["supported"],
            json!({
                "missing": "Tesla T4 has compute capability 7.5",
                "cost": "this GPU cannot be used",
            })
        );
        assert_eq!(report["cuda:1"]["usable"], true);
        assert_eq!(
            report["cuda:1"]["tested"]["missing"],
            "compute capability 12.0 has not been measured"
        );
        assert!(!usable(&[old], &Ok(400)));
        let no_blas = DeviceProbe { cublaslt: absent("no libcublasLt"), ..h200() };
        assert!(!usable(&[no_blas], &Ok(400)));
    }

    #[test]
    fn test_without_a_driver_no_gpu_is_described() {
        let none = DeviceProbe {
            driver_version: Err("libcuda.so.1: not found".to_owned()),
            device_count: 0,
            name: None,
            compute_capability: None,
            supported: Err("no device".to_owned()),
            ..h200()
        };
        let report = cuda(&[none], &Ok(400));
        assert_eq!(report["usable"], false);
        assert_eq!(report["driver"]["missing"], "libcuda.so.1: not found");
        assert_eq!(report["driver"]["cost"], "no GPU: the cpu device is used");
        assert!(report.get("cuda:0").is_none());
    }

    #[test]
    fn test_prebuilt_kernels_are_counted() {
        let folder = std::env::temp_dir().join(format!("ingle-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("README"), "").unwrap();
        assert!(prebuilt(Some(&folder)).unwrap_err().ends_with("is empty"));
        std::fs::write(folder.join("pool-bf16.sm_80.cubin"), "").unwrap();
        std::fs::write(folder.join("pool-bf16.compute_80.ptx"), "").unwrap();
        assert_eq!(prebuilt(Some(&folder)), Ok(2));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(prebuilt(Some(&folder)).unwrap_err().contains("No such file"));
        assert_eq!(prebuilt(None), Err("this build carries none".to_owned()));
    }

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
        assert_eq!(security_module("capability,landlock,yama\n", "landlock"), Ok(true));
        assert!(security_module("capability,landlocked", "landlock").is_err());
        assert!(or_slow(&["portable"])["cost"].to_string().contains("AVX2"));
        assert_eq!(or_slow(&["avx2", "portable"]), json!(["avx2", "portable"]));
    }

    /// Whatever this machine has: a document comes, and says no GPU is usable where none was found.
    #[test]
    fn test_this_machine_has_a_report() {
        let places = br#"{"cuda_libraries": {"nvrtc": "/nowhere/libnvrtc.so.13"}}"#;
        let report: Value = serde_json::from_slice(&doctor(places).unwrap()).unwrap();
        let cuda = &report["devices"]["cuda"];
        assert!(cuda["nvrtc"]["missing"].to_string().contains("/nowhere/libnvrtc.so.13"));
        assert_eq!(cuda["usable"], false, "neither NVRTC nor kernels");
        assert!(cuda["driver"].is_i64() || cuda["device_count"] == 0);
        let bad = doctor(br#"{"site_packages": []}"#).unwrap_err().to_string();
        assert!(bad.contains("site_packages"), "{bad}");
    }
}
