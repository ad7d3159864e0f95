//! Models that are divided among ranks on GPUs: where the ranks are, and how they are loaded. At start, caller's thread.

use ingle_core::CompletionSink;
use ingle_cuda::{CudaConfig, CudaError, CudaExecutor, StartReport, WarningSink};
use ingle_model::{Checkpoint, ExpertCut, Partition};

use crate::error::EngineError;
use crate::options::EngineOptions;
use crate::sizes::setting;

/// Where ranks may be, for tests: `one-gpu` or `gpus`. Without it models are not divided on GPUs so far.
const RANKS: &str = "INGLE_CUDA_RANKS";

/// Whether models may be divided on this device.
pub(super) fn may_divide() -> bool {
    std::env::var_os(RANKS).is_some()
}

/// The device of each rank: as many GPUs from `first` on, or `first` for all.
fn devices(first: u32, ranks: u32) -> Result<Vec<u32>, EngineError> {
    match std::env::var(RANKS).as_deref() {
        Ok("one-gpu") => Ok(vec![first; ranks as usize]),
        Ok("gpus") => Ok((first..).take(ranks as usize).collect()),
        other => Err(EngineError::Model(format!(
            "{RANKS}: must be one-gpu or gpus, not {:?}",
            other.unwrap_or("what is no text")
        ))),
    }
}

/// Loads a model onto device `config.device`, divided as the options say.
///
/// # Errors
/// `EngineError::Model`, one line with the numbers.
pub(super) fn load(
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    config: &CudaConfig,
    sink: CompletionSink,
    warn: &WarningSink,
) -> Result<(CudaExecutor, StartReport), EngineError> {
    let Checkpoint { spec, plan, source, .. } = checkpoint;
    let error = |error: CudaError| EngineError::Model(error.to_string());
    let ranks = setting("tensor_parallel_size", options.tensor_parallel_size, 1)?;
    if options.enable_expert_parallel {
        let text = "enable_expert_parallel: only the cpu device has this setting";
        return Err(EngineError::Model(text.to_owned()));
    }
    if ranks == 1 {
        return CudaExecutor::load(spec.clone(), plan, source, config, sink, warn).map_err(error);
    }
    let partition = Partition::new(spec, ranks, ExpertCut::Inner)
        .map_err(|error| EngineError::Model(error.to_string()))?;
    let devices = devices(config.device, ranks)?;
    CudaExecutor::load_divided(&partition, plan, source, (config, &devices), sink, warn)
        .map_err(error)
}
