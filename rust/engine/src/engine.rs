//! [1] [2] [3] The engines of a process as other threads see them: requests in, events out. Any thread
//! may call any method. Only `shutdown` waits for the engine threads.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use ingle_core::{Micros, ModelMemory, SleepLevel, TenantId};
use ingle_text::Effort;

use crate::balloon::{Balloon, pool_memory};
use crate::engine_thread::EngineThread;
use crate::error::{EngineError, if_brief, shortened};
use crate::guard::{Reservation, fault_point, guarded};
use crate::inbox::Message;
use crate::kv_events::KvEvents;
use crate::load::{Loaded, LoadedEngine, load};
use crate::load_progress::LoadProgress;
use crate::memory::Memory;
use crate::metrics::{self, Metrics};
use crate::options::EngineOptions;
use crate::outbox::Event;
use crate::prepare::{num_choices, parse, prepare};
use crate::prompt::encode_prompt;
use crate::rest::ASLEEP;
use crate::routing::{Hints, Routing};
use crate::sampling::outside_the_vocabulary;
use crate::shared::{EngineState, Front, Shared};
use crate::shared_device::{DevicePlace, DeviceTurns, SharedDevice};
use crate::sizes::setting;
use crate::stream::ClientSocket;
use crate::submission::Submission;
use crate::tenant_load::TenantLoad;
use crate::threads::{self, USUAL_STACK_BYTES};
use crate::wire::{GenerationRequest, PromptInput};

/// A loaded model and the engines that run it, each with a thread of its own. Dropping it shuts them
/// down.
pub struct Engine {
    pub(crate) front: Front,
    /// At least one.
    pub(crate) engines: Vec<Arc<Shared>>,
    /// Chooses the engine of a request; absent if there is no choice.
    routing: Option<Routing>,
    info: Vec<u8>,
    pub(crate) health_stall_us: u64,
    next_serial: AtomicU64,
    memory: Memory,
    kv_events: Option<KvEvents>,
    pub(crate) device_place: Option<DevicePlace>,
    tenants: Mutex<HashMap<String, Arc<TenantLoad>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// Loads the model named in the JSON document and starts the engine threads; blocks until it can
    /// serve.
    ///
    /// # Errors
    /// `EngineError::Model`, one line that names the setting, or file and field.
    pub fn start(options: &[u8]) -> Result<Self, EngineError> {
        Self::start_with(options, Vec::new(), None, None)
    }

    /// `start` with bound TCP sockets for KV events, those of one engine after the other: one that
    /// publishes, and with `replays` one that replays. `device`: what this model shares with others. `progress` sees
    /// how far the weights are.
    ///
    /// # Errors
    /// As `start`.
    ///
    /// # Panics
    /// If there are sockets and `kv_events` is not set.
    pub fn start_with(
        options: &[u8],
        sockets: Vec<OwnedFd>,
        device: Option<&SharedDevice>,
        progress: Option<Arc<LoadProgress>>,
    ) -> Result<Self, EngineError> {
        let mut options: EngineOptions = serde_json::from_slice(options)
            .map_err(|error| EngineError::Model(format!("engine options: {error}")))?;
        options.progress = progress;
        // The fault is in a file of the model or in the library that reads it. The log names the place.
        let loaded = catch_unwind(AssertUnwindSafe(|| load(&options, sockets)));
        let loaded = loaded.unwrap_or_else(|_| Err(EngineError::Model(LOAD_PANIC.into())))?;
        Self::run(&options, loaded, device)
    }

