//! Joins core, text, model and an executor into an engine that answers requests.
//!
//! One thread plans, submits and commits. Callers' threads validate and tokenize. They meet in an inbox
//! and an outbox. Frames for HTTP clients are built here.
#![forbid(unsafe_code)]

mod answer_forms;
mod answer_json;
mod answer_room;
mod arrivals;
mod balloon;
mod body;
mod choice;
mod choice_mask;
mod clock;
mod commit;
mod commit_masks;
mod commit_times;
mod deliver;
mod device;
mod doctor;
mod echo;
mod embedding;
mod engine;
mod engine_life;
mod engine_thread;
mod engine_view;
mod entry_budget;
mod error;
mod exemplar;
mod fleet;
mod frame;
mod grammar_pool;
mod guard;
mod hash_table;
mod health;
mod histogram;
mod inbox;
mod info;
mod json;
mod kv_events;
mod late_sampling;
mod lengths;
mod load;
mod load_progress;
mod logprobs;
mod memory;
mod metrics;
mod observe;
mod options;
mod outbox;
mod pace;
mod plan;
mod prepare;
mod presence;
mod prompt;
mod prompt_logs;
mod prompt_state;
mod request_limits;
mod resize;
mod rest;
mod room;
mod router;
mod routing;
mod sampling;
mod sampling_input;
mod served;
mod shared;
mod shared_device;
mod sizes;
mod sleep;
mod stream;
mod stream_end;
mod structured;
mod submission;
mod swap;
mod tenant_load;
#[cfg(test)]
mod tests;
mod threads;
mod times;
mod token_json;
mod tokenizer_files;
mod trace;
mod turns;
mod warn;
mod wire;

pub use device::{Places, may_use_gpu};
pub use doctor::doctor;
pub use engine::Engine;
pub use error::EngineError;
pub use guard::log_panics_without_text;
pub use ingle_core::SleepLevel;
pub use ingle_model::may_follow;
pub use ingle_text::Effort;
pub use kv_events::{Encoding, KvEventOptions};
pub use load_progress::LoadProgress;
pub use logprobs::LogEntry;
pub use options::{EngineOptions, SimSpeed};
pub use outbox::{Delta, Event, Finish, Payload, StopCause, Usage};
pub use plan::plan;
pub use prompt::render_template;
pub use request_limits::request_limits;
pub use sampling::sampling_fields;
pub use sampling_input::SamplingInput;
pub use shared_device::{DevicePlace, SharedDevice};
pub use sizes::Sizes;
pub use stream::ClientSocket;
pub use times::Times;
pub use wire::{
    ChatPrompt, FunctionInput, GenerationRequest, GrammarField, GrammarInput, OutputFormat,
    OutputInput, PoolingInput, PromptInput, ToolChoice, ToolInput, TraceInput,
};

/// Refuses JSON that is broken, has a key twice, or holds too many values. Any thread; not blocking.
///
/// # Errors
/// `Refused`, or `Failed` for a mistake of ours.
pub fn check_body(json: &[u8]) -> Result<(), EngineError> {
    guard::guarded(|| body::check_body(json))
}

/// Refuses JSON that is not a list of token ids; gives their number. Any thread; not blocking.
///
/// # Errors
/// `Refused`, or `Failed` for a mistake of ours.
pub fn check_ids(field: &str, json: &[u8], most: usize) -> Result<usize, EngineError> {
    guard::guarded(|| body::check_ids(field, json, most))
}
