//! System calls that rustix does not wrap: seccomp, Landlock, a few of prctl and mount, and for the probes
//! fork and calls by number; and one call of the allocator. The only file of this crate with unsafe code. Any thread, except for what
//! says that the process must have one.
#![allow(unsafe_code, reason = "each block makes one system call and says why it is sound")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_long, c_uint, c_ulong, sock_filter, sock_fprog};

/// What a ruleset handles, as landlock(7) lays it out.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RulesetRights {
    pub(crate) files: u64,
    pub(crate) network: u64,
    pub(crate) scopes: u64,
}

/// What seccomp(2) lays out for a rule on a folder or file; packed there, as here.
#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: c_int,
}

/// landlock_net_port_attr.
#[repr(C)]
struct NetPort {
    allowed: u64,
    /// In the host's byte order.
    port: u64,
}

/// Gives free pages of the allocator back to the kernel.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) takes no pointer, may be called from any thread and moves nothing in use.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Puts a filter on every thread of this process, or on none.
///
/// # Errors
/// The kernel's; `EBUSY` if some thread has other filters than the caller.
pub(crate) fn filter_all_threads(program: &[sock_filter]) -> io::Result<()> {
    match set_filter(program, libc::SECCOMP_FILTER_FLAG_TSYNC)? {
        0 => Ok(()),
        // The number of a thread that could not follow; the filter is then on none.
        _ => Err(io::Error::from_raw_os_error(libc::EBUSY)),
    }
}

/// Puts a filter on every thread whose `SECCOMP_RET_USER_NOTIF` goes to the returned descriptor.
///
/// # Errors
/// The kernel's.
pub(crate) fn filter_and_listen(program: &[sock_filter]) -> io::Result<OwnedFd> {
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC
        | libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH
        | libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let fd = set_filter(program, flags)?;
    // SAFETY: with NEW_LISTENER and TSYNC_ESRCH, seccomp(2) returns a new descriptor that nothing else
    // owns, or an error, which `set_filter` has returned.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

fn set_filter(program: &[sock_filter], flags: c_ulong) -> io::Result<c_long> {
    let Ok(len) = u16::try_from(program.len()) else {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    };
    let program = sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: seccomp(2) reads the sock_fprog and the `len` instructions behind its pointer, both alive
    // until it returns, and writes to neither.
    result(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags as c_uint,
            &raw const program,
        )
    })
}

/// A system call that waits for an answer: the thread that made it, its number and arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    id: u64,
    pub(crate) thread: u32,
    pub(crate) number: u32,
    pub(crate) arguments: [u64; 6],
}

/// Waits for the next call that a filter reports to `listener`.
///
/// # Errors
/// The kernel's; `ENOENT` if the caller died meanwhile.
pub(crate) fn next_notice(listener: BorrowedFd<'_>) -> io::Result<Notice> {
    // SAFETY: seccomp_notif consists of integers, for which zeros are valid; the kernel wants zeros.
    let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open while it is borrowed; the request writes one seccomp_notif, which
    // `notice` is and which outlives the call.
    result(c_long::from(unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice)
    }))?;
    Ok(Notice {
        id: notice.id,
        thread: notice.pid,
        number: notice.data.nr as u32,
        arguments: notice.data.args,
    })
}

/// Lets a reported call go on as if there were no filter.
///
/// # Errors
/// The kernel's; `ENOENT` if the caller died meanwhile.
pub(crate) fn let_through(listener: BorrowedFd<'_>, notice: &Notice) -> io::Result<()> {
    let mut response = libc::seccomp_notif_resp {
        id: notice.id,
        val: 0,
        error: 0,
        flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
    };
    // SAFETY: the descriptor is open while it is borrowed; the request reads and writes one
    // seccomp_notif_resp, which `response` is and which outlives the call.
    result(c_long::from(unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response)
    }))
    .map(|_| ())
}

