//! The CPU as a device: sizes, weights, workers. At start, caller's thread.

use ingle_core::CompletionSink;
use ingle_cpu::{
    CpuConfig, CpuExecutor, CpuPrecision, kv_bytes_per_block, kv_groups, physical_cores,
    state_bytes_per_slot,
};
use ingle_model::{CopyPlan, ModelSpec, Partition, WeightRole};

use crate::device::built::{Built, Parts};
use crate::device::foreign::refuse_gpu_options;
use crate::error::EngineError;
use crate::memory::Memory;
use crate::options::EngineOptions;
use crate::sizes::{DeviceDefaults, Sizes, host_sizes, setting};

/// Loads the weights once and starts an executor on them for each sink. They divide the threads and
/// the memory for KV among them.
///
/// # Errors
/// `EngineError::Model`, one line.
pub(super) fn build(
    parts: Parts<'_>,
    sinks: Vec<CompletionSink>,
) -> Result<Vec<Built>, EngineError> {
    let Parts { checkpoint, options, text } = parts;
    let spec = &checkpoint.spec;
    let partition = partition(spec, options)?;
    let weight_bytes = weight_bytes(&partition, &checkpoint.plan)?;
    refuse_gpu_options(options, "cpu")?;
    let dtype = options.dtype.as_str();
    if dtype != "auto" {
        return Err(EngineError::Model(format!(
            "dtype: must be auto, since the cpu device keeps weights as stored, not {dtype:?}"
        )));
    }
    let num_engines = sinks.len() as u32;
    let num_pools = num_engines.saturating_mul(options.num_models.max(1));
    let sizes = sizes(parts, &partition, weight_bytes, (num_engines, num_pools))?;
    let config = CpuConfig {
        block_size: sizes.block_size,
        num_blocks: sizes.num_blocks,
        num_slots: 2 * sizes.max_num_seqs,
        num_snapshots: num_snapshots(spec, sizes.max_num_seqs),
        max_num_seqs: sizes.max_num_seqs,
        max_num_batched_tokens: sizes.max_num_batched_tokens,
        max_model_len: sizes.max_model_len,
        num_valid_tokens: text.wait()?.vocab_size,
        tensor_parallel_size: partition.ranks(),
        expert_parallel: options.enable_expert_parallel,
        precision: precision(&options.cpu_precision)?,
        can_sleep: options.enable_sleep_mode,
        starts_asleep: options.on_request,
        ..CpuConfig::default()
    };
    let num_states = u64::from(config.num_slots + config.num_snapshots);
    let state_bytes = num_states * state_bytes_per_slot(spec);
    let threads = divide_threads(options.cpu_threads, num_engines)?;
    let mut executors: Vec<CpuExecutor> = Vec::with_capacity(sinks.len());
    let mut first_thread = 0;
    for (sink, threads) in sinks.into_iter().zip(threads) {
        let config = CpuConfig { threads, first_thread, ..config };
        first_thread += threads;
        let executor = match executors.first() {
            Some(first) => first.sibling(&config, sink),
            None => CpuExecutor::load(spec, &checkpoint.plan, &checkpoint.source, &config, sink),
        };
        executors.push(executor.map_err(|error| EngineError::Model(error.to_string()))?);
    }
    let open_files =
        if options.enable_sleep_mode { real_paths(&checkpoint.plan) } else { Vec::new() };
    let mut weights = Some(("weights_bytes".to_owned(), weight_bytes));
    let built = executors.into_iter().map(|executor| {
        let (path, threads) = executor.description();
        let kv = ("kv_cache_bytes".to_owned(), sizes.kv_cache_bytes);
        let state = (state_bytes > 0).then(|| ("state_bytes".to_owned(), state_bytes));
        Built {
            executor: Box::new(executor),
            sizes: sizes.clone(),
            name: match partition.ranks() {
                1 => format!("cpu ({path}, {threads} threads)"),
                ranks => format!("cpu ({path}, {threads} threads, {ranks} ranks)"),
            },
            // All engines share the weights, so these count once.
            memory: weights.take().into_iter().chain([kv]).chain(state).collect(),
            open_files: open_files.clone(),
            own: None,
            phases: Vec::new(),
        }
    });
    Ok(built.collect())
}

/// The setting `cpu_precision`.
fn precision(name: &str) -> Result<CpuPrecision, EngineError> {
    match name {
        "exact" => Ok(CpuPrecision::Exact),
        "fast" => Ok(CpuPrecision::Fast),
        _ => Err(EngineError::Model(format!(
            "cpu_precision: must be exact or fast, not {:?}",
            name.chars().take(64).collect::<String>()
        ))),
    }
}

/// How the model is divided among the ranks of an engine, which are all computed by its threads.
fn partition(spec: &ModelSpec, options: &EngineOptions) -> Result<Partition, EngineError> {
    let ranks = setting("tensor_parallel_size", options.tensor_parallel_size, 1)?;
    if options.enable_expert_parallel && ranks == 1 {
        let text = "enable_expert_parallel: needs a tensor_parallel_size above 1";
        return Err(EngineError::Model(text.to_owned()));
    }
    let config = CpuConfig {
        tensor_parallel_size: ranks,
        expert_parallel: options.enable_expert_parallel,
        ..CpuConfig::default()
    };
    config.partition(spec).map_err(|error| EngineError::Model(error.to_string()))
}

