//! Measures the phases of loading. The loading thread and its helpers.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::CudaError;

/// Times phases from several threads.
#[derive(Default)]
pub(crate) struct Clock(Mutex<Vec<(&'static str, Duration)>>);

impl Clock {
    /// Runs the work and keeps its time under the name.
    pub(crate) fn time<T>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let start = Instant::now();
        let result = work();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name, start.elapsed()));
        result
    }

    /// Names and times in the order in which they ended.
    pub(crate) fn into_phases(self) -> Vec<(&'static str, Duration)> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
