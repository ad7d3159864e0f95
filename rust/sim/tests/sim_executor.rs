//! The real-time executor: order, answers, masks, modelled time, and a quick end.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ingle_core::{
    BlockId, Executor, OpenedSlot, PlanRow, PooledRow, Pooling, RowMask, RowStatus, SampleMode,
    SamplingParams, SlotId, StepCompletion, StepId, StepOutput, StepPlan, TokenId, TokenSource,
    Wants,
};
use ingle_sim::{Answers, Profile, SimConfig, SimError, SimExecutor};

const TOKENS: u32 = 40;

/// Far beyond any step of these tests: reached only if a completion is lost.
const PATIENCE: Duration = Duration::from_secs(60);

fn profile(step_us: f64) -> Profile {
    Profile {
        weight_bytes: 0.0,
        flops_per_row: 0.0,
        flops_per_sample: 0.0,
        kv_bytes_per_token: 0.0,
        overhead_us: step_us,
        hidden_size: 8,
        ..Profile::default()
    }
}

fn config(profile: Profile, speed: f64) -> SimConfig {
    let shape = profile.shape(16, 8, 64, 64);
    SimConfig { profile, speed, shape }
}

fn text() -> Arc<[TokenId]> {
    (0..TOKENS).map(TokenId).collect()
}

fn start(config: SimConfig) -> (SimExecutor, Receiver<(StepCompletion, Instant)>) {
    let (sender, receiver) = channel();
    // Only so that the sink is Sync.
    let sender = Mutex::new(sender);
    let sink = move |completion| {
        // The test may be over and the receiver gone.
        let _gone = sender.lock().unwrap().send((completion, Instant::now())).is_err();
    };
    (SimExecutor::new(config, text(), Arc::new(sink)).unwrap(), receiver)
}

fn opened(slot: u32, prompt: &[u32], sampling: SamplingParams) -> OpenedSlot {
    OpenedSlot {
        slot: SlotId::first(slot),
        sampling: Arc::new(sampling),
        prompt: prompt.iter().copied().map(TokenId).collect(),
        generated: Vec::new(),
        cached_blocks: Vec::new(),
    }
}

fn row(slot: u32, start: u32, ids: &[u32], sample: SampleMode) -> PlanRow {
    PlanRow {
        slot: SlotId::first(slot),
        start,
        num_tokens: ids.len().max(1) as u32,
        source: match ids {
            [] => TokenSource::LastSampled,
            ids => TokenSource::Host(ids.iter().copied().map(TokenId).collect()),
        },
        new_blocks: if start == 0 { vec![BlockId(slot)] } else { Vec::new() },
        wants: Wants { sample, ..Wants::default() },
    }
}

fn step(id: u64, opened: Vec<OpenedSlot>, rows: Vec<PlanRow>) -> StepPlan {
    StepPlan { id: StepId(id), opened, rows, ..StepPlan::default() }
}

fn next(receiver: &Receiver<(StepCompletion, Instant)>) -> StepOutput {
    let (completion, _) = receiver.recv_timeout(PATIENCE).unwrap();
    let output = completion.result.unwrap();
    assert_eq!(output.id, completion.id);
    output
}

#[test]
fn test_steps_complete_in_order_with_the_expected_answers() {
    let (mut sim, receiver) = start(config(profile(100.0), f64::INFINITY));
    let prompt = [5, 6, 7];
    let first = row(0, 0, &prompt, SampleMode::Now);
    sim.submit(step(1, vec![opened(0, &prompt, SamplingParams::default())], vec![first])).unwrap();
    for id in 2..=60 {
        sim.submit(step(id, vec![], vec![row(0, id as u32 + 1, &[], SampleMode::Now)])).unwrap();
    }
    let prompt: Vec<TokenId> = prompt.into_iter().map(TokenId).collect();
    let expected = Answers::new(text()).expected(&prompt, 60);
    for (id, token) in (1..).zip(expected) {
        let output = next(&receiver);
        assert_eq!((output.id, output.tokens), (StepId(id), vec![token]));
    }
}

#[test]
fn test_resumed_request_goes_on_where_it_was() {
    let (mut sim, receiver) = start(config(profile(0.0), 1.0));
    let expected = Answers::new(text()).expected(&[TokenId(9)], 3);
    let mut resumed = opened(3, &[9], SamplingParams::default());
    resumed.generated = expected[..2].to_vec();
    let ids = [9, expected[0].0, expected[1].0];
    sim.submit(step(1, vec![resumed], vec![row(3, 0, &ids, SampleMode::Now)])).unwrap();
    assert_eq!(next(&receiver).tokens, [expected[2]]);
}