/// The version of Landlock that is active in this kernel.
///
/// # Errors
/// The kernel's: `ENOSYS` if it is not built in, `EOPNOTSUPP` if it is not among the active modules.
pub(crate) fn landlock_version() -> io::Result<u32> {
    const VERSION: c_uint = 1;
    // SAFETY: with this flag, landlock_create_ruleset(2) takes a null pointer and size 0 and reads
    // nothing.
    let version = result(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<RulesetRights>(),
            0usize,
            VERSION,
        )
    })?;
    Ok(version as u32)
}

/// A ruleset that handles `rights`, of which this kernel knows the first `num_bytes`.
///
/// # Errors
/// The kernel's.
pub(crate) fn landlock_ruleset(rights: &RulesetRights, num_bytes: usize) -> io::Result<OwnedFd> {
    assert!(num_bytes <= size_of::<RulesetRights>(), "more bytes than there are");
    // SAFETY: landlock_create_ruleset(2) reads `num_bytes` bytes behind the pointer, which the line above
    // keeps within `rights`.
    let fd = result(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::from_ref(rights),
            num_bytes,
            0 as c_uint,
        )
    })?;
    // SAFETY: the call has succeeded, so this is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

/// Allows `rights` on the file or below the folder that `place` is.
///
/// # Errors
/// The kernel's; `EINVAL` for rights that do not fit a file.
pub(crate) fn landlock_allow(
    ruleset: BorrowedFd<'_>,
    place: BorrowedFd<'_>,
    rights: u64,
) -> io::Result<()> {
    const PATH_BENEATH: c_uint = 1;
    let rule = PathBeneath { allowed: rights, parent: place.as_raw_fd() };
    // SAFETY: both descriptors are open while they are borrowed; landlock_add_rule(2) reads one
    // landlock_path_beneath_attr, which PathBeneath lays out, alive until it returns.
    result(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            PATH_BENEATH,
            &raw const rule,
            0 as c_uint,
        )
    })
    .map(|_| ())
}

/// Allows `rights` on a TCP port of any host.
///
/// # Errors
/// The kernel's.
pub(crate) fn landlock_allow_port(
    ruleset: BorrowedFd<'_>,
    port: u16,
    rights: u64,
) -> io::Result<()> {
    const NET_PORT: c_uint = 2;
    let rule = NetPort { allowed: rights, port: u64::from(port) };
    // SAFETY: the descriptor is open while it is borrowed; landlock_add_rule(2) reads one
    // landlock_net_port_attr, which NetPort lays out, alive until it returns.
    result(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            NET_PORT,
            &raw const rule,
            0 as c_uint,
        )
    })
    .map(|_| ())
}

/// Puts this thread, and those it starts, under a ruleset.
///
/// # Errors
/// The kernel's.
pub(crate) fn landlock_restrict(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: landlock_restrict_self(2) takes a descriptor, open while it is borrowed, and flags.
    result(unsafe {
        libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0 as c_uint)
    })
    .map(|_| ())
}

/// From now on no mapping of this process can become executable, and none be writable and executable.
///
/// # Errors
/// `EINVAL` before Linux 6.3.
pub(crate) fn refuse_new_code() -> io::Result<()> {
    const REFUSE_EXEC_GAIN: c_ulong = 1;
    const ZERO: c_ulong = 0;
    // SAFETY: PR_SET_MDWE takes numbers only and changes what later calls may do, not what is mapped.
    result(c_long::from(unsafe {
        libc::prctl(libc::PR_SET_MDWE, REFUSE_EXEC_GAIN, ZERO, ZERO, ZERO)
    }))
    .map(|_| ())
}

/// Whether the kernel knows `refuse_new_code`.
///
/// # Errors
/// `EINVAL` if it does not.
pub(crate) fn knows_new_code() -> io::Result<()> {
    const ZERO: c_ulong = 0;
    // SAFETY: PR_GET_MDWE takes numbers and only reports.
    result(c_long::from(unsafe { libc::prctl(libc::PR_GET_MDWE, ZERO, ZERO, ZERO, ZERO) }))
        .map(|_| ())
}

