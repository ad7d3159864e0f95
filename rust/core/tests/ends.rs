//! How requests end: limits, stop tokens, aborts, failures; and what they leave behind. The oracle of
//! `world` checks all tokens besides.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod world;

use ingle_core::{
    ExecutorError, FinishReason, Micros, RequestFault, RequestId, SampleMode, TokenSource,
};
use ingle_sim::Outcome;

use world::oracle::request;
use world::{config, prompt, run, shape, world};

#[test]
fn test_one_step_ahead_decodes_from_the_slot_and_never_beyond_max_tokens() {
    let mut world = world(config(shape(64, 16)));
    world.admit(request(1, &prompt(1, 10), 4)).unwrap();
    let mut num_samples = 0;
    for ahead in 0..4 {
        let plan = world.submit().unwrap();
        num_samples += plan.rows.iter().filter(|r| r.wants.sample == SampleMode::Now).count();
        let is_decode = plan.rows[0].source == TokenSource::LastSampled;
        assert_eq!(is_decode, ahead > 0);
        if ahead > 0 {
            world.complete(&Outcome::Ok);
        }
    }
    assert!(world.submit().is_none(), "four samples are submitted");
    assert_eq!(num_samples, 4);
    world.drain(1);
    assert_eq!(world.end_of(1), Some(&FinishReason::Length));
}

#[test]
fn test_stop_token_is_found_one_step_late_and_blocks_stay_until_then() {
    let mut world = world(config(shape(64, 4)));
    let mut stopping = request(1, &prompt(1, 10), 20);
    let tokens = world.answers.expected(&stopping.prompt, 3);
    stopping.stop.end_token_ids = [tokens[2]].into();
    world.admit(stopping).unwrap();
    for _ in 0..3 {
        world.submit().unwrap();
        world.submit();
        world.complete(&Outcome::Ok);
    }
    assert_eq!(world.end_of(1), Some(&FinishReason::Stop));
    let stats = world.scheduler.stats();
    assert_eq!((stats.num_running, stats.num_leaving, stats.num_steps_in_flight), (0, 1, 1));
    assert!(stats.num_leaving_blocks > 0 && stats.num_held_blocks == 0);
    world.complete(&Outcome::Ok);
    assert_eq!(world.scheduler.stats().num_leaving_blocks, 0);
}

#[test]
fn test_an_end_token_ends_the_request_once_it_has_min_tokens() {
    for (min_tokens, has_end, num_output) in
        [(0, true, 2), (2, true, 2), (3, true, 9), (0, false, 9)]
    {
        let mut world = world(config(shape(64, 4)));
        let mut stopping = request(1, &prompt(1, 10), 9);
        let second = world.answers.expected(&stopping.prompt, 2)[1];
        stopping.stop.end_token_ids = has_end.then_some(second).into_iter().collect();
        stopping.stop.min_tokens = min_tokens;
        run(&mut world, stopping);
        assert_eq!(world.requests[&RequestId(1)].tokens.len(), num_output);
    }
}

#[test]
fn test_aborts_at_every_stage_free_all_within_two_steps() {
    let mut world = world(config(shape(64, 4)));
    for id in 0..32 {
        world.admit(request(id, &prompt(id as u32, 20), 100)).unwrap();
    }
    for _ in 0..6 {
        while world.submit().is_some() {}
        world.complete(&Outcome::Ok);
    }
    while world.submit().is_some() {}
    for id in 0..32 {
        assert!(world.abort(RequestId(id)));
        assert!(!world.abort(RequestId(id)), "only once");
    }
    assert!(!world.abort(RequestId(320)), "an unknown id ends nobody");
    world.complete(&Outcome::Ok);
    world.complete(&Outcome::Ok);
    let stats = world.scheduler.stats();
    assert_eq!((stats.num_running, stats.num_waiting, stats.num_leaving), (0, 0, 0));
    assert_eq!(stats.num_free_blocks + stats.num_cached_blocks, 64);
    // What had been computed is still known.
    assert_eq!(run(&mut world, request(40, &prompt(0, 20), 1)), 16);
}

#[test]
fn test_failed_step_ends_its_requests_and_recomputes_those_that_built_on_it() {
    let mut world = world(config(shape(64, 4)));
    world.admit(request(1, &prompt(1, 20), 5)).unwrap();
    world.submit().unwrap();
    // The second finds the first one's blocks while they are being computed.
    world.admit(request(2, &prompt(1, 22), 5)).unwrap();
    let plan = world.submit().unwrap();
    assert_eq!(plan.opened[0].cached_blocks.len(), 5);
    world.complete(&Outcome::Fails(ExecutorError::StepFailed("injected".to_owned())));
    let fault = RequestFault::StepFailed("step failed: injected".to_owned());
    assert_eq!(world.end_of(1), Some(&FinishReason::Error(fault)));
    assert_eq!(world.end_of(2), None);
    world.drain(100);
    assert_eq!(world.end_of(2), Some(&FinishReason::Length));
    assert_eq!(world.requests[&RequestId(2)].num_cached_tokens, Some(20), "as first found");
}

#[test]
fn test_refused_step_ends_its_requests_while_the_step_before_goes_on() {
    let mut world = world(config(shape(64, 4)));
    world.admit(request(1, &prompt(1, 20), 5)).unwrap();
    world.submit().unwrap();
    world.admit(request(2, &prompt(2, 20), 5)).unwrap();
    world.driver.refuse_next_submit(ExecutorError::StepFailed("full".to_owned()));
    world.submit().unwrap();
    assert!(matches!(world.end_of(1), Some(FinishReason::Error(_))));
    assert!(matches!(world.end_of(2), Some(FinishReason::Error(_))));
    assert_eq!(world.scheduler.stats().num_leaving, 1, "the first is still computed on");
    world.complete(&Outcome::Ok);
    world.admit(request(3, &prompt(3, 20), 5)).unwrap();
    world.drain(100);
}

#[test]
fn test_row_that_is_not_finite_ends_its_request_only() {
    let mut world = world(config(shape(64, 4)));
    for id in 1..=3 {
        world.admit(request(id, &prompt(id as u32, 8), 5)).unwrap();
    }
    world.submit().unwrap();
    world.complete(&Outcome::NotFinite(1));
    assert_eq!(world.end_of(2), Some(&FinishReason::Error(RequestFault::NotFinite)));
    world.drain(100);
    assert_eq!(run(&mut world, request(4, &prompt(2, 9), 1)), 0, "its blocks are forgotten");
    assert_eq!(run(&mut world, request(5, &prompt(3, 9), 1)), 8);
}

#[test]
#[should_panic(expected = "request 1 was admitted twice")]
fn test_an_id_in_use_is_our_own_mistake() {
    let mut world = world(config(shape(64, 4)));
    world.admit(request(1, &[1], 5)).unwrap();
    let _ = world.scheduler.admit(request(1, &[2], 5), Micros(0));
}
