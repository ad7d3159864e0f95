//! Builds the GPU executor. At start, caller's thread.

use std::sync::Arc;

use ingle_core::{CompletionSink, Executor as _};
use ingle_cuda::{
    CudaConfig, CudaError, DeviceProbe, DeviceType, LateSize, LoadTurns, StartReport, WarningSink,
    device_count, missing_part, probe, state_bytes,
};
use ingle_model::{KvFormat, ModelSpec};

use crate::device::built::{Built, DeviceOwn, Parts};
use crate::device::cuda_own::CudaOwn;
use crate::device::cuda_ranks;
use crate::device::places::library_paths;
use crate::error::EngineError;
use crate::options::EngineOptions;
use crate::prepare::MAX_BANNED;
use crate::request_limits::{MAX_LOG_PROBS, MAX_LOGIT_BIAS};
use crate::sizes::{Sizes, beyond_model, kv_groups_note, setting, step_tokens};
use crate::warn::warn;

/// Loads the model onto GPU `first` and, for each further sink, onto the next one; beside each other.
///
/// # Errors
/// `EngineError::Model`, one line with the numbers.
pub(super) fn build_cuda(
    first: u32,
    parts: Parts<'_>,
    sinks: Vec<CompletionSink>,
) -> Result<Vec<Built>, EngineError> {
    let num_engines = sinks.len() as u32;
    let turns = Arc::new(LoadTurns::default());
    let build = |(ordinal, sink)| {
        let place = Place { ordinal, num_engines, turns: Arc::clone(&turns) };
        build_one(place, parts, sink)
    };
    let places = (first..).zip(sinks);
    if num_engines == 1 {
        return places.map(build).collect();
    }
    check_count(first, num_engines, device_count().map_err(model_error)?)?;
    std::thread::scope(|scope| {
        let start = |(ordinal, sink)| (ordinal, scope.spawn(move || build((ordinal, sink))));
        // All of them, before the first is waited for.
        let loads: Vec<_> = places.map(start).collect();
        loads.into_iter().map(|(ordinal, load)| joined(ordinal, load)).collect()
    })
}

/// Where one of several executors is loaded.
struct Place {
    ordinal: u32,
    num_engines: u32,
    turns: Arc<LoadTurns>,
}

/// Too few GPUs are found before anything is read.
fn check_count(first: u32, num_engines: u32, num_devices: u32) -> Result<(), EngineError> {
    let end = u64::from(first) + u64::from(num_engines);
    if end <= u64::from(num_devices) {
        return Ok(());
    }
    Err(EngineError::Model(format!(
        "data_parallel_size: {num_engines} engines need {num_engines} GPUs, cuda:{first} to cuda:{}; this process \
         sees {num_devices} (CUDA_VISIBLE_DEVICES counts)",
        end - 1
    )))
}

/// What came of the load onto one of several GPUs; an error names it.
fn joined(
    ordinal: u32,
    load: std::thread::ScopedJoinHandle<'_, Result<Built, EngineError>>,
) -> Result<Built, EngineError> {
    // A panic goes on as the one it was.
    let built = load.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    built.map_err(|error| match error {
        EngineError::Model(text) => EngineError::Model(format!("cuda:{ordinal}: {text}")),
        other => other,
    })
}

fn model_error(error: CudaError) -> EngineError {
    EngineError::Model(error.to_string())
}

fn build_one(place: Place, parts: Parts<'_>, sink: CompletionSink) -> Result<Built, EngineError> {
    let Parts { checkpoint, options, text } = parts;
    let (ordinal, num_engines) = (place.ordinal, place.num_engines);
    let spec = &checkpoint.spec;
    check_parts(spec)?;
    let (config, sizes_notes) = config(place, options, spec, text.size())?;
    let wanted_len = config.max_model_len;
    let warn = warnings_of(ordinal, num_engines);
    let (executor, report) = cuda_ranks::load(checkpoint, options, &config, sink, &warn)?;
    let shape = executor.shape();
    let (groups, ahead) = (&shape.kv_groups, shape.max_steps_in_flight);
    let holds = groups.most_tokens(shape.num_blocks, shape.block_size, ahead);
    let mut notes: Vec<String> = report.to_string().lines().map(str::to_owned).collect();
    notes.extend(sizes_notes);
    notes.extend(kv_groups_note(spec));
    // Not below a length that was asked for: the load would have been refused before.
    if holds < wanted_len {
        notes.push(format!(
            "max_model_len: {holds} tokens, all that the KV pool holds, of the model's {wanted_len}"
        ));
    }
    let max_model_len = wanted_len.min(holds);
    notes.extend(beyond_model(max_model_len, spec.max_position_embeddings));
    let sizes = Sizes {
        max_model_len,
        max_num_seqs: shape.max_num_seqs,
        max_num_batched_tokens: shape.max_num_batched_tokens,
        block_size: shape.block_size,
        num_blocks: shape.num_blocks,
        kv_cache_bytes: report.memory.kv_cache_bytes,
        max_queue: options.max_queue.unwrap_or(shape.max_num_seqs.saturating_mul(QUEUE_ROUNDS)),
        notes,
    };
    let name = name(ordinal, &report);
    let part = |(name, bytes): &(&str, u64)| (format!("{}_bytes", name.replace(' ', "_")), *bytes);
    let memory = report.memory.parts.iter().map(part).collect();
    let own = CudaOwn { launches: executor.launch_counters(), graphs: executor.graph_seal() };
    let own: Option<Arc<dyn DeviceOwn>> = Some(Arc::new(own));
    Ok(Built {
        executor: Box::new(executor),
        sizes,
        name,
        memory,
        open_files: Vec::new(),
        own,
        phases: report.phases,
    })
}

