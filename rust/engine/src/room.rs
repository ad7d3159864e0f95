//! [3] Admission count: how many choices are in all engines together, and in how many tenants' names.
//! Callers reserve room, engine threads release it. Any thread.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::tenant_load::TenantLoad;

/// Room for choices that run or wait.
#[derive(Debug)]
pub(crate) struct Room {
    capacity: u32,
    /// Choices accepted and not ended.
    in_system: AtomicU32,
    /// Tenants that have some of them.
    num_tenants: AtomicU32,
}

impl Room {
    pub(crate) fn new(capacity: u32) -> Self {
        Self { capacity, in_system: AtomicU32::new(0), num_tenants: AtomicU32::new(0) }
    }

    /// Takes room for `count` choices; false if they would exceed the capacity. A tenant may have its
    /// share of the capacity even where others have filled all of it, so only a tenant that overloads
    /// the server is refused. The k-th tenant to do so has at most a k-th of the capacity, so n
    /// tenants together have at most 1 + 1/2 + ... + 1/n times it.
    pub(crate) fn reserve(&self, tenant: &TenantLoad, count: u32) -> bool {
        let capacity = self.capacity;
        // Counted before the check, so that concurrent requests of one tenant see each other.
        let before = tenant.add(count);
        if before == 0 {
            self.num_tenants.fetch_add(1, Ordering::AcqRel);
        }
        let share = capacity / self.num_tenants.load(Ordering::Acquire).max(1);
        let is_within_share = before.checked_add(count).is_some_and(|after| after <= share);
        let total = self.in_system.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            now.checked_add(count).filter(|&after| is_within_share || after <= capacity)
        });
        if total.is_err() {
            self.forget(tenant, count);
        }
        total.is_ok()
    }

    /// Releases room for `count` choices.
    pub(crate) fn release(&self, tenant: &TenantLoad, count: u32) {
        self.in_system.fetch_sub(count, Ordering::AcqRel);
        self.forget(tenant, count);
    }

    /// Releases room of an engine that has ended; the tenants are no longer counted.
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
}
