//! What the scripted device has of its own: it counts how often it is sealed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::{DeviceCount, DeviceOwn};

/// What the scripted device has of its own.
#[derive(Debug)]
pub(super) struct Seals(pub(super) Arc<AtomicU64>);

impl DeviceOwn for Seals {
    fn counts(&self) -> Vec<DeviceCount> {
        let values = vec![("seals", self.0.load(Ordering::Relaxed))];
        vec![DeviceCount { name: "own", help: "Own.", kind: "counter", label: "what", values }]
    }

    fn seal(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }
}
