//! The threads that compute. The caller of `run` is one of them, the others wait for its tasks.
//!
//! Between the operations of a step a waiting worker spins for some microseconds, then it sleeps on a
//! condition variable: an idle executor costs no CPU.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::scratch::Scratch;

/// Worker threads that run one job at a time.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<PoolShared>,
    own_scratch: Scratch,
    threads: Vec<JoinHandle<()>>,
}

struct PoolShared {
    /// Rises with each job; written after `job`.
    epoch: AtomicU32,
    job: Mutex<Option<Job>>,
    /// Tasks handed out so far.
    next_task: AtomicUsize,
    /// Workers that have not finished the current job.
    busy: AtomicUsize,
    panicked: AtomicBool,
    /// Workers that sleep or are about to.
    sleepers: AtomicUsize,
    wake: Condvar,
    wake_lock: Mutex<()>,
}

/// The current job with its lifetime removed; `None` in the mutex means shut down.
#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize, &mut Scratch) + Sync),
    tasks: usize,
}

// SAFETY: the closure is Sync, and `Pool::run` keeps it alive until every worker is done with it.
unsafe impl Send for Job {}

impl std::fmt::Debug for PoolShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolShared").finish_non_exhaustive()
    }
}

impl Pool {
    /// `threads` in all, the caller of `run` included.
    pub(crate) fn new(threads: usize, scratch: impl Fn() -> Scratch) -> std::io::Result<Self> {
        let shared = Arc::new(PoolShared {
            epoch: AtomicU32::new(0),
            job: Mutex::new(None),
            next_task: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            wake: Condvar::new(),
            wake_lock: Mutex::new(()),
        });
        let mut pool = Self { shared, own_scratch: scratch(), threads: Vec::new() };
        for index in 1..threads {
            let (shared, scratch) = (Arc::clone(&pool.shared), scratch());
            let thread = std::thread::Builder::new()
                .name(format!("ingle-cpu-{index}"))
                .spawn(move || worker(&shared, scratch))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Runs `work(task, scratch)` for every task below `tasks`, each once, on all threads.
    ///
    /// # Panics
    /// If a task panicked.
    pub(crate) fn run(&mut self, tasks: usize, work: &(dyn Fn(usize, &mut Scratch) + Sync)) {
        if tasks <= 1 || self.threads.is_empty() {
            for task in 0..tasks {
                work(task, &mut self.own_scratch);
            }
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The reference is used by workers until they lower
        // `busy`, and this function waits for that below, also when a task panics.
        let work_forever = unsafe {
            std::mem::transmute::<
                &(dyn Fn(usize, &mut Scratch) + Sync),
                &'static (dyn Fn(usize, &mut Scratch) + Sync),
            >(work)
        };
        *lock(&shared.job) = Some(Job { work: work_forever, tasks });
        shared.next_task.store(0, Ordering::Relaxed);
        shared.busy.store(self.threads.len(), Ordering::Relaxed);
        shared.start();
        let scratch = &mut self.own_scratch;
        let own = catch_unwind(AssertUnwindSafe(|| shared.drain(work, tasks, scratch)));
        shared.wait_for_workers();
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        if shared.panicked.swap(false, Ordering::Relaxed) {
            let message: Box<dyn Any + Send> = Box::new("a worker panicked");
            resume_unwind(message);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        *lock(&self.shared.job) = None;
        self.shared.start();
        for thread in self.threads.drain(..) {
            // A worker catches its tasks' panics, so there is nothing to report here.
            let _ = thread.join();
        }
    }
}

impl PoolShared {
    /// Makes the job visible and wakes sleeping workers.
    fn start(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.wake_lock));
            self.wake.notify_all();
        }
    }

    fn drain(
        &self,
        work: &(dyn Fn(usize, &mut Scratch) + Sync),
        tasks: usize,
        scratch: &mut Scratch,
    ) {
        loop {
            let task = self.next_task.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            work(task, scratch);
        }
    }

    fn wait_for_workers(&self) {
        let mut spins = 0u32;
        while self.busy.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Returns the new epoch once it differs from `seen`.
    fn wait_for_job(&self, seen: u32) -> u32 {
        for _ in 0..SPINS {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch != seen {
                return epoch;
            }
            std::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.wake_lock);
        let mut epoch = self.epoch.load(Ordering::SeqCst);
        while epoch == seen {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            epoch = self.epoch.load(Ordering::SeqCst);
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        epoch
    }
}

fn worker(shared: &PoolShared, mut scratch: Scratch) {
    let mut seen = 0;
    loop {
        seen = shared.wait_for_job(seen);
        let Some(job) = *lock(&shared.job) else { return };
        // SAFETY: `run` stored the pointer for this epoch and does not return, so the closure lives,
        // before `busy` is lowered below.
        let work = unsafe { &*job.work };
        let result = catch_unwind(AssertUnwindSafe(|| shared.drain(work, job.tasks, &mut scratch)));
        if result.is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.busy.fetch_sub(1, Ordering::Release);
    }
}

/// No state behind these locks can be left half-written by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// About 20 us on current machines: longer than the driver's work between two operations.
const SPINS: u32 = 2000;
