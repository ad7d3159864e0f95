//! The scheduler's rules one by one: order, sharing, preemption, late rows, failures. The oracle of
//! `world` checks all tokens besides.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod world;

use std::collections::HashSet;

use ingle_core::{
    AdmitError, ExecutorError, FinishReason, LateRow, Micros, NewRequest, Pooling, RequestFault,
    RequestId, RequestKind, SampleMode, StepPlan, TenantId, TokenSource,
};
use ingle_sim::Outcome;

use world::oracle::request;
use world::{World, config, shape, world};

/// A prompt of this length that shares nothing with those of other numbers.
fn prompt(number: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (number * 31 + i * 7) % 100).collect()
}

fn run(world: &mut World, request: NewRequest) -> u32 {
    let id = request.id;
    world.admit(request).unwrap();
    world.drain(10_000);
    world.requests[&id].num_cached_tokens.unwrap()
}

fn slots(plan: &StepPlan) -> Vec<u32> {
    plan.rows.iter().map(|row| row.slot.0).collect()
}

#[test]
fn test_repeated_prompt_hits_all_full_blocks_but_computes_the_last_token() {
    for (len, expected) in [(15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32)] {
        let mut world = world(config(shape(64, 16)));
        assert_eq!(run(&mut world, request(1, &prompt(1, len), 5)), 0);
        for id in [2, 3] {
            assert_eq!(run(&mut world, request(id, &prompt(1, len), 5)), expected, "length {len}");
        }
    }
}

#[test]
fn test_generated_tokens_are_found_by_the_next_turn() {
    let mut world = world(config(shape(64, 4)));
    run(&mut world, request(1, &prompt(1, 10), 20));
    let mut next = prompt(1, 10);
    next.extend(world.requests[&RequestId(1)].tokens.iter().map(|token| token.0));
    next.push(1);
    // 30 tokens before the last new one; the KV of the 30th was never computed.
    assert_eq!(run(&mut world, request(2, &next, 1)), 28);
}

#[test]
fn test_salts_separate_and_no_caching_means_none() {
    let mut world = world(config(shape(64, 4)));
    run(&mut world, request(1, &prompt(1, 20), 1));
    let mut other = request(2, &prompt(1, 20), 1);
    other.cache_salt = 1;
    assert_eq!(run(&mut world, other), 0);
    let mut off = config(shape(64, 4));
    off.enable_prefix_caching = false;
    let mut world = world::world(off);
    run(&mut world, request(1, &prompt(1, 20), 1));
    assert_eq!(run(&mut world, request(2, &prompt(1, 20), 1)), 0);
    assert_eq!(world.scheduler.stats().num_cached_blocks, 0);
}

#[test]
fn test_rows_that_need_every_position_take_no_hit() {
    let mut world = world(config(shape(64, 4)));
    run(&mut world, request(1, &prompt(1, 20), 1));
    let mut scored = request(2, &prompt(1, 20), 1);
    scored.prompt_log_probs = Some(1);
    assert_eq!(run(&mut world, scored), 0);
    for (id, pooling, expected) in [(3, Pooling::Mean, 0), (4, Pooling::Last, 16)] {
        let mut embedding = request(id, &prompt(1, 20), 1);
        embedding.kind = RequestKind::Embed(pooling);
        assert_eq!(run(&mut world, embedding), expected);
    }
}

