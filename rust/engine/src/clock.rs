//! The engine's clock: microseconds since start. The core has no clock; it is passed the time. Any
//! thread.

use std::time::{Duration, Instant};

use ingle_core::Micros;

/// Never goes back. Copies share their origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// When that is, or was.
    pub(crate) fn instant(&self, at: Micros) -> Instant {
        self.origin + Duration::from_micros(at.0)
    }

    pub(crate) fn now(&self) -> Micros {
        Micros(u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX))
    }
}
