//! `ingle security check`: tries in child processes what the lock-down must refuse, and each time also
//! without the one rule, to see that it is the rule that refuses. The process must have one thread.

mod act;
mod errors;
mod own;
mod table;

use std::os::unix::net::UnixListener;
use std::path::Path;

use serde::Serialize;

use crate::begin::{Start, confine_except, shed_except};
use crate::error::HardeningError;
use crate::finish::{Readiness, finish_except};
use crate::omitted::Omitted;
use crate::sys::{self, Child, Ended};
use errors::error_name;

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

/// What one probe found.
#[derive(Clone, Debug, Serialize)]
pub struct Probed {
    /// The act.
    pub name: String,
    /// The system call, if the act is one.
    pub call: String,
    /// Where: the whole lock-down (`serve`) or its first half (`confined`).
    pub stage: &'static str,
    /// What must come of it, any of these.
    pub expected: Vec<String>,
    /// What came of it.
    pub found: String,
    /// What came of it without the rule.
    pub control: String,
    /// What that means.
    pub verdict: Verdict,
    /// Why, unless it passed.
    pub why: String,
}

/// What a probe means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Refused, and not without the rule.
    Passed,
    /// Not refused, or refused otherwise, or the control was.
    Failed,
    /// This kernel cannot show it.
    NotProbed,
}

/// Which part of the lock-down a probe is under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stage {
    /// All of it.
    #[default]
    Serve,
    /// Its first half.
    Confined,
}

/// What the children have around them.
#[derive(Debug)]
struct Place<'a> {
    /// A folder that exists and is empty.
    scratch: &'a Path,
    /// Version of Landlock, 0 if it is not active.
    landlock: u32,
    /// Whether users may have namespaces.
    has_namespaces: bool,
    /// Whether opening is confined here by any means.
    confines_files: bool,
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

/// Whether files can be confined by a namespace.
fn survey_namespaces(scratch: &Path) -> Result<bool, HardeningError> {
    let start = start_in(scratch, Vec::new());
    let places = crate::landlock::Places { read: start.read, write: start.write };
    let ended = sys::in_child(|_| u8::from(crate::namespace::confine(&places).is_err()));
    Ok(ended.map_err(HardeningError::at("a child process"))? == Ended::Exited(0))
}

fn start_in(scratch: &Path, keep: Vec<u32>) -> Start {
    Start {
        keep,
        read: vec![scratch.join("readable")],
        write: vec![scratch.join("writable")],
        ..Start::default()
    }
}

/// Locks a child down as far as `stage`, without what is omitted.
fn lock(stage: Stage, start: &Start, omitted: &Omitted) -> Result<(), HardeningError> {
    shed_except(start, omitted)?;
    confine_except(start, omitted)?;
    if stage == Stage::Serve {
        finish_except(&Readiness::default(), omitted)?;
    }
    Ok(())
}

/// What came of an act: `ok`, the name of an error, or `killed`.
fn outcome(ended: Ended) -> String {
    match ended {
        Ended::Exited(0) => "ok".to_owned(),
        Ended::Exited(NO_LOCK) => "not locked down".to_owned(),
        Ended::Exited(error) => error_name(i32::from(error)),
        Ended::Killed(libc::SIGSYS) => "killed".to_owned(),
        Ended::Killed(signal) => format!("signal {signal}"),
    }
}

/// The exit code of a child that has made its act.
fn code_of(result: &std::io::Result<()>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().map_or(NO_LOCK, |number| number as u8),
    }
}

/// Exit code of a child that could not be locked down; errors are below.
const NO_LOCK: u8 = 255;

/// What a probe and its control mean together.
fn judge(
    expected: &[String],
    controls: Option<&[String]>,
    found: &str,
    control: &str,
) -> (Verdict, String) {
    let is_refused = expected.iter().any(|each| each == found);
    if !is_refused {
        return (Verdict::Failed, format!("must be {}", expected.join(" or ")));
    }
    if control == found {
        return (Verdict::NotProbed, "this kernel refuses it without the rule too".to_owned());
    }
    match controls {
        Some(controls) if !controls.iter().any(|each| each == control) => {
            (Verdict::Failed, format!("the control must be {}", controls.join(" or ")))
        }
        _ => (Verdict::Passed, String::new()),
    }
}

/// Runs one act twice, in children: under the lock-down, and without what `omitted` names.
fn probe_twice(
    run: impl Fn(&Child, &Omitted) -> u8,
    omitted: &Omitted,
) -> Result<(String, String), HardeningError> {
    let found = sys::in_child(|child| run(child, &Omitted::Nothing));
    let control = sys::in_child(|child| run(child, omitted));
    let at = || HardeningError::at("a child process");
    Ok((outcome(found.map_err(at())?), outcome(control.map_err(at())?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_probe_proves_nothing_unless_its_control_ends_otherwise() {
        let expected = ["EPERM".to_owned()];
        let controls = ["ok".to_owned()];
        let verdict = |found, control| judge(&expected, Some(&controls), found, control).0;
        assert_eq!(verdict("EPERM", "ok"), Verdict::Passed);
        assert_eq!(verdict("ok", "ok"), Verdict::Failed, "the lock-down lets it through");
        assert_eq!(verdict("killed", "ok"), Verdict::Failed, "refused otherwise");
        assert_eq!(verdict("EPERM", "EPERM"), Verdict::NotProbed, "not this rule's doing");
        assert_eq!(verdict("EPERM", "EINVAL"), Verdict::Failed, "a control nobody expects");
        assert_eq!(verdict("not locked down", "ok"), Verdict::Failed);
    }
}
