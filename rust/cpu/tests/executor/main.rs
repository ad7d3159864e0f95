//! The executor through its public interface: plans in, completions out.

mod harness;

use harness::{Harness, Request, config};
use ingle_core::SamplingParams;

fn greedy() -> SamplingParams {
    SamplingParams { log_probs: Some(3), ..SamplingParams::default() }
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
