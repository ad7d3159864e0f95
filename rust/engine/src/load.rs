//! From options to a loaded model: checkpoint, tokenizer, sizes, executors, schedulers. Once, on the
//! caller's thread; blocks until the model can serve.

use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use ingle_core::{
    ChainHasher, CompletionSink, Executor, Limits, PrefixWatcher, SAMPLING_FIELDS, SamplingParams,
    Scheduler, SchedulerConfig,
};
use ingle_model::{Checkpoint, GenerationDefaults, TensorView, Timeline};
use ingle_text::{BadWordsFactory, GrammarFactory};
use serde_json::{Map, Value};

use crate::clock::Clock;
use crate::device::{Built, Device, LateText, build_executors};
use crate::engine_view::EngineView;
use crate::error::EngineError;
use crate::fleet::Fleet;
use crate::inbox::Message;
use crate::info::{StartUp, info};
use crate::kv_events::KvEvents;
use crate::metrics::{Metrics, PoolSize};
use crate::options::EngineOptions;
use crate::outbox::Outbox;
use crate::room::Room;
use crate::routing::{Routing, RoutingLimits};
use crate::served::{Seeds, Served};
use crate::shared::{Front, Shared};
use crate::sizes::setting;
use crate::threads::cannot_start;
use crate::tokenizer_files::{TextParts, text_parts};

/// Everything the engines are made of, nothing running yet.
pub(crate) struct Loaded {
    pub(crate) front: Front,
    pub(crate) engines: Vec<LoadedEngine>,
    pub(crate) routing: Option<Routing>,
    pub(crate) kv_events: Option<KvEvents>,
    /// What the engines take on their device, all together.
    pub(crate) memory_bytes: u64,
    pub(crate) info: Vec<u8>,
}

/// What one engine thread takes over.
pub(crate) struct LoadedEngine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) scheduler: Scheduler,
    pub(crate) executor: Box<dyn Executor>,
}

/// Loads. `sockets` are for KV events, and there are none without `options.kv_events`.
///
/// # Errors
/// `EngineError::Model`, one line that names the setting, or file and field or tensor.
pub(crate) fn load(options: &EngineOptions, sockets: Vec<OwnedFd>) -> Result<Loaded, EngineError> {
    let device = Device::parse(&options.device)?;
    let mut loaded = load_with(options, |checkpoint, text, sinks| {
        build_executors(&device, checkpoint, options, text, sinks)
    })?;
    publish_events(options, sockets, &mut loaded)?;
    Ok(loaded)
}

/// Starts to publish what the prefix caches hold, if that is asked for.
fn publish_events(
    options: &EngineOptions,
    sockets: Vec<OwnedFd>,
    loaded: &mut Loaded,
) -> Result<(), EngineError> {
    let Some(events) = &options.kv_events else {
        assert!(sockets.is_empty(), "sockets for KV events, which are off");
        return Ok(());
    };
    if !loaded.engines.iter().all(|engine| engine.scheduler.shares_prefixes()) {
        return Err(EngineError::Model(
            "kv_events_config: this engine has no prefix cache to publish".to_owned(),
        ));
    }
    let block_sizes: Vec<u32> =
        loaded.engines.iter().map(|engine| engine.executor.shape().block_size).collect();
    let salts = loaded.front.served.salt_table.clone().unwrap_or_default();
    let (publisher, logs) = KvEvents::start(events, sockets, &block_sizes, salts)?;
    for (engine, log) in loaded.engines.iter_mut().zip(logs) {
        engine.scheduler.watch_prefixes(log);
    }
    loaded.kv_events = Some(publisher);
    Ok(())
}