/// The executor's settings: those of `options`, checked, else the defaults; and what the operator should
/// know of them.
fn config(
    place: Place,
    options: &EngineOptions,
    spec: &ModelSpec,
    sample_vocab_size: LateSize,
) -> Result<(CudaConfig, Vec<String>), EngineError> {
    check_pool(options)?;
    let defaults = CudaConfig::default();
    let by_states = by_states(spec, defaults.max_num_seqs);
    let most_seqs = by_states.unwrap_or(defaults.max_num_seqs);
    let max_num_seqs = setting("max_num_seqs", options.max_num_seqs, most_seqs)?;
    let batched = defaults.max_num_batched_tokens.max(max_num_seqs);
    let tokens = step_tokens(spec, options, batched)?;
    let config = CudaConfig {
        device: place.ordinal,
        can_sleep: options.enable_sleep_mode,
        load_threads: load_threads(defaults.load_threads, place.num_engines),
        turns: place.turns,
        gpu_memory_utilization: utilization(options, &defaults)?,
        kv_cache_memory_bytes: options.kv_cache_memory_bytes,
        block_size: setting("block_size", options.block_size, defaults.block_size)?,
        max_num_seqs,
        max_num_batched_tokens: tokens.max_num_batched_tokens,
        max_model_len: tokens.max_model_len,
        must_hold_max_model_len: options.max_model_len.is_some(),
        sample_vocab_size,
        dtype: device_type(&options.dtype)?,
        enforce_eager: options.enforce_eager,
        deterministic: options.deterministic,
        cache_dir: options.places.cache_dir.clone(),
        prebuilt_kernels: options.places.prebuilt_kernels.clone(),
        libraries: library_paths(&options.places.cuda_libraries),
    };
    let by_states = by_states.filter(|_| options.max_num_seqs.is_none());
    let by_states = by_states.map(|most| {
        let mib = state_bytes(spec, most) >> 20;
        format!("max_num_seqs: {most}, whose states take {mib} MiB (set it for more or fewer)")
    });
    Ok((config, tokens.note.into_iter().chain(by_states).collect()))
}

/// # Errors
/// `EngineError::Model`: the model has parts that only the CPU computes.
fn check_parts(spec: &ModelSpec) -> Result<(), EngineError> {
    let Some(part) = missing_part(spec) else { return Ok(()) };
    Err(EngineError::Model(match spec.kv_format {
        KvFormat::Fp8(_) => format!("kv_cache_dtype: {part} have no kernels on GPUs; want auto"),
        KvFormat::Device => format!(
            "{}: {part} have no kernels on GPUs; --device cpu serves this model",
            spec.architecture
        ),
    }))
}

/// Requests that run by default where layers keep states that weigh much; `None` where as many as elsewhere may.
fn by_states(spec: &ModelSpec, most: u32) -> Option<u32> {
    let of_eight = state_bytes(spec, 8);
    let fit = 8 * STATE_BYTES.checked_div(of_eight)?;
    (fit < u64::from(most)).then_some((fit as u32).max(8))
}

/// # Errors
/// `EngineError::Model`: the first of several models would take all the memory that it may.
fn check_pool(options: &EngineOptions) -> Result<(), EngineError> {
    if options.num_models > 1 && options.kv_cache_memory_bytes.is_none() {
        let text = "kv_cache_memory_bytes: must be given where several models share a GPU";
        return Err(EngineError::Model(text.to_owned()));
    }
    Ok(())
}

