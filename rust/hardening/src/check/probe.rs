//! One probe: what it is, how a child is locked down for it, and what its two ends mean.

use std::path::Path;

use serde::Serialize;

use super::errors::error_name;
use crate::begin::{Start, confine_except, confine_keeper_except, shed_except};
use crate::error::HardeningError;
use crate::finish::{Readiness, end_recording_except, finish_except, finish_exporter_except};
use crate::omitted::Omitted;
use crate::sys::{self, Child, Ended};

/// What one probe found.
#[derive(Clone, Debug, Serialize)]
pub struct Probed {
    /// The act.
    pub name: String,
    /// The system call, if the act is one.
    pub call: String,
    /// Where: the whole lock-down (`serve`, or `recorded` later), its first half (`confined`), or that of a process
    /// beside the worker (`keeper`, `exporter`).
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
pub(super) enum Stage {
    /// All of it.
    #[default]
    Serve,
    /// Its first half.
    Confined,
    /// All of it, once the graphs are recorded that were not when it came.
    Recorded,
    /// That of the keeper.
    Keeper,
    /// That of the process that sends spans.
    Exporter,
}

impl Stage {
    /// As probes.toml calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::Confined => "confined",
            Self::Recorded => "recorded",
            Self::Keeper => "keeper",
            Self::Exporter => "exporter",
        }
    }
}

/// What the children have around them.
#[derive(Debug)]
pub(super) struct Place<'a> {
    /// A folder that exists and is empty.
    pub(super) scratch: &'a Path,
    /// Version of Landlock, 0 if it is not active.
    pub(super) landlock: u32,
    /// Whether users may have namespaces.
    pub(super) has_namespaces: bool,
    /// Whether opening is confined here by any means.
    pub(super) confines_files: bool,
}

pub(super) fn start_in(scratch: &Path, keep: Vec<u32>) -> Start {
    Start {
        keep,
        read: vec![scratch.join("readable")],
        write: vec![scratch.join("writable")],
        ..Start::default()
    }
}

/// Locks a child down as far as `stage`, without what is omitted.
pub(super) fn lock(stage: Stage, start: &Start, omitted: &Omitted) -> Result<(), HardeningError> {
    lock_for(stage, start, None, omitted)
}

/// The same with the rules for a GPU's driver.
pub(super) fn lock_for(
    stage: Stage,
    start: &Start,
    gpu_driver: Option<u32>,
    omitted: &Omitted,
) -> Result<(), HardeningError> {
    shed_except(start, omitted)?;
    if stage == Stage::Keeper {
        confine_keeper_except(start, omitted)?;
        return Ok(());
    }
    confine_except(start, omitted)?;
    let recording = stage == Stage::Recorded;
    let readiness = Readiness { gpu_driver, recording, ..Readiness::default() };
    match stage {
        Stage::Serve => drop(finish_except(&readiness, omitted)?),
        Stage::Recorded => {
            finish_except(&readiness, &Omitted::Nothing)?;
            end_recording_except(&readiness, omitted)?;
        }
        Stage::Exporter => drop(finish_exporter_except(omitted)?),
        Stage::Confined | Stage::Keeper => {}
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
pub(super) fn code_of(result: &std::io::Result<()>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().map_or(NO_LOCK, |number| number as u8),
    }
}

/// Exit code of a child that could not be locked down; errors are below.
pub(super) const NO_LOCK: u8 = 255;

/// What a probe and its control mean together.
pub(super) fn judge(
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
pub(super) fn probe_twice(
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