    /// Starts the engine threads of what has been loaded.
    pub(crate) fn run(
        options: &EngineOptions,
        loaded: Loaded,
        device: Option<&SharedDevice>,
    ) -> Result<Self, EngineError> {
        let weight = setting("weight", options.weight, 1)?;
        let Loaded { front, engines: loaded, routing, kv_events, memory_bytes, info } = loaded;
        let swaps = device.is_some_and(SharedDevice::swaps);
        let kv = match &loaded[..] {
            [only] if swaps => only.executor.kv_memory(),
            _ => None,
        };
        let useful = loaded.first().map_or(0, |each| useful_kv_bytes(&front, each));
        let pool = pool_memory(kv, options.kv_cache_max_memory_bytes, useful)?;
        let memory = ModelMemory {
            bytes: memory_bytes,
            pool,
            return_time: Micros(memory_bytes / RETURN_BYTES_PER_US),
            is_pinned: options.pinned,
        };
        let can_leave = front.served.deepest_sleep >= SleepLevel::Offload;
        if options.on_request && !swaps {
            return Err(EngineError::Model(
                "load: on-request needs device_memory_bytes".to_owned(),
            ));
        }
        if !can_leave && swaps {
            let text =
                "device_memory_bytes: this device cannot give weights back and take them again";
            return Err(EngineError::Model(text.to_owned()));
        }
        let mut this = Self {
            front,
            engines: loaded.iter().map(|each| Arc::clone(&each.shared)).collect(),
            routing,
            info,
            health_stall_us: u64::from(options.health_stall_s) * 1_000_000,
            next_serial: AtomicU64::new(FIRST_SERIAL),
            memory: Memory::open(),
            kv_events,
            device_place: None,
            tenants: Mutex::default(),
            threads: Mutex::default(),
        };
        let is_alone = loaded.len() == 1;
        for each in loaded {
            let number = each.shared.number;
            let of_model = (memory, options.on_request);
            let join = |device| DeviceTurns::join(device, weight, of_model, &each.shared);
            let turns = device.map(join).transpose()?;
            this.device_place = turns.as_ref().map(DeviceTurns::place);
            let balloon = kv.map(|kv| Balloon::new(kv, pool));
            let LoadedEngine { shared, scheduler, executor } = each;
            let thread = EngineThread::new(shared, scheduler, executor, turns)?;
            let thread = thread.with_balloon(balloon);
            let thread = if options.on_request { thread.starting_away() } else { thread };
            let name =
                if is_alone { "ingle-engine".into() } else { format!("ingle-engine-{number}") };
            // If one cannot start, dropping `this` ends the ones before it.
            let thread = threads::start(&name, USUAL_STACK_BYTES, move || thread.run())?;
            this.threads.get_mut().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        if let Some(place) = &this.device_place {
            // The next model is loaded once this one has made room, if it had to.
            place.settle();
        }
        Ok(this)
    }

    /// Why the model could not return into the device's memory the last time; `None` if it has returned since.
    #[must_use]
    pub fn failed_return(&self) -> Option<String> {
        self.engines.iter().find_map(|engine| engine.failed_return())
    }

    /// The model's place on a device that it shares with others.
    #[must_use]
    pub fn device_place(&self) -> Option<&DevicePlace> {
        self.device_place.as_ref()
    }

    /// JSON: served model, limits, sampling defaults, executor sizes, start-up times.
    #[must_use]
    pub fn info(&self) -> &[u8] {
        &self.info
    }

    /// Becomes readable when `drain` has something.
    #[must_use]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.front.outbox.fd()
    }

    /// Validates, tokenises and queues one request; gives its key. Blocking: as long as tokenising
    /// takes.
    ///
    /// # Errors
    /// `Refused`, `Overloaded`, `Failed` or `Fatal`; then nothing was queued.
    pub fn submit(&self, document: &[u8]) -> Result<u64, EngineError> {
        self.check_serving()?;
        guarded(|| self.submit_guarded(document, Effort::Full))
    }

    /// As `submit`, for a caller that can wait for some milliseconds only. `None`: nothing was queued,
    /// because rendering the messages takes longer, or tokenising what they become. Compiling a
    /// grammar, or a long document, is not bounded here.
    ///
    /// # Errors
    /// As `submit`.
    pub fn submit_if_brief(&self, document: &[u8]) -> Result<Option<u64>, EngineError> {
        self.check_serving()?;
        if_brief(guarded(|| self.submit_guarded(document, Effort::Brief)))
    }

