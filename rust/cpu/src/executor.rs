//! [5] The CPU implementation of `Executor`: plans go into a queue, and one driver thread runs them
//! in order. `submit` and `sample` run on the engine thread and only touch the queue.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ingle_core::{
    CompletionSink, Executor, ExecutorError, ExecutorShape, KvMemory, ResizeSink, RestSink,
    RowMask, SleepLevel, StepCompletion, StepId, StepPlan,
};
use ingle_model::{CopyPlan, ModelSpec, WeightSource};

use crate::config::{kv_bytes_per_block, kv_groups};
use crate::step::{Limits, Stepper};
use crate::weight_store::WeightStore;
use crate::{CpuConfig, CpuError, Model};

/// Runs plans on the CPU.
#[derive(Debug)]
pub struct CpuExecutor {
    shape: ExecutorShape,
    description: (&'static str, usize),
    /// Bytes of a KV block on all ranks.
    block_bytes: u64,
    /// For siblings, and for the driver when it wakes up.
    store: Arc<WeightStore>,
    inbox: Arc<Inbox>,
    driver: Option<JoinHandle<()>>,
}

/// What the engine thread leaves for the driver.
#[derive(Debug, Default)]
struct Inbox {
    state: Mutex<InboxState>,
    changed: Condvar,
}

#[derive(Default)]
struct InboxState {
    plans: VecDeque<StepPlan>,
    masks: VecDeque<(StepId, Vec<RowMask>)>,
    /// Only while no step is in flight.
    rest: Option<(Rest, RestSink)>,
    /// Blocks that the KV pool is to have.
    resize: Option<(u32, ResizeSink)>,
    shutdown: bool,
    /// Why nothing can run any more.
    lost: Option<String>,
}

/// What the driver gets to do.
enum Work {
    Step(StepPlan),
    Rest(Rest, RestSink),
    Resize(u32, ResizeSink),
}

/// To sleep or to wake up.
#[derive(Clone, Copy, Debug)]
enum Rest {
    Sleep,
    Wake,
}

impl CpuExecutor {
    /// Reads the weights, allocates the KV blocks, and starts the driver and its workers.
    ///
    /// # Errors
    /// `CpuError`, one line that names tensor or setting.
    ///
    /// # Blocking
    /// For as long as the weights take to read.
    pub fn load(
        spec: &ModelSpec,
        plan: &CopyPlan,
        source: &Arc<dyn WeightSource>,
        config: &CpuConfig,
        sink: CompletionSink,
    ) -> Result<Self, CpuError> {
        let store = WeightStore::new(spec, plan, source, config)?;
        Self::start(Arc::new(store), config, sink)
    }

    /// Starts another executor on this one's weights, with KV blocks and threads of its own.
    ///
    /// # Errors
    /// `CpuError`, one line that names the setting.
    pub fn sibling(&self, config: &CpuConfig, sink: CompletionSink) -> Result<Self, CpuError> {
        Self::start(Arc::clone(&self.store), config, sink)
    }

    fn start(
        store: Arc<WeightStore>,
        config: &CpuConfig,
        sink: CompletionSink,
    ) -> Result<Self, CpuError> {
        let spec = store.spec();
        let specs = (spec.clone(), store.of_rank().clone());
        let model = Model::new(specs, config, |pool| store.take(pool))?;
        let description = model.description();
        let vocab = spec.vocab_size;
        let num_valid = if config.num_valid_tokens == 0 { vocab } else { config.num_valid_tokens };
        let limits = Limits {
            block_size: config.block_size,
            kv_groups: kv_groups(spec),
            num_slots: config.num_slots,
            num_snapshots: config.num_snapshots,
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            max_model_len: config.max_model_len,
            num_valid: num_valid.min(vocab) as usize,
        };
        let stepper = Stepper::new(model, limits);
        let inbox = Arc::new(Inbox::default());
        let (driver_inbox, driver_store) = (Arc::clone(&inbox), Arc::clone(&store));
        let driver = std::thread::Builder::new()
            .name(format!("ingle-cpu-{}", config.first_thread))
            .spawn(move || drive(stepper, &driver_inbox, &driver_store, &sink))
            .map_err(CpuError::Thread)?;
        let shape = config.shape(spec);
        let ranks = u64::from(config.tensor_parallel_size.max(1));
        let block_bytes = ranks * kv_bytes_per_block(store.of_rank(), config.block_size);
        Ok(Self { shape, description, block_bytes, store, inbox, driver: Some(driver) })
    }

    /// Name of the vector path and number of threads that compute, for the start-up message.
    #[must_use]
    pub fn description(&self) -> (&'static str, usize) {
        self.description
    }
}

impl Executor for CpuExecutor {
    fn shape(&self) -> ExecutorShape {
        self.shape
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), ExecutorError> {
        let mut state = self.inbox.lock();
        if let Some(reason) = &state.lost {
            return Err(ExecutorError::DeviceLost(reason.clone()));
        }
        state.plans.push_back(plan);
        drop(state);
        self.inbox.changed.notify_one();
        Ok(())
    }

    fn sample(&mut self, step: StepId, masks: Vec<RowMask>) -> Result<(), ExecutorError> {
        let mut state = self.inbox.lock();
        if let Some(reason) = &state.lost {
            return Err(ExecutorError::DeviceLost(reason.clone()));
        }
        state.masks.push_back((step, masks));
        drop(state);
        self.inbox.changed.notify_one();
        Ok(())
    }

