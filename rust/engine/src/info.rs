//! What an engine reports about itself after start. Caller's thread.

use std::time::{Duration, Instant};

use ingle_core::{ExecutorShape, SAMPLING_FIELDS, SamplingParams};
use ingle_model::{Checkpoint, KvFormat, Phase, WeightType};
use ingle_text::{ReasoningFormat, ToolFormat};
use serde_json::json;

use crate::device::Built;
use crate::fleet::Fleet;
use crate::served::Served;

/// How the start went.
pub(crate) struct StartUp {
    /// As the model or the setting has it.
    pub(crate) chat_template: Option<String>,
    pub(crate) began: Instant,
    pub(crate) time: Duration,
    pub(crate) phases: Vec<Phase>,
}

/// The JSON document of `Engine::info`.
pub(crate) fn info(
    served: &Served,
    checkpoint: &Checkpoint,
    built: &[Built],
    fleet: &Fleet,
    start_up: &StartUp,
) -> Vec<u8> {
    let spec = &checkpoint.spec;
    let notes: Vec<&String> = checkpoint.notes.iter().chain(&fleet.notes).collect();
    let memory: serde_json::Map<String, serde_json::Value> =
        fleet.memory.iter().map(|(name, bytes)| (name.clone(), json!(bytes))).collect();
    json!({
        "model": served.name,
        "path": checkpoint.path.display().to_string(),
        "device": fleet.device,
        "num_engines": fleet.num_engines,
        "architecture": spec.architecture,
        "weight_type": weight_type(checkpoint),
        "kv_cache_dtype": match spec.kv_format {
            KvFormat::Device => "auto",
            KvFormat::Fp8(_) => "fp8",
        },
        "load_format": if checkpoint.has_weights { "auto" } else { "dummy" },
        "num_layers": spec.layers.len(),
        "hidden_size": spec.hidden_size,
        "max_model_len": served.max_model_len,
        "max_position_embeddings": spec.max_position_embeddings,
        "vocab_size": served.vocab_size,
        "has_chat_template": !served.templates.is_empty(),
        "tool_call_parser": served.answer_format.tools.map(ToolFormat::name),
        "reasoning_parser": served.answer_format.reasoning.as_ref().map(ReasoningFormat::name),
        "chat_template": start_up.chat_template,
        "named_tokens": named_tokens(served),
        "eos_token_ids": served.eos_token_ids.iter().map(|id| id.0).collect::<Vec<_>>(),
        "bos_token_id": served.tokenizer.bos_token_id(),
        "sampling_defaults": sampling_defaults(&served.defaults),
        "limits": built.first().map(|built| limits(built.executor.shape(), served, fleet)),
        "deepest_sleep": fleet.deepest_sleep as u8,
        "open_files": fleet.open_files,
        "memory": memory,
        "notes": notes,
        "embeddings_only": served.embeds_only.map(|reason| reason.to_string()),
        "start_up": {
            "began_s": monotonic_s() - start_up.began.elapsed().as_secs_f64(),
            "total_s": start_up.time.as_secs_f64(),
            "phases": start_up.phases.iter().map(|phase| phase_json(phase, start_up.began)).collect::<Vec<_>>(),
        },
    })
    .to_string()
    .into_bytes()
}

/// The system's monotonic clock, which the caller has too.
fn monotonic_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// `start_s`: since the load began.
fn phase_json(phase: &Phase, began: Instant) -> serde_json::Value {
    json!({
        "name": phase.name,
        "thread": phase.thread,
        "start_s": phase.began.saturating_duration_since(began).as_secs_f64(),
        "time_s": phase.time.as_secs_f64(),
    })
}

/// `capacity` and `max_queue` are the server's, the others each engine's; the first engine's blocks
/// stand for those of the others.
fn limits(shape: ExecutorShape, served: &Served, fleet: &Fleet) -> serde_json::Value {
    json!({
        "max_num_seqs": shape.max_num_seqs,
        "max_num_batched_tokens": shape.max_num_batched_tokens,
        "max_queue": fleet.max_queue,
        "capacity": served.capacity,
        "block_size": shape.block_size,
        "num_blocks": shape.num_blocks,
        "num_slots": shape.num_slots,
        "max_steps_in_flight": shape.max_steps_in_flight,
    })
}

/// What the weights are, and what they were in the file.
fn weight_type(checkpoint: &Checkpoint) -> String {
    let stored = match checkpoint.spec.weight_type {
        WeightType::F8E4M3 => "fp8".to_owned(),
        WeightType::F4E2M1 => "mxfp4".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    };
    let is_quantised = checkpoint.plan.tensors.values().any(|view| view.quantise);
    if is_quantised { format!("fp8 from {stored}") } else { stored }
}

/// `bos_token`, `eos_token` and so on, as templates see them.
fn named_tokens(served: &Served) -> serde_json::Map<String, serde_json::Value> {
    let named = served.tokenizer.named_tokens().iter();
    named.map(|(name, token)| (name.clone(), json!(token))).collect()
}

/// The fields whose defaults a model may set, by name.
fn sampling_defaults(defaults: &SamplingParams) -> serde_json::Map<String, serde_json::Value> {
    let fields = SAMPLING_FIELDS.iter().filter(|field| field.from_model);
    fields
        .map(|field| {
            let value = field.get(defaults);
            let value =
                if field.is_whole { json!(value as i64) } else { json!(shortest(value as f32)) };
            (field.name.to_owned(), value)
        })
        .collect()
}

/// The number that people wrote: 0.6, not 0.6000000238418579.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_are_reported_as_they_were_written() {
        for (value, expected) in
            [(0.6, "0.6"), (1.05, "1.05"), (1.0, "1.0"), (0.0, "0.0"), (1e-7, "1e-7")]
        {
            assert_eq!(serde_json::json!(super::shortest(value)).to_string(), expected);
        }
    }
}
