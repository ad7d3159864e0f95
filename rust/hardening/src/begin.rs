//! The first half: while the process has one thread, before it opens what is not trusted. Irrevocable.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::fs::Mode;
use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Uid, getgid, getrlimit, getuid, setrlimit, umask,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use serde::Deserialize;

use crate::bpf::compile;
use crate::error::HardeningError;
use crate::landlock::Places;
use crate::omitted::Omitted;
use crate::policies::{BASE, KEEPER};
use crate::policy::Policy;
use crate::report::Report;
use crate::surroundings::Surroundings;
use crate::{landlock, namespace, sys};

/// How long threads that were joined may take to end.
const THREADS_END_WITHIN: Duration = Duration::from_secs(1);

/// What the first half needs to know.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Start {
    /// User and group to become; None stays what it is.
    pub user: Option<(u32, u32)>,
    /// Descriptors that stay open, beside 0, 1 and 2.
    pub keep: Vec<u32>,
    /// Places that may still be read, beside those of process.toml.
    pub read: Vec<PathBuf>,
    /// Places that may still be written.
    pub write: Vec<PathBuf>,
    /// TCP ports that may still be connected to.
    pub connect: Vec<u16>,
    /// Whether a GPU may be used.
    pub has_gpu: bool,
    /// Confine files as on a kernel without Landlock, wherever this is: for the probes of that.
    #[serde(skip)]
    pub by_namespace: bool,
}

/// Closes descriptors, sets limits, gives up user, capabilities and privileges, and becomes unreadable to
/// other processes. The order matters: groups before the user, all of it before `confine`.
///
/// # Errors
/// `HardeningError::State` if the process has more than one thread; `System` for a step that every kernel
/// offers and this one refused.
pub fn shed(start: &Start) -> Result<Report, HardeningError> {
    shed_except(start, &Omitted::Nothing)
}

/// `shed` without one layer: a negative control of `security check`.
pub(crate) fn shed_except(start: &Start, omitted: &Omitted) -> Result<Report, HardeningError> {
    expect_one_thread()?;
    let mut report = Report::default();
    if !omitted.is_layer("umask") {
        umask(Mode::RWXG | Mode::RWXO);
    }
    if !omitted.is_layer("descriptors") {
        close_all_but(&start.keep)?;
        report.on("descriptors", "only the server's own are open");
    }
    if !omitted.is_layer("limits") {
        set_limits()?;
    }
    // Needs a capability, so it comes first. Without the capability there is nothing to take away.
    for capability in 0..NUM_CAPABILITIES {
        if sys::drop_bounding(capability).is_err() {
            break;
        }
    }
    if let Some((uid, gid)) = start.user {
        become_user(uid, gid)?;
    }
    set_no_new_privs(true).map_err(HardeningError::at("no_new_privs"))?;
    report.on("privileges", "none can be gained");
    if getuid().is_root() {
        report.missing("user", "runs as root; start it as another user, or with --user");
    } else {
        report
            .on("user", format!("runs as user {}, group {}", getuid().as_raw(), getgid().as_raw()));
    }
    Ok(report)
}

/// Confines what can be opened, by Landlock or else by a namespace, drops all capabilities and puts on the
/// base filter.
///
/// # Errors
/// As `shed`.
pub fn confine(start: &Start) -> Result<Report, HardeningError> {
    confine_except(start, &Omitted::Nothing)
}

/// `confine` without one layer or rule.
pub(crate) fn confine_except(start: &Start, omitted: &Omitted) -> Result<Report, HardeningError> {
    let mut places = Surroundings::read()?.places(start.has_gpu);
    places.read.extend(start.read.iter().cloned());
    places.write.extend(start.write.iter().cloned());
    places.connect.clone_from(&start.connect);
    confine_to(&places, start.by_namespace, omitted)
}

/// The same for the process that reads the key file and removes the Unix socket while the worker can open
/// nothing: it can open the places of `start` only, and has a tight filter of its own.
///
/// # Errors
/// As `shed`.
pub fn confine_keeper(start: &Start) -> Result<Report, HardeningError> {
    confine_keeper_except(start, &Omitted::Nothing)
}

/// `confine_keeper` without one layer or rule.
pub(crate) fn confine_keeper_except(
    start: &Start,
    omitted: &Omitted,
) -> Result<Report, HardeningError> {
    let places =
        Places { read: start.read.clone(), write: start.write.clone(), connect: Vec::new() };
    let mut report = confine_to(&places, start.by_namespace, omitted)?;
    put_on("filter", &omitted.from(KEEPER.policy()?), &mut report)?;
    Ok(report)
}