    /// Weights are read again from the checkpoint's open files: nothing of them stays in memory at any level.
    fn deepest_sleep(&self) -> SleepLevel {
        if self.store.keeps_files() { SleepLevel::Discard } else { SleepLevel::Pause }
    }

    fn sleep(&mut self, level: SleepLevel, done: RestSink) {
        match level {
            SleepLevel::Pause => done(Ok(())),
            SleepLevel::Offload | SleepLevel::Discard => self.rest(Rest::Sleep, done),
        }
    }

    fn wake(&mut self, done: RestSink) {
        self.rest(Rest::Wake, done);
    }

    fn kv_memory(&self) -> Option<KvMemory> {
        Some(KvMemory::of_blocks(self.shape.num_blocks, self.block_bytes))
    }

    fn resize_kv(&mut self, bytes: u64, done: ResizeSink) {
        let num_blocks = u32::try_from(bytes / self.block_bytes.max(1)).unwrap_or(u32::MAX);
        let bytes = u64::from(num_blocks) * self.block_bytes;
        let mut state = self.inbox.lock();
        if let Some(reason) = state.lost.clone() {
            drop(state);
            return done(Err(ExecutorError::DeviceLost(reason)));
        }
        self.shape.num_blocks = num_blocks;
        let done: ResizeSink = Box::new(move |resized| done(resized.map(|_| bytes)));
        state.resize = Some((num_blocks, done));
        drop(state);
        self.inbox.changed.notify_one();
    }
}

impl CpuExecutor {
    fn rest(&self, rest: Rest, done: RestSink) {
        let mut state = self.inbox.lock();
        if let Some(reason) = state.lost.clone() {
            drop(state);
            return done(Err(ExecutorError::DeviceLost(reason)));
        }
        state.rest = Some((rest, done));
        drop(state);
        self.inbox.changed.notify_one();
    }
}

impl Drop for CpuExecutor {
    /// The running step ends, steps still queued complete with an error.
    fn drop(&mut self) {
        self.inbox.lock().shutdown = true;
        self.inbox.changed.notify_one();
        if let Some(driver) = self.driver.take() {
            // The driver catches panics of its steps; there is nothing to report.
            let _ = driver.join();
        }
    }
}

impl InboxState {
    /// A rest has no step before it: none is in flight then. No step in the queue names a block that a smaller pool lacks.
    fn next(&mut self) -> Option<Work> {
        let rest = self.rest.take().map(|(rest, done)| Work::Rest(rest, done));
        let resize = || self.resize.take().map(|(blocks, done)| Work::Resize(blocks, done));
        rest.or_else(resize).or_else(|| self.plans.pop_front().map(Work::Step))
    }
}

impl fmt::Debug for InboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxState").field("plans", &self.plans).finish_non_exhaustive()
    }
}

impl Inbox {
    /// No state here is left half-written by a panic.
    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until `take` finds something or the executor is dropped (`None`).
    fn wait<T>(&self, mut take: impl FnMut(&mut InboxState) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        loop {
            if state.shutdown {
                return None;
            }
            if let Some(found) = take(&mut state) {
                return Some(found);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The driver thread.
fn drive(mut stepper: Stepper, inbox: &Inbox, store: &WeightStore, sink: &CompletionSink) {
    while let Some(work) = inbox.wait(InboxState::next) {
        let plan = match work {
            Work::Step(plan) => plan,
            Work::Rest(rest, done) => {
                let result = catch_unwind(AssertUnwindSafe(|| match rest {
                    Rest::Sleep => {
                        stepper.sleep();
                        Ok(())
                    }
                    Rest::Wake => stepper.wake(store),
                }));
                done(result.unwrap_or_else(|panic| Err(lose(inbox, &*panic))));
                continue;
            }
            Work::Resize(num_blocks, done) => {
                let resized = catch_unwind(AssertUnwindSafe(|| stepper.resize_kv(num_blocks)));
                let resized = resized.unwrap_or_else(|panic| Err(lose(inbox, &*panic)));
                done(resized.map(|()| 0));
                continue;
            }
        };
        let id = plan.id;
        let wait_for_masks = || {
            inbox.wait(|state| {
                let at = state.masks.iter().position(|(step, _)| *step == id)?;
                state.masks.remove(at).map(|(_, masks)| masks)
            })
        };
        let result = catch_unwind(AssertUnwindSafe(|| stepper.run(plan, wait_for_masks)));
        let result = result.unwrap_or_else(|panic| Err(lose(inbox, &*panic)));
        let is_lost = matches!(result, Err(ExecutorError::DeviceLost(_)));
        sink(StepCompletion { id, result });
        if is_lost {
            break;
        }
    }
    let mut state = inbox.lock();
    let reason = state.lost.get_or_insert_with(|| "the executor was dropped".to_owned()).clone();
    let plans = std::mem::take(&mut state.plans);
    drop(state);
    for plan in plans {
        let result = Err(ExecutorError::DeviceLost(reason.clone()));
        sink(StepCompletion { id: plan.id, result });
    }
}

/// After a panic nothing runs any more.
fn lose(inbox: &Inbox, panic: &(dyn std::any::Any + Send)) -> ExecutorError {
    let reason = panic_message(panic);
    inbox.lock().lost = Some(reason.clone());
    ExecutorError::DeviceLost(reason)
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    format!("the cpu executor panicked: {text}")
}
