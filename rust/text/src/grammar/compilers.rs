//! [2] The threads that compile grammars. They are created with the model, so that no request
//! starts a thread. Tenants take turns, and no tenant gets all threads: slow grammars, or many of
//! them, delay only their own tenant.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::bounds::{COMPILE_STACK_BYTES, MAX_COMPILERS, MAX_COMPILERS_OF_TENANT};

/// What a thread does.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The threads. They end when it is dropped, each after the job that it has begun.
pub(crate) struct Compilers {
    queue: Arc<Queue>,
}

impl Compilers {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system's, if one cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        let compilers = Self { queue: Arc::default() };
        for i in 0..MAX_COMPILERS {
            let queue = Arc::clone(&compilers.queue);
            std::thread::Builder::new()
                .name(format!("ingle-grammar-{i}"))
                .stack_size(COMPILE_STACK_BYTES)
                .spawn(move || queue.work())?;
        }
        Ok(compilers)
    }

    /// Queues a job of `tenant`. Not blocking.
    pub(crate) fn put(&self, tenant: u64, job: Job) {
        self.queue.lock().put(tenant, job);
        self.queue.wake.notify_one();
    }
}

impl Drop for Compilers {
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.wake.notify_all();
    }
}

#[derive(Default)]
struct Queue {
    state: Mutex<Turns>,
    wake: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Turns> {
        // Nothing under this lock is left half-written by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut turns = self.lock();
        while !turns.closed {
            let Some((tenant, job)) = turns.take() else {
                turns = self.wake.wait(turns).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(turns);
            // A compilation catches its own panics; a thread must not be lost by one all the same.
            let _ = catch_unwind(AssertUnwindSafe(job));
            turns = self.lock();
            turns.end(tenant);
            // A job of this tenant may have waited not for a thread but for this job's end.
            self.wake.notify_one();
        }
    }
}

/// Waiting jobs, and threads by tenant.
#[derive(Default)]
struct Turns {
    /// In the order of their next turns; those with neither jobs nor threads are not in it.
    tenants: VecDeque<Tenant>,
    closed: bool,
}

struct Tenant {
    id: u64,
    jobs: VecDeque<Job>,
    num_running: usize,
}

impl Turns {
    fn put(&mut self, id: u64, job: Job) {
        match self.tenants.iter_mut().find(|tenant| tenant.id == id) {
            Some(tenant) => tenant.jobs.push_back(job),
            None => self.tenants.push_back(Tenant { id, jobs: [job].into(), num_running: 0 }),
        }
    }

    /// The next job: of the tenant with the fewest threads, and of those the one that waits longest for a turn.
    fn take(&mut self) -> Option<(u64, Job)> {
        let ready = self.tenants.iter().enumerate().filter(|(_, tenant)| {
            !tenant.jobs.is_empty() && tenant.num_running < MAX_COMPILERS_OF_TENANT
        });
        let (at, _) = ready.min_by_key(|(_, tenant)| tenant.num_running)?;
        let mut tenant = self.tenants.remove(at)?;
        let job = tenant.jobs.pop_front()?;
        tenant.num_running += 1;
        let id = tenant.id;
        self.tenants.push_back(tenant);
        Some((id, job))
    }

    fn end(&mut self, id: u64) {
        let Some(at) = self.tenants.iter().position(|tenant| tenant.id == id) else { return };
        let tenant = &mut self.tenants[at];
        tenant.num_running -= 1;
        if tenant.num_running == 0 && tenant.jobs.is_empty() {
            self.tenants.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn order(turns: &mut Turns, count: usize) -> Vec<u64> {
        (0..count).map_while(|_| turns.take().map(|(tenant, _)| tenant)).collect()
    }

    #[test]
    fn test_tenants_take_turns_and_none_has_all_compilers() {
        let mut turns = Turns::default();
        for _ in 0..10 {
            turns.put(1, Box::new(|| {}));
        }
        assert_eq!(order(&mut turns, 9), [1; MAX_COMPILERS_OF_TENANT]);
        // Who comes later does not wait for those.
        turns.put(2, Box::new(|| {}));
        turns.put(2, Box::new(|| {}));
        turns.put(3, Box::new(|| {}));
        assert_eq!(order(&mut turns, 2), [2, 3]);
        turns.end(1);
        assert_eq!(order(&mut turns, 2), [1, 2]);
        for tenant in [1, 1, 2, 2, 3] {
            turns.end(tenant);
        }
        assert_eq!(order(&mut turns, 2), [1, 1]);
        turns.end(1);
        turns.end(1);
        for _ in 0..5 {
            assert_eq!(order(&mut turns, 1), [1]);
            turns.end(1);
        }
        assert!(turns.tenants.is_empty(), "nobody is remembered");
    }

    #[test]
    fn test_a_tenant_that_has_its_compilers_for_ever_holds_up_nobody_else() {
        let compilers = Compilers::start().unwrap();
        let (began, begins) = channel();
        let (go_on, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for _ in 0..3 * MAX_COMPILERS {
            let (began, gate) = (began.clone(), Arc::clone(&gate));
            compilers.put(
                1,
                Box::new(move || {
                    began.send(1).unwrap();
                    // Ends when the test drops its end.
                    let _ = gate.lock().unwrap().recv();
                }),
            );
        }
        for _ in 0..MAX_COMPILERS_OF_TENANT {
            assert_eq!(begins.recv(), Ok(1));
        }
        for tenant in [2, 3, 2] {
            let began = began.clone();
            compilers.put(tenant, Box::new(move || began.send(tenant).unwrap()));
            assert_eq!(begins.recv(), Ok(tenant));
        }
        drop(go_on);
        for _ in MAX_COMPILERS_OF_TENANT..3 * MAX_COMPILERS {
            assert_eq!(begins.recv(), Ok(1));
        }
    }
}
