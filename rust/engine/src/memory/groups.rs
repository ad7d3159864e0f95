//! Control groups, versions 1 and 2, from the process's own up to the root: each may limit memory.

use std::fs::File;
use std::mem::take;
use std::path::{Path, PathBuf};

use super::small_file::read;

/// A group that may have a limit.
#[derive(Debug)]
pub(super) struct Group {
    /// Its path as the process sees it.
    pub(super) name: String,
    limits: Vec<File>,
    used: File,
    stat: Option<File>,
    names: &'static Names,
}

/// What the versions call the same things.
#[derive(Debug)]
struct Names {
    limits: &'static [&'static str],
    used: &'static str,
    /// Of memory.stat: pages of files that nobody has used lately, of this group and those below it.
    reclaimable: &'static str,
}

const VERSION_1: Names = Names {
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
/// Above `memory.high` the kernel slows the group down.
const VERSION_2: Names = Names {
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    reclaimable: "inactive_file",
};

impl Group {
    /// The process's own group, and those above it that have a limit now.
    pub(super) fn all(root: &Path) -> Vec<Self> {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let (groups, mounts) = (text("proc/self/cgroup"), text("proc/self/mountinfo"));
        let mut found = Vec::new();
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let names = match controllers {
                "" => &VERSION_2,
                list if list.split(',').any(|name| name == "memory") => &VERSION_1,
                _ => continue,
            };
            let mounted = mounts.lines().filter_map(|line| Mount::parse(line, names)).next();
            let Some(mount) = mounted else { continue };
            // In a container the mount may begin at the container's own group, and the process's path
            // may be one outside.
            let below = Path::new(path).strip_prefix(&mount.root).unwrap_or(Path::new(""));
            let top = root.join(mount.point.trim_start_matches('/'));
            let groups = below.ancestors().filter_map(|name| Self::open(&top, name, names));
            // The process's own group may get a limit later.
            let mut is_own = true;
            found.extend(groups.filter(|group| take(&mut is_own) || group.limit().is_some()));
        }
        found
    }

    fn open(top: &Path, name: &Path, names: &'static Names) -> Option<Self> {
        let folder = top.join(name);
        let open = |file: &&str| File::open(folder.join(file)).ok();
        Some(Self {
            name: format!("/{}", name.display()),
            limits: names.limits.iter().filter_map(open).collect(),
            used: open(&names.used)?,
            stat: open(&"memory.stat"),
            names,
        })
    }

    fn limit(&self) -> Option<u64> {
        // No limit is "max" in version 2, and a number near the largest in version 1.
        let number = |file| read(file).trim().parse().ok().filter(|bytes| *bytes < NO_LIMIT);
        self.limits.iter().filter_map(number).min()
    }

    /// Bytes that the group leaves; `None` if there is no limit any more. Below `enough`, pages that the
    /// kernel can drop count as free.
    pub(super) fn room(&self, enough: u64) -> Option<u64> {
        let limit = self.limit()?;
        let used: u64 = read(&self.used).trim().parse().ok()?;
        let room = limit.saturating_sub(used);
        if room >= enough {
            return Some(room);
        }
        let droppable = self.stat.as_ref().map_or(0, |file| self.droppable(&read(file)));
        Some(limit.saturating_sub(used.saturating_sub(droppable)))
    }

    fn droppable(&self, stat: &str) -> u64 {
        let line = stat.lines().find_map(|line| {
            let (name, number) = line.split_once(' ')?;
            (name == self.names.reclaimable).then_some(number)
        });
        line.and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

/// Where a version's groups are mounted.
struct Mount {
    /// The group that is seen at `point`.
    root: PathBuf,
    point: String,
}

impl Mount {
    /// One line of /proc/self/mountinfo, if it is a mount of this version's memory groups.
    fn parse(line: &str, names: &Names) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let kind = right.next()?;
        let is_memory = right.next_back()?.split(',').any(|option| option == "memory");
        let is_wanted = match kind {
            "cgroup2" => names.used == VERSION_2.used,
            "cgroup" => names.used == VERSION_1.used && is_memory,
            _ => false,
        };
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        (is_wanted && point.starts_with(PLACE))
            .then(|| Self { root: root.into(), point: point.to_owned() })
    }
}

/// Where every system mounts them, and where a locked process may have files open
/// (security/policy/process.toml).
const PLACE: &str = "/sys/fs/cgroup";
/// Version 1 says this or more where there is no limit.
const NO_LIMIT: u64 = 1 << 60;

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "23 1 0:22 / /sys rw - sysfs sysfs rw\n\
        31 24 0:27 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
        35 24 0:31 /pod /sys/fs/cgroup/memory rw shared:13 - cgroup cgroup rw,memory\n\
        36 24 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    /// Version 1 in a container whose mount begins at its own group.
    #[test]
    fn test_version_1_is_read_up_to_where_it_is_mounted() {
        let folder = std::env::temp_dir().join(format!("ingle-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/pod/worker/deep\n0::/\n");
        write("proc/self/mountinfo", MOUNTS);
        for (group, limit) in
            [("", "700000"), ("worker", "600000"), ("worker/deep", "9223372036854771712")]
        {
            write(&format!("sys/fs/cgroup/memory/{group}/memory.limit_in_bytes"), limit);
            write(&format!("sys/fs/cgroup/memory/{group}/memory.usage_in_bytes"), "500000");
            let stat = "inactive_file 7\ntotal_inactive_file 30000\n";
            write(&format!("sys/fs/cgroup/memory/{group}/memory.stat"), stat);
        }
        let groups = Group::all(&folder);
        let found: Vec<_> =
            groups.iter().map(|group| (group.name.as_str(), group.room(u64::MAX))).collect();
        let deep = ("/worker/deep", None);
        assert_eq!(found, [deep, ("/worker", Some(130_000)), ("/", Some(230_000))]);
        // A path outside of what is mounted: the mounted group is the nearest that can be seen.
        write("proc/self/cgroup", "4:memory:/elsewhere\n");
        let groups = Group::all(&folder);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].room(1), Some(200_000));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