#[test]
fn test_cached_blocks_are_evicted_oldest_first_and_ends_before_beginnings() {
    let mut world = world(config(shape(8, 4)));
    run(&mut world, request(1, &prompt(1, 16), 1));
    run(&mut world, request(2, &prompt(2, 12), 1));
    // Of 8 blocks 7 are cached; three more evict the two last ones of the first prompt.
    run(&mut world, request(3, &prompt(3, 12), 1));
    assert_eq!(run(&mut world, request(4, &prompt(2, 13), 1)), 12);
    let mut world = world::world(config(shape(8, 4)));
    run(&mut world, request(1, &prompt(1, 16), 1));
    run(&mut world, request(2, &prompt(2, 12), 1));
    run(&mut world, request(3, &prompt(3, 12), 1));
    assert_eq!(run(&mut world, request(4, &prompt(1, 16), 1)), 8);
}

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
    stopping.stop.stop_token_ids = vec![tokens[2]];
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
fn test_min_tokens_and_ignore_eos() {
    for (min_tokens, ignore_eos, num_output) in
        [(0, false, 2), (2, false, 2), (3, false, 9), (0, true, 9)]
    {
        let mut world = world(config(shape(64, 4)));
        let mut stopping = request(1, &prompt(1, 10), 9);
        stopping.stop.eos_token_ids = [world.answers.expected(&stopping.prompt, 2)[1]].into();
        stopping.stop.min_tokens = min_tokens;
        stopping.stop.ignore_eos = ignore_eos;
        run(&mut world, stopping);
        assert_eq!(world.requests[&RequestId(1)].tokens.len(), num_output);
    }
}

#[test]
fn test_long_prompts_are_chunked_behind_decode_rows() {
    let mut sizes = shape(64, 16);
    sizes.max_num_batched_tokens = 32;
    let mut world = world(config(sizes));
    world.admit(request(1, &prompt(1, 10), 50)).unwrap();
    world.submit().unwrap();
    world.admit(request(2, &prompt(2, 100), 5)).unwrap();
    let mut chunks = Vec::new();
    for _ in 0..5 {
        let plan = world.submit().unwrap();
        assert_eq!(plan.rows[0].source, TokenSource::LastSampled);
        chunks.extend(plan.rows.get(1).map(|row| row.num_tokens));
        world.complete(&Outcome::Ok);
    }
    assert_eq!(chunks, [31, 31, 31, 7, 1]);
    world.drain(100);
}

#[test]
fn test_rows_fill_whole_tiles_when_the_last_one_would_be_mostly_empty() {
    for (lens, expected) in [
        (vec![100, 150], 250), // 58 rows in the last tile: padding costs little
        (vec![100, 100], 192), // 8 rows in the last tile: cut
        (vec![190, 10], 200),  // to cut 8 of 10 tokens would leave a crumb
        (vec![20], 20),        // below one tile
    ] {
        let mut sizes = shape(64, 16);
        sizes.max_num_batched_tokens = 1000;
        sizes.row_tile = 64;
        let mut world = world(config(sizes));
        for (id, len) in (1..).zip(&lens) {
            world.admit(request(id, &prompt(id as u32, *len), 1)).unwrap();
        }
        assert_eq!(world.submit().unwrap().num_scheduled_tokens(), expected, "{lens:?}");
        world.drain(10);
    }
}

#[test]
fn test_queue_is_bounded_and_refusals_carry_numbers() {
    let mut small = config(shape(64, 16));
    small.max_queue = 2;
    let mut world = world(small);
    for id in [1, 2] {
        world.admit(request(id, &[1], 1)).unwrap();
    }
    let error = world.admit(request(3, &[1], 1)).unwrap_err();
    assert_eq!(error, AdmitError::QueueFull { waiting: 2, max: 2 });
    assert_eq!(error.to_string(), "2 requests are waiting and the queue holds 2");
    assert!(error.is_overload());
    assert!(world.scheduler.check_queue(1).is_err());
    world.submit().unwrap();
    assert!(world.scheduler.check_queue(2).is_ok() && world.scheduler.check_queue(3).is_err());
    assert!(world.admit(request(4, &prompt(1, 999), 2)).is_err());
    world.drain(10);
}