/// Whether the kernel has seccomp filters.
///
/// # Errors
/// The kernel's, if it has none.
pub(crate) fn has_seccomp() -> io::Result<()> {
    let kill = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: SECCOMP_GET_ACTION_AVAIL reads one u32, alive until the call returns.
    result(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0 as c_uint,
            &raw const kill,
        )
    })
    .map(|_| ())
}

/// Makes a mount and all below it read-only, without set-user-id programs.
///
/// # Errors
/// The kernel's; `ENOSYS` before Linux 5.12.
pub(crate) fn mount_read_only(place: BorrowedFd<'_>) -> io::Result<()> {
    /// fcntl.h; libc has no name for it.
    const AT_RECURSIVE: c_int = 0x8000;
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the descriptor is open while it is borrowed; the path is a C string; mount_setattr(2) reads
    // one mount_attr of the given size, alive until it returns.
    result(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            place.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    })
    .map(|_| ())
}

/// Closes a descriptor, open or not.
///
/// The process must be at its start: whoever owned the descriptor would go on using it, closed or reused.
/// That is why this is for the lock-down alone, which names what to keep.
pub(crate) fn close(fd: u32) {
    // SAFETY: close(2) takes a number. No Rust value of this crate owns a descriptor while `begin` calls
    // this, and the caller of `begin` lists what Python owns, which is left open. An error means that
    // nothing was open.
    let _ = unsafe { libc::close(fd as c_int) };
}

/// Gives this process user and mount namespaces of its own. It must have one thread.
///
/// # Errors
/// The kernel's; `EPERM` or `ENOSPC` where users may not have namespaces.
pub(crate) fn new_namespaces() -> io::Result<()> {
    // SAFETY: unshare(2) takes flags; these two change what paths and ids mean, and no memory or
    // descriptor of this process.
    let done = unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) };
    result(c_long::from(done)).map(|_| ())
}

/// Removes a capability from what programs could ever gain; an unknown one gives `EINVAL`.
///
/// # Errors
/// `EPERM` without `CAP_SETPCAP`.
pub(crate) fn drop_bounding(capability: c_ulong) -> io::Result<()> {
    const ZERO: c_ulong = 0;
    // SAFETY: PR_CAPBSET_DROP takes numbers and changes this thread's credentials only.
    result(c_long::from(unsafe {
        libc::prctl(libc::PR_CAPBSET_DROP, capability, ZERO, ZERO, ZERO)
    }))
    .map(|_| ())
}

/// Gives a command to a descriptor that does not exist: `EBADF` from the kernel itself.
///
/// # Errors
/// The kernel's, always.
pub(crate) fn try_ioctl(command: u32) -> io::Result<()> {
    const NO_FILE: c_int = -1;
    // SAFETY: without a file no driver sees the argument, which is no address.
    result(unsafe { libc::syscall(libc::SYS_ioctl, NO_FILE, command, 0) }).map(|_| ())
}

/// Tries to map a page of executable memory, and unmaps it again.
///
/// # Errors
/// The kernel's, which is what a locked process wants.
pub(crate) fn map_code() -> io::Result<()> {
    const PAGE: usize = 4096;
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no other memory.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page was mapped just now, has this length, and nothing points to it.
    result(c_long::from(unsafe { libc::munmap(page, PAGE) })).map(|_| ())
}

/// Shows that this is a forked child: it has a copy of everything, shares nothing and ends soon.
#[derive(Debug)]
pub(crate) struct Child(());

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With this exit code.
    Exited(u8),
    /// By this signal.
    Killed(i32),
}

