//! What the engines of a process amount to together: limits of a request, memory, names. Plain data,
//! once at start.

use ingle_core::SleepLevel;

use crate::device::Built;

/// Sizes of all engines together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fleet {
    pub(crate) num_engines: u32,
    /// The longest request that each of them can take.
    pub(crate) max_model_len: u32,
    /// Requests that run at once.
    pub(crate) max_num_seqs: u32,
    /// Requests that wait beyond those.
    pub(crate) max_queue: u32,
    /// The deepest sleep that all of them can sleep.
    pub(crate) deepest_sleep: SleepLevel,
    /// For people.
    pub(crate) device: String,
    /// Real paths of files that stay open.
    pub(crate) open_files: Vec<String>,
    /// Bytes by part, those of all engines added up.
    pub(crate) memory: Vec<(String, u64)>,
    /// For the start-up message. What another engine has to say differently names it.
    pub(crate) notes: Vec<String>,
}

impl Fleet {
    /// `max_queue`: the setting; absent, the sum of what the devices want.
    pub(crate) fn new(built: &[Built], max_queue: Option<u32>) -> Self {
        let sum = |part: fn(&Built) -> u32| built.iter().map(part).fold(0, u32::saturating_add);
        let names: Vec<&str> = built.iter().map(|built| built.name.as_str()).collect();
        Self {
            num_engines: u32::try_from(built.len()).unwrap_or(u32::MAX),
            max_model_len: built.iter().map(|built| built.sizes.max_model_len).min().unwrap_or(0),
            max_num_seqs: sum(|built| built.sizes.max_num_seqs),
            max_queue: max_queue.unwrap_or_else(|| sum(|built| built.sizes.max_queue)),
            deepest_sleep: built
                .iter()
                .map(|built| built.executor.deepest_sleep())
                .min()
                .unwrap_or(SleepLevel::Pause),
            device: device_of(&names),
            open_files: open_files_of(built),
            memory: memory_of(built),
            notes: notes_of(built),
        }
    }
}

fn device_of(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [first, rest @ ..] if rest.iter().all(|name| name == first) => {
            format!("{first} x {} engines", names.len())
        }
        _ => names.join(", "),
    }
}

fn open_files_of(built: &[Built]) -> Vec<String> {
    let mut files: Vec<String> = built.iter().flat_map(|built| built.open_files.clone()).collect();
    files.sort_unstable();
    files.dedup();
    files
}

fn memory_of(built: &[Built]) -> Vec<(String, u64)> {
    let mut sums: Vec<(String, u64)> = Vec::new();
    for (name, bytes) in built.iter().flat_map(|built| &built.memory) {
        match sums.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += bytes,
            None => sums.push((name.clone(), *bytes)),
        }
    }
    sums
}

fn notes_of(built: &[Built]) -> Vec<String> {
    let Some((first, others)) = built.split_first() else { return Vec::new() };
    let first = &first.sizes.notes;
    let mut notes = first.clone();
    for (number, built) in (1..).zip(others) {
        let own = built.sizes.notes.iter().filter(|note| !first.contains(note));
        notes.extend(own.map(|note| format!("engine {number}: {note}")));
    }
    notes
}