    fn submit_guarded(&self, document: &[u8], effort: Effort) -> Result<u64, EngineError> {
        let request = parse(document)?;
        let front = &self.front;
        let count = num_choices(&request, &front.served)?;
        let tenant = self.tenant(&request.tenant);
        let Some(room) = Reservation::take(&front.room, &tenant, count) else {
            // It was refused before an engine was chosen.
            self.engines[0].metrics.rejections.fetch_add(1, Ordering::Relaxed);
            return Err(EngineError::Overloaded {
                message: format!(
                    "{} requests are running or waiting, {count} more would exceed the limit of {}",
                    front.room.in_system(),
                    front.served.capacity
                ),
                retry_after_s: self.retry_after_s(),
                status: 429,
            });
        };
        let serial = self.next_serial.fetch_add(1, Ordering::Relaxed);
        let now = front.clock.now();
        let mut submission = prepare(&request, &front.served, serial, tenant.id, effort, now)?;
        fault_point("queue");
        let engine = self.place(&mut submission, &request, &tenant);
        let key = submission.stream.key;
        let message = Message::Submit(Box::new(submission), Arc::clone(&tenant));
        engine.inbox.put_for_next_step(message).map_err(|_| {
            engine.leave(count);
            self.stopped()
        })?;
        room.hand_over();
        Ok(key)
    }

    /// The engine that the request goes to, where it counts from now on. With several engines the key
    /// says which one it is.
    fn place(
        &self,
        submission: &mut Submission,
        request: &GenerationRequest,
        tenant: &TenantLoad,
    ) -> &Shared {
        let Some(routing) = &self.routing else {
            self.engines[0].enter(submission.requests.len() as u32);
            return &self.engines[0];
        };
        // With the tenant's name: a session is its own, whatever others call theirs.
        let hash = |session: &String| self.front.served.salts.hash_one((&request.tenant, session));
        let hints = Hints { session: request.session.as_ref().map(hash), tenant: tenant.id };
        let number = routing.place(submission, hints, &self.engines);
        let serial = submission.stream.key;
        submission.rename(serial * self.engines.len() as u64 + number as u64);
        &self.engines[number]
    }

    /// The engine that has the request of this key.
    fn engine_of(&self, key: u64) -> &Shared {
        &self.engines[(key % self.engines.len() as u64) as usize]
    }

    /// Ends a request; no further event carries `key`. Unknown keys are ignored.
    pub fn abort(&self, key: u64) {
        self.front.outbox.silence(key);
        if self.engine_of(key).inbox.put_for_next_step(Message::Abort(key)).is_err() {
            self.front.outbox.forget(key);
        }
    }

    /// Lets the engine send the frames of `key` on `socket` itself, provided that all frames of it that
    /// were ever handed out have been seen. Otherwise nothing changes and frames go on coming through
    /// `drain`, as they do again from the first frame on that the socket does not take at once: if that
    /// is the one behind the head as `Payload::Headed`; a `Frame` says that the head was not used.
    pub fn attach_socket(&self, key: u64, socket: ClientSocket) {
        // The client of a request that has just ended sees the connection end only after this copy of the
        // socket is closed. That takes one step at most.
        let _ = self.engine_of(key).inbox.put_for_next_step(Message::Attach(key, socket));
    }

    /// Sends an SSE comment on a stream to which nothing was sent for ten seconds.
    pub fn ping(&self, key: u64) {
        // A stopped engine has ended every stream.
        let _ = self.engine_of(key).inbox.put(Message::Ping(key));
    }

    /// Forgets all cached prefixes before any later request starts. Running requests keep their blocks.
    pub fn reset_prefix_cache(&self) {
        for engine in &self.engines {
            // A stopped engine has no use for its cache.
            let _ = engine.inbox.put(Message::ClearPrefixCache);
        }
    }

    /// Clears the eventfd and takes all events.
    #[must_use]
    pub fn drain(&self) -> Vec<Event> {
        self.front.outbox.drain()
    }

