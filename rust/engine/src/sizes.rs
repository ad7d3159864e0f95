//! All sizes of an engine, decided once at start from the model, the options and the available memory,
//! and shown as a sum. Pure functions; allocates nothing.

use ingle_core::KvGroups;
use ingle_model::{KvLayout, ModelSpec};
use serde::Serialize;

use crate::error::EngineError;
use crate::options::EngineOptions;

/// Sizes that the executor and the scheduler are built with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// Longest prompt plus answer.
    pub max_model_len: u32,
    /// Most rows of a step.
    pub max_num_seqs: u32,
    /// Most token rows of a step.
    pub max_num_batched_tokens: u32,
    /// Tokens a block.
    pub block_size: u32,
    /// Blocks in the pool.
    pub num_blocks: u32,
    /// Bytes of the pool.
    pub kv_cache_bytes: u64,
    /// Most requests that wait beyond those that can run.
    pub max_queue: u32,
    /// How the numbers came about, one line each, for the start-up message.
    pub notes: Vec<String>,
}

/// What a device wants where the options say nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceDefaults {
    pub(crate) max_num_seqs: u32,
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) block_size: u32,
    /// Bytes of KV a token, all layers of a group.
    pub(crate) kv_bytes_per_token: u64,
    pub(crate) kv_groups: KvGroups,
    pub(crate) max_steps_in_flight: u32,
    /// Memory that KV may come from.
    pub(crate) available_bytes: u64,
}

/// Decides the sizes of a device whose KV pool lies in host memory.
///
/// # Errors
/// `EngineError::Model` if a setting is 0 or the pool cannot hold one request of the wanted length.
pub(crate) fn host_sizes(
    spec: &ModelSpec,
    options: &EngineOptions,
    device: DeviceDefaults,
) -> Result<Sizes, EngineError> {
    let max_num_seqs = setting("max_num_seqs", options.max_num_seqs, device.max_num_seqs)?;
    let block_size = setting("block_size", options.block_size, device.block_size)?;
    let batched = device.max_num_batched_tokens.max(max_num_seqs);
    let StepTokens { max_num_batched_tokens, max_model_len: wanted_len, note } =
        step_tokens(spec, options, batched)?;
    if max_num_batched_tokens < max_num_seqs {
        return Err(EngineError::Model(format!(
            "max_num_batched_tokens: {max_num_batched_tokens} is less than max_num_seqs: \
             {max_num_seqs}"
        )));
    }
    let max_queue = match options.max_queue {
        Some(queue) => queue,
        None => max_num_seqs.saturating_mul(QUEUE_ROUNDS),
    };

    let block_bytes = device.kv_bytes_per_token * u64::from(block_size);
    let (groups, ahead) = (&device.kv_groups, device.max_steps_in_flight);
    let num_places = wanted_len.div_ceil(block_size);
    let blocks_a_request = groups.num_blocks(num_places, block_size, ahead);
    // What windows give back is room for cached prefixes.
    let wanted_blocks = u64::from(num_places) * groups.len() as u64 * u64::from(max_num_seqs);
    let mut notes = Vec::from_iter(note);
    notes.extend(kv_groups_note(spec));
    let budget = match options.kv_cache_memory_bytes {
        Some(bytes) => bytes,
        None => kv_budget(device.available_bytes),
    };
    let num_blocks = wanted_blocks.min(budget / block_bytes.max(1)).min(u64::from(u32::MAX)) as u32;
    notes.push(format!(
        "KV pool: {num_blocks} blocks x {block_size} tokens x {} B = {} MiB (all of {max_num_seqs} \
         requests x {wanted_len} tokens would take {} MiB; budget {} MiB, {} MiB available)",
        device.kv_bytes_per_token,
        mib(u64::from(num_blocks) * block_bytes),
        mib(wanted_blocks * block_bytes),
        mib(budget),
        mib(device.available_bytes),
    ));
    let mut max_model_len = wanted_len;
    if num_blocks < blocks_a_request {
        let holds = groups.most_tokens(num_blocks, block_size, ahead);
        if holds == 0 {
            return Err(EngineError::Model(format!(
                "kv_cache_memory_bytes: {budget}; one block of {block_size} tokens takes \
                 {block_bytes}, a request of {wanted_len} tokens {}",
                u64::from(blocks_a_request) * block_bytes
            )));
        }
        if options.max_model_len.is_some() {
            return Err(EngineError::Model(format!(
                "max_model_len: {wanted_len} tokens need {} bytes of KV, the pool has {budget}; raise \
                 --kv-cache-memory-bytes or lower --max-model-len to {holds}",
                u64::from(blocks_a_request) * block_bytes
            )));
        }
        max_model_len = holds;
        notes.push(format!(
            "max_model_len: {holds} tokens, all that the KV pool holds, of the model's {wanted_len}"
        ));
    }
    notes.extend(beyond_model(max_model_len, spec.max_position_embeddings));
    Ok(Sizes {
        max_model_len,
        max_num_seqs,
        max_num_batched_tokens,
        block_size,
        num_blocks,
        kv_cache_bytes: u64::from(num_blocks) * block_bytes,
        max_queue,
        notes,
    })
}

