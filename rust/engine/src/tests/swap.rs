//! Models that make room for each other: requests wait for their model's return, and nothing else changes.

use ingle_core::{ExecutorError, SleepLevel, TokenId};
use serde_json::{Value, json};

use super::harness::{Bench, MODEL_BYTES, Script, says};
use crate::error::EngineError;
use crate::outbox::Payload;
use crate::shared_device::SharedDevice;

fn request() -> Value {
    json!({
        "prompts": [{ "token_ids": [5, 6, 7, 8, 9, 10, 11, 12] }],
        "max_tokens": 20,
        "output": { "format": "completion" },
    })
}

fn endless() -> Script {
    Box::new(|_, index| TokenId(40 + index as u32 % 20))
}

fn room_for_one() -> SharedDevice {
    SharedDevice::with_memory(MODEL_BYTES, 3600).unwrap()
}

fn auto_on(device: &SharedDevice, script: Script) -> Bench {
    Bench::try_on(device, (true, 1), script, &json!({})).unwrap()
}

fn health(bench: &Bench) -> Value {
    serde_json::from_slice(&bench.engine.health()).unwrap()
}

/// The error of a request that fails.
fn error_of(bench: &Bench, key: u64) -> Value {
    match bench.collect(&[key]).pop().unwrap().payload {
        Payload::Error(error) => serde_json::from_slice(&error).unwrap(),
        other => panic!("no error but {other:?}"),
    }
}

const LEFT: Option<SleepLevel> = Some(SleepLevel::Offload);
const RETURNED: Option<SleepLevel> = None;

#[test]
fn models_take_the_memory_in_turns_and_answer_as_alone() {
    let texts = ["one two three", "six seven"];
    let alone = texts.map(|text| Bench::auto(says(text)).body(&request())["choices"].take());
    let device = room_for_one();
    let benches = texts.map(|text| auto_on(&device, says(text)));
    assert_eq!(benches[0].driver.rests(), [], "it was there first");
    assert_eq!(benches[1].driver.rests(), [LEFT], "before its start was over");
    assert_eq!(health(&benches[1])["memory"], "asleep");
    assert_eq!(health(&benches[1])["status"], "ok");
    for _ in 0..5 {
        for (bench, alone) in benches.iter().zip(&alone) {
            let mut body = bench.body(&request());
            assert_eq!(body["choices"].take(), *alone);
            assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        }
    }
    let swaps = [LEFT, RETURNED].repeat(4);
    assert_eq!(benches[0].driver.rests()[..8], swaps[..]);
    assert_eq!(benches[1].driver.rests()[..10], [&swaps[..], &[LEFT, RETURNED]].concat()[..]);
}

#[test]
fn a_model_finishes_what_runs_before_it_leaves_and_returns_for_what_waits() {
    let device = room_for_one();
    let bench = Bench::on(&device, endless());
    let running = bench.submit(&request()).unwrap();
    bench.driver.step();
    assert!(bench.engine.device_place().unwrap().send_away());
    assert!(!bench.engine.device_place().unwrap().send_away(), "it is leaving");
    let waiting = bench.submit(&request()).unwrap();
    let mut ended = Vec::new();
    while ended.len() < 2 {
        for event in bench.advance() {
            assert!(matches!(event.payload, Payload::Body(_)), "{event:?}");
            let rests = if event.key == running { vec![] } else { vec![LEFT, RETURNED] };
            let seen = bench.driver.rests();
            assert!(seen.starts_with(&rests), "{seen:?}");
            ended.push(event.key);
        }
    }
    assert_eq!(ended, [running, waiting]);
}

#[test]
fn a_model_that_is_loaded_on_request_takes_nothing_until_it_is_asked() {
    let device = room_for_one();
    let here = auto_on(&device, says("here"));
    let options = json!({ "on_request": true });
    let later = Bench::try_on(&device, (true, 1), says("later"), &options).unwrap();
    assert_eq!(health(&later)["memory"], "asleep");
    assert_eq!(later.driver.rests(), [], "there is nothing to give back");
    assert_eq!(here.driver.rests(), [], "nobody has made room for it");
    assert_eq!(later.body(&request())["choices"][0]["text"], "later");
    assert_eq!((here.driver.rests(), later.driver.rests()), (vec![LEFT], vec![RETURNED]));
    let alone = Bench::try_on(&SharedDevice::new(), (true, 1), says("a"), &options);
    let Err(EngineError::Model(message)) = alone.map(|_| ()) else { panic!("it has started") };
    assert_eq!(message, "load: on-request needs device_memory_bytes");
}

