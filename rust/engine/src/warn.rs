//! What the operator should know and comes up after the start, when the summary has been shown. The one
//! place of the core that writes to standard error; never on the engine thread or a caller's, since it
//! may block.

use std::io::Write as _;

/// Writes one line, as the log of the server has them apart from the time.
pub(crate) fn warn(text: &str) {
    // One write, so that lines of other threads do not mix in; without standard error nobody listens.
    let _ = std::io::stderr().write_all(format!("WARNING {text}\n").as_bytes());
}
