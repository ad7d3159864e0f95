//! [5] Completes each step after the time that a profile gives. One timer thread runs the steps as
//! a device would: strictly in order, each starting at its submission or at the end of the previous
//! step, whichever is later. The thread sleeps in one place, until a deadline, a command or the
//! end; when idle it uses no CPU. Of the sampling parameters only log-probs and masks have an
//! effect.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ingle_core::{
    CompletionSink, Executor, ExecutorError, ExecutorShape, KvMemory, PlanRow, ResizeSink, RowMask,
    RowOutput, RowStatus, SampleMode, SleepLevel, StepCompletion, StepId, StepOutput, StepPlan,
    TokenId,
};

use crate::answer::{log_probs_of, masked, pooled_of, prompt_log_probs_of};
use crate::{Answers, Profile, SimError};

/// What a simulated executor is built from.
#[derive(Clone, Debug, PartialEq)]
pub struct SimConfig {
    /// Step times.
    pub profile: Profile,
    /// How many times faster than the profile; infinite for no time at all.
    pub speed: f64,
    /// Sizes; `Profile::shape` makes them.
    pub shape: ExecutorShape,
}

/// Executor with a real clock.
#[derive(Debug)]
pub struct SimExecutor {
    shape: ExecutorShape,
    weight_tokens: u32,
    block_bytes: u64,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl SimExecutor {
    /// Starts the timer thread. `tokens` is the text to answer with; an end-of-text id at its end
    /// lets requests stop there.
    ///
    /// # Errors
    /// `SimError` if a setting makes no sense or the thread does not start.
    pub fn new(
        config: SimConfig,
        tokens: Arc<[TokenId]>,
        sink: CompletionSink,
    ) -> Result<Self, SimError> {
        config.profile.check()?;
        if config.speed.is_nan() || config.speed <= 0.0 {
            return Err(SimError::BadSpeed(config.speed));
        }
        if tokens.is_empty() {
            return Err(SimError::EmptyText);
        }
        let shape = config.shape;
        let weight_tokens = config.profile.weight_tokens();
        let block_bytes = config.profile.kv_bytes_per_token as u64 * u64::from(shape.block_size);
        if let Some(token) = tokens.iter().find(|token| token.0 >= shape.vocab_size) {
            return Err(SimError::UnknownToken { token: token.0, vocab_size: shape.vocab_size });
        }
        let shared = Arc::new(Shared::default());
        let mut device = Device {
            config,
            answers: Answers::new(tokens),
            slots: vec![SimSlot::default(); shape.num_slots as usize],
            free_at: Instant::now(),
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new()
            .name("ingle-sim".to_owned())
            .spawn(move || while device.run_next(&sink).is_some() {})
            .map_err(SimError::Thread)?;
        Ok(Self { shape, weight_tokens, block_bytes, shared, thread: Some(thread) })
    }
}

impl Executor for SimExecutor {
    fn shape(&self) -> ExecutorShape {
        self.shape
    }

    fn weight_tokens(&self) -> Option<u32> {
        Some(self.weight_tokens)
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), ExecutorError> {
        let mut inbox = self.shared.lock();
        inbox.steps.push_back((plan, Instant::now()));
        self.shared.wake_if(&inbox, WaitsFor::Step);
        Ok(())
    }

    fn sample(&mut self, step: StepId, masks: Vec<RowMask>) -> Result<(), ExecutorError> {
        let mut inbox = self.shared.lock();
        inbox.samples.push_back((step, masks));
        self.shared.wake_if(&inbox, WaitsFor::Masks);
        Ok(())
    }

    /// There are no weights and no blocks to give back.
    fn deepest_sleep(&self) -> SleepLevel {
        SleepLevel::Discard
    }

    fn kv_memory(&self) -> Option<KvMemory> {
        Some(KvMemory::of_blocks(self.shape.num_blocks, self.block_bytes))
    }

    /// There is nothing behind the numbers.
    fn resize_kv(&mut self, bytes: u64, done: ResizeSink) {
        let num_blocks = u32::try_from(bytes / self.block_bytes.max(1)).unwrap_or(u32::MAX);
        self.shape.num_blocks = num_blocks;
        done(Ok(u64::from(num_blocks) * self.block_bytes));
    }
}

impl Drop for SimExecutor {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook already.
            let _panicked = thread.join().is_err();
        }
    }
}

