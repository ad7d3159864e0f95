//! Landlock: what the process may still open, from the kernel's version of it. Before the first thread.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use crate::error::HardeningError;
use crate::sys::{self, RulesetRights};

/// Places that stay open to the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// To read, with all below.
    pub(crate) read: Vec<PathBuf>,
    /// To read and write, with all below.
    pub(crate) write: Vec<PathBuf>,
    /// TCP ports that it may connect to.
    pub(crate) connect: Vec<u16>,
}

/// Confines this thread and those it starts: it can open `places` and nothing else, bind no TCP port, connect
/// none but those of `places`, and reach no abstract Unix socket or process outside. Returns the version of Landlock.
///
/// # Errors
/// `HardeningError::System` if the kernel refuses, `State` if it does not hold afterwards.
pub(crate) fn confine(version: u32, places: &Places) -> Result<(), HardeningError> {
    let rights = rights(version);
    let num_bytes = match version {
        ..4 => 8,
        4..6 => 16,
        _ => 24,
    };
    let ruleset =
        sys::landlock_ruleset(&rights, num_bytes).map_err(HardeningError::at("Landlock"))?;
    for (paths, wanted) in [(&places.read, READ), (&places.write, READ | WRITE)] {
        for path in paths {
            allow(ruleset.as_fd(), path, wanted & rights.files)?;
        }
    }
    if rights.network & CONNECT_TCP != 0 {
        for port in &places.connect {
            sys::landlock_allow_port(ruleset.as_fd(), *port, CONNECT_TCP)
                .map_err(HardeningError::at(format!("Landlock: port {port}")))?;
        }
    }
    sys::landlock_restrict(ruleset.as_fd()).map_err(HardeningError::at("Landlock"))?;
    // The root is on no list: a kernel that lets it be read confines nothing.
    match rustix::fs::open("/", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        Err(rustix::io::Errno::ACCESS) => Ok(()),
        _ => Err(HardeningError::State("Landlock is on and confines nothing".to_owned())),
    }
}

/// Allows `rights` at `path`; a place that cannot be reached is skipped.
fn allow(
    ruleset: std::os::fd::BorrowedFd<'_>,
    path: &Path,
    rights: u64,
) -> Result<(), HardeningError> {
    let at = || format!("Landlock: {}", path.display());
    // No rule makes a place reachable that this user cannot reach now; leaving it out takes nothing away.
    let Ok(place) = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
        return Ok(());
    };
    let stat = rustix::fs::fstat(&place).map_err(HardeningError::at(at()))?;
    let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let rights = if is_folder { rights } else { rights & FILE_RIGHTS };
    sys::landlock_allow(ruleset, place.as_fd(), rights).map_err(HardeningError::at(at()))
}

/// Everything that this version can handle, so that what no rule allows is refused.
fn rights(version: u32) -> RulesetRights {
    RulesetRights {
        files: match version {
            1 => (1 << 13) - 1,
            2 => (1 << 14) - 1,
            3 | 4 => (1 << 15) - 1,
            _ => (1 << 16) - 1,
        },
        network: if version >= 4 { BIND_TCP | CONNECT_TCP } else { 0 },
        scopes: if version >= 6 { ABSTRACT_SOCKETS | SIGNALS } else { 0 },
    }
}

// linux/landlock.h. Nothing may be executed anywhere, and no device file, socket or fifo made.
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_DIR: u64 = 1 << 7;
const MAKE_REG: u64 = 1 << 8;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
const READ: u64 = READ_FILE | READ_DIR;
const WRITE: u64 = WRITE_FILE | REMOVE_FILE | MAKE_DIR | MAKE_REG | TRUNCATE | IOCTL_DEV;
/// What a rule on a file may name.
const FILE_RIGHTS: u64 = WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
const BIND_TCP: u64 = 1;
const CONNECT_TCP: u64 = 2;
const ABSTRACT_SOCKETS: u64 = 1;
const SIGNALS: u64 = 2;
