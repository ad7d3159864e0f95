//! Streams and events. A stream orders work on the device; an event marks a point in it.

use std::sync::Arc;

use crate::CudaError;
use crate::context::Context;
use crate::sys::driver::*;

/// A stream that does not wait for the default stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: Arc<Context>,
    pub(crate) handle: CuStream,
}

// SAFETY: driver calls on a stream are thread-safe (driver API, "API synchronization behavior"); the
// executor still gives each stream one thread at a time.
unsafe impl Send for Stream {}
// SAFETY: a shared reference only passes the handle to the driver, whose calls on a stream are thread-safe.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream in the context, which must be current.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle, which `Drop` destroys.
        let code =
            unsafe { context.driver.api.cuStreamCreate(&raw mut handle, STREAM_NON_BLOCKING)? };
        context.check("cuStreamCreate", code)?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Waits until everything queued has run. Blocking.
    pub(crate) fn synchronise(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is live until `Drop`.
        let code = unsafe { self.context.driver.api.cuStreamSynchronize(self.handle)? };
        self.context.check("cuStreamSynchronize", code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once; the driver finishes queued work by itself.
        let _ = unsafe { self.context.driver.api.cuStreamDestroy_v2(self.handle) };
    }
}

/// A point in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    pub(crate) handle: CuEvent,
}

// SAFETY: an event belongs to its context, not to a thread, and driver calls on it are thread-safe (driver API,
// "API synchronization behavior").
unsafe impl Send for Event {}
// SAFETY: a shared reference only passes the handle to the driver, whose calls on an event are thread-safe.
unsafe impl Sync for Event {}

impl Event {
    /// An event whose waiters block in the kernel; it keeps no time.
    pub(crate) fn blocking(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::with_flags(context, EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING)
    }

    /// An event that keeps the time.
    pub(crate) fn timing(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::with_flags(context, EVENT_BLOCKING_SYNC)
    }

    fn with_flags(context: &Arc<Context>, flags: u32) -> Result<Self, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle, which `Drop` destroys.
        let code = unsafe { context.driver.api.cuEventCreate(&raw mut handle, flags)? };
        context.check("cuEventCreate", code)?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Marks the end of what the stream holds now.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are live.
        let code = unsafe { self.context.driver.api.cuEventRecord(self.handle, stream.handle)? };
        self.context.check("cuEventRecord", code)
    }

    /// Waits until the mark is reached; at once if it was never recorded. Blocking.
    pub(crate) fn synchronise(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is live.
        let code = unsafe { self.context.driver.api.cuEventSynchronize(self.handle)? };
        self.context.check("cuEventSynchronize", code)
    }

    /// Milliseconds from `start` to this event; both reached and both made by `timing`.
    pub(crate) fn milliseconds_since(&self, start: &Event) -> Result<f32, CudaError> {
        let mut milliseconds = 0f32;
        // SAFETY: writes one float; both handles are live.
        let code = unsafe {
            self.context.driver.api.cuEventElapsedTime_v2(
                &raw mut milliseconds,
                start.handle,
                self.handle,
            )?
        };
        self.context.check("cuEventElapsedTime", code)?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `with_flags`, destroyed once.
        let _ = unsafe { self.context.driver.api.cuEventDestroy_v2(self.handle) };
    }
}
