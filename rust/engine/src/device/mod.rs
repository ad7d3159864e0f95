//! Chooses the executor and builds it. At start, caller's thread.

mod cpu;
mod sim;

use std::path::PathBuf;

use ingle_core::{CompletionSink, Executor};
use ingle_model::Checkpoint;

use crate::device_cuda::{build_cuda, is_usable};
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
    match device {
        Device::Sim(profile) => sim::build(profile.as_ref(), checkpoint, options, text, sink),
        Device::Cpu => cpu::build(checkpoint, options, text, sink),
        Device::Cuda(ordinal) => build_cuda(*ordinal, checkpoint, options, text, sink),
        Device::Auto if is_usable(options) => build_cuda(0, checkpoint, options, text, sink),
        Device::Auto => cpu::build(checkpoint, options, text, sink),
    }
}

/// A setting that would do nothing is an error, unless the device was left to us.
fn refuse_gpu_options(options: &EngineOptions, device: &str) -> Result<(), EngineError> {
    let given = [
        ("gpu_memory_utilization", options.gpu_memory_utilization.is_some()),
        ("enforce_eager", options.enforce_eager),
        ("cache_dir", options.cache_dir.is_some()),
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