    /// Token ids of one prompt, given as an entry of `prompts`.
    ///
    /// # Errors
    /// `Refused` or `Failed`.
    pub fn tokenize(&self, document: &[u8]) -> Result<Vec<u32>, EngineError> {
        self.tokenize_within(document, Effort::Full)
    }

    /// As `tokenize`, for a caller that can wait for some milliseconds only. `None`: a chat takes longer.
    ///
    /// # Errors
    /// As `tokenize`.
    pub fn tokenize_if_brief(&self, document: &[u8]) -> Result<Option<Vec<u32>>, EngineError> {
        if_brief(self.tokenize_within(document, Effort::Brief))
    }

    fn tokenize_within(&self, document: &[u8], effort: Effort) -> Result<Vec<u32>, EngineError> {
        guarded(|| {
            let prompt: PromptInput = serde_json::from_slice(document).map_err(|error| {
                EngineError::refused("prompt", format!("prompt: {}", shortened(&error)))
            })?;
            let encoded = encode_prompt(&prompt, effort, &self.front.served)?;
            fault_point("tokenize");
            Ok(encoded.ids.into_iter().map(|id| id.0).collect())
        })
    }

    /// Text of the ids, special tokens included.
    ///
    /// # Errors
    /// `Refused` for an id that the tokenizer does not have, and for a text that is too long.
    pub fn detokenize(&self, ids: &[u32]) -> Result<String, EngineError> {
        self.check_ids(ids)?;
        let tokenizer = &self.front.served.tokenizer;
        let sizes = ids.iter().map(|&id| tokenizer.token_bytes(id).map_or(0, <[u8]>::len));
        let size: usize = sizes.sum();
        if size > MAX_TEXT_BYTES {
            // A vocabulary of long tokens makes a short list long.
            let message = format!(
                "tokens: their text has {size} bytes, at most {MAX_TEXT_BYTES} are allowed"
            );
            return Err(EngineError::refused("tokens", message));
        }
        guarded(|| Ok(self.front.served.tokenizer.decode(ids, false)))
    }

