//! An engine on a tiny model whose executor says what the test wants, when the test wants it.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use ingle_core::{
    CompletionSink, Executor, ExecutorError, ExecutorShape, KvGroups, KvMemory, Micros, ResizeSink,
    RestSink, RowMask, RowOutput, RowStatus, SampleMode, SleepLevel, SlotId, StepCompletion,
    StepId, StepOutput, StepPlan, TokenId, TokenLogProbs, TokenSource,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use serde_json::{Value, json};

use super::seals::Seals;
use crate::Engine;
use crate::device::{Built, DeviceOwn};
use crate::error::EngineError;
use crate::load::{Loaded, load_with};
use crate::options::EngineOptions;
use crate::outbox::{Event, Payload};
use crate::shared_device::SharedDevice;
use crate::sizes::Sizes;

/// What every request answers, by its prompt: token `index` of the output.
pub(super) type Script = Box<dyn Fn(&[TokenId], usize) -> TokenId + Send>;

/// Engine and the hand on its executor.
pub(super) struct Bench {
    pub(super) engine: Engine,
    /// Of the first executor, which mostly is the only one.
    pub(super) driver: Driver,
    /// Of those that follow.
    pub(super) more_drivers: Vec<Driver>,
}

/// Sizes of the scripted executor.
pub(super) const SHAPE: ExecutorShape = ExecutorShape {
    num_blocks: 64,
    block_size: 4,
    kv_groups: KvGroups::ONE,
    keeps_state: false,
    num_snapshots: 0,
    num_slots: 8,
    max_num_seqs: 4,
    max_num_batched_tokens: 64,
    max_steps_in_flight: 2,
    row_tile: 1,
    tenant_rows: 32,
    steady_rows: u32::MAX,
    busy_rows: u32::MAX,
    pause: Micros(30_000),
    vocab_size: 512,
};
pub(super) const MAX_MODEL_LEN: u32 = 200;
pub(super) const MAX_QUEUE: u32 = 6;
/// Of each model on a shared device.
pub(super) const MODEL_BYTES: u64 = 100;

impl Bench {
    /// Steps complete as soon as they are submitted, one at a time: each token has its own event.
    pub(super) fn auto(script: Script) -> Self {
        Self::new(script, true, 1)
    }

    /// Steps complete when `driver.step` says so, two of them in flight.
    pub(super) fn manual(script: Script) -> Self {
        Self::new(script, false, 2)
    }

    /// Like `manual`, one step in flight: each token has its own event.
    pub(super) fn lockstep(script: Script) -> Self {
        Self::new(script, false, 1)
    }

    /// Like `auto`, with another chat template.
    pub(super) fn with_template(script: Script, template: &str) -> Self {
        Self::build(script, (true, 1), json!({ "chat_template": template }))
    }

    fn new(script: Script, auto: bool, max_steps_in_flight: u32) -> Self {
        Self::build(script, (auto, max_steps_in_flight), json!({}))
    }

    fn build(script: Script, steps: (bool, u32), more: Value) -> Self {
        let (options, loaded, driver) = loaded(script, steps, &more);
        Self {
            engine: Engine::run(&options, loaded, None).unwrap(),
            driver,
            more_drivers: Vec::new(),
        }
    }

    /// Like `manual`, on a device that other models use too.
    pub(super) fn on(device: &SharedDevice, script: Script) -> Self {
        Self::try_on(device, (false, 2), script, &json!({})).unwrap()
    }

    /// The same with steps as `loaded` has them; the model takes `MODEL_BYTES`.
    pub(super) fn try_on(
        device: &SharedDevice,
        steps: (bool, u32),
        script: Script,
        more: &Value,
    ) -> Result<Self, EngineError> {
        Self::shared(device, loaded(script, steps, more), MODEL_BYTES)
    }

    /// The same with a KV pool that can grow and shrink; weights take nothing.
    pub(super) fn try_pooled(
        device: &SharedDevice,
        steps: (bool, u32),
        script: Script,
        more: &Value,
    ) -> Result<Self, EngineError> {
        let pool = u64::from(SHAPE.num_blocks);
        let parts = loaded(script, steps, more);
        parts.2.state.0.lock().unwrap().pool = Some(pool);
        Self::shared(device, parts, pool)
    }

