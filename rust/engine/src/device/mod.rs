//! Chooses the executor and builds it. At start, caller's thread.

mod cpu;
mod sim;

use std::path::PathBuf;
use std::sync::Arc;

use ingle_core::{CompletionSink, Executor};
use ingle_cuda::LaunchCounters;
use ingle_model::Checkpoint;

use crate::device_cuda::{build_cuda, left_alone, probe_first};
use crate::error::EngineError;
use crate::options::EngineOptions;
use crate::sizes::Sizes;
use crate::tokenizer_files::TextParts;

/// What `--device` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The GPU if there is one that we can use, else the CPU.
    Auto,
    Cpu,
    Cuda(u32),
    /// A profile file, or the default profile.
    Sim(Option<PathBuf>),
}

impl Device {
    /// Reads the option.
    ///
    /// # Errors
    /// `EngineError::Model` for any other word.
    pub(crate) fn parse(text: &str) -> Result<Self, EngineError> {
        match text.split_once(':') {
            None => match text {
                "auto" => Ok(Self::Auto),
                "cpu" => Ok(Self::Cpu),
                "cuda" => Ok(Self::Cuda(0)),
                "sim" => Ok(Self::Sim(None)),
                _ => Err(unknown(text)),
            },
            Some(("cuda", ordinal)) => ordinal.parse().map(Self::Cuda).map_err(|_| unknown(text)),
            Some(("sim", file)) if !file.is_empty() => Ok(Self::Sim(Some(PathBuf::from(file)))),
            Some(_) => Err(unknown(text)),
        }
    }
}

/// An executor and how it came about.
pub(crate) struct Built {
    pub(crate) executor: Box<dyn Executor>,
    pub(crate) sizes: Sizes,
    /// For people: `cpu`, `sim:llama-3.1-8b-bf16-h200`.
    pub(crate) name: String,
    /// Name in the style `weights_bytes`, and bytes; for the memory table.
    pub(crate) memory: Vec<(String, u64)>,
    /// Of a device that launches steps as graphs or kernel by kernel.
    pub(crate) launches: Option<Arc<LaunchCounters>>,
}

/// Builds the executor; loads weights.
///
/// # Errors
/// `EngineError::Model`, one line.
pub(crate) fn build_executor(
    device: &Device,
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    text: &TextParts,
    sink: CompletionSink,
) -> Result<Built, EngineError> {
    refuse_foreign_options(device, options)?;
    match device {
        Device::Sim(profile) => sim::build(profile.as_ref(), checkpoint, options, text, sink),
        Device::Cpu => cpu::build(checkpoint, options, text, sink),
        Device::Cuda(ordinal) => build_cuda(*ordinal, checkpoint, options, text, sink),
        Device::Auto => {
            let found = probe_first(options);
            let Some(lack) = found.lack(options.prebuilt_kernels.is_some()) else {
                return build_cuda(0, checkpoint, options, text, sink);
            };
            let mut built = cpu::build(checkpoint, options, text, sink)?;
            built.sizes.notes.extend(left_alone(&found, lack));
            Ok(built)
        }
    }
}

/// A setting of another device would do nothing, and is an error.
fn refuse_foreign_options(device: &Device, options: &EngineOptions) -> Result<(), EngineError> {
    let (is_sim, may_be_cpu) = match device {
        Device::Sim(_) => (true, false),
        Device::Cpu | Device::Auto => (false, true),
        Device::Cuda(_) => (false, false),
    };
    let foreign = [
        ("sim_speed", "sim", options.sim_speed.is_some() && !is_sim),
        ("cpu_threads", "cpu", options.cpu_threads != 0 && !may_be_cpu),
        ("dtype", "cpu or cuda", options.dtype != "auto" && is_sim),
    ];
    match foreign.into_iter().find(|&(_, _, is_foreign)| is_foreign) {
        Some((name, owner, _)) => Err(EngineError::Model(format!(
            "{name}: only the {owner} device has it, and the device is {}",
            options.device
        ))),
        None => Ok(()),
    }
}

/// A setting that would do nothing is an error, unless the device was left to us.
fn refuse_gpu_options(options: &EngineOptions, device: &str) -> Result<(), EngineError> {
    let given = [
        ("gpu_memory_utilization", options.gpu_memory_utilization.is_some()),
        ("enforce_eager", options.enforce_eager),
        ("cache_dir", options.cache_dir.is_some()),
        ("prebuilt_kernels", options.prebuilt_kernels.is_some()),
        ("cuda_libraries.nvrtc", options.cuda_libraries.nvrtc.is_some()),
        ("cuda_libraries.cublaslt", options.cuda_libraries.cublaslt.is_some()),
    ];
    match given.into_iter().find(|&(_, is_given)| is_given && options.device != "auto") {
        Some((name, _)) => Err(EngineError::Model(format!(
            "{name}: only the cuda device has it, and the device is {device}"
        ))),
        None => Ok(()),
    }
}

fn unknown(text: &str) -> EngineError {
    EngineError::Model(format!(
        "device: {text:?}, must be auto, cpu, cuda, cuda:N, sim or sim:FILE"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn test_device_names() {
        assert_eq!(Device::parse("auto").unwrap(), Device::Auto);
        assert_eq!(Device::parse("cuda:3").unwrap(), Device::Cuda(3));
        assert_eq!(Device::parse("sim:a:b").unwrap(), Device::Sim(Some("a:b".into())));
        for wrong in ["", "gpu", "cpu:0", "cuda:", "cuda:-1", "sim:"] {
            let error = Device::parse(wrong).unwrap_err().to_string();
            assert!(error.starts_with("device:"), "{error}");
        }
    }

    #[test]
    fn test_settings_of_another_device_are_refused() {
        for (device, extra, name) in [
            (Device::Cpu, json!({ "sim_speed": 2 }), "sim_speed"),
            (Device::Sim(None), json!({ "cpu_threads": 2 }), "cpu_threads"),
            (Device::Sim(None), json!({ "dtype": "bfloat16" }), "dtype"),
            (Device::Cuda(0), json!({ "sim_speed": "inf" }), "sim_speed"),
        ] {
            let mut options = json!({ "model": "m", "device": "x" });
            options.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let options: EngineOptions = serde_json::from_value(options).unwrap();
            let error = refuse_foreign_options(&device, &options).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}: only the")), "{error}");
        }
    }
}
