//! [1] [2] Confines a panic to the request in which it happened. Caller's thread.
//!
//! Tokenizers, templates, schemas and grammars come from outside, and so does much of the code that
//! reads them. A panic there ends one request with an error of class `Failed`; the worker and all other
//! requests continue. The panic's text can quote a prompt. It never becomes part of a response, and
//! `log_panics_without_text` keeps it out of the log.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Arc;

use crate::error::EngineError;
use crate::room::Room;
use crate::tenant_load::TenantLoad;

/// Runs the work of one request.
///
/// # Errors
/// Those of `work`; `Failed`, without the panic's text, if it panics.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    // Nothing half-written is seen afterwards: locks are taken with `PoisonError::into_inner` by owners whose
    // state is whole at every step, and room in the queue is a `Reservation`.
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(EngineError::Failed(INTERNAL.to_owned())))
}

/// From now on a panic of this library is one line on standard error: the thread and the place in the source,
/// never the message. Once, before the first engine starts.
pub fn log_panics_without_text() {
    std::panic::set_hook(Box::new(|panic| {
        // Without standard error nobody could read it.
        let _ = std::io::stderr().write_all(panic_line(panic).as_bytes());
    }));
}

fn panic_line(panic: &PanicHookInfo<'_>) -> String {
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    format!("ERROR internal error: a panic at {place}, thread {name}\n")
}

/// Room in the queue for the choices of one request. Given back when dropped, unless the engine thread has
/// taken over.
pub(crate) struct Reservation<'a> {
    room: &'a Room,
    tenant: &'a Arc<TenantLoad>,
    /// 0 once the engine thread has taken over.
    count: u32,
}

impl<'a> Reservation<'a> {
    /// `None` if the queue is full for this tenant.
    pub(crate) fn take(room: &'a Room, tenant: &'a Arc<TenantLoad>, count: u32) -> Option<Self> {
        // Not `then_some`: it would build the value first and drop it, which gives back what was not taken.
        room.reserve(tenant, count).then(|| Self { room, tenant, count })
    }

    /// The request is in the inbox: the engine thread gives the room back as its choices end.
    pub(crate) fn hand_over(mut self) {
        self.count = 0;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.room.release(self.tenant, self.count);
        }
    }
}

/// Panics where a test has armed `place` on this thread: stands for a mistake in the code that follows.
#[cfg(test)]
pub(crate) fn fault_point(place: &'static str) {
    let armed = ARMED.with(|armed| armed.get() == Some(place));
    assert!(!armed, "a fault at {place}, which quotes the secret prompt");
}

/// Nothing outside tests.
#[cfg(not(test))]
pub(crate) fn fault_point(_place: &'static str) {}

/// The message for clients.
pub(crate) const INTERNAL: &str = "internal error";

#[cfg(test)]
thread_local! {
    /// The place that panics on this thread.
    pub(crate) static ARMED: std::cell::Cell<Option<&'static str>> =
        const { std::cell::Cell::new(None) };
}