    fn shared(device: &SharedDevice, parts: Parts, bytes: u64) -> Result<Self, EngineError> {
        let (options, mut loaded, driver) = parts;
        loaded.memory_bytes = bytes;
        let engine = Engine::run(&options, loaded, Some(device))?;
        Ok(Self { engine, driver, more_drivers: Vec::new() })
    }

    /// Two engines; steps complete when the driver of each says so.
    pub(super) fn pair(script: fn() -> Script) -> Self {
        let more = json!({ "data_parallel_size": 2 });
        let (options, loaded, mut drivers) = several(&script, (false, 1), &more);
        let driver = drivers.remove(0);
        Self { engine: Engine::run(&options, loaded, None).unwrap(), driver, more_drivers: drivers }
    }

    /// Submits a request given as JSON.
    pub(super) fn submit(&self, request: &Value) -> Result<u64, EngineError> {
        self.engine.submit(request.to_string().as_bytes())
    }

    /// Events up to and including the end of each of `keys`; sleeps while there are none.
    pub(super) fn collect(&self, keys: &[u64]) -> Vec<Event> {
        let mut open = keys.to_vec();
        let mut events = Vec::new();
        while !open.is_empty() {
            let fd = self.engine.event_fd();
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
            for event in self.engine.drain() {
                if !matches!(event.payload, Payload::Frame(_) | Payload::Delta(_)) {
                    open.retain(|key| *key != event.key);
                }
                events.push(event);
            }
        }
        events
    }

    /// Waits for events or for a step; gives the events, or completes the step and gives none.
    pub(super) fn advance(&self) -> Vec<Event> {
        let (events, steps) = (self.engine.event_fd(), &*self.driver.pending);
        let mut fds = [PollFd::new(&events, PollFlags::IN), PollFd::new(steps, PollFlags::IN)];
        poll(&mut fds, None).unwrap();
        if fds[0].revents().is_empty() {
            self.driver.step();
            return Vec::new();
        }
        self.engine.drain()
    }

    /// All frames of one streamed request, joined.
    pub(super) fn stream(&self, request: &Value) -> String {
        let key = self.submit(request).unwrap();
        let mut out = Vec::new();
        for event in self.collect(&[key]) {
            if let Payload::Frame(frame) = event.payload {
                out.extend_from_slice(&frame);
            }
        }
        String::from_utf8(out).unwrap()
    }

    /// The body of one plain request.
    pub(super) fn body(&self, request: &Value) -> Value {
        let key = self.submit(request).unwrap();
        match self.collect(&[key]).pop().unwrap().payload {
            Payload::Body(body) => serde_json::from_slice(&body).unwrap(),
            other => panic!("no body but {other:?}"),
        }
    }

    /// Token ids of a text, nothing put in front.
    pub(super) fn ids(&self, text: &str) -> Vec<TokenId> {
        let ids = self.engine.front.served.tokenizer.encode(text, false).unwrap();
        ids.into_iter().map(TokenId).collect()
    }

