//! The JSON document that starts an engine. Any thread; only says what can be set.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;

use crate::device::Places;
use crate::kv_events::KvEventOptions;
use crate::load_progress::LoadProgress;

/// How to start: `model` is needed, everything else has a default.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineOptions {
    /// A Hugging Face folder or a `.gguf` file.
    pub model: PathBuf,
    /// Name in answers; the last part of the path if absent.
    #[serde(default)]
    pub served_model_name: Option<String>,
    /// A name that device/named.rs reads.
    #[serde(default = "auto")]
    pub device: String,
    /// How many engines share the requests, each on a GPU of its own, or with a share of the threads.
    #[serde(default)]
    pub data_parallel_size: Option<u32>,
    /// How many models share the memory of the device, each in an engine of its own.
    #[serde(default = "one")]
    pub num_models: u32,
    /// The model's part of the device's time while others want it too: twice the weight, twice the time.
    #[serde(default)]
    pub weight: Option<u32>,
    /// Among how many ranks each engine divides the model.
    #[serde(default)]
    pub tensor_parallel_size: Option<u32>,
    /// Each of these ranks has some experts whole, not a part of each.
    #[serde(default)]
    pub enable_expert_parallel: bool,
    /// The model never makes room for others.
    #[serde(default)]
    pub pinned: bool,
    /// No weights are read before a request wants the model, or its operator.
    #[serde(default)]
    pub on_request: bool,
    /// Sees how far the weights are.
    #[serde(skip)]
    pub progress: Option<Arc<LoadProgress>>,
    /// Divides the sim device's step times.
    #[serde(default)]
    pub sim_speed: Option<SimSpeed>,
    /// `auto`: as the device keeps weights best.
    #[serde(default = "auto")]
    pub dtype: String,
    /// `dummy`: no weights are read; pseudo-random numbers stand for them.
    #[serde(default = "auto")]
    pub load_format: String,
    /// `fp8`: linear layers of an unquantised checkpoint become fp8 at load.
    #[serde(default)]
    pub quantization: Option<String>,
    /// `fp8` or `fp8_e4m3`: keys and values are kept in 8 bits; `auto`: as the device keeps activations.
    #[serde(default = "auto")]
    pub kv_cache_dtype: String,
    /// Longest prompt plus answer, in tokens.
    #[serde(default)]
    pub max_model_len: Option<u32>,
    /// Most requests in one step.
    #[serde(default)]
    pub max_num_seqs: Option<u32>,
    /// Most token rows in one step.
    #[serde(default)]
    pub max_num_batched_tokens: Option<u32>,
    /// Tokens a KV block.
    #[serde(default)]
    pub block_size: Option<u32>,
    /// Share full blocks of equal prefixes.
    #[serde(default = "yes")]
    pub enable_prefix_caching: bool,
    /// Size of the KV pool, in bytes.
    #[serde(default)]
    pub kv_cache_memory_bytes: Option<u64>,
    /// What the KV pool may grow to while other models leave memory.
    #[serde(default)]
    pub kv_cache_max_memory_bytes: Option<u64>,
    /// Share of the GPU's memory that this process may hold.
    #[serde(default)]
    pub gpu_memory_utilization: Option<f64>,
    /// Launch kernels one by one, without graphs of whole steps.
    #[serde(default)]
    pub enforce_eager: bool,
    /// Be able to give the weights back and take them again.
    #[serde(default)]
    pub enable_sleep_mode: bool,
    /// Most requests that wait, beyond those that can run.
    #[serde(default)]
    pub max_queue: Option<u32>,
    /// Makes the seeds of requests without one repeatable.
    #[serde(default)]
    pub seed: Option<u64>,
    /// A chat template's text, instead of the model's own.
    #[serde(default)]
    pub chat_template: Option<String>,
    /// How the model writes tool calls: a name of `ToolFormat`, `none`, or `auto`, which is the default.
    #[serde(default)]
    pub tool_call_parser: Option<String>,
    /// How it marks reasoning: a name of `ReasoningFormat`, `none`, or `auto`, which is the default.
    #[serde(default)]
    pub reasoning_parser: Option<String>,
    /// `auto` takes sampling defaults from the model, `none` does not.
    #[serde(default = "auto")]
    pub generation_config: String,
    /// With `auto`: sampling defaults by field, as generation_config.json has them, for a model
    /// whose files have none. What the files say wins.
    #[serde(default)]
    pub sampling_defaults: serde_json::Map<String, serde_json::Value>,
    /// Worker threads of the cpu device; 0 is one a physical core.
    #[serde(default)]
    pub cpu_threads: u32,
    /// `exact` or `fast`: how the cpu device rounds activations of matrix products.
    #[serde(default = "exact")]
    pub cpu_precision: String,
    /// Where the device finds and keeps files of its own.
    #[serde(default)]
    pub places: Places,
    /// Same bits whatever the batch.
    #[serde(default)]
    pub deterministic: bool,
    /// Publish KV events on the sockets given beside this document.
    #[serde(default)]
    pub kv_events: Option<KvEventOptions>,
    /// `/health` says `stuck` if work waits and no step ended for so long.
    #[serde(default = "stall_s")]
    pub health_stall_s: u32,
}

/// A number, or `"inf"`: steps end at once.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum SimSpeed {
    /// Steps take the modelled time divided by this.
    Factor(f64),
    /// The word `inf`.
    Word(String),
}

fn auto() -> String {
    "auto".to_owned()
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn exact() -> String {
    "exact".to_owned()
}

fn stall_s() -> u32 {
    30
}
