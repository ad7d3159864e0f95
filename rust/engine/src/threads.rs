//! Starts the engine's threads. All start with the engine, so no request waits for one. A thread that
//! cannot be started is named.

use std::io;
use std::thread::{Builder, JoinHandle};

use crate::error::EngineError;

/// Starts the thread `name`.
///
/// # Errors
/// `EngineError::Model` naming it.
pub(crate) fn start(
    name: &str,
    stack_bytes: usize,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, EngineError> {
    let builder = Builder::new().name(name.to_owned()).stack_size(stack_bytes);
    builder.spawn(work).map_err(|error| cannot_start(name, &error))
}

/// The error for a thread that the system refuses.
pub(crate) fn cannot_start(name: &str, error: &io::Error) -> EngineError {
    EngineError::Model(format!(
        "cannot start the thread {name}: {error}; the limit of threads (pids.max of the cgroup, ulimit -u) \
         or of address space may be reached"
    ))
}

/// What Rust gives a thread by itself.
pub(crate) const USUAL_STACK_BYTES: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_thread_that_cannot_be_started_is_named() {
        // No address space holds such a stack.
        let error = start("ingle-mask-0", isize::MAX as usize / 2, || {}).unwrap_err().to_string();
        assert!(error.starts_with("cannot start the thread ingle-mask-0: "), "{error}");
        assert!(error.contains("pids.max"), "{error}");
    }
}