    /// Steps that the engine thread has seen the end of.
    pub(super) fn steps(&self) -> u64 {
        self.engine.engines[0].metrics.steps.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// How often each device has been sealed.
    pub(super) fn seals(&self) -> Vec<u64> {
        let drivers = std::iter::once(&self.driver).chain(&self.more_drivers);
        drivers.map(|driver| driver.seals.load(Ordering::Relaxed)).collect()
    }

    /// KV blocks in use when the engine thread last looked.
    pub(super) fn blocks_used(&self) -> u64 {
        let gauges = &self.engine.engines[0].metrics.gauges;
        gauges.blocks_used.load(std::sync::atomic::Ordering::Relaxed)
    }
}

type Parts = (EngineOptions, Loaded, Driver);

/// What an engine thread needs, and the hand on its executor. Steps complete by themselves if `auto`.
pub(super) fn loaded(script: Script, steps: (bool, u32), more: &Value) -> Parts {
    let script = Mutex::new(Some(script));
    let (options, loaded, mut drivers) =
        several(&|| script.lock().unwrap().take().unwrap(), steps, more);
    (options, loaded, drivers.remove(0))
}

/// The same for as many engines as `more` asks for, each with its own script.
fn several(
    script: &dyn Fn() -> Script,
    (auto, max_steps_in_flight): (bool, u32),
    more: &Value,
) -> (EngineOptions, Loaded, Vec<Driver>) {
    let mut options = json!({ "model": model_path(), "served_model_name": "tiny", "seed": 1 });
    for (key, value) in more.as_object().unwrap() {
        options[key] = value.clone();
    }
    let options: EngineOptions = serde_json::from_value(options).unwrap();
    let mut drivers = Vec::new();
    let build = |_: &_, _: &_, sinks: Vec<CompletionSink>| -> Result<Vec<Built>, EngineError> {
        let build_one = |sink| {
            let driver = Driver::new();
            let mut state = driver.state.0.lock().unwrap();
            state.device = Some(Device { script: script(), slots: HashMap::new(), sink });
            state.auto = auto;
            drop(state);
            let executor = Box::new(ScriptExecutor { driver: driver.clone(), max_steps_in_flight });
            let (name, memory) = ("script".to_owned(), Vec::new());
            let own: Arc<dyn DeviceOwn> = Arc::new(Seals(Arc::clone(&driver.seals)));
            drivers.push(driver);
            Built {
                executor,
                sizes: sizes(),
                name,
                memory,
                open_files: Vec::new(),
                own: Some(own),
                phases: Vec::new(),
            }
        };
        Ok(sinks.into_iter().map(build_one).collect())
    };
    let loaded = load_with(&options, build).unwrap();
    (options, loaded, drivers)
}

/// The JSON of every event of a stream without chunk framing; `[DONE]` must be the last.
pub(super) fn events_of(stream: &str) -> Vec<Value> {
    let mut events: Vec<&str> = stream.split_terminator("\n\n").collect();
    assert_eq!(events.pop(), Some("data: [DONE]"), "{stream}");
    let parse = |event: &&str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
    events.iter().map(parse).collect()
}

/// A tokenizer like the engine's, for scripts that need ids before there is an engine.
pub(super) fn tokenizer() -> ingle_text::Tokenizer {
    let folder = model_path();
    let json = std::fs::read(folder.join("tokenizer.json")).unwrap();
    let config = std::fs::read(folder.join("tokenizer_config.json")).unwrap();
    ingle_text::Tokenizer::from_json(&json, Some(&config)).unwrap()
}

/// Answers every prompt with `text` and then end-of-text.
pub(super) fn says(text: &str) -> Script {
    let ids = tokenizer().encode(text, false).unwrap();
    Box::new(move |_, index| TokenId(ids.get(index).copied().unwrap_or(EOS)))
}

pub(super) const EOS: u32 = 1;

pub(super) fn model_path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/llama-tied-bf16"))
}

fn sizes() -> Sizes {
    Sizes {
        max_model_len: MAX_MODEL_LEN,
        max_num_seqs: SHAPE.max_num_seqs,
        max_num_batched_tokens: SHAPE.max_num_batched_tokens,
        block_size: SHAPE.block_size,
        num_blocks: SHAPE.num_blocks,
        kv_cache_bytes: 0,
        max_queue: MAX_QUEUE,
        notes: Vec::new(),
    }
}

/// Completes steps of a `ScriptExecutor`.
#[derive(Clone)]
pub(super) struct Driver {
    state: Arc<(Mutex<DriverState>, Condvar)>,
    /// Readable while steps wait.
    pending: Arc<OwnedFd>,
    /// How often the device has been sealed.
    seals: Arc<AtomicU64>,
}

#[derive(Default)]
struct DriverState {
    plans: VecDeque<StepPlan>,
    /// Masks of the oldest step, if it waits for some.
    masks: Option<Vec<RowMask>>,
    device: Option<Device>,
    auto: bool,
    /// Instead of the next output.
    error: Option<ExecutorError>,
    /// Rows of requests whose prompt has this many tokens are not finite.
    not_finite: Option<usize>,
    panic_on_submit: bool,
    /// How the next rests end; those behind them end well.
    rest_errors: VecDeque<Option<ExecutorError>>,
    /// Rests until now: the level of a sleep, `None` for waking up.
    rests: Vec<Option<SleepLevel>>,
    /// The next rest is kept in `held_rest`.
    holds_rest: bool,
    held_rest: Option<RestSink>,
    /// Bytes of the KV pool, one a block, if it can change.
    pool: Option<u64>,
}

struct Device {
    script: Script,
    slots: HashMap<SlotId, Slot>,
    sink: CompletionSink,
}

struct Slot {
    prompt: Arc<[TokenId]>,
    log_probs: Option<u32>,
}

impl Driver {
    fn new() -> Self {
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK;
        let pending = Arc::new(eventfd(0, flags).unwrap());
        Self { state: Arc::default(), pending, seals: Arc::default() }
    }

