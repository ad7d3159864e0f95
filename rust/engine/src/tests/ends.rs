//! Every request ends exactly once: done, refused, aborted or failed, whatever happens.

use ingle_core::{ExecutorError, TokenId};
use serde_json::{Value, json};

use super::harness::{Bench, MAX_QUEUE, SHAPE, events_of, says};
use crate::error::EngineError;
use crate::outbox::{Event, Payload};

/// The error that clients get when the engine has died.
const STOPPED: &str = "the engine has stopped because of an internal error";

fn long_request(stream: bool) -> Value {
    json!({
        "prompts": [{ "token_ids": [5, 6, 7, 8, 9] }],
        "max_tokens": 100,
        "output": { "format": "completion", "stream": stream },
    })
}

fn endless() -> super::harness::Script {
    Box::new(|_, index| TokenId(40 + index as u32 % 20))
}

fn health(bench: &Bench) -> Value {
    serde_json::from_slice(&bench.engine.health()).unwrap()
}

/// Steps until the key has ended; gives all events.
fn step_to_end(bench: &Bench, key: u64) -> Vec<Event> {
    let mut events = Vec::new();
    let ended = |event: &Event| event.key == key && !matches!(event.payload, Payload::Frame(_));
    while !events.iter().any(ended) {
        events.extend(bench.advance());
    }
    events
}

#[test]
fn test_abort_frees_blocks_within_two_steps_and_reports_nothing_more() {
    let bench = Bench::manual(endless());
    let key = bench.submit(&long_request(true)).unwrap();
    for _ in 0..5 {
        bench.driver.step();
    }
    bench.engine.abort(key);
    // One further token: its end shows that the engine has worked everything before it off.
    let other = json!({
        "prompts": [{ "token_ids": [9] }],
        "max_tokens": 1,
        "output": { "format": "completion" },
    });
    let other = bench.submit(&other).unwrap();
    let before = bench.steps();
    let mut events = step_to_end(&bench, other);
    // Up to two steps still hold the aborted row; the third is the other request's own.
    assert!(bench.steps() - before <= 3, "{} steps", bench.steps() - before);
    events.retain(|event| event.key == key);
    assert_eq!(events, []);
    assert_eq!(health(&bench)["in_system"], 0);
    assert_eq!(bench.blocks_used(), 0);
}

#[test]
fn test_abort_before_the_first_step_and_of_unknown_keys() {
    let bench = Bench::manual(endless());
    let keys: Vec<u64> = (0..3).map(|_| bench.submit(&long_request(true)).unwrap()).collect();
    for key in &keys {
        bench.engine.abort(*key);
    }
    bench.engine.abort(77);
    let last = bench.submit(&json!({
        "prompts": [{ "token_ids": [9] }], "max_tokens": 1, "output": { "format": "completion" },
    }));
    let events = step_to_end(&bench, last.unwrap());
    assert!(events.iter().all(|event| !keys.contains(&event.key)));
    assert_eq!(health(&bench)["in_system"], 0);
}

#[test]
fn test_a_failed_step_ends_its_requests_once_and_the_next_is_served() {
    let bench = Bench::auto(says("fine"));
    bench.driver.fail_next(ExecutorError::StepFailed("out of luck".to_owned()));
    let key = bench.submit(&long_request(true)).unwrap();
    let events = bench.collect(&[key]);
    let Payload::Frame(frame) = &events[0].payload else { panic!("{events:?}") };
    let frame = String::from_utf8(frame.clone()).unwrap();
    let error = &events_of(&frame)[0]["error"];
    assert_eq!(error["message"], "the step failed: out of luck");
    assert_eq!(error["type"], "server_error");
    assert_eq!(error_of(&events[1])["status"], 500);
    assert_eq!(events.len(), 2);
    assert_eq!(bench.body(&long_request(false))["choices"][0]["text"], "fine");
    assert_eq!(health(&bench)["in_system"], 0);
    assert_eq!(bench.blocks_used(), 0);
}

fn error_of(event: &Event) -> Value {
    match &event.payload {
        Payload::Error(error) => serde_json::from_slice(error).unwrap(),
        other => panic!("no error but {other:?}"),
    }
}

#[test]
fn test_a_row_that_is_not_finite_ends_its_own_client_request_only() {
    let bench = Bench::manual(says("fine"));
    let bad = json!({
        "prompts": [{ "token_ids": [5, 6] }, { "token_ids": [5, 6, 7] }],
        "max_tokens": 50,
        "output": { "format": "chat" },
    });
    bench.driver.not_finite(3);
    let good = bench.submit(&long_request(false)).unwrap();
    bench.driver.step();
    let bad = bench.submit(&bad).unwrap();
    let mut events = Vec::new();
    while events.len() < 2 {
        events.extend(bench.advance());
    }
    let of = |key| events.iter().filter(|event| event.key == key).collect::<Vec<_>>();
    assert!(matches!(of(good)[..], [Event { payload: Payload::Body(_), .. }]));
    let [error] = of(bad)[..] else { panic!("{events:?}") };
    assert_eq!(error_of(error)["error"]["code"], "not_finite");
    assert_eq!(health(&bench)["in_system"], 0);
}