/// `load` with executors of the caller's: one for each sink.
pub(crate) fn load_with(
    options: &EngineOptions,
    build: impl FnOnce(&Checkpoint, &LateText, Vec<CompletionSink>) -> Result<Vec<Built>, EngineError>,
) -> Result<Loaded, EngineError> {
    let began = Instant::now();
    let timeline = Timeline::default();
    let num_engines = setting("data_parallel_size", options.data_parallel_size, 1)?;
    let mut checkpoint = timeline.time(FILES, || opened_checkpoint(options))?;
    quantise(&mut checkpoint, options.quantization.as_deref())?;
    choose_kv_format(&mut checkpoint, &options.kv_cache_dtype)?;
    if options.on_request {
        let note = "load: on-request: the weights are read with the first request for this model";
        checkpoint.notes.push(note.to_owned());
    } else if let Some(progress) = &options.progress {
        progress.watch(&mut checkpoint);
    }
    let defaults = defaults(options, &checkpoint)?;
    let inboxes: Vec<_> = (0..num_engines).map(|_| Arc::new(LateSink::default())).collect();
    let sinks = inboxes.iter().map(LateSink::sink).collect();
    let (mut text, mut built) = text_and_executors(&checkpoint, options, &timeline, |text| {
        build(&checkpoint, text, sinks)
    })?;
    for name in text.templates.iter().filter(|(_, each)| each.is_costly()).map(|(name, _)| name) {
        checkpoint.notes.push(format!(
            "chat template {name:?} does much work even for a short chat: chats are rendered on the submit threads, not \
             on the event loop"
        ));
    }
    let fleet = Fleet::new(&built, options.max_queue);
    let secret = RandomState::new().hash_one("prefix cache");
    let config = |built: &Built| SchedulerConfig {
        shape: built.executor.shape(),
        max_model_len: fleet.max_model_len,
        // The queue is bounded where requests come in, by tenant: `Room::reserve`.
        max_queue: u32::MAX,
        weight_tokens: weight_tokens(&checkpoint, built),
        enable_prefix_caching: options.enable_prefix_caching,
        whole_prompts: !checkpoint.spec.attention.causal,
        cache_secret: secret,
    };
    let configs: Vec<SchedulerConfig> = built.iter().map(config).collect();
    let chat_template = text.template_source.take();
    let served = served(options, &checkpoint, text, &configs, &fleet, defaults)?;
    let mut phases = timeline.into_phases();
    phases.extend(built.iter_mut().flat_map(|built| std::mem::take(&mut built.phases)));
    phases.sort_by_key(|phase| phase.began);
    let start_up = StartUp { chat_template, began, time: began.elapsed(), phases };
    let info = info(&served, &checkpoint, &built, &fleet, &start_up);
    let memory_bytes = fleet.memory.iter().map(|(_, bytes)| bytes).sum();
    let outbox = Outbox::new()
        .map_err(|error| EngineError::Model(format!("cannot make an eventfd: {error}")))?;
    let front = Front {
        room: Arc::new(Room::new(served.capacity)),
        served: Arc::new(served),
        outbox: Arc::new(outbox),
        clock: Clock::start(),
    };
    let mut engines = Vec::with_capacity(built.len());
    for (number, (built, config)) in built.into_iter().zip(configs).enumerate() {
        let shape = config.shape;
        let pool = PoolSize { block_size: shape.block_size, num_blocks: shape.num_blocks };
        let shared = Arc::new(Shared::new(number, front.clone(), Metrics::new(pool, built.own)));
        inboxes[number].connect(&shared);
        let scheduler = Scheduler::new(config);
        engines.push(LoadedEngine { shared, scheduler, executor: built.executor });
    }
    let routing = (engines.len() > 1).then(|| routing(options, &mut engines, secret));
    Ok(Loaded { front, engines, routing, kv_events: None, memory_bytes, info })
}

/// Reads the tokenizer on a thread of its own while this one builds.
fn text_and_executors(
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    timeline: &Timeline,
    build: impl FnOnce(&LateText) -> Result<Vec<Built>, EngineError>,
) -> Result<(TextParts, Vec<Built>), EngineError> {
    let late = LateText::default();
    let read = || timeline.time(TEXT, || late.fill(|| text_parts(checkpoint, options)));
    let built = std::thread::scope(|scope| {
        let reading = std::thread::Builder::new()
            .name(TOKENIZER_THREAD.to_owned())
            .spawn_scoped(scope, read)
            .map_err(|error| cannot_start(TOKENIZER_THREAD, &error))?;
        let built = timeline.time(DEVICE, || build(&late));
        // A panic goes on as the one it was.
        let read = reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // If both failed, the device did so for want of the tokenizer.
        read?;
        built
    })?;
    Ok((late.into_parts()?, built))
}

/// The files of the model, or their shape alone.
fn opened_checkpoint(options: &EngineOptions) -> Result<Checkpoint, EngineError> {
    let opened = match options.load_format.as_str() {
        "auto" => ingle_model::open(&options.model),
        "dummy" => ingle_model::open_without_weights(&options.model),
        other => {
            let text = format!("load_format: must be auto or dummy, not {other:?}");
            return Err(EngineError::Model(text));
        }
    };
    opened.map_err(|error| EngineError::Model(error.to_string()))
}

/// Lets the engines show their prefix caches, which all hash with `secret`, and chooses between them.
fn routing(options: &EngineOptions, engines: &mut [LoadedEngine], secret: u64) -> Routing {
    let shape = engines[0].executor.shape();
    let limits = RoutingLimits {
        block_size: shape.block_size,
        max_num_seqs: shape.max_num_seqs,
        stall_us: u64::from(options.health_stall_s) * 1_000_000,
    };
    let shares_prefixes = engines[0].scheduler.shares_prefixes();
    let views = engines.iter_mut().map(|engine| {
        let view = Arc::new(EngineView::new(engine.scheduler.limits().num_blocks));
        engine.scheduler.watch_prefixes(Arc::clone(&view) as Arc<dyn PrefixWatcher>);
        view
    });
    let views = views.collect();
    let hasher = shares_prefixes.then(|| ChainHasher::new(limits.block_size, secret));
    Routing::new(views, hasher, limits)
}