/// How layers are grouped, where some have a window.
pub(crate) fn kv_groups_note(spec: &ModelSpec) -> Option<String> {
    let layout = KvLayout::of(spec);
    if layout.windows == [None] {
        return None;
    }
    let windows = layout.windows.iter().map(|window| match window {
        Some(window) => window.to_string(),
        None => "all".to_owned(),
    });
    let units = if layout.layers_differ(spec) { "places" } else { "layers" };
    Some(format!(
        "KV groups: {} of {} {units} each, which keep {} tokens",
        layout.num_groups(),
        layout.layers_per_group,
        windows.collect::<Vec<_>>().join(", ")
    ))
}

/// Token rows of a step and the longest request: two settings that a model without causality ties.
#[derive(Debug)]
pub(crate) struct StepTokens {
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) max_model_len: u32,
    /// For the start-up message.
    pub(crate) note: Option<String>,
}

/// What the options say of both, else `batched` and the model's context. A prompt of a model whose tokens
/// see the whole prompt must fit one step.
///
/// # Errors
/// `EngineError::Model` if a setting is 0, or such a model's `max_model_len` is asked for and no step
/// holds it.
pub(crate) fn step_tokens(
    spec: &ModelSpec,
    options: &EngineOptions,
    batched: u32,
) -> Result<StepTokens, EngineError> {
    let whole = !spec.attention.causal;
    let len = setting("max_model_len", options.max_model_len, spec.max_position_embeddings)?;
    let batched = match options.max_model_len {
        _ if !whole => batched,
        None => batched.max(len.min(WHOLE_PROMPT_TOKENS)),
        Some(_) => batched.max(len),
    };
    let name = "max_num_batched_tokens";
    let max_num_batched_tokens = setting(name, options.max_num_batched_tokens, batched)?;
    if !whole || len <= max_num_batched_tokens {
        return Ok(StepTokens { max_num_batched_tokens, max_model_len: len, note: None });
    }
    if options.max_model_len.is_some() {
        return Err(EngineError::Model(format!(
            "max_model_len: {len} tokens, but the model's attention is bidirectional, so that a step \
             must hold a whole prompt, and max_num_batched_tokens is {max_num_batched_tokens}"
        )));
    }
    let note = format!(
        "max_model_len: {max_num_batched_tokens} tokens of the model's {len}: its attention is \
         bidirectional, so that a step must hold a whole prompt; raise --max-num-batched-tokens for \
         longer ones"
    );
    Ok(StepTokens {
        max_num_batched_tokens,
        max_model_len: max_num_batched_tokens,
        note: Some(note),
    })
}

pub(crate) fn setting(name: &str, given: Option<u32>, default: u32) -> Result<u32, EngineError> {
    match given {
        Some(0) => Err(EngineError::Model(format!("{name}: must be at least 1, not 0"))),
        Some(value) => Ok(value),
        None => Ok(default),
    }
}

