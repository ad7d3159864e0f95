//! [6] Computes token masks during the device step, on its own threads: never on the event loop, never
//! on the engine thread. They start with the engine and sleep while there is no work.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ingle_text::GrammarError;

use crate::choice_mask::{MaskJob, MaskResult, Masked};
use crate::error::EngineError;
use crate::inbox::Message;
use crate::shared::Shared;
use crate::threads;

/// The threads. Dropping it ends them.
pub(crate) struct GrammarPool {
    queue: Arc<Queue>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    batches: VecDeque<Vec<MaskJob>>,
    closed: bool,
}

impl GrammarPool {
    /// Starts the threads: one a processor, up to `MAX_WORKERS`.
    ///
    /// # Errors
    /// `EngineError::Model` if one cannot be started.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self, EngineError> {
        let mut pool = Self { queue: Arc::default(), workers: Vec::new() };
        let num_workers = std::thread::available_parallelism().map_or(1, usize::from);
        for i in 0..num_workers.clamp(1, MAX_WORKERS) {
            let (shared, queue) = (Arc::clone(shared), Arc::clone(&pool.queue));
            let work = move || work(&shared, &queue);
            pool.workers.push(threads::start(&format!("ingle-mask-{i}"), STACK_BYTES, work)?);
        }
        Ok(pool)
    }

    /// Takes the jobs of one step. Results come to the inbox, one message a worker, so that a step
    /// costs few wake-ups however many grammars it has.
    pub(crate) fn put(&self, jobs: &mut Vec<MaskJob>) {
        if jobs.is_empty() {
            return;
        }
        let share = jobs.len().div_ceil(self.workers.len());
        let mut queue = self.queue.lock();
        while !jobs.is_empty() {
            let batch = jobs.split_off(jobs.len().saturating_sub(share));
            queue.batches.push_back(batch);
        }
        drop(queue);
        self.queue.wake.notify_all();
    }
}

impl Drop for GrammarPool {
    fn drop(&mut self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.batches.clear();
        drop(queue);
        self.queue.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its jobs.
            let _ = worker.join();
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock is left half-written by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until there is a batch; `None` once the pool is dropped.
    fn take(&self) -> Option<Vec<MaskJob>> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(batch) = state.batches.pop_front() {
                return Some(batch);
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn work(shared: &Shared, queue: &Queue) {
    while let Some(batch) = queue.take() {
        let mut results = Vec::with_capacity(batch.len());
        let began = Instant::now();
        for job in batch.into_iter().filter(|job| !job.cancelled.load(Ordering::Relaxed)) {
            results.push(run(job));
            // Giving up a request for a slow mask also ends its other jobs.
            if began.elapsed() > PATIENCE {
                let _ = shared.inbox.put(Message::Masks(std::mem::take(&mut results)));
            }
        }
        if !results.is_empty() {
            // After the end no masks are needed.
            let _ = shared.inbox.put(Message::Masks(results));
        }
    }
}

fn run(job: MaskJob) -> MaskResult {
    let MaskJob { id, mut state, tokens, .. } = job;
    // Grammars come from clients. A panic in one must not end the others.
    let before = thread_time();
    let outcome = catch_unwind(AssertUnwindSafe(move || {
        for token in tokens {
            state.accept(token)?;
        }
        let (mask, goes_on) = state.mask()?;
        Ok(Masked { state, mask, goes_on })
    }));
    let mut outcome = outcome.unwrap_or(Err(GrammarError::TooComplex("internal error")));
    if thread_time().saturating_sub(before) > MAX_TIME {
        // The whole step waits for its slowest mask.
        outcome = Err(GrammarError::TooComplex("one token took too long"));
    }
    MaskResult { id, outcome }
}

/// Processor time of this thread: what else runs on the machine does not count.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Most processor time of one mask; the slowest of real schemas take a tenth.
const MAX_TIME: Duration = Duration::from_millis(50);
/// A batch that takes longer reports its results as they come.
const PATIENCE: Duration = Duration::from_millis(2);
/// Masks take tens of microseconds: more threads would only share the waking.
const MAX_WORKERS: usize = 4;
/// Nested grammars recurse; untouched pages cost nothing.
const STACK_BYTES: usize = 64 << 20;
