//! The second half: when every thread exists and every lazy part has run once. Irrevocable.

use rustix::fs::{FileType, fstat};
use rustix::process::{Resource, Rlimit, setrlimit};

use serde::Deserialize;

use crate::begin::put_on;
use crate::error::HardeningError;
use crate::omitted::Omitted;
use crate::policies::{EXPORTER, GPU_DRIVERS, GPU_UNKNOWN, GpuFiles, SERVE};
use crate::policy::{Policy, Value};
use crate::proof::Proof;
use crate::report::Report;
use crate::{sys, trace};

/// What the second half needs to know.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Readiness {
    /// The major version of NVIDIA's driver, if a GPU is used.
    pub gpu_driver: Option<u32>,
    /// GPU graphs are still being recorded; `end_recording` comes later.
    pub recording: bool,
    /// The GPU's memory is given back and taken again while the worker serves.
    pub sleeps: bool,
    /// Files that may stay open, for reading alone: as /proc/self/fd shows them.
    pub open_files: Vec<String>,
    /// Let through what the tight filter would refuse, and print it: for `ingle security trace`.
    pub trace: bool,
}

/// Puts the tight filter on every thread and proves that it holds.
///
/// # Errors
/// `HardeningError::State` names what does not hold; the process must then end.
pub fn finish(readiness: &Readiness) -> Result<Report, HardeningError> {
    let mut report = Report::default();
    let policy = policy_for(readiness, &mut report)?;
    // At its first look at a clock, rustix asks the kernel where the vDSO is.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    limit_files(&mut report)?;
    let proof = Proof::prepare(readiness.gpu_driver.is_some(), &readiness.open_files, &mut report)?;
    refuse_code(&mut report);
    if readiness.trace {
        trace::start(policy)?;
        report.missing("filter", "traced only: what it would refuse is let through");
    } else if put_on("filter", &policy, &mut report)? {
        proof.check(&mut report)?;
    } else {
        report.missing("proof", "there is no filter to prove");
    }
    Ok(report)
}

/// `finish` without one layer or rule, and without the proof, which would notice.
pub(crate) fn finish_except(
    readiness: &Readiness,
    omitted: &Omitted,
) -> Result<Report, HardeningError> {
    let mut report = Report::default();
    let policy = omitted.from(policy_for(readiness, &mut report)?);
    if !omitted.is_layer("file_size") {
        limit_files(&mut report)?;
    }
    if !omitted.is_layer("code") {
        refuse_code(&mut report);
    }
    if !omitted.is_layer("filters") {
        put_on("filter", &policy, &mut report)?;
    }
    Ok(report)
}

/// Refuses on every thread what only recording graphs needs, and proves it. Any thread; once, after a `finish` with
/// `recording`.
///
/// # Errors
/// `HardeningError::State` names what does not hold; the process must then end.
pub fn end_recording(readiness: &Readiness) -> Result<Report, HardeningError> {
    end_recording_except(readiness, &Omitted::Nothing)
}

/// `end_recording` without one rule.
pub(crate) fn end_recording_except(
    readiness: &Readiness,
    omitted: &Omitted,
) -> Result<Report, HardeningError> {
    let mut report = Report::default();
    let Some(files) = gpu_files(readiness) else { return Ok(report) };
    let mut recording = files.recording.policy()?;
    if readiness.sleeps {
        recording = recording.beyond(&files.sleep.policy()?);
    }
    let policy = omitted.from(recording.refused());
    if put_on("filter", &policy, &mut report)? && *omitted == Omitted::Nothing {
        prove_refused(&policy)?;
    }
    let mut report = Report::default();
    report.on("device_calls", listed(readiness));
    Ok(report)
}

/// The second half for the process that sends spans, confined as the worker was: its filter on every thread,
/// and no new executable memory.
///
/// # Errors
/// `HardeningError::System` if the kernel has filters and refuses this one; the process must then end.
pub fn finish_exporter() -> Result<Report, HardeningError> {
    finish_exporter_except(&Omitted::Nothing)
}

/// `finish_exporter` without one layer or rule.
pub(crate) fn finish_exporter_except(omitted: &Omitted) -> Result<Report, HardeningError> {
    let mut report = Report::default();
    if !omitted.is_layer("code") {
        refuse_code(&mut report);
    }
    put_on("filter", &omitted.from(EXPORTER.policy()?), &mut report)?;
    Ok(report)
}

fn refuse_code(report: &mut Report) {
    let what = match sys::refuse_new_code() {
        Ok(()) => "no memory becomes executable (filter and PR_SET_MDWE)".to_owned(),
        Err(error) => format!("no memory becomes executable (filter; PR_SET_MDWE: {error})"),
    };
    report.on("code", what);
}

fn policy_for(readiness: &Readiness, report: &mut Report) -> Result<Policy, HardeningError> {
    let serve = SERVE.policy()?;
    let Some(driver) = readiness.gpu_driver else {
        report.on("device_calls", "none: no GPU");
        return Ok(serve);
    };
    if let Some(files) = gpu_files(readiness) {
        let mut ready = serve.with(files.ready.policy()?);
        if readiness.sleeps {
            ready = ready.with(files.sleep.policy()?);
        }
        if !readiness.recording {
            report.on("device_calls", listed(readiness));
            return Ok(ready);
        }
        let until = "and, until its graphs are recorded, what that needs";
        report.on("device_calls", format!("{}, {until}", listed(readiness)));
        return Ok(ready.with(files.recording.policy()?));
    }
    report.missing("device_calls", format!("all: no list for driver {driver}"));
    Ok(serve.with(GPU_UNKNOWN.policy()?))
}