/// A quarter of what is available, at least 1 GiB, but never above three quarters: host memory
/// is shared with other services.
fn kv_budget(available: u64) -> u64 {
    (available / 4).max(GIB).min(available / 4 * 3)
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

const GIB: u64 = 1 << 30;
/// Prompts of this length fit a step of a model that computes them whole, unless the options say
/// otherwise: what published models of this kind are served with.
const WHOLE_PROMPT_TOKENS: u32 = 8192;
/// The queue holds this many times what can run.
const QUEUE_ROUNDS: u32 = 4;

/// What the operator should know of a context that the model was not made for.
pub(crate) fn beyond_model(max_model_len: u32, made_for: u32) -> Option<String> {
    (max_model_len > made_for).then(|| {
        format!("max_model_len: {max_model_len} tokens, but the model was made for {made_for}")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DEVICE: DeviceDefaults = DeviceDefaults {
        max_num_seqs: 4,
        max_num_batched_tokens: 512,
        block_size: 16,
        kv_bytes_per_token: 1 << 20,
        kv_groups: KvGroups::ONE,
        max_steps_in_flight: 1,
        available_bytes: 16 << 30,
    };

    fn sizes(extra: serde_json::Value, device: DeviceDefaults) -> Result<Sizes, EngineError> {
        sizes_of(true, extra, device)
    }

    fn sizes_of(
        causal: bool,
        extra: serde_json::Value,
        device: DeviceDefaults,
    ) -> Result<Sizes, EngineError> {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/llama-tied-bf16");
        let mut options = json!({ "model": path });
        options.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let mut spec = ingle_model::open(path.as_ref()).unwrap().spec;
        spec.attention.causal = causal;
        host_sizes(&spec, &serde_json::from_value(options).unwrap(), device)
    }

    #[test]
    fn test_the_pool_is_what_all_requests_need_or_the_budget_if_that_is_less() {
        // 2,048 positions of 1 MiB for 4 requests are 8 GiB; a quarter of 16 GiB is 4.
        let limited = sizes(json!({}), DEVICE).unwrap();
        assert_eq!((limited.num_blocks, limited.kv_cache_bytes), (256, 4 << 30));
        let all = sizes(json!({ "max_model_len": 100, "max_num_seqs": 2 }), DEVICE).unwrap();
        assert_eq!((all.num_blocks, all.max_model_len), (14, 100));
        assert_eq!(all.notes.len(), 1);
        let beyond = sizes(json!({ "max_model_len": 3000, "max_num_seqs": 1 }), DEVICE).unwrap();
        assert!(beyond.notes[1].ends_with("3000 tokens, but the model was made for 2048"));
        let own = sizes(json!({ "kv_cache_memory_bytes": 3_u64 << 30 }), DEVICE).unwrap();
        assert_eq!(own.kv_cache_bytes, 3 << 30);
        assert!(own.notes[0].contains("192 blocks x 16 tokens x 1048576 B = 3072 MiB"));
    }

    #[test]
    fn test_a_context_that_does_not_fit_is_refused_if_asked_for_and_reduced_if_not() {
        let small = DeviceDefaults { available_bytes: 1 << 30, ..DEVICE };
        let sizes_of_default = sizes(json!({}), small).unwrap();
        assert_eq!(sizes_of_default.max_model_len, 768);
        assert!(sizes_of_default.notes[1].contains("768 tokens, all that the KV pool holds"));
        let none = sizes(json!({ "kv_cache_memory_bytes": 100 }), DEVICE).unwrap_err().to_string();
        assert!(none.starts_with("kv_cache_memory_bytes: 100; one block of "), "{none}");
        let error = sizes(json!({ "max_model_len": 2048 }), small).unwrap_err().to_string();
        assert!(error.starts_with("max_model_len: 2048 tokens need 2147483648 bytes"), "{error}");
    }

    /// Blocks of 16 MiB, each of one of two groups; the budget is 768 MiB.
    #[test]
    fn test_a_window_needs_a_pool_for_its_own_tokens_only() {
        let kv_groups = KvGroups::new(&[None, Some(64)]);
        let small = DeviceDefaults { kv_groups, available_bytes: 1 << 30, ..DEVICE };
        let sizes_of_default = sizes(json!({}), small).unwrap();
        // 64 tokens lie in at most 5 blocks of 16.
        assert_eq!(sizes_of_default.num_blocks, 48);
        assert_eq!(sizes_of_default.max_model_len, (48 - 5) * 16);
        assert!(sizes(json!({ "max_model_len": 688 }), small).is_ok());
        let error = sizes(json!({ "max_model_len": 689 }), small).unwrap_err().to_string();
        assert!(error.contains("need 822083584 bytes of KV"), "{error}");
        assert!(error.ends_with("lower --max-model-len to 688"), "{error}");
        // With room for all of it, what the window gives back is for the prefix cache.
        let all = sizes(json!({ "max_model_len": 100, "max_num_seqs": 2 }), small).unwrap();
        assert_eq!(all.num_blocks, 2 * 7 * 2);
    }

    #[test]
    fn test_the_operator_sees_the_windows() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/");
        let note = |name: &str| {
            let spec = ingle_model::open(format!("{folder}{name}").as_ref()).unwrap().spec;
            kv_groups_note(&spec)
        };
        assert_eq!(note("llama-tied-bf16"), None);
        let windows = note("gpt-oss").unwrap();
        assert_eq!(windows, "KV groups: 2 of 2 layers each, which keep all, 16 tokens");
    }

    /// The model's context is 2,048 tokens and the device's steps hold 512.
    #[test]
    fn test_a_step_holds_the_longest_prompt_of_a_bidirectional_model() {
        let lengths = |extra| -> Result<_, EngineError> {
            let sizes = sizes_of(false, extra, DEVICE)?;
            Ok((sizes.max_model_len, sizes.max_num_batched_tokens, sizes.notes.len()))
        };
        assert_eq!(lengths(json!({})), Ok((2048, 2048, 1)));
        assert_eq!(lengths(json!({ "max_model_len": 100 })), Ok((100, 512, 1)));
        assert_eq!(lengths(json!({ "max_model_len": 3000 })), Ok((3000, 3000, 2)));
        assert_eq!(lengths(json!({ "max_num_batched_tokens": 600 })), Ok((600, 600, 2)));
        let both = json!({ "max_model_len": 601, "max_num_batched_tokens": 600 });
        let error = lengths(both).unwrap_err().to_string();
        assert!(
            error.starts_with("max_model_len: 601 tokens, but the model's attention"),
            "{error}"
        );
        assert!(error.ends_with("max_num_batched_tokens is 600"), "{error}");
    }

    #[test]
    fn test_settings_of_zero_and_batches_below_the_requests_are_refused() {
        for name in ["max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len"] {
            let error = sizes(json!({ name: 0 }), DEVICE).unwrap_err().to_string();
            assert_eq!(error, format!("{name}: must be at least 1, not 0"));
        }
        let error = sizes(json!({ "max_num_batched_tokens": 3 }), DEVICE).unwrap_err().to_string();
        assert!(error.contains("max_num_batched_tokens: 3 is less than max_num_seqs: 4"));
    }
}
