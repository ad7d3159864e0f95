//! KV pools of models on one device: a busy one grows into what idle ones leave, and gives it back.

use ingle_core::TokenId;
use serde_json::{Value, json};

use super::harness::{Bench, SHAPE, Script, says};
use crate::error::EngineError;
use crate::shared_device::SharedDevice;

/// A request of `num_blocks` blocks, of which its answer takes none beyond.
fn request(number: u32, num_blocks: u32) -> Value {
    let num_tokens = num_blocks * SHAPE.block_size - 8;
    let ids: Vec<u32> = (0..num_tokens).map(|place| 5 + (number + place) % 60).collect();
    json!({
        "prompts": [{ "token_ids": ids }],
        "max_tokens": 8,
        "output": { "format": "completion" },
    })
}

fn counts() -> Script {
    Box::new(|prompt, index| TokenId(70 + (prompt[0].0 + index as u32) % 40))
}

fn pooled(device: &SharedDevice, most: u64) -> Bench {
    let more = json!({ "kv_cache_max_memory_bytes": most });
    Bench::try_pooled(device, (true, 1), counts(), &more).unwrap()
}

fn share() -> u64 {
    u64::from(SHAPE.num_blocks)
}

/// The answers to requests that are there at once; none of them may fail.
fn answers(bench: &Bench, requests: &[Value]) -> Vec<Value> {
    let keys: Vec<u64> = requests.iter().map(|request| bench.submit(request).unwrap()).collect();
    let mut ends: Vec<_> = bench.collect(&keys);
    ends.sort_by_key(|event| event.key);
    let body = |event: crate::outbox::Event| match event.payload {
        crate::outbox::Payload::Body(body) => {
            serde_json::from_slice::<Value>(&body).unwrap()["choices"].take()
        }
        other => panic!("no body but {other:?}"),
    };
    ends.into_iter().map(body).collect()
}

/// Four requests that together need more than the share of 64 blocks.
fn load(from: u32) -> Vec<Value> {
    (from..from + 4).map(|number| request(number, 30)).collect()
}

#[test]
fn a_busy_model_grows_into_memory_that_nobody_has_and_answers_as_before() {
    let alone = answers(&Bench::auto(counts()), &load(0));
    let device = SharedDevice::with_memory(2 * share(), 3600).unwrap();
    let bench = pooled(&device, 1000);
    assert_eq!(answers(&bench, &load(0)), alone);
    let size = bench.driver.pool();
    assert!(size > share() && size <= 2 * share(), "{size} for four requests of 30 blocks");
}

#[test]
fn an_idle_model_lends_its_pool_and_gets_its_share_back() {
    let alone = answers(&Bench::auto(counts()), &load(0));
    let device = SharedDevice::with_memory(2 * share(), 3600).unwrap();
    let benches = [pooled(&device, 1000), pooled(&device, 1000)];
    // Each in its turn needs what the other one has left alone for a second.
    for round in 0..2 {
        for (place, bench) in benches.iter().enumerate() {
            let other = &benches[1 - place];
            let lent = || other.driver.pool() < share();
            let began = std::time::Instant::now();
            while !lent() {
                assert_eq!(answers(bench, &load(0)), alone);
                assert!(began.elapsed().as_secs() < 60, "round {round}: nothing is lent");
                assert!(bench.driver.pool() + other.driver.pool() <= 2 * share());
            }
        }
    }
}

#[test]
fn a_pool_that_never_grows_still_lends_and_comes_back_for_a_request_that_needs_all_of_it() {
    let device = SharedDevice::with_memory(2 * share(), 3600).unwrap();
    let busy = pooled(&device, 1000);
    let owner = Bench::try_pooled(&device, (true, 1), says("one two"), &json!({})).unwrap();
    let began = std::time::Instant::now();
    while owner.driver.pool() == share() {
        answers(&busy, &load(0));
        assert!(began.elapsed().as_secs() < 60, "nothing is lent");
    }
    // 50 of 64 blocks, which is the longest that the model takes.
    let body = answers(&owner, &[request(1, 50)]);
    assert_eq!(body[0][0]["text"], "one two");
    assert!(owner.driver.pool() >= 50, "{}", owner.driver.pool());
}

#[test]
fn a_pool_that_may_grow_needs_a_device_that_is_shared_and_a_sensible_size() {
    let refused = |device: Option<&SharedDevice>, most: u64| {
        let more = json!({ "kv_cache_max_memory_bytes": most });
        let bench = match device {
            Some(device) => Bench::try_pooled(device, (true, 1), says("a"), &more),
            None => Bench::try_on(&SharedDevice::new(), (true, 1), says("a"), &more),
        };
        match bench {
            Err(EngineError::Model(message)) => message,
            other => panic!("{:?}", other.map(|_| "it has started")),
        }
    };
    let alone = refused(None, 1000);
    assert!(alone.starts_with("kv_cache_max_memory_bytes: the KV pool can only grow"), "{alone}");
    let device = SharedDevice::with_memory(1000, 3600).unwrap();
    let small = refused(Some(&device), 63);
    assert!(small.contains("63 is less than the 64 bytes"), "{small}");
}