    /// Waits for the oldest step that is not complete, and completes it.
    pub(super) fn step(&self) {
        let mut state = self.state.0.lock().unwrap();
        while !state.is_ready() {
            state = self.state.1.wait(state).unwrap();
        }
        rustix::io::read(&*self.pending, &mut [0_u8; 8]).unwrap();
        state.complete();
    }

    /// Completes the oldest step that is not complete, if there is one; for tests that cannot know.
    pub(super) fn step_if_ready(&self) {
        let mut state = self.state.0.lock().unwrap();
        if state.is_ready() {
            rustix::io::read(&*self.pending, &mut [0_u8; 8]).unwrap();
            state.complete();
        }
    }

    /// Steps that are not complete.
    pub(super) fn num_pending(&self) -> usize {
        self.state.0.lock().unwrap().plans.len()
    }

    /// Readable while steps wait.
    pub(super) fn pending(&self) -> &OwnedFd {
        &self.pending
    }

    /// The next step that completes fails.
    pub(super) fn fail_next(&self, error: ExecutorError) {
        self.state.0.lock().unwrap().error = Some(error);
    }

    /// From now on prompts of this length give no finite number.
    pub(super) fn not_finite(&self, prompt_len: usize) {
        self.state.0.lock().unwrap().not_finite = Some(prompt_len);
    }

    /// The next rests of the executor end like this; `None` is well.
    pub(super) fn end_rests(&self, ends: &[Option<ExecutorError>]) {
        self.state.0.lock().unwrap().rest_errors.extend(ends.iter().cloned());
    }

    /// What the executor was asked: the level of a sleep, `None` for waking up.
    pub(super) fn rests(&self) -> Vec<Option<SleepLevel>> {
        self.state.0.lock().unwrap().rests.clone()
    }

    /// Bytes of the KV pool, which can change.
    pub(super) fn pool(&self) -> u64 {
        self.state.0.lock().unwrap().pool.unwrap()
    }

    /// The next rest does not end before what `held_rest` returns is called.
    pub(super) fn hold_rest(&self) {
        self.state.0.lock().unwrap().holds_rest = true;
    }

    /// Blocks until a rest is held; what this returns ends it.
    pub(super) fn held_rest(&self) -> impl FnOnce() {
        let mut state = self.state.0.lock().unwrap();
        loop {
            if let Some(done) = state.held_rest.take() {
                return || done(Ok(()));
            }
            state = self.state.1.wait(state).unwrap();
        }
    }

    /// The next submit panics.
    pub(super) fn panic_next(&self) {
        self.state.0.lock().unwrap().panic_on_submit = true;
    }
}

impl DriverState {
    /// The oldest step, if there is one, has the masks that it needs.
    fn is_ready(&self) -> bool {
        let is_late =
            |plan: &StepPlan| plan.rows.iter().any(|row| row.wants.sample == SampleMode::Late);
        self.plans.front().is_some_and(|plan| self.masks.is_some() || !is_late(plan))
    }

    fn complete(&mut self) {
        let plan = self.plans.pop_front().unwrap();
        let masks = self.masks.take().unwrap_or_default();
        let device = self.device.as_mut().unwrap();
        let output = device.output(&plan, &masks, self.not_finite);
        let result = self.error.take().map_or(Ok(output), Err);
        (device.sink)(StepCompletion { id: plan.id, result });
    }
}

impl Device {
    fn output(
        &mut self,
        plan: &StepPlan,
        masks: &[RowMask],
        not_finite: Option<usize>,
    ) -> StepOutput {
        for slot in &plan.closed {
            self.slots.remove(slot);
        }
        for opened in &plan.opened {
            let slot =
                Slot { prompt: Arc::clone(&opened.prompt), log_probs: opened.sampling.log_probs };
            self.slots.insert(opened.slot, slot);
        }
        let mut output = StepOutput { id: plan.id, ..StepOutput::default() };
        for row in &plan.rows {
            let slot = &self.slots[&row.slot];
            let mut result = RowOutput {
                slot: row.slot,
                status: RowStatus::Ok,
                num_tokens: 0,
                log_probs: Vec::new(),
                prompt_log_probs: Vec::new(),
                pooled: Vec::new(),
            };
            if let (Some(top), TokenSource::Host(ids)) = (row.wants.prompt_log_probs, &row.source) {
                let targets = ids.iter().skip(1).copied().chain(row.wants.next_prompt_token);
                result.prompt_log_probs = targets.map(|id| log_probs(id, top)).collect();
            }
            if not_finite == Some(slot.prompt.len()) {
                result.status = RowStatus::NotFinite;
            } else if row.wants.sample != SampleMode::None {
                let index = (row.start + row.num_tokens) as usize - slot.prompt.len();
                let mut token = (self.script)(&slot.prompt, index);
                if row.wants.sample == SampleMode::Late {
                    let mask = masks.iter().find(|mask| mask.slot == row.slot).unwrap();
                    token = masked(token, &mask.allowed);
                }
                output.tokens.push(token);
                result.num_tokens = 1;
                result.log_probs =
                    slot.log_probs.map(|top| log_probs(token, top)).into_iter().collect();
            }
            output.rows.push(result);
        }
        output
    }
}

