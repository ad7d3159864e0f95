//! `ingle security check`: tries in child processes what the lock-down must refuse, and each time also
//! without the one rule, to see that it is the rule that refuses. The process must have one thread.

mod act;
mod errors;
mod own;
mod probe;
mod table;

use std::os::unix::net::UnixListener;
use std::path::Path;

use serde::Serialize;

use crate::error::HardeningError;
use crate::sys::{self, Ended};
use probe::{Place, start_in};
pub use probe::{Probed, Verdict};

/// What all probes found.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// Whether no probe gave a surprise.
    pub ok: bool,
    /// How many were refused as they must be, and not without their rule.
    pub passed: usize,
    /// How many gave a surprise.
    pub failed: usize,
    /// How many this kernel cannot show.
    pub not_probed: usize,
    /// Each of them.
    pub probes: Vec<Probed>,
}

/// Makes all probes. `scratch` is an empty folder of the caller, outside what programs are installed in.
///
/// Blocking, about a second.
///
/// # Errors
/// `HardeningError::State` if the process has more than one thread; `System` if it cannot start children.
pub fn security_check(scratch: &Path) -> Result<Checked, HardeningError> {
    crate::begin::expect_one_thread()?;
    let landlock = sys::landlock_version().unwrap_or(0);
    let has_namespaces = survey_namespaces(scratch)?;
    let confines_files = landlock > 0 || has_namespaces;
    act::fill(scratch)?;
    let place = Place { scratch, landlock, has_namespaces, confines_files };
    // For the probe that reaches for an abstract socket; a child finds it by its name.
    let address = own::abstract_address(scratch);
    let listener = address.and_then(|address| UnixListener::bind_addr(&address));
    let mut probes = table::probe_all(&place)?;
    probes.extend(own::probe_all(&place)?);
    drop(listener);
    let count = |verdict| probes.iter().filter(|probe| probe.verdict == verdict).count();
    let failed = count(Verdict::Failed);
    Ok(Checked {
        ok: failed == 0,
        passed: count(Verdict::Passed),
        failed,
        not_probed: count(Verdict::NotProbed),
        probes,
    })
}

/// Whether the probes' places can be confined by a namespace.
fn survey_namespaces(scratch: &Path) -> Result<bool, HardeningError> {
    let start = start_in(scratch, Vec::new());
    let places =
        crate::landlock::Places { read: start.read, write: start.write, connect: Vec::new() };
    let ended = sys::in_child(|_| u8::from(crate::namespace::confine(&places).is_err()));
    Ok(ended.map_err(HardeningError::at("a child process"))? == Ended::Exited(0))
}