/// Between the engine thread and the timer thread.
#[derive(Debug, Default)]
struct Shared {
    inbox: Mutex<Inbox>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Inbox {
    steps: VecDeque<(StepPlan, Instant)>,
    samples: VecDeque<(StepId, Vec<RowMask>)>,
    is_closed: bool,
    waits_for: WaitsFor,
}

/// What the timer thread sleeps for; it is woken for nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WaitsFor {
    #[default]
    Time,
    Step,
    Masks,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // Nothing is left half done while the lock is held.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_if(&self, inbox: &Inbox, what: WaitsFor) {
        if inbox.waits_for == what {
            self.wake.notify_one();
        }
    }

    /// The one place where the timer thread sleeps: until `take` finds something, or until the
    /// deadline, or until the executor is dropped (the last two give nothing).
    fn wait<T>(
        &self,
        what: WaitsFor,
        deadline: Option<Instant>,
        mut take: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Option<T> {
        let mut inbox = self.lock();
        loop {
            if inbox.is_closed {
                return None;
            }
            if let Some(taken) = take(&mut inbox) {
                inbox.waits_for = WaitsFor::Time;
                return Some(taken);
            }
            inbox.waits_for = what;
            inbox = match deadline {
                None => self.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.wake.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// What the timer thread owns.
#[derive(Debug)]
struct Device {
    config: SimConfig,
    answers: Answers,
    slots: Vec<SimSlot>,
    /// When the step before ended, or will have.
    free_at: Instant,
    shared: Arc<Shared>,
}

/// State of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct SimSlot {
    offset: usize,
    num_prompt: u32,
    log_probs: Option<u32>,
}

impl Device {
    /// Runs one step; nothing once the executor is dropped.
    fn run_next(&mut self, sink: &CompletionSink) -> Option<()> {
        let (plan, submitted) =
            self.shared.wait(WaitsFor::Step, None, |inbox| inbox.steps.pop_front())?;
        if self.config.speed.is_finite() {
            let seconds = self.config.profile.step_seconds(&plan) / self.config.speed;
            let step_time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
            let start = submitted.max(self.free_at);
            let end = start.checked_add(step_time);
            self.shared.wait(WaitsFor::Time, end, |_| None::<()>);
            self.free_at = end.unwrap_or(start);
        }
        let is_late = plan.rows.iter().any(|row| row.wants.sample == SampleMode::Late);
        let masks = if is_late {
            let masks = self.shared.wait(WaitsFor::Masks, None, |inbox| {
                let place = inbox.samples.iter().position(|(step, _)| *step == plan.id)?;
                inbox.samples.remove(place)
            });
            self.free_at = self.free_at.max(Instant::now());
            masks?.1
        } else {
            Vec::new()
        };
        let output = self.output(&plan, &masks);
        if self.shared.lock().is_closed {
            return None;
        }
        sink(StepCompletion { id: plan.id, result: Ok(output) });
        Some(())
    }

    fn output(&mut self, plan: &StepPlan, masks: &[RowMask]) -> StepOutput {
        for opened in &plan.opened {
            self.slots[opened.slot.index()] = SimSlot {
                offset: self.answers.offset(&opened.prompt),
                num_prompt: u32::try_from(opened.prompt.len()).unwrap_or(u32::MAX),
                log_probs: opened.sampling.log_probs,
            };
        }
        let mut tokens = Vec::with_capacity(plan.rows.len());
        let rows = plan.rows.iter().map(|row| self.row_output(row, masks, &mut tokens)).collect();
        StepOutput { id: plan.id, rows, tokens }
    }

    fn row_output(&self, row: &PlanRow, masks: &[RowMask], tokens: &mut Vec<TokenId>) -> RowOutput {
        let vocab_size = self.config.shape.vocab_size;
        let slot = &self.slots[row.slot.index()];
        let mut output = RowOutput {
            slot: row.slot,
            status: RowStatus::Ok,
            num_tokens: 0,
            log_probs: Vec::new(),
            prompt_log_probs: prompt_log_probs_of(row, vocab_size),
            pooled: Vec::new(),
        };
        if row.wants.pooled.is_some_and(|pooled| pooled.is_last) {
            output.pooled = pooled_of(slot.offset, self.config.profile.hidden_size);
        }
        if row.wants.sample == SampleMode::None {
            return output;
        }
        let index = row.start + row.num_tokens - slot.num_prompt;
        let token = self.answers.token(slot.offset, index as usize);
        let mask = masks.iter().find(|mask| mask.slot == row.slot);
        match mask.map_or(Some(token), |mask| masked(token, &mask.allowed)) {
            Some(token) => {
                tokens.push(token);
                output.num_tokens = 1;
                let top = slot.log_probs;
                output.log_probs.extend(top.map(|top| log_probs_of(token, top, vocab_size)));
            }
            None => output.status = RowStatus::NotFinite,
        }
        output
    }
}
