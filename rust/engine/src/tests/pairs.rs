//! Two engines in one process: which of them has a request, and what becomes of both when one ends.

use ingle_core::{ExecutorError, TokenId};
use serde_json::{Value, json};

use super::harness::{Bench, Driver, Script};
use crate::error::EngineError;
use crate::inbox::Message;
use crate::outbox::{Event, Payload};

fn endless() -> Script {
    Box::new(|_, index| TokenId(40 + index as u32 % 20))
}

fn request(ids: &[u32], max_tokens: u32, more: &Value) -> Value {
    let mut request = json!({
        "prompts": [{ "token_ids": ids }],
        "max_tokens": max_tokens,
        "output": { "format": "completion" },
    });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

fn health(bench: &Bench) -> Value {
    serde_json::from_slice(&bench.engine.health()).unwrap()
}

/// What each engine has.
fn in_system(bench: &Bench) -> Vec<u64> {
    let health = health(bench);
    let engines = health["engines"].as_array().unwrap();
    engines.iter().map(|engine| engine["in_system"].as_u64().unwrap()).collect()
}

/// The engine of a key; a request must be there.
fn home(bench: &Bench, key: u64) -> usize {
    let home = (key % 2) as usize;
    assert!(in_system(bench)[home] > 0);
    home
}

fn drivers(bench: &Bench) -> [&Driver; 2] {
    [&bench.driver, &bench.more_drivers[0]]
}

/// Completes steps of the key's engine until its end; gives the end.
fn finish(bench: &Bench, key: u64) -> Event {
    loop {
        drivers(bench)[(key % 2) as usize].step_if_ready();
        let mut events = bench.engine.drain().into_iter();
        if let Some(event) = events.find(|event| event.key == key) {
            return event;
        }
    }
}

#[test]
fn requests_that_share_nothing_are_spread_and_each_is_aborted_where_it_is() {
    let bench = Bench::pair(endless);
    let keys: Vec<u64> = (0..4_u32)
        .map(|i| bench.submit(&request(&[5 + i, 6, 7], 100, &json!({}))).unwrap())
        .collect();
    assert_eq!(in_system(&bench), [2, 2]);
    assert_eq!(health(&bench)["in_system"], 4);
    for &key in keys.iter().filter(|key| **key % 2 == 1) {
        bench.engine.abort(key);
    }
    while in_system(&bench) != [2, 0] {
        bench.more_drivers[0].step_if_ready();
    }
    for &key in keys.iter().filter(|key| **key % 2 == 0) {
        bench.engine.abort(key);
    }
    while health(&bench)["in_system"] != 0 {
        bench.driver.step_if_ready();
    }
    assert_eq!(bench.engine.drain(), []);
}

#[test]
fn a_prompt_goes_where_its_prefix_is_and_a_queued_prefix_counts() {
    let bench = Bench::pair(endless);
    let long: Vec<u32> = (10..90).collect();
    let unlike: Vec<u32> = (100..180).collect();
    let busy = bench.submit(&request(&unlike, 1, &json!({}))).unwrap();
    let first = bench.submit(&request(&long, 1, &json!({}))).unwrap();
    assert_ne!(busy % 2, first % 2);
    // The first one is not computed yet, but will be before this one runs.
    let second = bench.submit(&request(&long[..70], 1, &json!({}))).unwrap();
    assert_eq!(first % 2, second % 2);
    let salted = json!({ "cache_salt": "another" });
    let other = bench.submit(&request(&long, 1, &salted)).unwrap();
    assert_ne!(first % 2, other % 2);
    for key in [busy, first, second, other] {
        bench.engine.abort(key);
    }
}

#[test]
fn a_session_stays_on_one_engine_and_is_its_tenants_own() {
    let bench = Bench::pair(endless);
    let of = |tenant: &str, id: u32| {
        let hints = json!({ "session": "s", "tenant": tenant });
        bench.submit(&request(&[id], 100, &hints)).unwrap() % 2
    };
    let home = of("a", 10);
    assert_eq!([of("a", 11), of("a", 12)], [home; 2]);
    assert_eq!(of("b", 13), 1 - home);
}

#[test]
fn one_engine_that_dies_ends_its_requests_and_the_process_learns_which_it_was() {
    let bench = Bench::pair(endless);
    let keys = [5, 6].map(|id| bench.submit(&request(&[id], 100, &json!({}))).unwrap());
    let dying = home(&bench, keys[0]);
    let driver = drivers(&bench)[dying];
    driver.fail_next(ExecutorError::DeviceLost("it fell off the bus".to_owned()));
    driver.step();
    let events = bench.collect(&[keys[0], 0]);
    let reason = events.iter().find(|event| event.key == 0).unwrap();
    let Payload::Error(reason) = &reason.payload else { panic!("{reason:?}") };
    let reason = String::from_utf8_lossy(reason);
    assert!(reason.contains(&format!("engine {dying}: device lost: it fell off the bus")));
    let health = health(&bench);
    assert_eq!(health["status"], "dead");
    assert_eq!(health["engines"][1 - dying]["status"], "ok");
    let refused = bench.submit(&request(&[7], 1, &json!({})));
    assert!(matches!(refused, Err(EngineError::Fatal(_))), "{refused:?}");
    // The other engine's requests end with the process. Its inbox has the message before the next step, however long
    // a thread takes to start.
    let survivor = &bench.engine.engines[1 - dying];
    assert!(survivor.inbox.put(Message::Shutdown).is_ok());
    while in_system(&bench)[1 - dying] > 0 {
        drivers(&bench)[1 - dying].step_if_ready();
    }
    let end = bench.collect(&[keys[1]]).pop().unwrap();
    assert!(matches!(end.payload, Payload::Error(_)), "{end:?}");
    bench.engine.shutdown();
}

#[test]
fn every_device_is_sealed_and_counted() {
    let bench = Bench::pair(endless);
    assert_eq!(bench.seals(), [0, 0]);
    assert!(bench.engine.seal_device());
    assert_eq!(bench.seals(), [1, 1]);
    let text = bench.engine.metrics(false);
    for engine in [0, 1] {
        let sample = format!("own{{engine=\"{engine}\",model_name=\"tiny\",what=\"seals\"}} 1\n");
        assert!(text.contains(&sample), "{text}");
    }
}

#[test]
fn choices_of_one_prompt_share_it_on_one_engine() {
    let bench = Bench::pair(endless);
    let key = bench.submit(&request(&[5, 6, 7], 2, &json!({ "n": 3 }))).unwrap();
    assert_eq!(in_system(&bench)[home(&bench, key)], 3);
    let Payload::Body(body) = finish(&bench, key).payload else { panic!("no body") };
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["choices"].as_array().unwrap().len(), 3);
    assert_eq!(body["usage"]["completion_tokens"], 6);
}