#[test]
fn test_lower_priority_number_starts_first() {
    let mut sizes = shape(64, 16);
    sizes.max_num_seqs = 1;
    let mut world = world(config(sizes));
    for (id, priority) in [(1, 1), (2, 0), (3, -5), (4, 0)] {
        let mut request = request(id, &prompt(id as u32, 4), 2);
        request.priority = priority;
        world.admit(request).unwrap();
    }
    let mut order = Vec::new();
    while !world.scheduler.is_idle() {
        while world.submit().is_some() {}
        let before = world.alive();
        world.complete(&Outcome::Ok);
        let after: HashSet<_> = world.alive().into_iter().collect();
        order.extend(before.into_iter().filter(|id| !after.contains(id)).map(|id| id.0));
    }
    assert_eq!(order, [3, 2, 4, 1]);
}

#[test]
fn test_victim_is_the_worst_priority_then_the_latest_and_resumes_with_its_tokens() {
    // Each request grows to 8 blocks; two of them fit into 18, three do not.
    let mut world = world(config(shape(18, 4)));
    for (id, priority) in [(1, 0), (2, 5), (3, 0)] {
        let mut request = request(id, &prompt(id as u32, 8), 24);
        request.priority = priority;
        world.admit(request).unwrap();
    }
    let mut resumed = Vec::new();
    while !world.scheduler.is_idle() {
        while let Some(plan) = world.submit() {
            resumed.extend(plan.opened.into_iter().filter(|slot| !slot.generated.is_empty()));
        }
        world.complete(&Outcome::Ok);
    }
    assert_eq!(world.scheduler.stats().counters.preemptions, 1);
    assert_eq!(resumed.len(), 1);
    assert_eq!(resumed[0].prompt, world.requests[&RequestId(2)].prompt);
    world.drain(0);
}

#[test]
fn test_victim_is_left_out_at_once_and_freed_after_its_steps() {
    let mut world = world(config(shape(6, 4)));
    world.admit(request(1, &prompt(1, 8), 16)).unwrap();
    world.admit(request(2, &prompt(2, 8), 16)).unwrap();
    // Both prompts and a third block each fill the pool; the fourth one of the first is missing.
    let mut plan = world.submit();
    while plan.is_some() {
        plan = world.submit();
        if plan.is_some() {
            world.complete(&Outcome::Ok);
        }
    }
    let stats = world.scheduler.stats();
    assert_eq!(stats.counters.preemptions, 1, "the second is the victim");
    assert_eq!((stats.num_running, stats.num_held_blocks, stats.num_steps_in_flight), (2, 6, 1));
    let num_tokens = world.requests[&RequestId(2)].tokens.len();
    world.complete(&Outcome::Ok);
    assert_eq!(world.requests[&RequestId(2)].tokens.len(), num_tokens + 1, "its token counts");
    let stats = world.scheduler.stats();
    assert_eq!((stats.num_running, stats.num_waiting, stats.num_held_blocks), (1, 1, 3));
    let plan = world.submit().unwrap();
    assert_eq!((plan.rows.len(), plan.closed.len(), plan.opened.len()), (1, 1, 0));
    world.drain(100);
}

#[test]
fn test_no_request_starves_under_a_stream_of_better_ones() {
    let mut sizes = shape(8, 4);
    sizes.max_num_seqs = 2;
    let answers = ingle_sim::Answers::new((0..97).map(ingle_core::TokenId).collect());
    let mut world = World::new(config(sizes), world::profile(Micros(500_000)), answers);
    world.verifies = false;
    let mut low = request(0, &prompt(9, 20), 8);
    low.priority = 10;
    world.admit(low).unwrap();
    let mut id = 0;
    while world.end_of(0).is_none() {
        while world.scheduler.stats().num_waiting < 4 {
            id += 1;
            world.admit(request(id, &prompt(id as u32, 8), 6)).unwrap();
        }
        while world.submit().is_some() {}
        world.complete(&Outcome::Ok);
        assert!(id < 200, "200 better requests went first");
    }
    assert!(id > 8, "priority still counts");
    world.drain(1000);
}

