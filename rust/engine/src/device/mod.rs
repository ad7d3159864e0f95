//! Selects the executor and builds it. Each device has its own files here; what only one device has is
//! defined there. At start, caller's thread.

mod built;
mod cpu;
mod cuda;
mod cuda_own;
mod cuda_ranks;
mod cuda_report;
mod finding;
mod foreign;
mod late_text;
mod named;
mod places;
mod report;
mod sim;

use ingle_core::CompletionSink;
use ingle_model::Checkpoint;

use built::Parts;
pub(crate) use built::{Built, DeviceCount, DeviceOwn};
pub(crate) use late_text::LateText;
pub(crate) use named::Device;
pub use named::may_use_gpu;
pub use places::Places;
pub(crate) use report::devices;

use crate::error::EngineError;
use crate::options::EngineOptions;
use cuda::{build_cuda, left_alone, probe_first};
use foreign::refuse_foreign_options;

/// Builds an executor for each sink; loads weights.
///
/// # Errors
/// `EngineError::Model`, one line.
pub(crate) fn build_executors(
    device: &Device,
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    text: &LateText,
    sinks: Vec<CompletionSink>,
) -> Result<Vec<Built>, EngineError> {
    refuse_foreign_options(device, options)?;
    let parts = Parts { checkpoint, options, text };
    match device {
        Device::Sim(profile) => {
            sinks.into_iter().map(|sink| sim::build(profile.as_ref(), parts, sink)).collect()
        }
        Device::Cpu => cpu::build(parts, sinks),
        Device::Cuda(ordinal) => build_cuda(*ordinal, parts, sinks),
        Device::Auto => {
            let found = probe_first(options);
            let Some(lack) = found.lack(options.places.prebuilt_kernels.is_some()) else {
                refuse_foreign_options(&Device::Cuda(0), options)?;
                return build_cuda(0, parts, sinks);
            };
            let mut built = cpu::build(parts, sinks)?;
            if let Some(first) = built.first_mut() {
                first.sizes.notes.extend(left_alone(&found, lack));
            }
            Ok(built)
        }
    }
}