/// Bytes of the weights of all ranks. What they have in common is loaded for each; the embedding is not.
fn weight_bytes(partition: &Partition, plan: &CopyPlan) -> Result<u64, EngineError> {
    let of_rank = |rank| {
        let model = partition.rank_model(rank, plan);
        let model = model.map_err(|error| EngineError::Model(error.to_string()))?;
        let is_loaded = |role: &WeightRole| rank == 0 || *role != WeightRole::Embedding;
        let tensors = model.plan.tensors.iter().filter(|(role, _)| is_loaded(role));
        Ok(tensors.map(|(_, view)| view.loaded_bytes()).sum::<u64>())
    };
    (0..partition.ranks()).map(of_rank).sum()
}

/// Where the files of weights really are, whatever links lead there; what cannot be resolved is left out, since no
/// file there is open either.
fn real_paths(plan: &CopyPlan) -> Vec<String> {
    let real = |file: &String| Some(std::fs::canonicalize(file).ok()?.display().to_string());
    plan.files.iter().filter_map(real).collect()
}

/// The sizes of one of `num_engines`; `num_pools` share the memory for KV.
fn sizes(
    parts: Parts<'_>,
    partition: &Partition,
    weight_bytes: u64,
    (num_engines, num_pools): (u32, u32),
) -> Result<Sizes, EngineError> {
    let (spec, options) = (&parts.checkpoint.spec, parts.options);
    // In half a second a pair of cores computes about this many rows of a small model: the longest
    // that a decoding request waits for another's prompt.
    let max_num_batched_tokens = 512;
    let block_size = options.block_size.unwrap_or(CPU_BLOCK_SIZE).max(1);
    let max_num_seqs = options.max_num_seqs.unwrap_or(MAX_NUM_SEQS);
    let num_states = 2 * u64::from(max_num_seqs) + u64::from(num_snapshots(spec, max_num_seqs));
    let state_bytes = num_states * state_bytes_per_slot(spec) * u64::from(num_engines.max(1));
    let available = if options.on_request {
        // It may come when others have made room for it.
        Memory::open().room().bytes.saturating_sub(weight_bytes).saturating_sub(state_bytes)
    } else {
        left_by(weight_bytes, state_bytes)?
    };
    let block_bytes =
        u64::from(partition.ranks()) * kv_bytes_per_block(&partition.local_spec(), block_size);
    let defaults = DeviceDefaults {
        max_num_seqs: MAX_NUM_SEQS,
        max_num_batched_tokens,
        block_size,
        kv_bytes_per_token: block_bytes.div_ceil(u64::from(block_size)),
        kv_groups: kv_groups(spec),
        max_steps_in_flight: CpuConfig::default().max_steps_in_flight,
        available_bytes: available / u64::from(num_pools.max(1)),
    };
    host_sizes(spec, options, defaults)
}

/// The threads of each engine; `threads` in all, 0 for one a physical core. Each engine has at least
/// one.
fn divide_threads(threads: u32, num_engines: u32) -> Result<Vec<u32>, EngineError> {
    if threads != 0 && threads < num_engines {
        return Err(EngineError::Model(format!(
            "cpu_threads: {threads} threads for {num_engines} engines (data_parallel_size); each needs one"
        )));
    }
    let all = if threads == 0 { physical_cores() as u32 } else { threads };
    let share = |number| all / num_engines + u32::from(number < all % num_engines);
    Ok((0..num_engines).map(|number| share(number).max(1)).collect())
}

/// Bytes that the weights and what layers keep of each sequence leave.
///
/// # Errors
/// `EngineError::Model` if they do not fit: without it, the kernel would end the process in the middle of the load.
fn left_by(weight_bytes: u64, state_bytes: u64) -> Result<u64, EngineError> {
    let room = Memory::open().room();
    let left = room.bytes.checked_sub(weight_bytes).ok_or_else(|| {
        EngineError::Model(format!(
            "the model's weights take {} MiB of memory, and {} leaves {} MiB",
            weight_bytes.div_ceil(1 << 20),
            room.limit,
            room.bytes >> 20,
        ))
    })?;
    left.checked_sub(state_bytes).ok_or_else(|| {
        EngineError::Model(format!(
            "max_num_seqs: states of sequences take {} MiB of memory, and the weights leave {} MiB",
            state_bytes.div_ceil(1 << 20),
            left >> 20,
        ))
    })
}

/// Copies of states: two for each request that may run, where layers keep one.
fn num_snapshots(spec: &ModelSpec, max_num_seqs: u32) -> u32 {
    if state_bytes_per_slot(spec) > 0 { 2 * max_num_seqs } else { 0 }
}

/// Requests that run, unless the options say otherwise.
const MAX_NUM_SEQS: u32 = 32;

/// The fastest for the cpu executor's attention; any size gives the same bits.
const CPU_BLOCK_SIZE: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_precision_that_does_not_exist_is_refused() {
        assert_eq!(precision("exact").unwrap(), CpuPrecision::Exact);
        assert_eq!(precision("fast").unwrap(), CpuPrecision::Fast);
        let error = precision("int4").unwrap_err().to_string();
        assert_eq!(error, "cpu_precision: must be exact or fast, not \"int4\"");
    }

    #[test]
    fn threads_are_divided_and_none_is_left_over() {
        assert_eq!(divide_threads(5, 2).unwrap(), [3, 2]);
        assert_eq!(divide_threads(4, 4).unwrap(), [1, 1, 1, 1]);
        assert_eq!(divide_threads(7, 1).unwrap(), [7]);
        let cores = physical_cores() as u32;
        assert_eq!(divide_threads(0, 1).unwrap(), [cores]);
        assert_eq!(divide_threads(0, cores + 1).unwrap(), vec![1; cores as usize + 1]);
        let error = divide_threads(1, 2).unwrap_err().to_string();
        assert!(error.starts_with("cpu_threads: 1 threads for 2 engines"), "{error}");
    }
}
