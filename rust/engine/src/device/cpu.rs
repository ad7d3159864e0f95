//! The CPU as a device: sizes, weights, workers. At start, caller's thread.

use ingle_core::CompletionSink;
use ingle_cpu::{CpuConfig, CpuExecutor, kv_bytes_per_block};
use ingle_model::{Checkpoint, TensorView};

use crate::device::built::Built;
use crate::device::foreign::refuse_gpu_options;
use crate::error::EngineError;
use crate::memory::Memory;
use crate::options::EngineOptions;
use crate::sizes::{DeviceDefaults, host_sizes};
use crate::tokenizer_files::TextParts;

/// Loads the weights and starts the workers.
///
/// # Errors
/// `EngineError::Model`, one line.
pub(super) fn build(
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    text: &TextParts,
    sink: CompletionSink,
) -> Result<Built, EngineError> {
    let spec = &checkpoint.spec;
    let weight_bytes = checkpoint.plan.tensors.values().map(TensorView::loaded_bytes).sum::<u64>();
    refuse_gpu_options(options, "cpu")?;
    let dtype = options.dtype.as_str();
    if dtype != "auto" {
        return Err(EngineError::Model(format!(
            "dtype: {dtype:?}; the cpu device keeps weights as stored and accepts auto only"
        )));
    }
    // In half a second a pair of cores computes about this many rows of a small model: the longest
    // that a decoding request waits for another's prompt.
    let max_num_batched_tokens = 512;
    let block_size = options.block_size.unwrap_or(CPU_BLOCK_SIZE).max(1);
    let defaults = DeviceDefaults {
        max_num_seqs: 32,
        max_num_batched_tokens,
        block_size,
        kv_bytes_per_token: kv_bytes_per_block(spec, block_size).div_ceil(u64::from(block_size)),
        available_bytes: left_by_weights(weight_bytes)?,
    };
    let sizes = host_sizes(spec, options, defaults)?;
    let config = CpuConfig {
        block_size: sizes.block_size,
        num_blocks: sizes.num_blocks,
        num_slots: 2 * sizes.max_num_seqs,
        max_num_seqs: sizes.max_num_seqs,
        max_num_batched_tokens: sizes.max_num_batched_tokens,
        max_model_len: sizes.max_model_len,
        threads: options.cpu_threads,
        num_valid_tokens: text.vocab_size,
        ..CpuConfig::default()
    };
    let source = checkpoint.source.as_ref();
    let executor = CpuExecutor::load(spec, &checkpoint.plan, source, &config, sink)
        .map_err(|error| EngineError::Model(error.to_string()))?;
    let (path, threads) = executor.description();
    let name = format!("cpu ({path}, {threads} threads)");
    let memory = vec![
        ("weights_bytes".to_owned(), weight_bytes),
        ("kv_cache_bytes".to_owned(), sizes.kv_cache_bytes),
    ];
    Ok(Built { executor: Box::new(executor), sizes, name, memory, own: None })
}

/// Bytes that the weights leave.
///
/// # Errors
/// `EngineError::Model` if they do not fit: without it, the kernel would end the process in the middle of the load.
fn left_by_weights(weight_bytes: u64) -> Result<u64, EngineError> {
    let room = Memory::open().room();
    room.bytes.checked_sub(weight_bytes).ok_or_else(|| {
        EngineError::Model(format!(
            "the model's weights take {} MiB of memory, and {} leaves {} MiB",
            weight_bytes.div_ceil(1 << 20),
            room.limit,
            room.bytes >> 20,
        ))
    })
}

/// The fastest for the cpu executor's attention; any size gives the same bits.
const CPU_BLOCK_SIZE: u32 = 16;
