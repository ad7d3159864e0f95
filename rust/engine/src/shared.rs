//! State that one engine thread shares with callers' threads: its inbox, atomics, and what all engines
//! have in common. A caller never holds a lock of the engine thread while it computes.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ingle_core::{Micros, SleepLevel};

use crate::clock::Clock;
use crate::inbox::Inbox;
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::room::Room;
use crate::served::Served;
use crate::tenant_load::TenantLoad;

/// What all engines of a process have in common.
#[derive(Clone)]
pub(crate) struct Front {
    pub(crate) served: Arc<Served>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) room: Arc<Room>,
    pub(crate) clock: Clock,
}

/// Shared state of one engine.
pub(crate) struct Shared {
    /// What operators call it: `0`, `1` and so on.
    pub(crate) number: usize,
    pub(crate) served: Arc<Served>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) room: Arc<Room>,
    pub(crate) clock: Clock,
    pub(crate) inbox: Inbox,
    pub(crate) metrics: Metrics,
    state: AtomicU8,
    /// Choices handed to this engine and not ended.
    num_choices: AtomicU32,
    /// Micros of the last sign of progress: a step that ended, or work that came to an idle engine.
    progress_us: AtomicU64,
    /// Moving average of the time a request spends running, micros.
    service_us: AtomicU64,
    /// Why the model could not return into memory the last time.
    failed_return: Mutex<Option<String>>,
}

/// Where an engine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum EngineState {
    /// Takes requests.
    Serving = 0,
    /// Finishes what runs.
    Draining = 1,
    /// Stopped on request.
    Stopped = 2,
    /// Stopped by a fault; the process must exit.
    Dead = 3,
}

impl Shared {
    pub(crate) fn new(number: usize, front: Front, metrics: Metrics) -> Self {
        let Front { served, outbox, room, clock } = front;
        Self {
            number,
            served,
            outbox,
            room,
            clock,
            inbox: Inbox::default(),
            metrics,
            state: AtomicU8::new(EngineState::Serving as u8),
            num_choices: AtomicU32::new(0),
            progress_us: AtomicU64::new(0),
            service_us: AtomicU64::new(0),
            failed_return: Mutex::default(),
        }
    }

    pub(crate) fn state(&self) -> EngineState {
        match self.state.load(Ordering::Acquire) {
            0 => EngineState::Serving,
            1 => EngineState::Draining,
            2 => EngineState::Stopped,
            _ => EngineState::Dead,
        }
    }

    /// Goes to a later state; never back.
    pub(crate) fn advance(&self, state: EngineState) {
        self.state.fetch_max(state as u8, Ordering::AcqRel);
    }

    /// How deep the engine sleeps, or is about to; `None` while it is awake.
    pub(crate) fn sleep_level(&self) -> Option<SleepLevel> {
        self.metrics.gauges.sleep_level()
    }

    /// From now on `sleep_level` says this.
    pub(crate) fn set_sleep_level(&self, level: Option<SleepLevel>) {
        self.metrics.gauges.set_sleep_level(level);
    }

    /// Why the model could not return into memory the last time; `None` if it has returned since.
    pub(crate) fn failed_return(&self) -> Option<String> {
        self.failed_return.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A return has ended. Engine thread only.
    pub(crate) fn set_failed_return(&self, reason: Option<String>) {
        *self.failed_return.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Counts choices in that are about to be put into the inbox; there is room for them.
    pub(crate) fn enter(&self, count: u32) {
        if self.num_choices() == 0 {
            // An idle engine stood still rightly until now.
            self.progress(self.clock.now());
        }
        self.num_choices.fetch_add(count, Ordering::AcqRel);
    }

    /// Takes back an `enter`: the inbox is closed.
    pub(crate) fn leave(&self, count: u32) {
        self.num_choices.fetch_sub(count, Ordering::AcqRel);
    }

    /// Choices have ended; gives their room back.
    pub(crate) fn release(&self, tenant: &TenantLoad, count: u32) {
        self.leave(count);
        self.room.release(tenant, count);
    }

    /// Gives back room where nothing is accepted any more.
    pub(crate) fn release_at_end(&self, count: u32) {
        self.leave(count);
        self.room.release_at_end(count);
    }

    /// Choices that this engine has: running and waiting.
    pub(crate) fn num_choices(&self) -> u32 {
        self.num_choices.load(Ordering::Acquire)
    }

    /// Something moved.
    pub(crate) fn progress(&self, now: Micros) {
        self.progress_us.store(now.0, Ordering::Release);
    }

    /// Micros since something moved while there is work; 0 without work.
    pub(crate) fn standstill_us(&self) -> u64 {
        if self.num_choices() == 0 {
            return 0;
        }
        self.clock.now().0.saturating_sub(self.progress_us.load(Ordering::Acquire))
    }

    /// A request ran for so long. Engine thread only.
    pub(crate) fn observe_service(&self, micros: u64) {
        let old = self.service_us.load(Ordering::Relaxed);
        let new = if old == 0 { micros } else { old - old / 16 + micros / 16 };
        self.service_us.store(new, Ordering::Relaxed);
    }

    /// Micros that a request spent running of late.
    pub(crate) fn service_us(&self) -> u64 {
        self.service_us.load(Ordering::Relaxed)
    }
}
