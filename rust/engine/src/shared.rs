//! State that the engine thread shares with callers' threads: the two queues, atomics and the model's
//! read-only description. A caller never holds a lock of the engine thread while it computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use ingle_core::Micros;

use crate::clock::Clock;
use crate::device::DeviceOwn;
use crate::inbox::Inbox;
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::served::Served;
use crate::tenant_load::TenantLoad;

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
    /// Tenants that have some of them.
    num_tenants: AtomicU32,
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
    pub(crate) fn new(
        served: Served,
        clock: Clock,
        device: Option<Arc<dyn DeviceOwn>>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            served,
            inbox: Inbox::default(),
            outbox: Outbox::new()?,
            metrics: Metrics::new(device),
            clock,
            state: AtomicU8::new(EngineState::Serving as u8),
            in_system: AtomicU32::new(0),
            num_tenants: AtomicU32::new(0),
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

    /// Takes room for `count` choices; false if they would exceed the capacity. A tenant may have its
    /// share of the capacity even where others have filled all of it, so only a tenant that overloads
    /// the server is refused. The k-th tenant to do so has at most a k-th of the capacity, so n
    /// tenants together have at most 1 + 1/2 + ... + 1/n times it.
    pub(crate) fn reserve(&self, tenant: &TenantLoad, count: u32) -> bool {
        let capacity = self.served.capacity;
        // Counted first, so that requests of one tenant that come together see each other.
        let before = tenant.add(count);
        if before == 0 {
            self.num_tenants.fetch_add(1, Ordering::AcqRel);
        }
        let share = capacity / self.num_tenants.load(Ordering::Acquire).max(1);
        let is_within_share = before.checked_add(count).is_some_and(|after| after <= share);
        let total = self.in_system.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            now.checked_add(count).filter(|&after| is_within_share || after <= capacity)
        });
        match total {
            // An idle engine stood still rightly until now.
            Ok(0) => self.progress(self.clock.now()),
            Ok(_) => {}
            Err(_) => self.forget(tenant, count),
        }
        total.is_ok()
    }

    /// Gives back room for `count` choices.
    pub(crate) fn release(&self, tenant: &TenantLoad, count: u32) {
        self.in_system.fetch_sub(count, Ordering::AcqRel);
        self.forget(tenant, count);
    }

    /// Gives back room where nothing is accepted any more.
    pub(crate) fn release_at_end(&self, count: u32) {
        self.in_system.fetch_sub(count, Ordering::AcqRel);
    }

    fn forget(&self, tenant: &TenantLoad, count: u32) {
        if tenant.remove(count) == 0 {
            self.num_tenants.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn in_system(&self) -> u32 {
        self.in_system.load(Ordering::Acquire)
    }

    /// Tenants that have something in the system.
    #[cfg(test)]
    pub(crate) fn num_tenants(&self) -> u32 {
        self.num_tenants.load(Ordering::Acquire)
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
