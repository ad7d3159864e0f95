//! [3] How many requests one tenant has in the engine. Any thread.

use std::sync::atomic::{AtomicU32, Ordering};

use ingle_core::TenantId;

/// What one tenant has in the system.
#[derive(Debug)]
pub(crate) struct TenantLoad {
    pub(crate) id: TenantId,
    /// Choices accepted and not ended.
    in_system: AtomicU32,
}

impl TenantLoad {
    pub(crate) fn new(id: TenantId) -> Self {
        Self { id, in_system: AtomicU32::new(0) }
    }

    /// Counts choices in; returns how many there were before.
    pub(crate) fn add(&self, count: u32) -> u32 {
        self.in_system.fetch_add(count, Ordering::AcqRel)
    }

    /// Counts choices out; returns how many are left.
    pub(crate) fn remove(&self, count: u32) -> u32 {
        self.in_system.fetch_sub(count, Ordering::AcqRel) - count
    }
}