#[test]
fn test_request_that_starts_because_it_is_overdue_is_not_the_next_victim() {
    let mut sizes = shape(12, 4);
    sizes.max_num_seqs = 2;
    let mut world = world(config(sizes));
    let mut low = request(0, &prompt(9, 40), 8);
    low.priority = 10;
    world.admit(low).unwrap();
    for id in 1..=6 {
        world.admit(request(id, &prompt(id as u32, 4), 1)).unwrap();
    }
    for id in [7, 8] {
        world.admit(request(id, &prompt(id as u32, 4), 14)).unwrap();
    }
    world.driver.advance_to(Micros(20_000_000));
    let mut num_openings = 0;
    while world.end_of(0).is_none() {
        while let Some(plan) = world.submit() {
            let low = &world.requests[&RequestId(0)].prompt;
            num_openings += plan.opened.iter().filter(|opened| opened.prompt == *low).count();
        }
        world.complete(&Outcome::Ok);
    }
    // It is the eighth to start and needs 12 blocks in the end; the seventh gives way.
    assert_eq!((num_openings, world.end_of(7), world.end_of(8)), (1, None, None));
    assert_eq!(world.scheduler.stats().counters.preemptions, 1);
    world.drain(100);
}

#[test]
fn test_tenants_are_served_by_tokens_not_by_requests() {
    let mut sizes = shape(64, 4);
    sizes.max_num_seqs = 1;
    let mut world = world(config(sizes));
    for id in 0..60 {
        // Tenant 0 asks for 41 tokens at a time, tenant 1 for 9.
        let mut request = request(id, &prompt(id as u32, if id % 2 == 0 { 40 } else { 8 }), 1);
        request.tenant = TenantId((id % 2) as u32);
        world.admit(request).unwrap();
    }
    for _ in 0..24 {
        while world.submit().is_some() {}
        world.complete(&Outcome::Ok);
    }
    let ended =
        |parity| (0..60).filter(|id| id % 2 == parity && world.end_of(*id).is_some()).count();
    assert_eq!((ended(0), ended(1)), (4, 20));
    world.drain(100);
}

#[test]
fn test_a_hog_does_not_starve_polite_tenants() {
    let mut sizes = shape(64, 4);
    sizes.max_num_seqs = 2;
    let mut world = world(config(sizes));
    for id in 0..100 {
        world.admit(request(id, &prompt(id as u32, 12), 8)).unwrap();
    }
    for _ in 0..20 {
        while world.submit().is_some() {}
        world.complete(&Outcome::Ok);
    }
    for id in 100..105 {
        let mut polite = request(id, &prompt(id as u32, 12), 8);
        polite.tenant = TenantId(1);
        world.admit(polite).unwrap();
    }
    let (mut hogs, done) = (0, world.alive().len());
    while (100..105).any(|id| world.end_of(id).is_none()) {
        while world.submit().is_some() {}
        world.complete(&Outcome::Ok);
        hogs = done - world.alive().len();
    }
    assert!(hogs <= 5 + 8, "the hog's requests that ended meanwhile: {hogs}");
    world.drain(10_000);
}

#[test]
fn test_choices_wait_for_the_prompt_and_share_its_full_blocks() {
    for enable_prefix_caching in [true, false] {
        let mut sizes = config(shape(64, 4));
        sizes.enable_prefix_caching = enable_prefix_caching;
        sizes.shape.max_num_batched_tokens = 8;
        let mut world = world(sizes);
        for id in 1..=3 {
            let mut choice = request(id, &prompt(1, 18), 6);
            choice.leader = (id > 1).then_some(RequestId(1));
            world.admit(choice).unwrap();
        }
        for expected_rows in [1, 1, 1] {
            assert_eq!(world.submit().unwrap().rows.len(), expected_rows);
            world.complete(&Outcome::Ok);
        }
        let plan = world.submit().unwrap();
        assert_eq!(plan.opened.len(), 2);
        for opened in &plan.opened {
            assert_eq!(opened.cached_blocks.len(), 4, "16 of 18 tokens are shared");
        }
        // A stranger with the same prompt finds it only where caching is on.
        world.admit(request(9, &prompt(1, 18), 1)).unwrap();
        world.drain(100);
        let found = world.requests[&RequestId(9)].num_cached_tokens;
        assert_eq!(found, Some(if enable_prefix_caching { 16 } else { 0 }));
    }
}