/// The token if the mask allows it, else the lowest that it does.
fn masked(token: TokenId, allowed: &[u32]) -> TokenId {
    assert_eq!(allowed.len(), SHAPE.vocab_size.div_ceil(32) as usize);
    let allows = |id: u32| allowed[id as usize / 32] & (1 << (id % 32)) != 0;
    let lowest = (0..SHAPE.vocab_size).find(|&id| allows(id));
    if allows(token.0) { token } else { TokenId(lowest.unwrap()) }
}

/// -0.5 for the token itself, -1.5 for the next id, and so on.
fn log_probs(token: TokenId, top: u32) -> TokenLogProbs {
    let top = (0..top).map(|k| (TokenId(token.0 + k), -0.5 - k as f32)).collect();
    TokenLogProbs { token, log_prob: -0.5, rank: 1, top }
}

struct ScriptExecutor {
    driver: Driver,
    max_steps_in_flight: u32,
}

impl ScriptExecutor {
    /// A step or masks came: what can complete does, or the test may let it.
    fn ready(&self, state: &mut DriverState) {
        while state.auto && state.is_ready() {
            state.complete();
        }
        self.driver.state.1.notify_all();
    }

    fn rest(&self, rest: Option<SleepLevel>, done: RestSink) {
        let mut state = self.driver.state.0.lock().unwrap();
        assert!(state.plans.is_empty(), "a rest while steps are in flight");
        state.rests.push(rest);
        let error = state.rest_errors.pop_front().flatten();
        if std::mem::take(&mut state.holds_rest) {
            state.held_rest = Some(done);
            self.driver.state.1.notify_all();
            return;
        }
        drop(state);
        done(error.map_or(Ok(()), Err));
    }
}

impl Executor for ScriptExecutor {
    fn shape(&self) -> ExecutorShape {
        ExecutorShape { max_steps_in_flight: self.max_steps_in_flight, ..SHAPE }
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), ExecutorError> {
        let mut state = self.driver.state.0.lock().unwrap();
        if std::mem::take(&mut state.panic_on_submit) {
            drop(state);
            panic!("the test wanted it");
        }
        state.plans.push_back(plan);
        if !state.auto {
            // Sent once a step; `step` itself waits for masks.
            rustix::io::write(&*self.driver.pending, &1_u64.to_ne_bytes()).unwrap();
        }
        self.ready(&mut state);
        Ok(())
    }

    fn sample(&mut self, step: StepId, masks: Vec<RowMask>) -> Result<(), ExecutorError> {
        let mut state = self.driver.state.0.lock().unwrap();
        let oldest = state.plans.front().unwrap();
        assert_eq!(oldest.id, step, "masks come for the oldest step");
        assert!(state.masks.replace(masks).is_none(), "masks of step {step} came twice");
        self.ready(&mut state);
        Ok(())
    }

    fn deepest_sleep(&self) -> SleepLevel {
        SleepLevel::Offload
    }

    fn sleep(&mut self, level: SleepLevel, done: RestSink) {
        self.rest(Some(level), done);
    }

    fn wake(&mut self, done: RestSink) {
        self.rest(None, done);
    }

    fn kv_memory(&self) -> Option<KvMemory> {
        let bytes = self.driver.state.0.lock().unwrap().pool?;
        Some(KvMemory { bytes, most_bytes: 1 << 20, block_bytes: 1, piece_bytes: 1 })
    }

    fn resize_kv(&mut self, bytes: u64, done: ResizeSink) {
        let mut state = self.driver.state.0.lock().unwrap();
        state.pool = Some(bytes);
        drop(state);
        done(Ok(bytes));
    }
}
