//! The threads that compute. The caller of `run` is one of them; the others wait for its tasks. Each thread has a
//! range of tasks of its own and takes others' when that is empty, so it reads neighbouring weights as one stream.
//! Between the operations of a step a waiting worker spins for some microseconds, then it sleeps on
//! a condition variable, so an idle executor uses no CPU.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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
    /// `epoch << EPOCH_SHIFT | OPEN | members`: which job, whether workers may still join it, and how many
    /// have. A worker that comes too late is not waited for, so a busy machine costs no stalls.
    gate: AtomicU64,
    /// Written only while the gate is closed and there are no members.
    job: Mutex<Option<Job>>,
    /// For each thread, the next task of its range; the caller of `run` is the first.
    next: Vec<Next>,
    panicked: AtomicBool,
    shutdown: AtomicBool,
    /// Workers that sleep or are about to.
    sleepers: AtomicUsize,
    wake: Condvar,
    wake_lock: Mutex<()>,
}

/// On a cache line of its own, since its thread writes it at every task.
#[repr(align(64))]
struct Next(AtomicUsize);

/// The current job with its lifetime removed.
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
    /// `threads` in all, the caller of `run` included. `first` is the number of that one in names.
    pub(crate) fn new(
        threads: usize,
        first: usize,
        scratch: impl Fn() -> Scratch,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(PoolShared {
            gate: AtomicU64::new(0),
            job: Mutex::new(None),
            next: (0..threads.max(1)).map(|_| Next(AtomicUsize::new(0))).collect(),
            panicked: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            wake: Condvar::new(),
            wake_lock: Mutex::new(()),
        });
        let mut pool = Self { shared, own_scratch: scratch(), threads: Vec::new() };
        for index in 1..threads {
            let (shared, scratch) = (Arc::clone(&pool.shared), scratch());
            let thread = std::thread::Builder::new()
                .name(format!("ingle-cpu-{}", first + index))
                .spawn(move || worker(&shared, index, scratch))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Threads in all.
    pub(crate) fn num_threads(&self) -> usize {
        self.threads.len() + 1
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
        // SAFETY: only the lifetime changes. Members alone use the reference, workers can only join while
        // the gate is open, and `close` below shuts it and waits for the last member, also when a task
        // panics.
        let work_forever = unsafe {
            std::mem::transmute::<
                &(dyn Fn(usize, &mut Scratch) + Sync),
                &'static (dyn Fn(usize, &mut Scratch) + Sync),
            >(work)
        };
        *lock(&shared.job) = Some(Job { work: work_forever, tasks });
        for (thread, next) in shared.next.iter().enumerate() {
            next.0.store(shared.range_start(thread, tasks), Ordering::Relaxed);
        }
        shared.open();
        let scratch = &mut self.own_scratch;
        let own = catch_unwind(AssertUnwindSafe(|| shared.drain(0, work, tasks, scratch)));
        shared.close();
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        if shared.panicked.swap(false, Ordering::Relaxed) {
            let message: Box<dyn Any + Send> = Box::new("a worker panicked");
            resume_unwind(message);
        }
    }

    /// Calls `work` for each row; few rows are not worth waking the workers for.
    pub(crate) fn for_rows(&mut self, rows: usize, work: &(dyn Fn(usize) + Sync)) {
        if rows < INLINE_ROWS {
            (0..rows).for_each(work);
            return;
        }
        self.run(rows.div_ceil(ROWS_PER_TASK), &|task, _| {
            let start = task * ROWS_PER_TASK;
            (start..(start + ROWS_PER_TASK).min(rows)).for_each(work);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::SeqCst);
        self.shared.open();
        for thread in self.threads.drain(..) {
            // A worker catches its tasks' panics, so there is nothing to report here.
            let _ = thread.join();
        }
    }
}

impl PoolShared {
    /// Starts the next epoch and wakes sleeping workers.
    fn open(&self) {
        let epoch = self.gate.load(Ordering::Relaxed) >> EPOCH_SHIFT;
        self.gate.store((epoch + 1) << EPOCH_SHIFT | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.wake_lock));
            self.wake.notify_all();
        }
    }

    /// Closes the gate and waits until the last member has left.
    fn close(&self) {
        self.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while self.gate.load(Ordering::Acquire) & MEMBERS != 0 {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Becomes a member of the job of this epoch; false if it is over.
    fn join(&self, epoch: u64) -> bool {
        let mut gate = self.gate.load(Ordering::Acquire);
        while gate >> EPOCH_SHIFT == epoch && gate & OPEN != 0 {
            let more = gate + 1;
            match self.gate.compare_exchange_weak(gate, more, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }

    /// The first task of a thread's range; that of the thread after the last one is the number of tasks.
    fn range_start(&self, thread: usize, tasks: usize) -> usize {
        thread * tasks / self.next.len()
    }

    /// Runs tasks of `thread`'s range, then what is left of the others'.
    fn drain(
        &self,
        thread: usize,
        work: &(dyn Fn(usize, &mut Scratch) + Sync),
        tasks: usize,
        scratch: &mut Scratch,
    ) {
        for owner in (thread..self.next.len()).chain(0..thread) {
            let end = self.range_start(owner + 1, tasks);
            loop {
                let task = self.next[owner].0.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                work(task, scratch);
            }
        }
    }

    /// Returns the new epoch once it differs from `seen`.
    fn wait_for_job(&self, seen: u64) -> u64 {
        for _ in 0..SPINS {
            let epoch = self.gate.load(Ordering::Acquire) >> EPOCH_SHIFT;
            if epoch != seen {
                return epoch;
            }
            std::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.wake_lock);
        let mut epoch = self.gate.load(Ordering::SeqCst) >> EPOCH_SHIFT;
        while epoch == seen {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            epoch = self.gate.load(Ordering::SeqCst) >> EPOCH_SHIFT;
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        epoch
    }
}

fn worker(shared: &PoolShared, index: usize, mut scratch: Scratch) {
    let mut seen = 0;
    loop {
        seen = shared.wait_for_job(seen);
        if shared.shutdown.load(Ordering::SeqCst) {
            return;
        }
        if !shared.join(seen) {
            continue;
        }
        if let Some(job) = *lock(&shared.job) {
            // SAFETY: this worker is a member, so `run` is inside `close` at the latest and the closure
            // lives until the member count is lowered below.
            let work = unsafe { &*job.work };
            let drain = AssertUnwindSafe(|| shared.drain(index, work, job.tasks, &mut scratch));
            if catch_unwind(drain).is_err() {
                shared.panicked.store(true, Ordering::Relaxed);
            }
        }
        shared.gate.fetch_sub(1, Ordering::Release);
    }
}

/// A panic cannot leave the state behind these locks half-written.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// About 20 us on current machines: longer than the driver's work between two operations.
const SPINS: u32 = 2000;
const MEMBERS: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const EPOCH_SHIFT: u32 = 17;

const ROWS_PER_TASK: usize = 8;
/// Below this many rows the driver does row-wise work alone.
pub(crate) const INLINE_ROWS: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_every_task_runs_once_in_every_job() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads, 0, || Scratch::new(16, 16)).expect("threads");
            for tasks in (0..200).chain([1000]) {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|task, _| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn test_a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let mut pool = Pool::new(3, 0, || Scratch::new(16, 16)).expect("threads");
        for round in 0..20 {
            let run = catch_unwind(AssertUnwindSafe(|| {
                pool.run(50, &|task, _| assert!(task != 7 + round, "expected by the test"));
            }));
            assert!(run.is_err(), "round {round}");
            pool.run(50, &|_, _| {});
        }
    }
}
