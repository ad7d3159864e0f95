//! The second half: when every thread exists and every lazy part has run once. Irrevocable.

use rustix::fs::{FileType, fstat};
use rustix::process::{Resource, Rlimit, setrlimit};

use serde::Deserialize;

use crate::begin::put_on;
use crate::error::HardeningError;
use crate::omitted::Omitted;
use crate::policies::{CUDA, CUDA_UNKNOWN, SERVE};
use crate::policy::Policy;
use crate::proof::Proof;
use crate::report::Report;
use crate::{sys, trace};

/// What the second half needs to know.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Readiness {
    /// The major version of NVIDIA's driver, if a GPU is used.
    pub cuda_driver: Option<u32>,
    /// Let through what the tight filter would refuse, and print it: for `ingle security trace`.
    pub trace: bool,
}

/// Puts the tight filter on every thread and proves that it holds.
///
/// # Errors
/// `HardeningError::State` names what does not hold; the process must then end.
pub fn finish(readiness: &Readiness) -> Result<Report, HardeningError> {
    let mut report = Report::default();
    let policy = policy_for(readiness.cuda_driver, &mut report)?;
    // At its first look at a clock, rustix asks the kernel where the vDSO is.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    limit_files(&mut report)?;
    let proof = Proof::prepare(readiness.cuda_driver.is_some(), &mut report)?;
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
    let policy = omitted.from(policy_for(readiness.cuda_driver, &mut report)?);
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

fn refuse_code(report: &mut Report) {
    let what = match sys::refuse_new_code() {
        Ok(()) => "no memory becomes executable (filter and PR_SET_MDWE)".to_owned(),
        Err(error) => format!("no memory becomes executable (filter; PR_SET_MDWE: {error})"),
    };
    report.on("code", what);
}

fn policy_for(cuda_driver: Option<u32>, report: &mut Report) -> Result<Policy, HardeningError> {
    let serve = SERVE.policy()?;
    let Some(driver) = cuda_driver else {
        report.on("device_calls", "none: no GPU");
        return Ok(serve);
    };
    if let Some((_, file)) = CUDA.iter().find(|(known, _)| *known == driver) {
        report.on("device_calls", format!("those listed for driver {driver}"));
        return Ok(serve.with(file.policy()?));
    }
    report.missing("device_calls", format!("all: no list for driver {driver}"));
    Ok(serve.with(CUDA_UNKNOWN.policy()?))
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

    #[test]
    fn test_a_driver_without_a_list_is_missing_its_layer() {
        let device_calls = |driver| {
            let mut report = Report::default();
            let policy = policy_for(driver, &mut report).unwrap();
            let ioctls = policy.rules_of("ioctl").filter(|rule| rule.when.is_empty()).count();
            (report.layers[0].on, report.lacks(), ioctls)
        };
        assert_eq!(device_calls(None), (true, vec![], 0));
        assert_eq!(device_calls(Some(580)), (true, vec![], 0));
        let (on, lacks, unconditional) = device_calls(Some(999));
        assert_eq!((on, unconditional), (false, 1));
        assert!(lacks[0].contains("no list for driver 999"), "{lacks:?}");
    }
}
