//! [1] [2] [3] The engine as other threads see it: requests in, events out. Any thread may call any
//! method. Only `shutdown` waits for the engine thread.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use ingle_core::TenantId;

use crate::engine_thread::EngineThread;
use crate::error::{EngineError, shortened};
use crate::guard::{Reservation, fault_point, guarded};
use crate::inbox::Message;
use crate::load::{Loaded, load};
use crate::memory::Memory;
use crate::options::EngineOptions;
use crate::outbox::Event;
use crate::prepare::{num_choices, parse, prepare};
use crate::prompt::encode_prompt;
use crate::sampling::outside_the_vocabulary;
use crate::shared::{EngineState, Shared};
use crate::stream::ClientSocket;
use crate::tenant_load::TenantLoad;
use crate::threads::{self, USUAL_STACK_BYTES};
use crate::wire::PromptInput;

/// A loaded model and its engine thread. Dropping it shuts it down.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    info: Vec<u8>,
    block_size: u32,
    num_blocks: u32,
    health_stall_us: u64,
    next_key: AtomicU64,
    memory: Memory,
    tenants: Mutex<HashMap<String, Arc<TenantLoad>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Loads the model named in the JSON document and starts the engine thread; blocks until it can
    /// serve.
    ///
    /// # Errors
    /// `EngineError::Model`, one line that names the setting, or file and field.
    pub fn start(options: &[u8]) -> Result<Self, EngineError> {
        let options: EngineOptions = serde_json::from_slice(options)
            .map_err(|error| EngineError::Model(format!("engine options: {error}")))?;
        // A file of the model, or the library that reads it, is at fault: named by the log, not by the panic.
        let loaded = catch_unwind(AssertUnwindSafe(|| load(&options)));
        Self::run(&options, loaded.unwrap_or_else(|_| Err(EngineError::Model(LOAD_PANIC.into())))?)
    }

    /// Starts the engine thread of what has been loaded.
    pub(crate) fn run(options: &EngineOptions, loaded: Loaded) -> Result<Self, EngineError> {
        let Loaded { shared, scheduler, executor, info, sizes } = loaded;
        let thread = EngineThread::new(Arc::clone(&shared), scheduler, executor)?;
        let thread = threads::start("ingle-engine", USUAL_STACK_BYTES, move || thread.run())?;
        Ok(Self {
            shared,
            info,
            block_size: sizes.block_size,
            num_blocks: sizes.num_blocks,
            health_stall_us: u64::from(options.health_stall_s) * 1_000_000,
            next_key: AtomicU64::new(FIRST_KEY),
            memory: Memory::open(),
            tenants: Mutex::default(),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// JSON: served model, limits, sampling defaults, executor sizes, start-up times.
    #[must_use]
    pub fn info(&self) -> &[u8] {
        &self.info
    }

    /// Becomes readable when `drain` has something.
    #[must_use]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.outbox.fd()
    }

    /// Validates, tokenises and queues one request; gives its key. Blocking: as long as tokenising
    /// takes.
    ///
    /// # Errors
    /// `Refused`, `Overloaded`, `Failed` or `Fatal`; then nothing was queued.
    pub fn submit(&self, document: &[u8]) -> Result<u64, EngineError> {
        self.check_serving()?;
        guarded(|| self.submit_guarded(document))
    }

    fn submit_guarded(&self, document: &[u8]) -> Result<u64, EngineError> {
        let request = parse(document)?;
        let count = num_choices(&request, &self.shared.served)?;
        let tenant = self.tenant(&request.tenant);
        let Some(room) = Reservation::take(&self.shared, &tenant, count) else {
            self.shared.metrics.rejections.fetch_add(1, Ordering::Relaxed);
            return Err(EngineError::Overloaded {
                message: format!(
                    "{} requests are running or waiting, {count} more would exceed the limit of {}",
                    self.shared.in_system(),
                    self.shared.served.capacity
                ),
                retry_after_s: self.shared.retry_after_s(),
                status: 429,
            });
        };
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        let now = self.shared.clock.now();
        let submission = prepare(&request, &self.shared.served, key, tenant.id, now)?;
        fault_point("queue");
        let message = Message::Submit(Box::new(submission), Arc::clone(&tenant));
        self.shared.inbox.put_for_next_step(message).map_err(|_| self.stopped())?;
        room.hand_over();
        Ok(key)
    }

    /// Ends a request; no further event carries `key`. Unknown keys are ignored.
    pub fn abort(&self, key: u64) {
        self.shared.outbox.silence(key);
        if self.shared.inbox.put_for_next_step(Message::Abort(key)).is_err() {
            self.shared.outbox.forget(key);
        }
    }

    /// Lets the engine send the frames of `key` on `socket` itself, provided that all frames of it that
    /// were ever handed out have been seen. Otherwise nothing changes and frames go on coming through
    /// `drain`, as they do again from the first frame on that the socket does not take at once: if that
    /// is the one behind the head as `Payload::Headed`; a `Frame` says that the head was not used.
    pub fn attach_socket(&self, key: u64, socket: ClientSocket) {
        // While this copy of the socket lies anywhere, the client of a request that has ended meanwhile
        // sees no end of the connection: a step at most.
        let _ = self.shared.inbox.put_for_next_step(Message::Attach(key, socket));
    }

    /// Sends an SSE comment on a stream to which nothing was sent for ten seconds.
    pub fn ping(&self, key: u64) {
        // A stopped engine has ended every stream.
        let _ = self.shared.inbox.put(Message::Ping(key));
    }

    /// Clears the eventfd and takes all events.
    #[must_use]
    pub fn drain(&self) -> Vec<Event> {
        self.shared.outbox.drain()
    }

    /// Token ids of one prompt, given as an entry of `prompts`.
    ///
    /// # Errors
    /// `Refused` or `Failed`.
    pub fn tokenize(&self, document: &[u8]) -> Result<Vec<u32>, EngineError> {
        guarded(|| {
            let prompt: PromptInput = serde_json::from_slice(document).map_err(|error| {
                EngineError::refused("prompt", format!("prompt: {}", shortened(&error)))
            })?;
            let encoded = encode_prompt(&prompt, &self.shared.served)?;
            fault_point("tokenize");
            Ok(encoded.ids.into_iter().map(|id| id.0).collect())
        })
    }

    /// Text of the ids, special tokens included.
    ///
    /// # Errors
    /// `Refused` for an id that the tokenizer does not have.
    pub fn detokenize(&self, ids: &[u32]) -> Result<String, EngineError> {
        self.check_ids(ids)?;
        guarded(|| Ok(self.shared.served.tokenizer.decode(ids, false)))
    }

    /// Each id's own text, lossy.
    ///
    /// # Errors
    /// `Refused` for an id that the tokenizer does not have.
    pub fn token_texts(&self, ids: &[u32]) -> Result<Vec<String>, EngineError> {
        self.check_ids(ids)?;
        let tokenizer = &self.shared.served.tokenizer;
        let text = |&id: &u32| {
            String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default()).into_owned()
        };
        Ok(ids.iter().map(text).collect())
    }

    /// Blocks until the device has done what it began at load, so that it makes no system call from now on but to run
    /// steps. For a process that gives such calls up.
    pub fn seal_device(&self) {
        self.shared.metrics.seal_device();
    }

    /// Bytes of memory that this process may still take before the least of its limits; a few system
    /// calls. What is `enough` or more may be too low.
    #[must_use]
    pub fn memory_room(&self, enough: u64) -> u64 {
        self.memory.room_if_below(enough)
    }

    /// Prometheus text.
    #[must_use]
    pub fn metrics(&self) -> String {
        let name = &self.shared.served.name;
        self.shared.metrics.render(name, self.block_size, self.num_blocks)
    }

    /// JSON: status, step counter, running, waiting. `stuck` means that work waits and nothing has
    /// moved for the time set in the options; measured here, no timer runs.
    #[must_use]
    pub fn health(&self) -> Vec<u8> {
        let metrics = &self.shared.metrics;
        let in_system = self.shared.in_system();
        let standstill = if in_system > 0 { self.shared.standstill_us() } else { 0 };
        let status = status_word(self.shared.state(), standstill, self.health_stall_us);
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        serde_json::json!({
            "status": status,
            "steps": read(&metrics.steps),
            "running": read(&metrics.gauges.running),
            "waiting": u64::from(in_system).saturating_sub(read(&metrics.gauges.running)),
            "in_system": in_system,
            "capacity": self.shared.served.capacity,
            "standstill_s": standstill as f64 / 1e6,
        })
        .to_string()
        .into_bytes()
    }

    /// Refuses new requests from now on; running ones go on.
    pub fn start_drain(&self) {
        self.shared.advance(EngineState::Draining);
    }

    /// Aborts what runs and stops all threads; blocks until they have ended. Idempotent.
    pub fn shutdown(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A closed inbox means that the thread has ended already.
            let _ = self.shared.inbox.put(Message::Shutdown);
            // The thread catches its own panics.
            let _ = thread.join();
        }
    }

    fn check_serving(&self) -> Result<(), EngineError> {
        match self.shared.state() {
            EngineState::Serving => Ok(()),
            EngineState::Draining => Err(EngineError::Overloaded {
                message: "the server finishes its requests and takes no new ones".to_owned(),
                retry_after_s: self.shared.retry_after_s(),
                status: 503,
            }),
            EngineState::Stopped | EngineState::Dead => Err(self.stopped()),
        }
    }

    fn stopped(&self) -> EngineError {
        EngineError::Fatal(match self.shared.state() {
            EngineState::Dead => "the engine died of a fault".to_owned(),
            _ => "the engine has been shut down".to_owned(),
        })
    }

    fn check_ids(&self, ids: &[u32]) -> Result<(), EngineError> {
        let size = self.shared.served.vocab_size;
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

/// The word that `/health` shows; `standstill` counts only while work waits.
pub(crate) fn status_word(state: EngineState, standstill: u64, limit: u64) -> &'static str {
    match state {
        EngineState::Dead | EngineState::Stopped => "dead",
        _ if standstill > limit => "stuck",
        EngineState::Draining => "draining",
        EngineState::Serving => "ok",
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("model", &self.shared.served.name).finish_non_exhaustive()
    }
}

/// 0 is the engine's own.
const FIRST_KEY: u64 = 1;
const LOAD_PANIC: &str = "internal error while the model was loaded; the line before says where";