fn confine_to(
    places: &Places,
    by_namespace: bool,
    omitted: &Omitted,
) -> Result<Report, HardeningError> {
    expect_one_thread()?;
    let mut report = Report::default();
    if !omitted.is_layer("files") {
        confine_files(places, by_namespace, &mut report)?;
    }
    // A service manager that has taken them all may also have taken the call that gives them up.
    let held = capabilities(None).map_err(HardeningError::at("capabilities"))?;
    if held != NO_CAPABILITIES {
        set_capabilities(None, NO_CAPABILITIES).map_err(HardeningError::at("capabilities"))?;
    }
    report.on("capabilities", "none");
    // Not before: the files below /proc/self that a namespace needs would be root's.
    if !omitted.is_layer("memory") {
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(HardeningError::at("not dumpable"))?;
        report.on("memory", "no core dump, unreadable to other processes");
    }
    if !omitted.is_layer("filters") {
        put_on("base_filter", &omitted.from(BASE.policy()?), &mut report)?;
    }
    Ok(report)
}

/// Puts a filter on all threads. Returns whether it is on; a kernel without seccomp is reported.
pub(crate) fn put_on(
    layer: &'static str,
    policy: &Policy,
    report: &mut Report,
) -> Result<bool, HardeningError> {
    let program = compile(policy, std::process::id())?;
    match sys::filter_all_threads(&program) {
        Ok(()) => {
            let calls = policy.calls().len();
            report.on(layer, format!("rules for {calls} system calls"));
            Ok(true)
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) => {
            report.missing(layer, format!("this kernel has no seccomp filters ({error})"));
            Ok(false)
        }
        Err(error) => Err(HardeningError::at(layer)(error)),
    }
}

fn confine_files(
    places: &Places,
    by_namespace: bool,
    report: &mut Report,
) -> Result<(), HardeningError> {
    let reason = match sys::landlock_version() {
        Ok(_) if by_namespace => "Landlock is not used".to_owned(),
        Ok(version) => {
            landlock::confine(version, places)?;
            report.on("files", format!("Landlock {version}"));
            return Ok(());
        }
        Err(error) => format!("Landlock is not active ({error})"),
    };
    match namespace::confine(places) {
        Ok(()) => report.on("files", "a namespace"),
        Err(error @ HardeningError::State(_)) => return Err(error),
        Err(error) => report.missing("files", format!("{reason}; {error}")),
    }
    Ok(())
}

/// User ids and groups of one thread only would leave others as they are; so would Landlock.
///
/// A thread that was joined can stay in the listing for a moment: the kernel wakes who waits for it before
/// it is gone.
pub(crate) fn expect_one_thread() -> Result<(), HardeningError> {
    let deadline = Instant::now() + THREADS_END_WITHIN;
    loop {
        let threads =
            fs::read_dir("/proc/self/task").map_err(HardeningError::at("/proc/self/task"))?;
        let count = threads.count();
        if count == 1 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let text = format!("the process has {count} threads; it must have one");
            return Err(HardeningError::State(text));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn close_all_but(keep: &[u32]) -> Result<(), HardeningError> {
    let at = || HardeningError::at("/proc/self/fd");
    let mut open = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").map_err(at())? {
        let name = entry.map_err(at())?.file_name();
        open.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    // The listing's own descriptor is among them, and closed by now.
    for fd in open.into_iter().filter(|fd| *fd > 2 && !keep.contains(fd)) {
        sys::close(fd);
    }
    Ok(())
}

fn set_limits() -> Result<(), HardeningError> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).map_err(HardeningError::at("RLIMIT_CORE"))?;
    // What the server has raised its own limit to is all that it needs.
    let files = getrlimit(Resource::Nofile).current;
    let exact = Rlimit { current: files, maximum: files };
    setrlimit(Resource::Nofile, exact).map_err(HardeningError::at("RLIMIT_NOFILE"))
}

fn become_user(uid: u32, gid: u32) -> Result<(), HardeningError> {
    let at = || format!("becoming user {uid}, group {gid}");
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[]).map_err(HardeningError::at(at()))?;
    set_thread_res_gid(gid, gid, gid).map_err(HardeningError::at(at()))?;
    set_thread_res_uid(uid, uid, uid).map_err(HardeningError::at(at()))?;
    if getuid() != uid || getgid() != gid {
        return Err(HardeningError::State(format!("{} had no effect", at())));
    }
    Ok(())
}

const NO_CAPABILITIES: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};
/// linux/capability.h has 41; the set is a 64-bit word.
const NUM_CAPABILITIES: libc::c_ulong = 64;
