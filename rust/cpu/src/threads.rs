//! The number of computing threads: one per physical core that this process may use.

use std::collections::BTreeSet;
use std::fs;

/// Physical cores among the processors that the scheduler lets this process use, at most what a cgroup
/// quota grants. Where the system does not say which processors share a core, each counts as one.
#[must_use]
pub fn physical_cores() -> usize {
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let allowed = fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            parse_list(line.trim())
        })
        .unwrap_or_default();
    let cores: Option<BTreeSet<String>> = allowed
        .iter()
        .map(|cpu| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            fs::read_to_string(path).ok()
        })
        .collect();
    match cores {
        Some(cores) if !cores.is_empty() => cores.len().min(available),
        _ => available,
    }
}

/// Numbers of a list such as `0-3,8`.
fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_processor_lists_are_read() {
        assert_eq!(parse_list("0-2,5,7-8"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(parse_list("x"), None);
    }

    #[test]
    fn test_there_is_at_least_one_core() {
        assert!(physical_cores() >= 1);
    }
}