#[test]
fn test_a_lost_device_ends_everything_and_the_engine_says_so() {
    let bench = Bench::manual(endless());
    let keys: Vec<u64> = (0..3).map(|_| bench.submit(&long_request(true)).unwrap()).collect();
    bench.driver.step();
    bench.driver.fail_next(ExecutorError::DeviceLost("fell off".to_owned()));
    bench.driver.step();
    let mut ends = keys.clone();
    ends.push(0);
    let events = bench.collect(&ends);
    for key in ends {
        let errors: Vec<&Event> = events
            .iter()
            .filter(|e| e.key == key && !matches!(e.payload, Payload::Frame(_)))
            .collect();
        assert_eq!(errors.len(), 1, "key {key}");
        let said = if key == 0 { "device lost: fell off" } else { STOPPED };
        assert_eq!(error_of(errors[0])["error"]["message"], said);
    }
    assert_eq!(health(&bench)["status"], "dead");
    assert_eq!(health(&bench)["in_system"], 0);
    assert!(matches!(bench.submit(&long_request(true)), Err(EngineError::Fatal(_))));
    bench.engine.shutdown();
}

#[test]
fn test_a_panic_of_the_engine_thread_is_fatal_and_reported() {
    let bench = Bench::manual(endless());
    bench.driver.panic_next();
    let key = bench.submit(&long_request(false)).unwrap();
    let events = bench.collect(&[key, 0]);
    // The panic's own text reaches nobody: it could quote another tenant's prompt.
    let message = |key| {
        let event = events.iter().find(|event| event.key == key).unwrap();
        error_of(event)["error"]["message"].clone()
    };
    assert_eq!(message(key), STOPPED);
    assert_eq!(message(0), "the engine thread panicked");
    assert_eq!(health(&bench)["status"], "dead");
}

#[test]
fn test_a_queue_that_one_tenant_has_filled_takes_others_up_to_their_share() {
    let bench = Bench::manual(says("x"));
    let capacity = SHAPE.max_num_seqs + MAX_QUEUE;
    let submit = |tenant: &str| {
        let mut request = long_request(false);
        request["tenant"] = json!(tenant);
        bench.submit(&request)
    };
    let fill = |tenant| (0..capacity + 1).map_while(|_| submit(tenant).ok()).count() as u32;
    assert_eq!(
        [fill("hog"), fill("second"), fill("third")],
        [capacity, capacity / 2, capacity / 3]
    );
    assert!(submit("hog").is_err() && submit("second").is_err());
    while health(&bench)["in_system"] != 0 {
        bench.advance();
    }
    assert_eq!(fill("second"), capacity, "the hog is gone");
}

#[test]
fn test_a_full_queue_is_refused_at_once_and_takes_again_later() {
    let bench = Bench::manual(says("x"));
    let capacity = SHAPE.max_num_seqs + MAX_QUEUE;
    let keys: Vec<u64> =
        (0..capacity).map(|_| bench.submit(&long_request(false)).unwrap()).collect();
    match bench.submit(&long_request(false)) {
        Err(EngineError::Overloaded { message, retry_after_s, status: 429 }) => {
            assert!(message.contains(&format!("limit of {capacity}")), "{message}");
            assert!((1..=60).contains(&retry_after_s));
        }
        other => panic!("{other:?}"),
    }
    let mut ended = 0;
    while ended < keys.len() {
        ended += bench.advance().len();
    }
    assert_eq!(health(&bench)["in_system"], 0);
    bench.submit(&long_request(false)).unwrap();
}

#[test]
fn test_drain_refuses_new_requests_and_finishes_old_ones() {
    let bench = Bench::manual(says("bye"));
    let key = bench.submit(&long_request(false)).unwrap();
    bench.engine.start_drain();
    assert!(matches!(
        bench.submit(&long_request(false)),
        Err(EngineError::Overloaded { status: 503, .. })
    ));
    assert_eq!(health(&bench)["status"], "draining");
    let events = step_to_end(&bench, key);
    assert!(matches!(events.last().unwrap().payload, Payload::Body(_)));
}

#[test]
fn test_shutdown_ends_running_streams_with_an_error() {
    let bench = Bench::manual(endless());
    let stream = bench.submit(&long_request(true)).unwrap();
    let plain = bench.submit(&long_request(false)).unwrap();
    bench.driver.step();
    bench.engine.shutdown();
    let events = bench.collect(&[stream, plain]);
    for key in [stream, plain] {
        let last = events.iter().rfind(|event| event.key == key).unwrap();
        assert_eq!(error_of(last)["status"], 503);
    }
    bench.engine.shutdown();
    assert!(matches!(bench.submit(&long_request(true)), Err(EngineError::Fatal(_))));
}

#[test]
fn test_health_is_stuck_only_while_work_waits() {
    let bench = Bench::manual(says("x"));
    assert_eq!(health(&bench)["status"], "ok");
    let key = bench.submit(&long_request(false)).unwrap();
    let waiting = health(&bench);
    assert_eq!((&waiting["status"], &waiting["in_system"]), (&json!("ok"), &json!(1)));
    // health.rs tests what becomes of it above the limit.
    assert!(waiting["standstill_s"].as_f64().unwrap() < 30.0);
    step_to_end(&bench, key);
    assert_eq!(health(&bench)["standstill_s"], 0.0);
}
