//! What the engine thread and the threads of callers share: the two queues, atomics, and the model's
//! read-only description. No lock of the engine thread is ever held by a caller while it works.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use ingle_core::Micros;

use crate::clock::Clock;
use crate::inbox::Inbox;
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::served::Served;

/// Shared state of one engine.
pub(crate) struct Shared {
    pub(crate) served: Served,
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
    state: AtomicU8,
    /// Choices accepted and not ended, counted by callers at submit, released by the engine thread.
    in_system: AtomicU32,
    /// Micros of the last sign of progress: a step that ended, or work that came to an idle engine.
    progress_us: AtomicU64,
    /// Moving average of the time a request spends running, micros.
    service_us: AtomicU64,
}

/// Where the engine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub(crate) fn new(served: Served, clock: Clock) -> std::io::Result<Self> {
        Ok(Self {
            served,
            inbox: Inbox::default(),
            outbox: Outbox::new()?,
            metrics: Metrics::new(),
            clock,
            state: AtomicU8::new(EngineState::Serving as u8),
            in_system: AtomicU32::new(0),
            progress_us: AtomicU64::new(0),
            service_us: AtomicU64::new(0),
        })
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

    /// Takes room for `count` choices; false if they would exceed the capacity.
    pub(crate) fn reserve(&self, count: u32) -> bool {
        let capacity = self.served.capacity;
        let before = self.in_system.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            now.checked_add(count).filter(|&after| after <= capacity)
        });
        if before == Ok(0) {
            // An idle engine stood still rightly until now.
            self.progress(self.clock.now());
        }
        before.is_ok()
    }

    /// Gives back room for `count` choices.
    pub(crate) fn release(&self, count: u32) {
        self.in_system.fetch_sub(count, Ordering::AcqRel);
    }

    pub(crate) fn in_system(&self) -> u32 {
        self.in_system.load(Ordering::Acquire)
    }

    /// Something moved.
    pub(crate) fn progress(&self, now: Micros) {
        self.progress_us.store(now.0, Ordering::Release);
    }

    /// Micros since something moved.
    pub(crate) fn standstill_us(&self) -> u64 {
        self.clock.now().0.saturating_sub(self.progress_us.load(Ordering::Acquire))
    }

    /// A request ran for so long. Engine thread only.
    pub(crate) fn observe_service(&self, micros: u64) {
        let old = self.service_us.load(Ordering::Relaxed);
        let new = if old == 0 { micros } else { old - old / 16 + micros / 16 };
        self.service_us.store(new, Ordering::Relaxed);
    }

    /// Seconds until the queue ahead has likely run, from 1 to 60.
    pub(crate) fn retry_after_s(&self) -> u32 {
        let rounds = u64::from(self.in_system() / self.served.max_num_seqs.max(1)).max(1);
        let micros = self.service_us.load(Ordering::Relaxed).saturating_mul(rounds);
        // Below 60, so the cast is exact.
        micros.div_ceil(1_000_000).clamp(1, 60) as u32
    }
}
