//! The simulated device: computes nothing; steps take the time given by a profile. At start, caller's
//! thread.

use std::path::PathBuf;
use std::sync::Arc;

use ingle_core::{CompletionSink, KvGroups, TokenId};
use ingle_sim::{Profile, SimConfig, SimExecutor};

use crate::device::built::{Built, Parts};
use crate::device::foreign::refuse_gpu_options;
use crate::error::EngineError;
use crate::options::SimSpeed;
use crate::sizes::{DeviceDefaults, host_sizes};

/// Starts the timer thread; no weights are read, no KV is allocated.
///
/// # Errors
/// `EngineError::Model`, one line.
pub(super) fn build(
    file: Option<&PathBuf>,
    parts: Parts<'_>,
    sink: CompletionSink,
) -> Result<Built, EngineError> {
    let Parts { checkpoint, options, text } = parts;
    let fail = |error: ingle_sim::SimError| EngineError::Model(format!("device sim: {error}"));
    refuse_gpu_options(options, "sim")?;
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
                "sim_speed: must be a number above 0 or inf, not {word:?}"
            )));
        }
    };
    // The profile sets the pool's size. It stands for a device's memory and takes none of the host's.
    let kv_bytes_per_token = profile.kv_bytes_per_token as u64;
    let pool_bytes = u64::from(profile.kv_pool_tokens) * kv_bytes_per_token;
    let mut options = options.clone();
    options.kv_cache_memory_bytes = Some(options.kv_cache_memory_bytes.unwrap_or(pool_bytes));
    let defaults = DeviceDefaults {
        max_num_seqs: 256,
        max_num_batched_tokens: 2048,
        block_size: 64,
        kv_bytes_per_token,
        kv_groups: KvGroups::ONE,
        max_steps_in_flight: 2,
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
        .wait()?
        .tokenizer
        .encode(ingle_sim::TEXT, false)
        .map_err(|error| EngineError::Model(format!("device sim: {error}")))?;
    let tokens: Arc<[TokenId]> = tokens.into_iter().map(TokenId).collect();
    let name = format!("sim:{} x{speed}", profile.name);
    let config = SimConfig { profile, speed, shape };
    let executor = SimExecutor::new(config, tokens, sink).map_err(fail)?;
    let memory = vec![("simulated_kv_cache_bytes".to_owned(), sizes.kv_cache_bytes)];
    Ok(Built {
        executor: Box::new(executor),
        sizes,
        name,
        memory,
        open_files: Vec::new(),
        own: None,
        phases: Vec::new(),
    })
}