#[test]
fn test_choices_go_on_if_their_leader_ends_early() {
    let mut world = world(config(shape(64, 4)));
    for id in 1..=3 {
        let mut choice = request(id, &prompt(1, 18), 6);
        choice.leader = (id > 1).then_some(RequestId(1));
        world.admit(choice).unwrap();
    }
    assert_eq!(world.scheduler.stats().num_waiting, 3);
    world.abort(RequestId(2));
    world.abort(RequestId(1));
    world.drain(100);
    assert_eq!(world.end_of(3), Some(&FinishReason::Length));
}

#[test]
fn test_late_rows_wait_for_their_masks_and_hold_up_nobody_else() {
    let mut world = world(config(shape(64, 4)));
    let mut late = request(1, &prompt(1, 8), 5);
    late.late_sampled = true;
    world.admit(late).unwrap();
    world.admit(request(2, &prompt(2, 8), 8)).unwrap();
    let now = world.driver.now();
    // Step 1: both prompts. Its mask is due at once, since nothing runs before it.
    let first = world.submit().unwrap();
    assert_eq!(first.rows[0].wants.sample, SampleMode::Late);
    // Step 2: the late row takes part, but its mask waits for step 1's token.
    let second = world.submit().unwrap();
    assert_eq!(second.rows.len(), 2);
    let mut rows: Vec<LateRow> = Vec::new();
    assert_eq!(world.scheduler.late_rows(&mut rows), None, "step 1 has its masks");
    assert_eq!(world.driver.now(), now);
    world.driver.complete_next(&Outcome::Ok);
    world.take_completions_without_masks();
    // Step 3 is planned before step 2 has its masks: the other request goes on alone.
    let third = world.scheduler.plan(now).unwrap();
    assert_eq!(slots(&third), [second.rows[1].slot.0]);
    assert_eq!(world.scheduler.late_rows(&mut rows), Some(second.id));
    assert_eq!(rows, [LateRow { slot: second.rows[0].slot, request: RequestId(1), is_live: true }]);
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
fn test_budget_below_the_number_of_requests_serves_them_all() {
    let mut sizes = shape(64, 4);
    sizes.max_num_batched_tokens = 2;
    let mut world = world(config(sizes));
    for id in 1..=8 {
        world.admit(request(id, &prompt(id as u32, 9), 5)).unwrap();
    }
    world.drain(8 * (9 + 5));
}

#[test]
fn test_late_rows_that_come_back_together_stay_within_the_budget() {
    let mut sizes = shape(64, 4);
    sizes.max_num_batched_tokens = 2;
    sizes.max_steps_in_flight = 3;
    let mut world = world(config(sizes));
    world.admit(request(1, &[1], 20)).unwrap();
    world.submit().unwrap();
    let mut late = request(2, &[2], 20);
    late.late_sampled = true;
    world.admit(late).unwrap();
    assert_eq!(world.submit().unwrap().rows.len(), 2);
    // The late row waits for its mask; there seems to be room for a third request.
    world.admit(request(3, &[3], 20)).unwrap();
    world.submit().unwrap();
    world.drain(100);
}

#[test]
#[should_panic(expected = "request 1 was admitted twice")]
fn test_an_id_in_use_is_our_own_mistake() {
    let mut world = world(config(shape(64, 4)));
    world.admit(request(1, &[1], 5)).unwrap();
    let _ = world.scheduler.admit(request(1, &[2], 5), Micros(0));
}