/// Sampling parameters of a request that names none.
fn defaults(
    options: &EngineOptions,
    checkpoint: &Checkpoint,
) -> Result<SamplingParams, EngineError> {
    match options.generation_config.as_str() {
        "auto" => sampling_defaults(&checkpoint.generation, &options.sampling_defaults),
        "none" => Ok(SamplingParams::unset()),
        other => Err(EngineError::Model(format!(
            "generation_config: must be auto or none, not {other:?}"
        ))),
    }
}

/// Says how executors keep keys and values.
fn choose_kv_format(checkpoint: &mut Checkpoint, dtype: &str) -> Result<(), EngineError> {
    match dtype {
        "auto" => Ok(()),
        "fp8" | "fp8_e4m3" => {
            let has_scales = checkpoint.keep_kv_in_fp8();
            if !has_scales.map_err(|error| EngineError::Model(error.to_string()))? {
                let note =
                    "kv_cache_dtype: the checkpoint has no scales for an fp8 KV cache; all are 1";
                checkpoint.notes.push(note.to_owned());
            }
            Ok(())
        }
        other => Err(EngineError::Model(format!(
            "kv_cache_dtype: must be auto, fp8 or fp8_e4m3, not {other:?}"
        ))),
    }
}

/// Marks the matrices that executors make fp8 while they load.
fn quantise(checkpoint: &mut Checkpoint, method: Option<&str>) -> Result<(), EngineError> {
    match method {
        None => Ok(()),
        Some("fp8") => {
            let quantised = checkpoint.plan.quantise_fp8();
            if !quantised.map_err(|error| EngineError::Model(error.to_string()))? {
                let note = "quantization: the checkpoint's weights are fp8 already";
                checkpoint.notes.push(note.to_owned());
            }
            Ok(())
        }
        Some(other) => {
            Err(EngineError::Model(format!("quantization: must be fp8 or absent, not {other:?}")))
        }
    }
}

/// Context tokens whose keys and values are as many bytes as the weights.
fn weight_tokens(checkpoint: &Checkpoint, built: &Built) -> u32 {
    let estimate = || {
        let weight_bytes: u64 =
            checkpoint.plan.tensors.values().map(TensorView::loaded_bytes).sum();
        let num_tokens = u64::from(built.sizes.num_blocks) * u64::from(built.sizes.block_size);
        let tokens = weight_bytes.saturating_mul(num_tokens) / built.sizes.kv_cache_bytes.max(1);
        // A block holds a part of the layers; windows add no more once a context is longer.
        let groups = built.executor.shape().kv_groups;
        let num_full = (0..groups.len()).filter(|&group| groups.is_full(group)).count() as u64;
        let tokens = tokens / num_full.max(1);
        u32::try_from(tokens).unwrap_or(u32::MAX)
    };
    built.executor.weight_tokens().unwrap_or_else(estimate)
}

fn served(
    options: &EngineOptions,
    checkpoint: &Checkpoint,
    text: TextParts,
    configs: &[SchedulerConfig],
    fleet: &Fleet,
    defaults: SamplingParams,
) -> Result<Served, EngineError> {
    // A request may go to any engine, so it must fit the one with the fewest blocks.
    let Some(config) = configs.iter().min_by_key(|config| config.shape.num_blocks) else {
        return Err(EngineError::Failed("no executor was built".to_owned()));
    };
    let eos: Vec<u32> = text.eos_token_ids.iter().map(|id| id.0).collect();
    let rows = config.shape.vocab_size;
    let grammars = GrammarFactory::start(Arc::clone(&text.tokenizer), rows, &eos)
        .map_err(|error| cannot_start("ingle-grammar", &error))?;
    let tags = text.answer_format.reasoning.clone();
    let bad_words = BadWordsFactory::new(Arc::clone(&text.tokenizer), rows, tags);
    Ok(Served {
        name: options.served_model_name.clone().unwrap_or_else(|| last_part(&options.model)),
        tokenizer: text.tokenizer,
        templates: text.templates,
        answer_format: text.answer_format,
        grammars,
        bad_words,
        eos_token_ids: text.eos_token_ids,
        defaults,
        embeds_only: checkpoint.spec.embeds_only,
        embedding: checkpoint.embedding,
        max_model_len: config.max_model_len,
        vocab_size: text.vocab_size,
        limits: Limits::new(config),
        num_engines: fleet.num_engines,
        max_num_seqs: fleet.max_num_seqs,
        capacity: fleet.max_num_seqs.saturating_add(fleet.max_queue),
        deepest_sleep: fleet.deepest_sleep,
        seeds: Seeds::new(options.seed),
        salts: RandomState::new(),
        salt_table: options.kv_events.is_some().then(Arc::default),
    })
}

