//! Chooses the executor and builds it. At start, caller's thread.

use std::path::PathBuf;
use std::sync::Arc;

use ingle_core::{CompletionSink, Executor, TokenId};
use ingle_cpu::{CpuConfig, CpuExecutor, kv_bytes_per_block};
use ingle_model::Checkpoint;
use ingle_sim::{Profile, SimConfig, SimExecutor};

use crate::error::EngineError;
use crate::options::{EngineOptions, SimSpeed};
use crate::sizes::{DeviceDefaults, Sizes, available_memory, host_sizes};
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
        Device::Sim(profile) => build_sim(profile.as_ref(), checkpoint, options, text, sink),
        Device::Auto | Device::Cpu => build_cpu(checkpoint, options, text, sink),
        Device::Cuda(ordinal) => Err(EngineError::Model(format!(
            "device: cuda:{ordinal} is not built into this version; use cpu or sim"
        ))),
    }
}

fn build_cpu(
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    text: &TextParts,
    sink: CompletionSink,
) -> Result<Built, EngineError> {
    let spec = &checkpoint.spec;
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
        available_bytes: available_memory().saturating_sub(weight_bytes(checkpoint)),
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
    Ok(Built { executor: Box::new(executor), sizes, name })
}

/// Bytes that the weights take, which the KV pool must leave.
fn weight_bytes(checkpoint: &Checkpoint) -> u64 {
    checkpoint.plan.tensors.values().map(|tensor| tensor.byte_len).sum()
}

fn build_sim(
    file: Option<&PathBuf>,
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    text: &TextParts,
    sink: CompletionSink,
) -> Result<Built, EngineError> {
    let fail = |error: ingle_sim::SimError| EngineError::Model(format!("device sim: {error}"));
    let profile = match file {
        Some(file) => Profile::load(file).map_err(fail)?,
        None => Profile::default(),
    };
    let speed = match &options.sim_speed {
        None => 1.0,
        Some(SimSpeed::Factor(factor)) => *factor,
        Some(SimSpeed::Word(word)) if word == "inf" => f64::INFINITY,
        Some(SimSpeed::Word(word)) => {
            return Err(EngineError::Model(format!(
                "sim_speed: {word:?}, must be a number above 0 or inf"
            )));
        }
    };
    // The pool is the profile's: it stands for a device's memory, none of the host's is taken.
    let kv_bytes_per_token = profile.kv_bytes_per_token as u64;
    let pool_bytes = u64::from(profile.kv_pool_tokens) * kv_bytes_per_token;
    let mut options = options.clone();
    options.kv_cache_memory_bytes = Some(options.kv_cache_memory_bytes.unwrap_or(pool_bytes));
    let defaults = DeviceDefaults {
        max_num_seqs: 256,
        max_num_batched_tokens: 2048,
        block_size: 64,
        kv_bytes_per_token,
        available_bytes: pool_bytes,
    };
    let sizes = host_sizes(&checkpoint.spec, &options, defaults)?;
    let mut shape = profile.shape(
        sizes.block_size,
        sizes.max_num_seqs,
        sizes.max_num_batched_tokens,
        checkpoint.spec.vocab_size,
    );
    shape.num_blocks = sizes.num_blocks;
    let tokens = text
        .tokenizer
        .encode(ingle_sim::TEXT, false)
        .map_err(|error| EngineError::Model(format!("device sim: {error}")))?;
    let tokens: Arc<[TokenId]> = tokens.into_iter().map(TokenId).collect();
    let name = format!("sim:{} x{speed}", profile.name);
    let config = SimConfig { profile, speed, shape };
    let executor = SimExecutor::new(config, tokens, sink).map_err(fail)?;
    Ok(Built { executor: Box::new(executor), sizes, name })
}

fn unknown(text: &str) -> EngineError {
    EngineError::Model(format!(
        "device: {text:?}, must be auto, cpu, cuda, cuda:N, sim or sim:FILE"
    ))
}

/// The fastest for the cpu executor's attention; any size gives the same bits.
const CPU_BLOCK_SIZE: u32 = 16;
