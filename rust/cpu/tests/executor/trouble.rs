//! Broken numbers, broken plans, broken settings, the end of the executor.

use std::sync::Arc;

use ingle_core::{BlockId, Executor, ExecutorError, RowStatus, SampleMode};
use ingle_cpu::{CpuConfig, CpuError, CpuExecutor, CpuPath};
use ingle_model::{WeightRole, WeightSource};

use crate::harness::{Harness, Request, config, model};
use crate::{MODEL, greedy, prompt};

/// A file in which the embedding of one token is NaN.
struct Poisoned {
    inner: Arc<dyn WeightSource>,
    file: usize,
    start: u64,
    end: u64,
}

impl WeightSource for Poisoned {
    fn read_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        self.inner.read_at(file, offset, buffer)?;
        for (at, byte) in (offset..).zip(buffer) {
            if file == self.file && (self.start..self.end).contains(&at) {
                *byte = 0xff;
            }
        }
        Ok(())
    }
}

const POISON: u32 = 499;

#[test]
fn test_a_row_that_is_not_finite_ends_alone() {
    // No token, no endless "!"; and nothing of it reaches other requests.
    let mut checkpoint = model(MODEL);
    let view = checkpoint.plan.tensors[&WeightRole::Embedding].clone();
    let row_bytes = u64::from(view.cols) * 2;
    let start = view.offset + u64::from(POISON) * row_bytes;
    let inner = Arc::clone(&checkpoint.source);
    let end = start + row_bytes;
    checkpoint.source = Arc::new(Poisoned { inner, file: view.file, start, end });
    // Untied, so that the head stays whole.
    assert!(!checkpoint.spec.tie_word_embeddings, "the test needs a model with its own head");
    let mut harness = Harness::of(&checkpoint, &config(16));
    let clean: Vec<u32> = prompt(12).into_iter().map(|id| id % 400).collect();
    let mut alone = [Request::new(0, &clean, greedy())];
    harness.generate(&mut alone, 5, 100);

    let mut bad = Request::new(1, &[3, POISON, 5], greedy());
    let mut good = Request::new(2, &clean, greedy());
    let plan = harness.plan(&mut [(&mut bad, 3), (&mut good, 12)]);
    let output = harness.run(plan).expect("step");
    assert_eq!(output.rows[0].status, RowStatus::NotFinite);
    assert_eq!(output.rows[0].num_tokens, 0);
    assert!(output.rows[0].log_probs.is_empty());
    assert_eq!(output.rows[1].status, RowStatus::Ok);
    assert_eq!(output.tokens.len(), 1);
    assert_eq!(output.tokens[0].0, alone[0].output[0]);

    // Blocks that hold its NaNs serve the next request.
    let mut next = Request::new(3, &clean, greedy());
    let mut plan = harness.plan(&mut [(&mut next, 12)]);
    let missing = plan.rows[0].new_blocks.len();
    plan.rows[0].new_blocks = bad.blocks[..missing].to_vec();
    let output = harness.run(plan).expect("step");
    assert_eq!(output.tokens[0].0, alone[0].output[0]);
    assert_eq!(output.rows[0].log_probs[0].log_prob, alone[0].log_probs[0]);
}

/// Whatever a plan mixes up, a row never runs on what a later owner of its slot has left there.
#[test]
fn test_a_row_of_a_slots_earlier_owner_fails_its_step() {
    let mut harness = Harness::new(MODEL, &config(16));
    let mut earlier = Request::new(2, &prompt(12), greedy());
    let plan = harness.plan(&mut [(&mut earlier, 12)]);
    harness.run(plan).expect("step");
    let mut later = Request::new(2, &prompt(5), greedy());
    later.slot = later.slot.next();
    let plan = harness.plan(&mut [(&mut later, 5)]);
    harness.run(plan).expect("step");

    let stale = harness.plan(&mut [(&mut earlier, 1)]);
    let error = harness.run(stale).expect_err("the slot has another owner");
    assert!(error.to_string().contains("slot 2 is not open for its owner 0"), "{error}");
}

#[test]
fn test_a_plan_that_does_not_fit_fails_and_the_next_one_runs() {
    let mut harness = Harness::new(MODEL, &config(16));
    let mut request = Request::new(0, &prompt(12), greedy());
    let good = harness.plan(&mut [(&mut request, 12)]);
    let mut broken = Vec::new();
    for change in 0..6 {
        let mut plan = good.clone();
        match change {
            0 => plan.opened.clear(),
            1 => plan.rows[0].new_blocks.clear(),
            2 => plan.rows[0].new_blocks[0] = BlockId(1_000_000),
            3 => plan.rows[0].start = 500,
            4 => plan.rows[0].source = ingle_core::TokenSource::LastSampled,
            _ => plan.rows[0].num_tokens = 4000,
        }
        plan.closed = vec![request.slot];
        broken.push(plan);
    }
    for (change, plan) in broken.into_iter().enumerate() {
        let error = harness.run(plan).expect_err("a plan that does not fit");
        assert!(matches!(error, ExecutorError::StepFailed(_)), "change {change}: {error}");
    }
    assert_eq!(harness.run(good).expect("step").tokens.len(), 1);
}

#[test]
fn test_dropping_completes_every_step() {
    let mut harness = Harness::new(MODEL, &config(16));
    let mut request = Request::new(0, &prompt(12), greedy());
    let mut plan = harness.plan(&mut [(&mut request, 12)]);
    plan.rows[0].wants.sample = SampleMode::Late;
    harness.executor.submit(plan).expect("submitted");
    let mut other = Request::new(1, &prompt(5), greedy());
    let plan = harness.plan(&mut [(&mut other, 5)]);
    harness.executor.submit(plan).expect("submitted");
    // The masks never come.
    let completions = harness.drop_executor();
    assert_eq!(completions.len(), 2);
    for completion in completions {
        assert!(matches!(completion.result, Err(ExecutorError::DeviceLost(_))));
    }
}

#[test]
fn test_settings_without_sense_are_refused_by_name() {
    let checkpoint = model(MODEL);
    let load = |config: &CpuConfig| {
        let sink = Arc::new(|_| {});
        CpuExecutor::load(&checkpoint.spec, &checkpoint.plan, &checkpoint.source, config, sink)
            .map(|_| ())
    };
    let zero = CpuConfig { num_blocks: 0, ..config(16) };
    let error = load(&zero).expect_err("no blocks");
    assert_eq!(error.to_string(), "cpu executor: num_blocks is 0, must be at least 1");
    let few = CpuConfig { num_slots: 3, max_num_seqs: 4, ..config(16) };
    assert!(matches!(load(&few), Err(CpuError::Setting { setting: "num_slots", value: 3, .. })));
    let portable = CpuConfig { path: CpuPath::Portable, ..config(16) };
    load(&portable).expect("every processor has this path");
}
