//! Sleep: nothing runs then, nothing is lost by it, and what cannot be done leaves the engine as it was.

use ingle_core::{ExecutorError, SleepLevel, TokenId};
use serde_json::{Value, json};

use super::harness::{Bench, says};
use crate::error::EngineError;

fn request() -> Value {
    json!({
        "prompts": [{ "token_ids": [5, 6, 7, 8, 9, 10, 11, 12] }],
        "max_tokens": 3,
        "output": { "format": "completion" },
    })
}

fn status(bench: &Bench) -> String {
    let health: Value = serde_json::from_slice(&bench.engine.health()).unwrap();
    health["status"].as_str().unwrap().to_owned()
}

fn unchanged() -> Option<ExecutorError> {
    Some(ExecutorError::Unchanged("no memory".to_owned()))
}

#[test]
fn test_a_sleeping_engine_refuses_and_answers_as_before_once_it_is_awake() {
    let bench = Bench::auto(says("Hello"));
    let before = bench.body(&request());
    assert_eq!(bench.body(&request())["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
    bench.engine.sleep(SleepLevel::Offload).unwrap();
    assert_eq!(status(&bench), "asleep");
    assert_eq!(bench.engine.sleep_level(), Some(SleepLevel::Offload));
    let refused = bench.submit(&request()).unwrap_err();
    assert!(matches!(refused, EngineError::Overloaded { status: 503, .. }), "{refused:?}");
    let state = "sleep_state=\"weights_offloaded\"} 1";
    assert!(bench.engine.metrics(false).contains(state));
    bench.engine.wake().unwrap();
    assert_eq!(status(&bench), "ok");
    let after = bench.body(&request());
    assert_eq!(after["choices"], before["choices"]);
    assert_eq!(after["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "blocks were lost");
    assert_eq!(bench.driver.rests(), [Some(SleepLevel::Offload), None]);
}

#[test]
fn test_a_running_request_refuses_the_sleep_and_goes_on() {
    let bench = Bench::manual(Box::new(|_, index| TokenId(40 + index as u32)));
    let key = bench.submit(&request()).unwrap();
    let refused = bench.engine.sleep(SleepLevel::Pause).unwrap_err();
    assert!(matches!(refused, EngineError::Refused { status: 409, .. }), "{refused:?}");
    assert_eq!(refused.to_string(), "1 requests still run or wait");
    assert_eq!((status(&bench).as_str(), bench.driver.rests()), ("ok", vec![]));
    let mut events = Vec::new();
    while !events.iter().any(|event: &crate::Event| event.key == key) {
        events.extend(bench.advance());
    }
    assert!(matches!(events[0].payload, crate::Payload::Body(_)), "{events:?}");
}

#[test]
fn test_an_engine_sleeps_deeper_and_wakes_once() {
    let bench = Bench::auto(says("Hello"));
    for level in [SleepLevel::Pause, SleepLevel::Offload, SleepLevel::Pause] {
        bench.engine.sleep(level).unwrap();
    }
    assert_eq!(bench.engine.sleep_level(), Some(SleepLevel::Offload));
    bench.engine.wake().unwrap();
    bench.engine.wake().unwrap();
    let rests = bench.driver.rests();
    assert_eq!(rests, [Some(SleepLevel::Pause), Some(SleepLevel::Offload), None]);
    let refused = bench.engine.sleep(SleepLevel::Discard).unwrap_err();
    assert_eq!(refused.to_string(), "level: this worker can sleep at level 1 at most, not 2");
}

#[test]
fn test_a_device_that_cannot_sleep_leaves_the_engine_awake() {
    let bench = Bench::auto(says("Hello"));
    bench.driver.end_rests(&[unchanged()]);
    let error = bench.engine.sleep(SleepLevel::Offload).unwrap_err();
    assert!(matches!(error, EngineError::Overloaded { status: 503, .. }), "{error:?}");
    assert_eq!(error.to_string(), "no memory");
    assert_eq!(status(&bench), "ok");
    bench.body(&request());
}

#[test]
fn test_a_device_that_cannot_wake_sleeps_on_and_can_be_woken_later() {
    let bench = Bench::auto(says("Hello"));
    bench.driver.end_rests(&[None, unchanged()]);
    bench.engine.sleep(SleepLevel::Offload).unwrap();
    assert_eq!(bench.engine.wake().unwrap_err().to_string(), "no memory");
    assert_eq!(status(&bench), "asleep");
    assert!(bench.submit(&request()).is_err());
    bench.engine.wake().unwrap();
    bench.body(&request());
}

#[test]
fn test_a_device_lost_while_it_wakes_is_fatal() {
    let bench = Bench::auto(says("Hello"));
    bench.driver.end_rests(&[None, Some(ExecutorError::DeviceLost("gone".to_owned()))]);
    bench.engine.sleep(SleepLevel::Offload).unwrap();
    let error = bench.engine.wake().unwrap_err();
    assert!(matches!(error, EngineError::Fatal(_)), "{error:?}");
    assert_eq!(status(&bench), "dead");
}

#[test]
fn test_where_one_of_two_engines_cannot_sleep_both_stay_awake() {
    let bench = Bench::pair(|| says("Hello"));
    bench.more_drivers[0].end_rests(&[unchanged()]);
    assert!(bench.engine.sleep(SleepLevel::Offload).is_err());
    assert_eq!(status(&bench), "ok");
    assert_eq!(bench.driver.rests(), [Some(SleepLevel::Offload), None]);
    assert_eq!(bench.more_drivers[0].rests(), [Some(SleepLevel::Offload)]);
    bench.engine.sleep(SleepLevel::Offload).unwrap();
    bench.engine.shutdown();
}

#[test]
fn test_the_sleep_waits_for_steps_of_requests_that_were_aborted() {
    let bench = Bench::manual(Box::new(|_, index| TokenId(40 + index as u32)));
    let key = bench.submit(&request()).unwrap();
    bench.driver.step();
    bench.engine.abort(key);
    std::thread::scope(|scope| {
        let slept = scope.spawn(|| bench.engine.sleep(SleepLevel::Offload));
        while !slept.is_finished() {
            bench.driver.step_if_ready();
            std::thread::yield_now();
        }
        slept.join().unwrap().unwrap();
    });
    assert_eq!(bench.driver.rests(), [Some(SleepLevel::Offload)]);
}
