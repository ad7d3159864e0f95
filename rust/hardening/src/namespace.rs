//! A mount namespace that holds only some places: for kernels without active Landlock. Before the first
//! thread. Needs user namespaces, which some systems withhold from users.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, open, openat};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};
use rustix::process::{DumpableBehavior, fchdir, getgid, getuid, pivot_root};

use crate::error::HardeningError;
use crate::landlock::Places;
use crate::sys;

/// Replaces the root of this process by one that has `places` and nothing else.
///
/// # Errors
/// `HardeningError::System` with what could not be done. Before the last step the process then still sees
/// everything; a failure of the last one is `State`.
pub(crate) fn confine(places: &Places) -> Result<(), HardeningError> {
    let at = |what: &str| HardeningError::at::<io::Error>(format!("namespace: {what}"));
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let work_folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    sys::new_namespaces().map_err(at("user namespaces"))?;
    // A process that was root is not dumpable, and the files below are then root's. `begin` ends this again.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)
        .map_err(|error| at("dumpable")(error.into()))?;
    // The own ids mean the same inside; without `setgroups` no map of groups is allowed.
    for (name, line) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {uid} 1")),
        ("gid_map", format!("{gid} {gid} 1")),
    ] {
        fs::write(format!("/proc/self/{name}"), line).map_err(at(name))?;
    }
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|error| at("private mounts")(error.into()))?;
    let read = places.read.iter().map(|path| (path, true));
    let mut wanted: Vec<(&PathBuf, bool)> =
        read.chain(places.write.iter().map(|path| (path, false))).collect();
    // A folder before what lies in it; of two rules for one place, the one that lets write last.
    wanted.sort_by_key(|(path, is_read_only)| (path.as_os_str().len(), !is_read_only));
    let mut mounts: Vec<(&PathBuf, OwnedFd)> = Vec::new();
    for (path, is_read_only) in wanted {
        if let Some(mount) = copy_of(path, is_read_only)? {
            mounts.push((path, mount));
        }
    }
    let root = empty_root()?;
    for (path, mount) in mounts {
        attach(&root, path, &mount)?;
    }
    enter(root, &work_folder)
}

/// A detached copy of the mounts at `path`; None if there is nothing.
fn copy_of(path: &Path, is_read_only: bool) -> Result<Option<OwnedFd>, HardeningError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let at = || format!("namespace: {}", path.display());
    let mount = match rustix::mount::open_tree(CWD, path, flags) {
        Ok(mount) => mount,
        Err(Errno::NOENT | Errno::ACCESS | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(error) => return Err(HardeningError::at(at())(error)),
    };
    if is_read_only {
        sys::mount_read_only(mount.as_fd()).map_err(HardeningError::at(at()))?;
    }
    Ok(Some(mount))
}

/// An empty file system in memory, not yet attached anywhere that anyone looks at.
fn empty_root() -> Result<OwnedFd, HardeningError> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("tmpfs", ROOT, "tmpfs", flags, c"size=1m,mode=0755")
        .map_err(HardeningError::at("namespace: tmpfs"))?;
    open(ROOT, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(HardeningError::at("namespace: tmpfs"))
}

/// Attaches a copy at its own path below `root`, making folders on the way.
fn attach(root: &OwnedFd, path: &Path, mount: &OwnedFd) -> Result<(), HardeningError> {
    let at = || format!("namespace: {}", path.display());
    let inner = path.strip_prefix("/").unwrap_or(path);
    let is_folder = fstat(mount)
        .map(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
        .map_err(HardeningError::at(at()))?;
    let target = Path::new(ROOT).join(inner);
    if rustix::fs::statat(root, inner, AtFlags::empty()).is_err() {
        if is_folder {
            fs::create_dir_all(&target).map_err(HardeningError::at(at()))?;
        } else {
            let parent = target.parent().unwrap_or(Path::new(ROOT));
            fs::create_dir_all(parent).map_err(HardeningError::at(at()))?;
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            openat(root, inner, flags, Mode::from_raw_mode(0o600))
                .map_err(HardeningError::at(at()))?;
        }
    }
    rustix::mount::move_mount(
        mount,
        "",
        CWD,
        &target,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS,
    )
    .map_err(HardeningError::at(at()))
}

/// Makes `root` the root; the old one is no longer reachable.
fn enter(root: OwnedFd, work_folder: &Path) -> Result<(), HardeningError> {
    fchdir(&root).map_err(HardeningError::at("namespace: the new root"))?;
    // pivot_root(2): with both the same, the old root lies over the new one and is taken off.
    pivot_root(".", ".").map_err(HardeningError::at("namespace: pivot_root"))?;
    let taken_off = rustix::mount::unmount(".", UnmountFlags::DETACH);
    taken_off.map_err(|error| HardeningError::State(format!("namespace: old root: {error}")))?;
    // Relative paths of the settings mean the same as before.
    let _ = fs::create_dir_all(work_folder);
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount_remount("/", flags, c"size=1m,mode=0755")
        .map_err(|error| HardeningError::State(format!("namespace: read-only root: {error}")))?;
    std::env::set_current_dir(work_folder)
        .or_else(|_| std::env::set_current_dir("/"))
        .map_err(|error| HardeningError::State(format!("namespace: folder: {error}")))
}

/// Where the new root is put together; what lies below it is copied before.
const ROOT: &str = "/tmp";
