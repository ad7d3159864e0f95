//! Engines of several models take turns on one device.

use ingle_core::ExecutorError;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};

use super::harness::{Bench, says};
use crate::outbox::{Event, Payload};
use crate::shared_device::SharedDevice;

fn request() -> Value {
    json!({
        "tenant": "a",
        "output": { "format": "completion" },
        "prompts": [{ "text": "hello" }], "max_tokens": 20,
    })
}

fn body_of(events: Vec<Event>) -> Value {
    let Some(Event { payload: Payload::Body(body), .. }) = events.into_iter().last() else {
        panic!("no body")
    };
    serde_json::from_slice(&body).unwrap()
}

/// Completes steps of both, never asking for one that is not there, until each has its body.
fn run_both(benches: &[&Bench; 2]) -> [Value; 2] {
    let mut bodies = [Value::Null, Value::Null];
    while bodies.iter().any(Value::is_null) {
        let [a, b] = benches.map(|bench| bench.engine.event_fd());
        let [c, d] = benches.map(|bench| bench.driver.pending());
        let mut fds = [
            PollFd::new(&a, PollFlags::IN),
            PollFd::new(&b, PollFlags::IN),
            PollFd::new(c, PollFlags::IN),
            PollFd::new(d, PollFlags::IN),
        ];
        poll(&mut fds, None).unwrap();
        let pending = benches.map(|bench| bench.driver.num_pending());
        assert!(pending.contains(&0), "both use the device at once: {pending:?}");
        for (place, bench) in benches.iter().enumerate() {
            let events = bench.engine.drain();
            if !events.is_empty() {
                bodies[place] = body_of(events);
            }
            bench.driver.step_if_ready();
        }
    }
    bodies
}

#[test]
fn models_on_one_device_never_have_steps_in_flight_at_once_and_answer_as_alone() {
    let alone = ["one two three four five", "six seven"].map(|text| {
        let mut body = Bench::auto(says(text)).body(&request());
        body["choices"].take()
    });
    let device = SharedDevice::new();
    let first = Bench::on(&device, says("one two three four five"));
    let second = Bench::on(&device, says("six seven"));
    for _ in 0..20 {
        first.submit(&request()).unwrap();
        second.submit(&request()).unwrap();
        let together = run_both(&[&first, &second]).map(|mut body| body["choices"].take());
        assert_eq!(together, alone);
    }
}

#[test]
fn a_model_alone_on_a_shared_device_keeps_two_steps_in_flight() {
    let device = SharedDevice::new();
    let busy = Bench::on(&device, says("one two three four five"));
    let _idle = Bench::on(&device, says("six"));
    let key = busy.submit(&request()).unwrap();
    // Without an end if it does not get there.
    while busy.driver.num_pending() < 2 {
        std::thread::yield_now();
    }
    while !busy.advance().iter().any(|event| event.key == key) {}
}

#[test]
fn an_engine_that_dies_or_is_dropped_gives_its_turn_away() {
    let device = SharedDevice::new();
    let first = Bench::on(&device, says("one two three"));
    let second = Bench::on(&device, says("six seven"));
    let dropped = Bench::on(&device, says("eight"));
    first.submit(&request()).unwrap();
    let pending = || PollFd::new(first.driver.pending(), PollFlags::IN);
    poll(&mut [pending()], None).unwrap();
    dropped.submit(&request()).unwrap();
    drop(dropped);
    let key = second.submit(&request()).unwrap();
    first.driver.fail_next(ExecutorError::DeviceLost("gone".to_owned()));
    first.driver.step();
    loop {
        let events = second.advance();
        if events.iter().any(|event| event.key == key) {
            let body = body_of(events);
            assert_eq!(body["choices"][0]["text"], "six seven");
            break;
        }
    }
}
