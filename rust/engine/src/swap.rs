//! Swaps: an engine whose model makes room for another one's in a shared device's memory, and returns when a
//! request wants it. Requests stay in the queue meanwhile. Engine thread. sleep.rs has what operators ask for.

use std::sync::Arc;
use std::time::Instant;

use ingle_core::{ExecutorError, Micros, RestSink, SleepLevel};

use crate::engine_thread::EngineThread;
use crate::histogram::add;
use crate::inbox::Message;
use crate::presence::{Presence, Swap, Swapped};
use crate::rest::Wakefulness;
use crate::shared::EngineState;

impl EngineThread {
    /// Does, or begins, what the memory asks for.
    pub(crate) fn swap(&mut self, swap: Swap) {
        match (swap, self.presence) {
            // One that leaves meanwhile does it on the way.
            (Swap::Resize { bytes, preempts }, Presence::Here | Presence::Leaving) => {
                self.begin_resize(bytes, preempts);
            }
            (Swap::Leave, Presence::Here) => {
                self.presence = Presence::Leaving;
                self.scheduler.let_start(false);
                self.leave_if_quiet();
            }
            (Swap::Return, Presence::Away) => {
                self.wakefulness = Wakefulness::Changing;
                let done = self.swap_sink(Wakefulness::Awake);
                self.executor.wake(done);
            }
            (Swap::Overdue, Presence::Away) => self.end_waiting(OVERDUE),
            // The model has come or gone meanwhile.
            _ => {}
        }
    }

    /// Gives the memory back, if the engine is to leave and nothing runs any more.
    pub(crate) fn leave_if_quiet(&mut self) {
        if self.presence != Presence::Leaving || !self.scheduler.is_quiet() {
            return;
        }
        if !self.drop_surplus() {
            return;
        }
        self.presence = Presence::Away;
        self.wakefulness = Wakefulness::Changing;
        self.scheduler.clear_prefix_cache();
        let done = self.swap_sink(Wakefulness::Asleep(SleepLevel::Offload));
        self.executor.sleep(SleepLevel::Offload, done);
    }

    /// What the executor calls at the end: this thread hears of it.
    fn swap_sink(&self, to: Wakefulness) -> RestSink {
        let (shared, began) = (Arc::clone(&self.shared), Instant::now());
        Box::new(move |result| {
            let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            // A closed inbox: the engine has stopped.
            let _ = shared.inbox.put(Message::Swapped(Swapped { to, result, took: Micros(took) }));
        })
    }

    /// The executor's part has ended. A lost device is an error.
    pub(crate) fn swapped(&mut self, swapped: Swapped) -> Result<(), String> {
        let Swapped { to, result, took } = swapped;
        let is_return = to == Wakefulness::Awake;
        match result {
            Ok(()) => self.wakefulness = to,
            Err(ExecutorError::Unchanged(reason)) if is_return => {
                self.wakefulness = Wakefulness::Asleep(SleepLevel::Offload);
                self.end_waiting(&format!("the model could not return into memory: {reason}"));
                self.shared.set_failed_return(Some(reason));
            }
            Err(ExecutorError::Unchanged(_)) => self.wakefulness = Wakefulness::Awake,
            Err(error) => {
                self.shared.advance(EngineState::Dead);
                return Err(error.to_string());
            }
        }
        let is_awake = self.wakefulness == Wakefulness::Awake;
        if is_awake {
            // Requests have waited for memory, not for this engine.
            self.shared.progress(self.committer.now);
            self.presence = Presence::Here;
            self.shared.set_failed_return(None);
            self.scheduler.let_start(true);
        }
        let Some(turns) = &self.turns else { return Ok(()) };
        match (is_awake, is_return) {
            (true, true) => {
                add(&self.shared.metrics.returns, 1);
                turns.awake(took);
            }
            (true, false) => turns.stayed(),
            (false, _) => turns.asleep(),
        }
        Ok(())
    }

    /// Ends every request: none of them runs.
    fn end_waiting(&mut self, message: &str) {
        let keys: Vec<u64> = self.committer.streams.keys().copied().collect();
        for key in keys {
            self.committer.end_with_error(key, message, "no_memory", 503);
            self.committer.drop_stream(key, &mut self.scheduler, &mut self.core_events);
        }
        if let Some(turns) = &mut self.turns {
            turns.idle();
        }
    }
}

const OVERDUE: &str = "the model could not return into memory in time: others kept it full";
