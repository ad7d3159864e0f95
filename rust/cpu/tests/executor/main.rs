//! The executor through its public interface: plans in, completions out.

mod harness;
mod outputs;
mod rest;
mod tenants;
mod trouble;

use std::sync::Arc;

use harness::{Harness, Request, config};
use ingle_core::{Executor, RowMask, SampleMode, SamplingParams, TokenId};
use ingle_cpu::CpuConfig;

pub(crate) const MODEL: &str = "llama-gqa4-headdim32";

pub(crate) fn greedy() -> SamplingParams {
    SamplingParams { log_probs: Some(3), ..SamplingParams::default() }
}

/// Every part of the sampler at work.
pub(crate) fn warm(seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: 1.1,
        top_k: 60,
        top_p: 0.95,
        min_p: 0.01,
        repetition_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        logit_bias: vec![(TokenId(17), 1.5)],
        min_tokens: 5,
        min_tokens_banned: vec![TokenId(1)],
        seed,
        log_probs: Some(2),
        ..SamplingParams::default()
    }
}

pub(crate) fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 37 + len) % 500).collect()
}

/// Tokens and log-probs of one request that runs alone.
fn alone(prompt: &[u32], params: SamplingParams) -> (Vec<u32>, Vec<f32>) {
    let mut harness = Harness::new(MODEL, &config(16));
    let mut requests = [Request::new(0, prompt, params)];
    harness.generate(&mut requests, 20, 1000);
    let [request] = requests;
    (request.output, request.log_probs)
}

fn assert_same(context: &str, request: &Request, expected: &(Vec<u32>, Vec<f32>)) {
    assert_eq!(request.output, expected.0, "{context}: tokens");
    assert_eq!(request.log_probs, expected.1, "{context}: log-probs");
}

#[test]
fn executors_on_the_same_weights_give_the_same_bits_and_outlive_each_other() {
    let generate = |harness: &mut Harness| {
        let mut requests = [Request::new(0, &prompt(40), warm(3))];
        harness.generate(&mut requests, 12, 64);
        requests[0].output.clone()
    };
    let mut first = Harness::new(MODEL, &config(16));
    // Other sizes and threads change no bits.
    let own = CpuConfig { threads: 1, first_thread: 2, num_blocks: 64, ..config(32) };
    let mut second = first.sibling(&own);
    let expected = generate(&mut first);
    assert_eq!(generate(&mut second), expected);
    drop(first);
    assert_eq!(generate(&mut second.sibling(&config(16))), expected);
}

#[test]
fn test_greedy_tokens_are_the_reference_ones() {
    let mut harness = Harness::new("llama-tied-bf16", &config(16));
    let text = include_str!("../../../../tests/golden/cases/llama-tied-bf16.json");
    let root: serde_json::Value = serde_json::from_str(text).expect("json");
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("id") as u32).collect()
    };
    let case = &root["cases"][0];
    let mut requests = [Request::new(3, &ids(&case["ids"]), greedy())];
    harness.generate(&mut requests, 24, 100);
    assert_eq!(requests[0].output, ids(&case["greedy_ids"]));
}

#[test]
fn test_neighbours_and_chunks_change_nothing() {
    // Alone, then with 1, 7 and 31 others, greedy and sampled, of other lengths.
    let expected = [alone(&prompt(23), greedy()), alone(&prompt(23), warm(7))];
    for others in [1, 7, 30] {
        for (block_size, chunk) in [(16, 1000), (4, 5)] {
            let mut harness = Harness::new(MODEL, &config(block_size));
            let mut requests =
                vec![Request::new(5, &prompt(23), greedy()), Request::new(6, &prompt(23), warm(7))];
            for other in 0..others {
                let params = if other % 2 == 0 { warm(u64::from(other)) } else { greedy() };
                requests.push(Request::new(10 + other, &prompt(1 + other * 3), params));
            }
            harness.generate(&mut requests, 20, chunk);
            let context = format!("{others} others, block size {block_size}, chunk {chunk}");
            assert_same(&context, &requests[0], &expected[0]);
            assert_same(&context, &requests[1], &expected[1]);
        }
    }
}

