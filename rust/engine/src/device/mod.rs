//! Selects the executor and builds it. Each device has its own files here; what only one device has is
//! defined there. At start, caller's thread.

mod built;
mod cpu;
mod cuda;
mod cuda_own;
mod cuda_report;
mod finding;
mod foreign;
pub(crate) mod libraries;
mod named;
mod report;
mod sim;

use ingle_core::CompletionSink;
use ingle_model::Checkpoint;

pub(crate) use built::{Built, DeviceOwn};
pub(crate) use named::Device;
pub(crate) use report::{Places, devices};

use crate::error::EngineError;
use crate::options::EngineOptions;
use crate::tokenizer_files::TextParts;
use cuda::{build_cuda, left_alone, probe_first};
use foreign::refuse_foreign_options;

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
