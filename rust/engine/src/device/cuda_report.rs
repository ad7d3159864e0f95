//! What the GPUs of this machine can do and what is missing, for `ingle doctor`. Any thread.

use std::path::Path;

use ingle_cuda::{DeviceProbe, probe};
use serde_json::{Map, Value, json};

use crate::device::finding::or_lack;
use crate::device::places::{Places, library_paths};

/// All GPUs of this machine. Blocking, up to a second each.
pub(super) fn of_machine(places: &Places) -> Value {
    let libraries = library_paths(&places.cuda_libraries);
    let first = probe(0, &libraries);
    let others: Vec<_> = (1..first.device_count).map(|device| probe(device, &libraries)).collect();
    let gpus: Vec<_> = std::iter::once(first).chain(others).collect();
    cuda(&gpus, &prebuilt(places.prebuilt_kernels.as_deref()))
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

const NO_KERNELS: &str = "no kernels: no GPU can be used";

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
}
