//! The self-proof: the locked process looks at its own threads and tries what must fail. What it cannot
//! open any more, it opens before. A proof that fails ends the start.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::Path;

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, getppid};

use crate::error::HardeningError;
use crate::report::Report;
use crate::surroundings::Surroundings;
use crate::sys;

/// What is looked at again once the filter is on.
#[derive(Debug)]
pub(crate) struct Proof {
    /// `/proc/self/task/TID/status` of every thread; the kernel writes it anew at each read.
    threads: Vec<(String, File)>,
    parent: Pid,
}

impl Proof {
    /// Looks at what must be so already, and opens what will be needed.
    ///
    /// # Errors
    /// `HardeningError::State` if an open descriptor should not be.
    pub(crate) fn prepare(
        has_gpu: bool,
        open_files: &[String],
        report: &mut Report,
    ) -> Result<Self, HardeningError> {
        check_descriptors(has_gpu, open_files)?;
        check_maps(report)?;
        let mut threads = Vec::new();
        for entry in fs::read_dir("/proc/self/task").map_err(HardeningError::at("threads"))? {
            let path = entry.map_err(HardeningError::at("threads"))?.path();
            // A thread that has ended meanwhile needs no proof.
            let Ok(name) = fs::read_to_string(path.join("comm")) else { continue };
            let status = File::open(path.join("status")).map_err(HardeningError::at("status"))?;
            threads.push((name.trim().to_owned(), status));
        }
        Ok(Self { threads, parent: getppid().unwrap_or(Pid::INIT) })
    }

    /// Checks every thread, and that forbidden acts fail.
    ///
    /// # Errors
    /// `HardeningError::State` names what does not hold.
    pub(crate) fn check(self, report: &mut Report) -> Result<(), HardeningError> {
        let count = self.threads.len();
        for (name, mut status) in self.threads {
            let mut text = String::new();
            let read = status.rewind().and_then(|()| status.read_to_string(&mut text));
            match read {
                Ok(_) => check_status(&name, &text)?,
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(HardeningError::at("status of a thread")(error)),
            }
        }
        let acts = forbidden_acts(self.parent);
        for (act, wanted, result) in &acts {
            match result {
                Err(error) if error.raw_os_error() == Some(*wanted) => {}
                other => {
                    let found =
                        other.as_ref().map_or_else(ToString::to_string, |()| "done".to_owned());
                    return Err(HardeningError::State(format!(
                        "the lock-down lets through: {act} ({found})"
                    )));
                }
            }
        }
        report.on("proof", format!("{count} threads, {} forbidden acts", acts.len()));
        Ok(())
    }
}

/// Acts that must fail, with the error that each must give and the one that it gave.
fn forbidden_acts(parent: Pid) -> Vec<(&'static str, i32, io::Result<()>)> {
    let done = |result: Result<(), Errno>| result.map_err(io::Error::from);
    let no_files = Rlimit { current: Some(1), maximum: Some(1) };
    vec![
        (
            "open a folder",
            libc::EPERM,
            done(rustix::fs::open("/", OFlags::RDONLY, Mode::empty()).map(drop)),
        ),
        ("look at a path", libc::EPERM, done(rustix::fs::stat("/").map(drop))),
        (
            "make a socket",
            libc::EPERM,
            done(rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).map(drop)),
        ),
        (
            "make a file in memory",
            libc::EPERM,
            done(rustix::fs::memfd_create("proof", MemfdFlags::CLOEXEC).map(drop)),
        ),
        ("map executable memory", libc::EPERM, sys::map_code()),
        (
            "become dumpable",
            libc::EPERM,
            done(rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)),
        ),
        (
            "change a limit",
            libc::EPERM,
            done(rustix::process::setrlimit(Resource::Nofile, no_files)),
        ),
        (
            "start a thread",
            libc::EPERM,
            std::thread::Builder::new().spawn(|| ()).map(|thread| drop(thread.join())),
        ),
        ("signal another process", libc::EPERM, done(rustix::process::test_kill_process(parent))),
    ]
}

fn check_status(thread: &str, text: &str) -> Result<(), HardeningError> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.strip_prefix(':')).map(str::trim)
    };
    let none = "0000000000000000";
    for (name, wanted) in [
        ("Seccomp", "2"),
        ("NoNewPrivs", "1"),
        ("CapInh", none),
        ("CapPrm", none),
        ("CapEff", none),
        ("CapAmb", none),
    ] {
        let found = value(name).unwrap_or("nothing");
        if found != wanted {
            return Err(HardeningError::State(format!(
                "thread {thread}: {name} is {found}, not {wanted}"
            )));
        }
    }
    Ok(())
}

/// Whether the descriptor of this number was opened for reading alone.
fn is_read_only(number: &OsStr) -> Result<bool, HardeningError> {
    let path = Path::new("/proc/self/fdinfo").join(number);
    let text = fs::read_to_string(path).map_err(HardeningError::at("descriptors"))?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    Ok(flags.is_some_and(|flags| flags & libc::O_ACCMODE == libc::O_RDONLY))
}

/// `open_files` may be open for reading.
fn check_descriptors(has_gpu: bool, open_files: &[String]) -> Result<(), HardeningError> {
    let surroundings = Surroundings::read()?;
    let entries = fs::read_dir("/proc/self/fd").map_err(HardeningError::at("descriptors"))?;
    let own = Path::new("/proc").join(std::process::id().to_string()).join("fd");
    for entry in entries {
        let entry = entry.map_err(HardeningError::at("descriptors"))?;
        let is_standard = matches!(entry.file_name().to_str(), Some("0" | "1" | "2"));
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        // The listing itself is open while it is read.
        if is_standard || target == own {
            continue;
        }
        let target = target.to_string_lossy();
        let is_read_only = || is_read_only(&entry.file_name());
        if open_files.iter().any(|file| *file == target) && is_read_only()? {
            continue;
        }
        if !surroundings.allows_descriptor(&target, has_gpu) {
            return Err(HardeningError::State(format!("{target} is open and must not be")));
        }
    }
    Ok(())
}

/// Memory that is both writable and executable would undo what the filter refuses.
fn check_maps(report: &mut Report) -> Result<(), HardeningError> {
    let maps = fs::read_to_string("/proc/self/maps").map_err(HardeningError::at("maps"))?;
    let both = maps.lines().filter(|line| {
        let rights = line.split(' ').nth(1).unwrap_or_default();
        rights.contains('w') && rights.contains('x')
    });
    let both = both.count();
    if both > 0 {
        report.missing("maps", format!("{both} mappings are writable and executable"));
    } else {
        report.on("maps", "none is writable and executable");
    }
    Ok(())
}
