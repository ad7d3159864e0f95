//! Refuses settings that only another device has, because they would have no effect. At start.

use crate::device::cuda_ranks::may_divide;
use crate::device::named::Device;
use crate::error::EngineError;
use crate::options::EngineOptions;

/// A setting of another device would do nothing, and is an error.
pub(super) fn refuse_foreign_options(
    device: &Device,
    options: &EngineOptions,
) -> Result<(), EngineError> {
    let (is_sim, may_be_cpu) = match device {
        Device::Sim(_) => (true, false),
        Device::Cpu | Device::Auto => (false, true),
        Device::Cuda(_) => (false, false),
    };
    let on_gpu = matches!(device, Device::Cuda(_)) && may_divide();
    let foreign = [
        ("sim_speed", "sim", options.sim_speed.is_some() && !is_sim),
        ("tensor_parallel_size", "cpu", is_divided(options) && !may_be_cpu && !on_gpu),
        ("enable_expert_parallel", "cpu", options.enable_expert_parallel && !may_be_cpu),
        ("cpu_threads", "cpu", options.cpu_threads != 0 && !may_be_cpu),
        ("cpu_precision", "cpu", options.cpu_precision != "exact" && !may_be_cpu),
        ("load: on-request", "cpu or sim", options.on_request && !may_be_cpu && !is_sim),
        ("kv_cache_dtype", "cpu", options.kv_cache_dtype != "auto" && !may_be_cpu),
        ("dtype", "cpu or cuda", options.dtype != "auto" && is_sim),
        ("quantization", "cpu or cuda", options.quantization.is_some() && is_sim),
    ];
    match foreign.into_iter().find(|&(_, _, is_foreign)| is_foreign) {
        Some((name, owner, _)) => Err(EngineError::Model(format!(
            "{name}: only the {owner} device has this setting, and the device is {}",
            options.device
        ))),
        None => Ok(()),
    }
}

/// Whether engines are to divide the model among ranks.
pub(super) fn is_divided(options: &EngineOptions) -> bool {
    options.tensor_parallel_size.is_some_and(|ranks| ranks != 1)
}

/// A setting that would do nothing is an error, unless the device was left to us.
pub(super) fn refuse_gpu_options(options: &EngineOptions, device: &str) -> Result<(), EngineError> {
    let places = &options.places;
    let given = [
        ("gpu_memory_utilization", options.gpu_memory_utilization.is_some()),
        ("enforce_eager", options.enforce_eager),
        ("cache_dir", places.cache_dir.is_some()),
        ("prebuilt_kernels", places.prebuilt_kernels.is_some()),
        ("nvrtc_library", places.cuda_libraries.nvrtc.is_some()),
        ("cublaslt_library", places.cuda_libraries.cublaslt.is_some()),
    ];
    match given.into_iter().find(|&(_, is_given)| is_given && options.device != "auto") {
        Some((name, _)) => Err(EngineError::Model(format!(
            "{name}: only the cuda device has this setting, and the device is {device}"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn test_settings_of_another_device_are_refused() {
        for (device, extra, name) in [
            (Device::Cpu, json!({ "sim_speed": 2 }), "sim_speed"),
            (Device::Sim(None), json!({ "cpu_threads": 2 }), "cpu_threads"),
            (Device::Sim(None), json!({ "cpu_precision": "fast" }), "cpu_precision"),
            (Device::Cuda(0), json!({ "cpu_precision": "fast" }), "cpu_precision"),
            (Device::Sim(None), json!({ "dtype": "bfloat16" }), "dtype"),
            (Device::Sim(None), json!({ "quantization": "fp8" }), "quantization"),
            (Device::Sim(None), json!({ "kv_cache_dtype": "fp8" }), "kv_cache_dtype"),
            (Device::Cuda(0), json!({ "kv_cache_dtype": "fp8" }), "kv_cache_dtype"),
            (Device::Cuda(0), json!({ "sim_speed": "inf" }), "sim_speed"),
            (Device::Cuda(0), json!({ "tensor_parallel_size": 2 }), "tensor_parallel_size"),
            (Device::Sim(None), json!({ "tensor_parallel_size": 2 }), "tensor_parallel_size"),
            (
                Device::Sim(None),
                json!({ "enable_expert_parallel": true }),
                "enable_expert_parallel",
            ),
        ] {
            let mut options = json!({ "model": "m", "device": "x" });
            options.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let options: EngineOptions = serde_json::from_value(options).unwrap();
            let error = refuse_foreign_options(&device, &options).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}: only the")), "{error}");
        }
    }
}