/// Takes what the operator should know; it names the GPU where there are several.
fn warnings_of(ordinal: u32, num_engines: u32) -> WarningSink {
    match num_engines {
        1 => Arc::new(warn),
        _ => Arc::new(move |text| warn(&format!("cuda:{ordinal}: {text}"))),
    }
}

/// Threads that copy weights to one of several GPUs: all together twice those of one at most, which is
/// what the memory of a host feeds (docs/decisions/0011-weight-load-streams.md).
fn load_threads(alone: u32, num_engines: u32) -> u32 {
    (2 * alone / num_engines.max(1)).clamp(1, alone)
}

/// Looks for the GPU that `auto` would take.
pub(super) fn probe_first(options: &EngineOptions) -> DeviceProbe {
    probe(0, &library_paths(&options.places.cuda_libraries))
}

/// What the operator should know where `auto` leaves a GPU alone; nothing where there is none.
pub(super) fn left_alone(found: &DeviceProbe, lack: &str) -> Option<String> {
    (!found.is_absent).then(|| format!("device: the cpu, since the GPU cannot be used: {lack}"))
}

fn name(ordinal: u32, report: &StartReport) -> String {
    format!("cuda:{ordinal} ({})", report.device)
}

fn utilization(options: &EngineOptions, defaults: &CudaConfig) -> Result<f32, EngineError> {
    match options.gpu_memory_utilization {
        None => Ok(defaults.gpu_memory_utilization),
        Some(share) if (0.01..=1.0).contains(&share) => Ok(share as f32),
        Some(share) => Err(EngineError::Model(format!(
            "gpu_memory_utilization: must be a number from 0.01 to 1, not {share}"
        ))),
    }
}

fn device_type(dtype: &str) -> Result<DeviceType, EngineError> {
    match dtype {
        "auto" => Ok(DeviceType::Auto),
        "bfloat16" => Ok(DeviceType::Bf16),
        "float16" | "half" => Ok(DeviceType::F16),
        other => Err(EngineError::Model(format!(
            "dtype: must be auto, bfloat16, float16 or half on a GPU, not {other:?}"
        ))),
    }
}

/// Requests that may wait for each that can run.
const QUEUE_ROUNDS: u32 = 4;

/// What states may take unless max_num_seqs is set: with the weights of Qwen3.6-27B half of an H200's memory.
const STATE_BYTES: u64 = 24 << 30;

// A slot that asks for more than the device's sampler holds would fail the step and all its requests.
const _: () = assert!(MAX_LOG_PROBS <= ingle_cuda::MAX_LOG_PROBS as i64);
const _: () = assert!(MAX_LOGIT_BIAS <= ingle_cuda::MAX_LOGIT_BIAS_ENTRIES as usize);
const _: () = assert!(MAX_BANNED <= ingle_cuda::MAX_MIN_TOKENS_BANNED as usize);

#[cfg(test)]
mod tests {
    use ingle_cuda::LibraryPaths;

    use super::*;

    fn place(ordinal: u32) -> Place {
        Place { ordinal, num_engines: 1, turns: Arc::default() }
    }

    #[test]
    fn an_error_about_too_few_gpus_gives_both_numbers() {
        check_count(0, 2, 2).unwrap();
        check_count(2, 2, 4).unwrap();
        let error = check_count(0, 4, 2).unwrap_err().to_string();
        assert!(
            error.starts_with("data_parallel_size: 4 engines need 4 GPUs, cuda:0 to cuda:3;"),
            "{error}"
        );
        assert!(error.contains("sees 2"), "{error}");
        check_count(u32::MAX, 2, 8).unwrap_err();
    }

    #[test]
    fn a_load_that_fails_names_its_gpu() {
        let error = std::thread::scope(|scope| {
            let load = scope.spawn(|| Err(EngineError::Model("no memory".to_owned())));
            joined(1, load).err().unwrap()
        });
        assert_eq!(error.to_string(), "cuda:1: no memory");
    }

    #[test]
    fn gpus_that_load_beside_each_other_share_the_threads() {
        let threads = |num_engines| load_threads(12, num_engines);
        assert_eq!([1, 2, 3, 8, 100].map(threads), [12, 12, 8, 3, 1]);
    }

    /// A model with a context of 2,048 tokens.
    fn spec() -> ModelSpec {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/llama-tied-bf16");
        ingle_model::open(path.as_ref()).unwrap().spec
    }