    /// Each id's own text, lossy.
    ///
    /// # Errors
    /// `Refused` for an id that the tokenizer does not have.
    pub fn token_texts(&self, ids: &[u32]) -> Result<Vec<String>, EngineError> {
        self.check_ids(ids)?;
        let tokenizer = &self.front.served.tokenizer;
        let text = |&id: &u32| {
            String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default()).into_owned()
        };
        Ok(ids.iter().map(text).collect())
    }

    /// Blocks until the devices have done what they began at load, so that they make no system call from now on but to
    /// run steps, if this is true. For a process that gives such calls up.
    pub fn seal_device(&self) -> bool {
        // All of them, whatever the first says.
        let sealed: Vec<bool> =
            self.engines.iter().map(|engine| engine.metrics.seal_device()).collect();
        !sealed.contains(&false)
    }

    /// Bytes of memory that this process may still take before the least of its limits; a few system
    /// calls. What is `enough` or more may be too low.
    #[must_use]
    pub fn memory_room(&self, enough: u64) -> u64 {
        self.memory.room_if_below(enough)
    }

    /// Prometheus text. `exemplars`: with the traces of requests, for OpenMetrics.
    #[must_use]
    pub fn metrics(&self, exemplars: bool) -> String {
        Self::metrics_of(&[self], exemplars)
    }

    /// Prometheus text of several models, each with its name as a label.
    #[must_use]
    pub fn metrics_of(models: &[&Self], exemplars: bool) -> String {
        let mut each: Vec<(&str, Vec<&Metrics>)> = Vec::with_capacity(models.len());
        for model in models {
            let metrics = model.engines.iter().map(|engine| &engine.metrics).collect();
            each.push((&model.front.served.name, metrics));
        }
        let mut text = metrics::render(&each, exemplars);
        for events in models.iter().filter_map(|model| model.kv_events.as_ref()) {
            events.metrics(&mut text);
        }
        text
    }

    /// Refuses new requests from now on; running ones go on.
    pub fn start_drain(&self) {
        for engine in &self.engines {
            engine.advance(EngineState::Draining);
        }
    }

    /// Aborts what runs and stops all threads; blocks until they have ended. Idempotent.
    pub fn shutdown(&self) {
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        if threads.is_empty() {
            return;
        }
        for engine in &self.engines {
            // A closed inbox means that the thread has ended already.
            let _ = engine.inbox.put(Message::Shutdown);
        }
        for thread in threads {
            // The thread catches its own panics.
            let _ = thread.join();
        }
        if let Some(events) = &self.kv_events {
            events.stop();
        }
    }

    fn check_serving(&self) -> Result<(), EngineError> {
        match self.state() {
            EngineState::Serving if self.sleep_level().is_some() => Err(EngineError::Overloaded {
                message: ASLEEP.to_owned(),
                retry_after_s: 1,
                status: 503,
            }),
            EngineState::Serving => Ok(()),
            EngineState::Draining => Err(EngineError::Overloaded {
                message: "the server finishes its requests and takes no new ones".to_owned(),
                retry_after_s: self.retry_after_s(),
                status: 503,
            }),
            EngineState::Stopped | EngineState::Dead => Err(self.stopped()),
        }
    }

    pub(crate) fn stopped(&self) -> EngineError {
        EngineError::Fatal(match self.state() {
            EngineState::Dead => "the engine died of a fault".to_owned(),
            _ => "the engine has been shut down".to_owned(),
        })
    }

    /// The furthest that an engine has come in its life: what one cannot do any more, the process
    /// refuses.
    pub(crate) fn state(&self) -> EngineState {
        let states = self.engines.iter().map(|engine| engine.state());
        states.max().unwrap_or(EngineState::Stopped)
    }

    /// Seconds until the queue ahead has likely run, from 1 to 60.
    fn retry_after_s(&self) -> u32 {
        let num_running = self.front.served.max_num_seqs.max(1);
        let rounds = u64::from(self.front.room.in_system() / num_running).max(1);
        let service_us = self.engines.iter().map(|engine| engine.service_us()).max();
        let micros = service_us.unwrap_or(0).saturating_mul(rounds);
        // Below 60, so the cast is exact.
        micros.div_ceil(1_000_000).clamp(1, 60) as u32
    }

    fn check_ids(&self, ids: &[u32]) -> Result<(), EngineError> {
        let size = self.front.served.vocab_size;
        match ids.iter().enumerate().find(|(_, id)| **id >= size) {
            None => Ok(()),
            Some((i, id)) => {
                Err(outside_the_vocabulary(&format!("tokens[{i}]"), i64::from(*id), size))
            }
        }
    }

    /// A small number for each name; there are as many names as API keys.
    fn tenant(&self, name: &str) -> Arc<TenantLoad> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tenant) = tenants.get(name) {
            return Arc::clone(tenant);
        }
        let tenant = Arc::new(TenantLoad::new(TenantId(tenants.len() as u32)));
        tenants.insert(name.to_owned(), Arc::clone(&tenant));
        tenant
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("model", &self.front.served.name).finish_non_exhaustive()
    }
}

/// What all requests that may run at once can fill of a KV pool.
fn useful_kv_bytes(front: &Front, engine: &LoadedEngine) -> u64 {
    let shape = engine.executor.shape();
    let block_bytes = engine.executor.kv_memory().map_or(0, |kv| kv.block_bytes);
    // One more for the tokens of steps ahead.
    let places = u64::from(front.served.max_model_len.div_ceil(shape.block_size)) + 1;
    let blocks = places * u64::from(shape.max_num_seqs) * shape.kv_groups.len() as u64;
    blocks.saturating_mul(block_bytes)
}

/// Key 0 is the engines' own.
const FIRST_SERIAL: u64 = 1;
/// What /detokenize answers at most: more than any body of ids becomes with published vocabularies.
const MAX_TEXT_BYTES: usize = 64 << 20;
/// Until a model's first return: bytes that come back in a microsecond, as from files in the page cache.
const RETURN_BYTES_PER_US: u64 = 2000;
const LOAD_PANIC: &str = "internal error while the model was loaded; the line before says where";