#[test]
fn test_rows_return_what_they_want() {
    let (mut sim, receiver) = start(config(profile(0.0), 1.0));
    let sampling = SamplingParams { log_probs: Some(2), ..SamplingParams::default() };
    let mut chunk = row(0, 0, &[1, 2], SampleMode::None);
    chunk.wants.prompt_log_probs = Some(1);
    chunk.wants.next_prompt_token = Some(TokenId(3));
    let mut embedding = row(1, 0, &[4, 5], SampleMode::None);
    embedding.wants.pooled = Some(PooledRow { pooling: Pooling::Mean, is_last: true });
    let slots =
        vec![opened(0, &[1, 2, 3], sampling), opened(1, &[4, 5], SamplingParams::default())];
    sim.submit(step(1, slots, vec![chunk, embedding])).unwrap();
    let output = next(&receiver);
    assert!(output.tokens.is_empty());
    let targets: Vec<TokenId> = output.rows[0].prompt_log_probs.iter().map(|e| e.token).collect();
    assert_eq!(targets, [TokenId(2), TokenId(3)]);
    assert_eq!(output.rows[1].pooled.len(), 8);
    sim.submit(step(2, vec![], vec![row(0, 2, &[3], SampleMode::Now)])).unwrap();
    let output = next(&receiver);
    assert_eq!(output.rows[0].log_probs[0].token, output.tokens[0]);
    assert_eq!(output.rows[0].log_probs[0].top.len(), 2);
}

#[test]
fn test_late_step_waits_for_its_masks_and_obeys_them() {
    let (mut sim, receiver) = start(config(profile(0.0), f64::INFINITY));
    let slots = vec![
        opened(0, &[1], SamplingParams::default()),
        opened(1, &[2], SamplingParams::default()),
    ];
    let rows = vec![row(0, 0, &[1], SampleMode::Late), row(1, 0, &[2], SampleMode::Late)];
    sim.submit(step(1, slots, rows)).unwrap();
    sim.submit(step(2, vec![], vec![row(0, 1, &[], SampleMode::Now)])).unwrap();
    let only_62: Arc<[u32]> = Arc::new([0, 1 << 30]);
    let nothing: Arc<[u32]> = Arc::new([0, 0]);
    let mask = |slot, allowed: &Arc<[u32]>| RowMask {
        slot: SlotId::first(slot),
        allowed: Arc::clone(allowed),
    };
    sim.sample(StepId(1), vec![mask(0, &only_62), mask(1, &nothing)]).unwrap();
    let output = next(&receiver);
    assert_eq!((output.id, output.tokens), (StepId(1), vec![TokenId(62)]));
    assert_eq!(output.rows[1].status, RowStatus::NotFinite);
    assert_eq!(next(&receiver).id, StepId(2));
}

#[test]
fn test_steps_take_their_time_back_to_back() {
    let (mut sim, receiver) = start(config(profile(8000.0), 4.0));
    let begin = Instant::now();
    sim.submit(step(
        1,
        vec![opened(0, &[1], SamplingParams::default())],
        vec![row(0, 0, &[1], SampleMode::Now)],
    ))
    .unwrap();
    for id in 2..=20 {
        sim.submit(step(id, vec![], vec![row(0, id as u32 - 1, &[], SampleMode::Now)])).unwrap();
    }
    for id in 1..=20 {
        let (completion, at) = receiver.recv_timeout(PATIENCE).unwrap();
        assert_eq!(completion.id, StepId(id));
        // 2 ms each, never early; how late depends on the machine's other work.
        assert!(at - begin >= Duration::from_millis(2 * id), "step {id} was early");
    }
}

#[test]
fn test_dropping_it_ends_a_long_step_at_once() {
    let (mut sim, receiver) = start(config(profile(3.6e9), 1.0));
    let slot = opened(0, &[1], SamplingParams::default());
    sim.submit(step(1, vec![slot], vec![row(0, 0, &[1], SampleMode::Now)])).unwrap();
    let begin = Instant::now();
    drop(sim);
    assert!(begin.elapsed() < PATIENCE, "the step takes an hour");
    assert!(receiver.recv().is_err(), "it has not completed");
}

#[test]
fn test_bad_settings_are_refused_with_their_value() {
    let refuse = |config: SimConfig, tokens: Arc<[TokenId]>| {
        SimExecutor::new(config, tokens, Arc::new(|_| {})).unwrap_err().to_string()
    };
    for speed in [0.0, -1.0, f64::NAN] {
        let message = refuse(config(profile(1.0), speed), text());
        assert_eq!(message, format!("sim speed is {speed}; it must be above 0, or inf"));
    }
    assert_eq!(refuse(config(profile(1.0), 1.0), Arc::new([])), SimError::EmptyText.to_string());
    let message = refuse(config(profile(1.0), 1.0), Arc::new([TokenId(64)]));
    assert_eq!(message, "token id 64 of the text is not below the vocabulary size of 64");
    let message = refuse(config(profile(-1.0), 1.0), text());
    assert!(message.contains("overhead_us is -1"), "{message}");
}