    #[test]
    fn test_every_option_of_a_gpu_reaches_the_executor() {
        let options: EngineOptions = serde_json::from_value(serde_json::json!({
            "model": "m", "max_num_seqs": 3, "max_num_batched_tokens": 100, "block_size": 8,
            "max_model_len": 77, "gpu_memory_utilization": 0.5, "kv_cache_memory_bytes": 1 << 30,
            "dtype": "float16", "enforce_eager": true, "deterministic": true, "enable_sleep_mode": true,
            "places": {
                "cache_dir": "/c",
                "prebuilt_kernels": "/k",
                "cuda_libraries":
                    { "nvrtc": "/n.so", "cublaslt": "/b.so", "site_packages": ["/s"] },
            },
        }))
        .unwrap();
        let got = config(place(2), &options, &spec(), LateSize::known(400)).unwrap().0;
        let want = CudaConfig {
            device: 2,
            gpu_memory_utilization: 0.5,
            kv_cache_memory_bytes: Some(1 << 30),
            block_size: 8,
            max_num_seqs: 3,
            max_num_batched_tokens: 100,
            max_model_len: 77,
            must_hold_max_model_len: true,
            sample_vocab_size: LateSize::known(400),
            dtype: DeviceType::F16,
            enforce_eager: true,
            deterministic: true,
            cache_dir: Some("/c".into()),
            prebuilt_kernels: Some("/k".into()),
            libraries: LibraryPaths {
                nvrtc: Some("/n.so".into()),
                cublaslt: Some("/b.so".into()),
                site_packages: vec!["/s".into()],
            },
            can_sleep: true,
            load_threads: CudaConfig::default().load_threads,
            turns: Arc::default(),
        };
        assert_eq!(format!("{got:?}"), format!("{want:?}"));
        let options = serde_json::from_value(serde_json::json!({ "model": "m" })).unwrap();
        let of_the_model = config(place(0), &options, &spec(), LateSize::known(400)).unwrap().0;
        assert_eq!(
            (of_the_model.max_model_len, of_the_model.must_hold_max_model_len),
            (2048, false)
        );
    }

    #[test]
    fn test_fewer_requests_run_by_default_where_their_states_weigh_much() {
        let spec = |name: &str| {
            let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/published");
            let path = std::path::Path::new(models).join(name);
            ingle_model::open_without_weights(&path).unwrap().spec
        };
        assert_eq!(by_states(&spec("qwen3-8b"), 256), None);
        // 147 and 61 MiB a state; each request has a little more than three places.
        assert_eq!(by_states(&spec("qwen3.6-27b"), 256), Some(48));
        assert_eq!(by_states(&spec("qwen3.6-35b-a3b"), 256), Some(128));
        assert_eq!(by_states(&spec("qwen3.6-35b-a3b"), 100), None);

        assert!(
            check_parts(&spec("qwen3.6-27b")).is_ok() && check_parts(&spec("gpt-oss-20b")).is_ok()
        );
        for name in ["glm-4.7-flash", "deepseek-v3", "deepseek-v2-lite", "mistral-small-4-119b"] {
            let EngineError::Model(text) = check_parts(&spec(name)).unwrap_err() else {
                panic!("another error")
            };
            let reason = ": latents in place of keys and values have no kernels on GPUs";
            assert!(text.contains(reason) && text.contains("--device cpu"), "{text}");
        }
        for name in ["llama-4-scout", "gemma-4-31b", "gemma-4-26b-a4b", "gemma-4-e4b"] {
            assert!(check_parts(&spec(name)).is_ok(), "{name}");
        }
        let mut biased = spec("gemma-4-31b");
        biased.attention.qkv_bias = true;
        let EngineError::Model(text) = check_parts(&biased).unwrap_err() else {
            panic!("another error")
        };
        let reason = "gemma4_text: biases where values are keys have no kernels";
        assert!(text.starts_with(reason) && text.contains("--device cpu"), "{text}");
    }

    /// A GPU that cannot be used is reported. A machine without a GPU gets no message.
    #[test]
    fn test_a_gpu_that_auto_leaves_alone_is_reported() {
        let mut found = DeviceProbe {
            is_absent: false,
            driver_version: Ok(13000),
            device_count: 1,
            name: Some("Tesla T4".to_owned()),
            compute_capability: Some((7, 5)),
            supported: Err("Tesla T4 has compute capability 7.5".to_owned()),
            free_bytes: None,
            total_bytes: None,
            nvrtc: Ok(String::new()),
            cublaslt: Ok(String::new()),
        };
        let lack = found.lack(true).unwrap().to_owned();
        assert_eq!(
            left_alone(&found, &lack).unwrap(),
            "device: the cpu, since the GPU cannot be used: Tesla T4 has compute capability 7.5"
        );
        found.is_absent = true;
        assert_eq!(left_alone(&found, &lack), None);
    }
}
