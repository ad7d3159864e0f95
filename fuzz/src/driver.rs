//! Runs a fuzz target: first its corpus, then inputs that are mutated from it, for a time.
//!
//! An input whose outcome is new (the target says what came of it) joins the corpus in memory, so that
//! later inputs start from it; in a build that counts what code it reaches (`coverage`), also one that
//! reaches more. Inputs follow from the seed and what was new, how many there are from the time.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cost::{Cost, measured};
use crate::coverage::Coverage;
use crate::mutation::{mutate, mutate_json};
use crate::rng::Rng;

/// One parser of untrusted bytes, and what must hold for any input.
pub trait Target {
    /// Name, and folder of the corpus.
    fn name(&self) -> &'static str;

    /// Texts of the format, which mutation inserts.
    fn words(&self) -> &'static [&'static str] {
        &[]
    }

    /// Inputs beside those of the corpus.
    fn seeds(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// Whether inputs are JSON: half of the mutations then change values instead of bytes.
    fn is_json(&self) -> bool {
        false
    }

    /// Longest input.
    fn max_len(&self) -> usize {
        4096
    }

    /// The most that one input may cost.
    fn limit(&self) -> Cost {
        Cost { cpu: Duration::from_millis(200), peak_bytes: 64 << 20 }
    }

    /// Reads the input and checks what came of it; panics on a finding. Gives the kind of outcome.
    fn run(&mut self, input: &[u8]) -> Outcome;
}

/// What came of an input, as far as it shows that the input took another way through the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outcome(u64);

impl Outcome {
    /// Refused: texts that differ in more than numbers are different outcomes.
    #[must_use]
    pub fn refused(message: &str) -> Self {
        // Quoted parts come from the input: they would make every outcome new.
        let plain = message.split(['"', '`', '\'']).step_by(2).collect::<String>();
        Self::of(plain.chars().filter(|c| c.is_ascii_alphabetic()).take(48).collect::<String>())
    }

    /// Accepted, in one of some ways.
    #[must_use]
    pub fn of(kind: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        kind.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// What a run has seen.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Inputs, the corpus included.
    pub num_inputs: u64,
    /// Different outcomes.
    pub num_outcomes: usize,
    /// Edges of the program that were taken; 0 in a build that does not count them.
    pub num_edges: usize,
    /// The dearest input in time and the dearest in memory.
    pub worst: Cost,
}

/// Runs the corpus in `corpora` and then mutated inputs until `time` is over.
///
/// # Panics
/// On a finding, after the input has been written to a file that the message names.
pub fn fuzz(target: &mut dyn Target, corpora: &Path, seed: u64, time: Duration) -> Report {
    let mut corpus = target.seeds();
    corpus.extend(read_corpus(&corpora.join(target.name())));
    assert!(!corpus.is_empty(), "{} has no corpus", target.name());
    let num_given = corpus.len();
    let started = Instant::now();
    let mut rng = Rng::new(seed);
    let worst = Cost { cpu: Duration::ZERO, peak_bytes: 0 };
    let mut report = Report { num_inputs: 0, num_outcomes: 0, num_edges: 0, worst };
    let mut outcomes = HashSet::new();
    let mut coverage = Coverage::default();
    for input in &corpus {
        coverage.reset();
        outcomes.insert(check(target, input, &mut report));
        coverage.has_grown();
    }
    while started.elapsed() < time {
        // Most of what is new is refused in a new way: half of all inputs start from whole ones.
        let from = if rng.one_in(2) { &corpus[..num_given] } else { &corpus[..] };
        let (input, other) = (rng.pick(from), rng.pick(&corpus));
        let (max_len, words) = (target.max_len(), target.words());
        let json = if target.is_json() && rng.one_in(2) {
            mutate_json(input, other, max_len, &mut rng)
        } else {
            None
        };
        let input = json.unwrap_or_else(|| mutate(input, other, words, max_len, &mut rng));
        coverage.reset();
        let is_new = outcomes.insert(check(target, &input, &mut report)) | coverage.has_grown();
        if is_new && corpus.len() < MAX_CORPUS {
            corpus.push(input);
        }
    }
    report.num_outcomes = outcomes.len();
    report.num_edges = coverage.num_edges();
    report
}

fn check(target: &mut dyn Target, input: &[u8], report: &mut Report) -> Outcome {
    let (result, cost) = measured(|| catch_unwind(AssertUnwindSafe(|| target.run(input))));
    report.num_inputs += 1;
    let outcome = result.unwrap_or_else(|panic| {
        let path = keep(target.name(), input);
        name_finding(target.name(), &path);
        resume_unwind(panic)
    });
    let limit = target.limit();
    if cost.cpu > limit.cpu || cost.peak_bytes > limit.peak_bytes {
        let path = keep(target.name(), input);
        panic!("{}: {cost:?} is above {limit:?}: input in {}", target.name(), path.display());
    }
    report.worst.cpu = report.worst.cpu.max(cost.cpu);
    report.worst.peak_bytes = report.worst.peak_bytes.max(cost.peak_bytes);
    outcome
}

#[allow(clippy::print_stderr, reason = "it names the input of a finding")]
fn name_finding(name: &str, path: &Path) {
    eprintln!("{name}: input in {}", path.display());
}

/// Writes the input of a finding; moved into the corpus it becomes a test.
fn keep(name: &str, input: &[u8]) -> PathBuf {
    let digest = Outcome::of(input).0;
    let path = std::env::temp_dir().join(format!("ingle-fuzz-{name}-{digest:016x}"));
    std::fs::write(&path, input).unwrap();
    path
}

fn read_corpus(folder: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Inputs that are kept in memory.
const MAX_CORPUS: usize = 2000;
