//! Malformed checkpoints: each loads rightly or is refused by an error that names a file, in little time
//! and memory. One test, since it looks at the memory of the process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test reports what it measured")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ingle_engine::{Engine, EngineError};
use ingle_fuzz::cost::{Cost, CountingAllocator, measured};
use ingle_fuzz::model_files::{Case, Generator};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const MAX_CPU: Duration = Duration::from_millis(100);
const MAX_BYTES: usize = 64 << 20;

/// About 30 of each class. `INGLE_MODEL_FILES=n` runs n.
const NUM_CASES: u64 = 2000;
const NUM_CASES_OF_THE_LONG_TEST: u64 = 20_000;

#[test]
fn test_malformed_model_files_are_refused_soon_by_name() {
    let number = std::env::var("INGLE_MODEL_FILES").ok().map(|text| text.parse().unwrap());
    run(number.unwrap_or(NUM_CASES));
}

#[test]
#[ignore = "long"]
fn test_twenty_thousand_malformed_model_files() {
    run(NUM_CASES_OF_THE_LONG_TEST);
}

fn run(num_cases: u64) {
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models/llama-tied-bf16");
    let generator = Generator::new(&golden);
    let folder = Folder::new();
    for case in generator.whole() {
        let (result, cost) = load(&case, &folder.0);
        assert!(result.is_ok(), "{}: {:?}", case.class, result.err());
        println!("{}: {cost:?}", case.class);
    }
    let mut classes: BTreeMap<&str, (u32, u32, Duration, usize)> = BTreeMap::new();
    let mut faults = Vec::new();
    for number in 0..num_cases {
        let case = generator.case(number);
        let (result, cost) = load(&case, &folder.0);
        if let Some(fault) = fault(&case, &result, cost, &folder.0) {
            faults.push(format!("case {number}, {}: {fault}; {cost:?} {result:?}", case.class));
        }
        let class = classes.entry(case.class).or_default();
        class.0 += 1;
        class.1 += u32::from(result.is_ok());
        class.2 = class.2.max(cost.cpu);
        class.3 = class.3.max(cost.peak_bytes);
    }
    let num_loaded: u32 = classes.values().map(|class| class.1).sum();
    assert!(u64::from(num_loaded) < num_cases / 2, "{num_loaded} were loaded: {classes:#?}");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    for (class, (count, loaded, cpu, bytes)) in classes {
        println!("{count:5} {loaded:4} loaded, {cpu:9.2?}, {:6} KiB  {class}", bytes >> 10);
    }
}

/// What is wrong with the way in which a case ended.
fn fault(
    case: &Case,
    result: &Result<(), String>,
    cost: Cost,
    folder: &Path,
) -> Option<&'static str> {
    if cost.cpu >= MAX_CPU {
        return Some("takes too long");
    }
    if cost.peak_bytes >= MAX_BYTES {
        return Some("takes too much memory");
    }
    let path = folder.to_str().unwrap();
    match result {
        Ok(()) => case.is_hopeless.then_some("was loaded"),
        Err(message) if !message.starts_with(path) => Some("names no file"),
        Err(message) if message.contains(char::is_control) => Some("is not one line"),
        Err(message) if message.len() > path.len() * 3 + 1500 => Some("is too long"),
        Err(_) => None,
    }
}

/// Loads as the server does, on the simulated device, which needs everything but the weights' values.
fn load(case: &Case, folder: &Path) -> (Result<(), String>, Cost) {
    let path = case.write(folder);
    let options = json!({
        "model": path, "device": "sim", "max_num_seqs": 4,
    });
    let options = options.to_string();
    measured(|| match Engine::start(options.as_bytes()) {
        Ok(_) => {
            places_lie_in_the_files(&path);
            Ok(())
        }
        Err(EngineError::Model(message)) => Err(message),
        Err(other) => panic!("{}: {other:?} is not an error of the model", case.class),
    })
}

/// What was loaded has every tensor inside its file.
fn places_lie_in_the_files(path: &Path) {
    let plan = ingle_model::open(path).unwrap().plan;
    for tensor in plan.tensors.values() {
        let len = std::fs::metadata(&plan.files[tensor.file]).unwrap().len();
        let elements = u64::from(tensor.rows) * u64::from(tensor.cols);
        let blocks = elements / tensor.weight_type.block_elements() as u64;
        assert_eq!(tensor.byte_len, blocks * tensor.weight_type.block_bytes() as u64);
        assert!(tensor.offset.checked_add(tensor.byte_len).unwrap() <= len, "{tensor:?}");
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("ingle-malformed-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
