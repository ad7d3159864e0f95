//! Sleep: weights leave the memory, come back from the checkpoint's files, and the bits are the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;

use ingle_core::{Executor, ExecutorError, SleepLevel};
use ingle_cpu::CpuConfig;
use ingle_model::{Checkpoint, WeightSource};

use crate::harness::{Harness, Request, config, model};
use crate::{MODEL, prompt, warm};

/// A checkpoint's files, with a count of what was read.
struct Watched {
    inner: Arc<dyn WeightSource>,
    bytes: AtomicU64,
    fails: AtomicBool,
}

impl WeightSource for Watched {
    fn read_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("the disk is gone"));
        }
        self.bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.inner.read_at(file, offset, buffer)
    }
}

fn watched() -> (Checkpoint, Arc<Watched>) {
    let mut checkpoint = model(MODEL);
    let inner = Arc::clone(&checkpoint.source);
    let source = Arc::new(Watched { inner, bytes: AtomicU64::new(0), fails: false.into() });
    checkpoint.source = Arc::clone(&source) as Arc<dyn WeightSource>;
    (checkpoint, source)
}

fn can_sleep() -> CpuConfig {
    CpuConfig { can_sleep: true, ..config(16) }
}

/// To sleep at a level, or with `None` to wake up; waits for the end.
fn rest(harness: &mut Harness, level: Option<SleepLevel>) -> Result<(), ExecutorError> {
    let (sender, end) = channel();
    let done = Box::new(move |result| sender.send(result).expect("a receiver"));
    match level {
        Some(level) => harness.executor.sleep(level, done),
        None => harness.executor.wake(done),
    }
    end.recv().expect("an end")
}

fn generate(harness: &mut Harness) -> Vec<u32> {
    let mut requests = [Request::new(0, &prompt(40), warm(3))];
    harness.hand_out_from(0);
    harness.generate(&mut requests, 12, 64);
    requests[0].output.clone()
}

#[test]
fn test_weights_are_read_again_at_each_waking_and_give_the_same_bits() {
    let (checkpoint, source) = watched();
    let mut harness = Harness::of(&checkpoint, &can_sleep());
    let once = source.bytes.load(Ordering::Relaxed);
    let expected = generate(&mut harness);
    for (count, level) in [(2, SleepLevel::Offload), (3, SleepLevel::Discard)] {
        rest(&mut harness, Some(level)).expect("asleep");
        rest(&mut harness, Some(level)).expect("asleep still");
        rest(&mut harness, None).expect("awake");
        rest(&mut harness, None).expect("awake still");
        assert_eq!(source.bytes.load(Ordering::Relaxed), count * once);
        assert_eq!(generate(&mut harness), expected, "{level:?}");
    }
    rest(&mut harness, Some(SleepLevel::Pause)).expect("paused");
    assert_eq!(generate(&mut harness), expected, "weights and blocks stayed");
}

#[test]
fn test_weights_that_are_wanted_later_are_not_read_at_the_start() {
    let (checkpoint, source) = watched();
    let expected = generate(&mut Harness::of(&checkpoint, &can_sleep()));
    let once = source.bytes.swap(0, Ordering::Relaxed);
    let mut harness = Harness::of(&checkpoint, &CpuConfig { starts_asleep: true, ..can_sleep() });
    assert_eq!(source.bytes.load(Ordering::Relaxed), 0);
    source.fails.store(true, Ordering::Relaxed);
    rest(&mut harness, None).expect_err("no weights");
    source.fails.store(false, Ordering::Relaxed);
    rest(&mut harness, None).expect("awake");
    assert_eq!(source.bytes.load(Ordering::Relaxed), once);
    assert_eq!(generate(&mut harness), expected);
}

#[test]
fn test_siblings_share_one_copy_which_goes_with_the_last_that_falls_asleep() {
    let (checkpoint, source) = watched();
    let mut first = Harness::of(&checkpoint, &can_sleep());
    let own = CpuConfig { threads: 1, first_thread: 2, ..can_sleep() };
    let mut second = first.sibling(&own);
    let once = source.bytes.load(Ordering::Relaxed);
    let expected = generate(&mut first);
    rest(&mut first, Some(SleepLevel::Offload)).expect("asleep");
    assert_eq!(generate(&mut second), expected, "the other one is awake");
    rest(&mut first, None).expect("awake");
    assert_eq!(source.bytes.load(Ordering::Relaxed), once, "the copy was still there");
    for harness in [&mut first, &mut second] {
        rest(harness, Some(SleepLevel::Offload)).expect("asleep");
    }
    for harness in [&mut first, &mut second] {
        rest(harness, None).expect("awake");
        assert_eq!(generate(harness), expected);
    }
    assert_eq!(source.bytes.load(Ordering::Relaxed), 2 * once);
}

#[test]
fn test_an_executor_that_cannot_read_its_weights_sleeps_on() {
    let (checkpoint, source) = watched();
    let mut harness = Harness::of(&checkpoint, &can_sleep());
    let expected = generate(&mut harness);
    rest(&mut harness, Some(SleepLevel::Offload)).expect("asleep");
    source.fails.store(true, Ordering::Relaxed);
    let error = rest(&mut harness, None).expect_err("no weights");
    assert!(matches!(&error, ExecutorError::Unchanged(text) if text.contains("the disk is gone")));
    let mut request = Request::new(1, &prompt(5), warm(3));
    let plan = harness.plan(&mut [(&mut request, 5)]);
    let error = harness.run(plan).expect_err("no step runs");
    assert!(error.to_string().ends_with("the executor sleeps"), "{error}");
    source.fails.store(false, Ordering::Relaxed);
    rest(&mut harness, None).expect("awake");
    assert_eq!(generate(&mut harness), expected);
}

#[test]
fn test_files_that_are_read_once_are_not_kept() {
    let (checkpoint, source) = watched();
    let executor = Harness::of(&checkpoint, &config(16)).executor;
    drop(checkpoint);
    assert_eq!(executor.deepest_sleep(), SleepLevel::Pause);
    assert_eq!(Arc::strong_count(&source), 1);
}