/// Runs `work` in a child process and waits for it; what it returns is the exit code.
///
/// The process must have one thread: the child has a copy of the calling one alone, and would wait for ever
/// for a lock that another held.
///
/// # Errors
/// The kernel's, if it gives no process.
pub(crate) fn in_child(work: impl FnOnce(&Child) -> u8) -> io::Result<Ended> {
    // SAFETY: the caller has one thread, so the child's copy of memory is whole and no lock is held by a
    // thread that the child lacks.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = work(&Child(()));
        // SAFETY: _exit(2) ends the child without running what belongs to the parent (buffers, handlers).
        unsafe { libc::_exit(c_int::from(code)) };
    }
    result(c_long::from(pid))?;
    loop {
        let mut status = 0;
        // SAFETY: waitpid(2) writes one int to `status`, which outlives the call.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        match result(c_long::from(waited)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) if libc::WIFSIGNALED(status) => return Ok(Ended::Killed(libc::WTERMSIG(status))),
            Ok(_) => return Ok(Ended::Exited(libc::WEXITSTATUS(status) as u8)),
        }
    }
}

/// Leads output and log of the child nowhere, as a server's lead to a pipe: a file would keep its size.
///
/// # Errors
/// The kernel's.
pub(crate) fn silence(_child: &Child) -> io::Result<()> {
    let nowhere = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    for standard in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: dup2(2) replaces a standard descriptor of this child, which nothing here owns.
        result(c_long::from(unsafe { libc::dup2(nowhere.as_raw_fd(), standard) }))?;
    }
    Ok(())
}

/// An argument of a call that a probe makes.
#[derive(Debug)]
pub(crate) enum Argument {
    Number(i64),
    /// Memory that the call may read and write; a text ends in a zero.
    Memory(Vec<u8>),
}

/// Makes any system call, by number.
///
/// # Errors
/// The kernel's.
pub(crate) fn call(_child: &Child, number: i64, arguments: &mut [Argument]) -> io::Result<i64> {
    let mut words = [0; 6];
    for (word, argument) in words.iter_mut().zip(arguments) {
        *word = match argument {
            Argument::Number(number) => *number as c_long,
            Argument::Memory(bytes) => bytes.as_mut_ptr() as c_long,
        };
    }
    let [a, b, c, d, e, f] = words;
    // SAFETY: this is a forked child (`_child`): whatever the call does to memory, descriptors or this
    // process harms nobody else. Pointers lead to buffers of `arguments`, which outlive the call; probes.toml
    // states lengths within them.
    result(unsafe { libc::syscall(number as c_long, a, b, c, d, e, f) })
}

/// Makes the system call getpid as a 32-bit program would.
///
/// # Errors
/// The kernel's: `ENOSYS` without support for such programs.
#[cfg(target_arch = "x86_64")]
pub(crate) fn call_as_32_bit(_child: &Child) -> io::Result<()> {
    const GETPID: i64 = 20;
    let returned: i64;
    // SAFETY: interrupt 0x80 makes the 32-bit call in eax, which takes no arguments and touches no memory;
    // it changes rax and, on older kernels, r8 to r11. In a child, where a fault would end only the child.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inlateout("rax") GETPID => returned,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            options(nostack),
        );
    }
    if returned > 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-(returned as i32))) }
}

/// Writes to a page and then tries to make it executable.
///
/// # Errors
/// The kernel's: `EACCES` after `refuse_new_code`.
pub(crate) fn gain_code(_child: &Child) -> io::Result<()> {
    const PAGE: usize = 4096;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no other memory.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, rights, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page is this function's own and nothing runs in it. It stays mapped until the child ends.
    result(c_long::from(unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_EXEC) }))
        .map(|_| ())
}

/// Puts a filter on this thread alone.
///
/// # Errors
/// The kernel's.
pub(crate) fn filter_this_thread(_child: &Child, program: &[sock_filter]) -> io::Result<()> {
    set_filter(program, 0).map(|_| ())
}

fn result(returned: c_long) -> io::Result<c_long> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}