#[test]
fn test_a_preempted_request_goes_on_as_if_nothing_had_happened() {
    let expected = alone(&prompt(23), warm(7));
    for after in [1, 6, 13] {
        let mut harness = Harness::new(MODEL, &config(4));
        let mut requests = [Request::new(0, &prompt(23), warm(7))];
        harness.generate(&mut requests, after, 1000);
        requests[0].preempt();
        harness.generate(&mut requests, 20, 9);
        assert_same(&format!("preempted after {after}"), &requests[0], &expected);
    }
}

#[test]
fn test_cached_blocks_give_the_same_as_cold_ones() {
    // Lengths around whole blocks.
    for len in [15, 16, 17, 32, 33] {
        let expected = alone(&prompt(len), greedy());
        let mut harness = Harness::new(MODEL, &config(16));
        let mut first = [Request::new(0, &prompt(len), greedy())];
        harness.generate(&mut first, 20, 1000);
        assert_same(&format!("length {len}, cold"), &first[0], &expected);
        // The last prompt token is always computed.
        let full = (len as usize - 1) / 16;
        let second = Request::new(1, &prompt(len), greedy());
        let mut second = [second.with_cached(&first[0].blocks[..full], 16)];
        harness.generate(&mut second, 20, 1000);
        assert_same(&format!("length {len}, warm"), &second[0], &expected);
    }
}

#[test]
fn test_a_step_ahead_of_the_host_gives_the_same_tokens() {
    for params in [greedy(), warm(3)] {
        let expected = alone(&prompt(9), params.clone());
        let mut harness = Harness::new(MODEL, &config(16));
        let mut request = Request::new(0, &prompt(9), params);
        // Nothing is read back before the last step is submitted: tokens feed the next step.
        for step in 0..20 {
            let plan = harness.plan(&mut [(&mut request, if step == 0 { 9 } else { 1 })]);
            harness.executor.submit(plan).expect("submitted");
        }
        let tokens: Vec<u32> =
            (0..20).flat_map(|_| harness.wait().expect("step").tokens).map(|id| id.0).collect();
        assert_eq!(tokens, expected.0);
    }
}

#[test]
fn test_late_rows_wait_for_their_masks_and_obey_them() {
    let expected = alone(&prompt(9), greedy());
    let mut harness = Harness::new(MODEL, &config(16));
    let mut late = Request::new(0, &prompt(9), greedy());
    let mut other = Request::new(1, &prompt(9), greedy());
    let words = harness.executor.shape().vocab_size.div_ceil(32) as usize;
    for step in 0..6 {
        let count = if step == 0 { 9 } else { 1 };
        let mut plan = harness.plan(&mut [(&mut late, count), (&mut other, count)]);
        plan.rows[0].wants.sample = SampleMode::Late;
        let id = plan.id;
        // Odd steps: one token only. Even steps: all tokens.
        let mut allowed = vec![if step % 2 == 0 { u32::MAX } else { 0 }; words];
        allowed[3] |= 1 << 7;
        let mask = RowMask { slot: late.slot, allowed: Arc::from(allowed) };
        if step < 3 {
            harness.executor.submit(plan).expect("submitted");
            harness.executor.sample(id, vec![mask]).expect("masks");
        } else {
            // Masks may come first.
            harness.executor.sample(id, vec![mask]).expect("masks");
            harness.executor.submit(plan).expect("submitted");
        }
        let output = harness.wait().expect("step");
        assert_eq!(output.tokens.len(), 2);
        if step % 2 == 1 {
            assert_eq!(output.tokens[0], TokenId(3 * 32 + 7), "step {step}");
        }
        if step == 0 {
            assert_eq!(output.tokens[0].0, expected.0[0]);
        }
        assert_eq!(output.tokens[1].0, expected.0[step], "step {step}: the row that did not wait");
        late.output.push(output.tokens[0].0);
        other.output.push(output.tokens[1].0);
    }
}