#[test]
fn a_return_that_an_operator_asks_for_and_that_fails_is_tried_once_and_explained() {
    let device = room_for_one();
    let options = json!({ "on_request": true });
    let bench = Bench::try_on(&device, (true, 1), says("a"), &options).unwrap();
    bench.driver.end_rests(&[Some(ExecutorError::Unchanged("no memory".to_owned()))]);
    bench.engine.device_place().unwrap().call();
    while bench.engine.failed_return().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(bench.engine.failed_return().unwrap(), "no memory");
    assert_eq!(bench.body(&request())["choices"][0]["text"], "a");
    assert_eq!(bench.driver.rests(), [RETURNED, RETURNED], "once, and once for the request");
    assert_eq!(bench.engine.failed_return(), None);
}

#[test]
fn a_pinned_model_stays_and_one_that_can_never_fit_is_refused_at_the_start() {
    let device = room_for_one();
    let pinned = Bench::try_on(&device, (true, 1), says("a"), &json!({ "pinned": true })).unwrap();
    let refused = Bench::try_on(&device, (true, 1), says("b"), &json!({}));
    let Err(EngineError::Model(message)) = refused.map(|_| ()) else { panic!("it has started") };
    assert!(
        message.ends_with(
            "the model tiny takes 100 bytes with its KV pool, and pinned models leave 0"
        ),
        "{message}"
    );
    let place = pinned.engine.device_place().unwrap();
    assert!(!place.send_away());
    place.pin(false).unwrap();
    let other = auto_on(&device, says("c"));
    assert_eq!(other.body(&request())["choices"][0]["text"], "c");
    assert_eq!(pinned.driver.rests(), [LEFT]);
}

#[test]
fn a_return_that_fails_ends_the_requests_that_wait_and_the_next_one_tries_again() {
    let device = room_for_one();
    let first = auto_on(&device, says("one"));
    let second = auto_on(&device, says("two"));
    second.driver.end_rests(&[Some(ExecutorError::Unchanged("no memory".to_owned()))]);
    let key = second.submit(&request()).unwrap();
    let error = error_of(&second, key);
    assert_eq!(error["status"], 503);
    let message = error["error"]["message"].as_str().unwrap();
    assert_eq!(message, "the model could not return into memory: no memory");
    assert_eq!(health(&second)["in_system"], 0);
    assert_eq!(second.body(&request())["choices"][0]["text"], "two");
    assert_eq!(first.body(&request())["choices"][0]["text"], "one");
}

#[test]
fn requests_end_after_the_time_for_which_they_may_wait_for_memory() {
    let device = SharedDevice::with_memory(MODEL_BYTES, 0).unwrap();
    let busy = Bench::on(&device, endless());
    busy.submit(&request()).unwrap();
    busy.driver.step();
    let other = auto_on(&device, says("two"));
    let key = other.submit(&request()).unwrap();
    let error = error_of(&other, key);
    assert_eq!((&error["status"], &error["error"]["code"]), (&json!(503), &json!("no_memory")));
    assert_eq!(health(&other)["in_system"], 0);
}

#[test]
fn an_operator_cannot_put_a_model_to_sleep_that_makes_room_for_others() {
    let device = room_for_one();
    let bench = auto_on(&device, says("one"));
    let refused = bench.engine.sleep(SleepLevel::Offload).unwrap_err();
    assert!(matches!(refused, EngineError::Refused { status: 409, .. }), "{refused:?}");
    assert_eq!(bench.body(&request())["choices"][0]["text"], "one");
    let place = bench.engine.device_place().unwrap();
    assert!(place.send_away());
    place.call();
    assert_eq!(bench.body(&request())["choices"][0]["text"], "one");
    assert_eq!(bench.driver.rests(), [LEFT, RETURNED]);
}

#[test]
fn a_sleep_that_is_refused_during_a_swap_leaves_the_model_to_its_requests() {
    let device = room_for_one();
    let bench = auto_on(&device, says("one"));
    bench.driver.hold_rest();
    assert!(bench.engine.device_place().unwrap().send_away());
    let end = bench.driver.held_rest();
    let refused = bench.engine.sleep(SleepLevel::Offload).unwrap_err();
    assert!(matches!(refused, EngineError::Refused { status: 409, .. }), "{refused:?}");
    end();
    assert_eq!(bench.body(&request())["choices"][0]["text"], "one");
}

#[test]
fn a_device_lost_on_the_way_back_is_fatal() {
    let device = room_for_one();
    let first = auto_on(&device, says("one"));
    let second = auto_on(&device, says("two"));
    second.driver.end_rests(&[Some(ExecutorError::DeviceLost("gone".to_owned()))]);
    let key = second.submit(&request()).unwrap();
    assert_eq!(error_of(&second, key)["error"]["code"], "engine_dead");
    assert_eq!(health(&second)["status"], "dead");
    assert_eq!(first.body(&request())["choices"][0]["text"], "one", "its room is free again");
}