fn gpu_files(readiness: &Readiness) -> Option<&'static GpuFiles> {
    let known = |(driver, _): &&(u32, GpuFiles)| Some(*driver) == readiness.gpu_driver;
    GPU_DRIVERS.iter().find(known).map(|(_, files)| files)
}

fn listed(readiness: &Readiness) -> String {
    let sleep = if readiness.sleeps { ", and those of sleep" } else { "" };
    format!("those listed for driver {}{sleep}", readiness.gpu_driver.unwrap_or_default())
}

/// Tries each command of the policy's rules on a descriptor that has none of them.
fn prove_refused(policy: &Policy) -> Result<(), HardeningError> {
    let conditions = policy.rules_of("ioctl").flat_map(|rule| &rule.when);
    for value in conditions.flat_map(|condition| &condition.is) {
        let Value::Number(command) = value else { continue };
        let result = sys::try_ioctl(*command);
        if !matches!(&result, Err(error) if error.raw_os_error() == Some(libc::EPERM)) {
            return Err(HardeningError::State(format!(
                "the lock-down lets through: ioctl {command:#x} ({result:?})"
            )));
        }
    }
    Ok(())
}

/// No file can grow any more, unless the log goes to one.
fn limit_files(report: &mut Report) -> Result<(), HardeningError> {
    let is_file = |stat: Result<rustix::fs::Stat, rustix::io::Errno>| {
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    };
    if is_file(fstat(std::io::stdout())) || is_file(fstat(std::io::stderr())) {
        report.missing("file_size", "output or log goes to a file, which may grow; use a pipe");
        return Ok(());
    }
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Fsize, none).map_err(HardeningError::at("RLIMIT_FSIZE"))?;
    report.on("file_size", "no file can grow");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Action;

    #[test]
    fn test_a_driver_without_a_list_is_missing_its_layer() {
        let device_calls = |gpu_driver| {
            let mut report = Report::default();
            let readiness = Readiness { gpu_driver, ..Readiness::default() };
            let policy = policy_for(&readiness, &mut report).unwrap();
            let ioctls = policy.rules_of("ioctl").filter(|rule| rule.when.is_empty()).count();
            (report.layers[0].on, report.lacks(), ioctls)
        };
        assert_eq!(device_calls(None), (true, vec![], 0));
        assert_eq!(device_calls(Some(580)), (true, vec![], 0));
        let (on, lacks, unconditional) = device_calls(Some(999));
        assert_eq!((on, unconditional), (false, 1));
        assert!(lacks[0].contains("no list for driver 999"), "{lacks:?}");
    }

    #[test]
    fn test_what_recording_needs_is_allowed_until_it_ends_and_refused_after() {
        let rules = |recording| {
            let readiness = Readiness { gpu_driver: Some(580), recording, ..Readiness::default() };
            let policy = policy_for(&readiness, &mut Report::default()).unwrap();
            (policy.rules_of("ioctl").count(), policy.rules_of("seccomp").count())
        };
        let (ioctls, filters) = rules(false);
        assert_eq!(rules(true), (ioctls + 1, filters + 1));
        let (_, files) = GPU_DRIVERS.iter().find(|(driver, _)| *driver == 580).unwrap();
        let closing = files.recording.policy().unwrap().refused();
        assert_eq!(closing.default, Action::Allow);
        assert!(closing.rules.iter().all(|rule| rule.act == Action::NotPermitted));
    }

    #[test]
    fn test_what_sleep_needs_too_is_not_refused_when_recording_ends() {
        let (_, files) = GPU_DRIVERS.iter().find(|(driver, _)| *driver == 580).unwrap();
        let commands = |policy: &Policy| -> Vec<u32> {
            let values =
                policy.rules_of("ioctl").flat_map(|rule| &rule.when).flat_map(|when| &when.is);
            let number = |value: &Value| match value {
                Value::Number(number) => *number,
                Value::Named(_) => panic!("a command has a number"),
            };
            values.map(number).collect()
        };
        let sleep = files.sleep.policy().unwrap();
        let recording = files.recording.policy().unwrap();
        let left = recording.clone().beyond(&sleep);
        let wanted: Vec<u32> = commands(&recording)
            .into_iter()
            .filter(|command| !commands(&sleep).contains(command))
            .collect();
        assert!(!wanted.is_empty() && wanted.len() < commands(&recording).len());
        assert_eq!(commands(&left), wanted);
        assert_eq!(left.rules_of("seccomp").count(), 1);
        let readiness = Readiness { gpu_driver: Some(580), sleeps: true, ..Readiness::default() };
        let allowed = policy_for(&readiness, &mut Report::default()).unwrap();
        assert!(commands(&sleep).iter().all(|command| commands(&allowed).contains(command)));
    }
}
