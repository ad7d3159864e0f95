//! How much memory this process may still take: what the kernel calls available, what each control
//! group above the process leaves, and what the limit on addresses leaves. Any thread.
//!
//! The files are opened once, at start, since a locked process opens none. Reading them later costs a
//! system call for each.

mod groups;
mod small_file;

use std::fs::File;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use groups::Group;
use small_file::read;

/// The limits of this process.
#[derive(Debug)]
pub(crate) struct Memory {
    meminfo: Option<File>,
    groups: Vec<Group>,
    /// What the limit on addresses left when this was opened.
    addresses: Option<u64>,
}

/// What one of the limits leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    /// Which limit that is, for people.
    pub(crate) limit: String,
}

impl Memory {
    /// Opens what says how much is used.
    pub(crate) fn open() -> Self {
        Self::below(Path::new("/"))
    }

    /// The same, with /proc and /sys in another place.
    fn below(root: &Path) -> Self {
        Self {
            meminfo: File::open(root.join("proc/meminfo")).ok(),
            groups: Group::all(root),
            addresses: addresses_left(root),
        }
    }

    /// The least that any limit leaves.
    pub(crate) fn room(&self) -> Room {
        self.least(u64::MAX)
    }

    /// As `room`, in bytes; what is `enough` or more may be too low.
    pub(crate) fn room_if_below(&self, enough: u64) -> u64 {
        self.least(enough).bytes
    }

    fn least(&self, enough: u64) -> Room {
        let available = |file| kib_after("MemAvailable:", &read(file));
        let machine = self.meminfo.as_ref().and_then(available);
        let machine = machine.map(|bytes| Room { bytes, limit: "this machine".to_owned() });
        let addresses = self
            .addresses
            .map(|bytes| Room { bytes, limit: "the limit on addresses (ulimit -v)".to_owned() });
        let groups = self.groups.iter().filter_map(|group| {
            let bytes = group.room(enough)?;
            Some(Room { bytes, limit: format!("the control group {}", group.name) })
        });
        let rooms = machine.into_iter().chain(addresses).chain(groups);
        let unknown = Room { bytes: GIB, limit: "nothing that could be read".to_owned() };
        rooms.min_by_key(|room| room.bytes).unwrap_or(unknown)
    }
}

/// The bytes of a line such as `MemAvailable:   1000 kB`.
fn kib_after(name: &str, text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// What RLIMIT_AS leaves, less what stacks and arenas of threads that have not started yet will take;
/// `None` without a limit.
fn addresses_left(root: &Path) -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let status = std::fs::read_to_string(root.join("proc/self/status")).ok()?;
    let used = kib_after("VmSize:", &status)?;
    Some(limit.saturating_sub(used).saturating_sub(THREADS_BYTES))
}

/// Addresses for some twenty threads: stacks of 8 MiB, and the arenas that glibc gives to some of them.
const THREADS_BYTES: u64 = 512 << 20;
const GIB: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_this_machine_has_memory() {
        let memory = Memory::open();
        let room = memory.room();
        assert!(room.bytes > 1 << 20, "{room:?}");
        assert!(memory.room_if_below(1) > 1 << 20);
    }

    #[test]
    fn test_the_least_of_all_limits_counts() {
        let folder = std::env::temp_dir().join(format!("ingle-memory-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    1000 kB\n");
        assert_eq!(Memory::below(&folder).room().bytes, 1000 << 10);
        write("proc/self/cgroup", "0::/a/b\n");
        let mount = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n";
        write("proc/self/mountinfo", mount);
        write("sys/fs/cgroup/a/memory.max", "500000\n");
        write("sys/fs/cgroup/a/memory.current", "450000\n");
        write("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 100000\nfile 9\n");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        write("sys/fs/cgroup/a/b/memory.current", "450000\n");
        let memory = Memory::below(&folder);
        // What can be dropped of the files' pages counts as free.
        let room = Room { bytes: 150_000, limit: "the control group /a".to_owned() };
        assert_eq!(memory.room(), room);
        // Not computed when there is room enough.
        assert_eq!(memory.room_if_below(40_000), 50_000);
        // The limit may change while the process runs.
        write("sys/fs/cgroup/a/memory.max", "600000\n");
        assert_eq!(memory.room().bytes, 250_000);
        write("sys/fs/cgroup/a/memory.max", "max\n");
        assert_eq!(memory.room().limit, "this machine");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