/// What the checkpoint says, then what `options` says, OpenAI's defaults where neither has the field.
/// As in vLLM `do_sample` has no say: a client that wants the most likely token asks for temperature 0.
fn sampling_defaults(
    generation: &GenerationDefaults,
    options: &Map<String, Value>,
) -> Result<SamplingParams, EngineError> {
    let mut defaults = SamplingParams::unset();
    for field in SAMPLING_FIELDS.iter().filter(|field| field.from_model) {
        let sources =
            [("generation_config.json", &generation.others), ("sampling_defaults", options)];
        let found = sources.iter().find_map(|(source, map)| Some((source, map.get(field.name)?)));
        let Some((source, value)) = found else { continue };
        let number = value.as_f64().unwrap_or(f64::NAN);
        field
            .put(&mut defaults, number, value)
            .map_err(|reason| EngineError::Model(format!("{source}: {reason}")))?;
    }
    Ok(defaults)
}

fn last_part(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The executor needs its sink before the inbox exists, since sizes come from the executor. No step
/// is submitted before `connect`.
#[derive(Default)]
struct LateSink {
    shared: OnceLock<Weak<Shared>>,
}

impl LateSink {
    fn sink(self: &Arc<Self>) -> CompletionSink {
        let late = Arc::clone(self);
        Arc::new(move |completion| {
            if let Some(shared) = late.shared.get().and_then(Weak::upgrade) {
                // After the end no steps are needed.
                let _ = shared.inbox.put(Message::Completed(completion));
            }
        })
    }

    fn connect(&self, shared: &Arc<Shared>) {
        // Called once; a second call would change nothing.
        let _ = self.shared.set(Arc::downgrade(shared));
    }
}

const TOKENIZER_THREAD: &str = "ingle-tokenizer";

// Phases of every load; the summary at start shows their times.
const FILES: &str = "model files";
const TEXT: &str = "tokenizer and templates";
const DEVICE: &str = "device";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn defaults(others: Value) -> Result<SamplingParams, EngineError> {
        defaults_beside(others, json!({}))
    }

    fn defaults_beside(others: Value, options: Value) -> Result<SamplingParams, EngineError> {
        let [Value::Object(others), Value::Object(options)] = [others, options] else {
            panic!("not objects")
        };
        sampling_defaults(&GenerationDefaults { others, ..GenerationDefaults::default() }, &options)
    }

    #[test]
    fn sampling_defaults_are_the_models_and_else_openais() {
        let found = defaults(json!({ "temperature": 0.6, "top_k": 20, "max_length": 20 })).unwrap();
        assert_eq!(
            found,
            SamplingParams { temperature: 0.6, top_k: 20, ..SamplingParams::unset() }
        );
        assert_eq!(defaults(json!({ "presence_penalty": 9 })).unwrap(), SamplingParams::unset());
    }

    #[test]
    fn sampling_defaults_of_the_options_fill_in_what_the_model_leaves_out() {
        let options = json!({ "temperature": 0.2, "top_p": 0.9 });
        let found = defaults_beside(json!({ "temperature": 0.6 }), options).unwrap();
        assert_eq!(
            found,
            SamplingParams { temperature: 0.6, top_p: 0.9, ..SamplingParams::unset() }
        );
        let text = defaults_beside(json!({}), json!({ "top_p": 2 })).unwrap_err().to_string();
        assert!(text.starts_with("sampling_defaults: top_p: must be "), "{text}");
    }

    #[test]
    fn a_models_default_has_the_range_of_a_requests_field() {
        for (key, value, allowed) in [
            ("top_p", json!(1.5), "a number above 0 and at most 1, not 1.5"),
            ("top_p", json!(0), "a number above 0 and at most 1, not 0"),
            ("temperature", json!(-1), "a number from 0 to 2, not -1"),
            ("temperature", json!("hot"), "a number from 0 to 2, not \"hot\""),
            ("repetition_penalty", json!(0), "a number from 0.01 to 100, not 0"),
            ("top_k", json!(1.5), "a whole number from -1 to 2147483647, not 1.5"),
        ] {
            let text = defaults(json!({ key: value })).unwrap_err().to_string();
            assert_eq!(text, format!("generation_config.json: {key}: must be {allowed}"));
        }
    }
}
