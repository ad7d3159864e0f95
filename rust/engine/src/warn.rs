//! Warnings for the operator after start. The core's only place that writes to standard error. It may
//! block, so never call it on the engine thread or a caller's thread.

use std::io::Write as _;

/// Writes one line, as the log of the server has them apart from the time.
pub(crate) fn warn(text: &str) {
    // One write, so that lines of other threads do not mix in. A missing standard error is ignored.
    let _ = std::io::stderr().write_all(format!("WARNING {text}\n").as_bytes());
}
