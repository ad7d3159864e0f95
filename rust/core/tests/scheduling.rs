//! Who runs next and in what shape: order, fairness, chunks, preemption, late rows. The oracle of
//! `world` checks all tokens besides.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod world;

use std::collections::HashSet;

use ingle_core::{
    AdmitError, LateRow, Micros, RequestId, SampleMode, StepPlan, TenantId, TokenSource,
};
use ingle_sim::Outcome;

use world::oracle::request;
use world::{World, config, prompt, shape, world};

fn slots(plan: &StepPlan) -> Vec<u32> {
    plan.rows.iter().map(|row| row.slot.number()).collect()
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
        sizes.pause = Micros(0); // in the order of arrival
        let mut world = world(config(sizes));
        for (id, len) in (1..).zip(&lens) {
            world.admit(request(id, &prompt(id as u32, *len), 1)).unwrap();
        }
        assert_eq!(world.submit().unwrap().num_scheduled_tokens(), expected, "{lens:?}");
        world.drain(10);
    }
}

/// Prompt lengths in the order in which they start, where steps of a millisecond have 100 rows: one prompt occupies
/// nine of them, the others come after so many.
fn starts(others: [(u64, Vec<u32>); 2]) -> Vec<usize> {
    let mut sizes = shape(640, 16);
    (sizes.max_num_batched_tokens, sizes.busy_rows, sizes.pause) = (100, 100, Micros(250));
    let mut world = world(config(sizes));
    world.admit(request(8, &prompt(3, 200), 1)).unwrap();
    world.drain(100);
    world.admit(request(9, &prompt(9, 900), 1)).unwrap();
    world.submit().unwrap();
    let mut order = Vec::new();
    let mut others = (1..).zip(others).peekable();
    for step in 0.. {
        while let Some((id, (_, prompt))) = others.next_if(|(_, (after, _))| *after <= step) {
            world.admit(request(id, &prompt, 1)).unwrap();
        }
        if order.len() == 2 {
            break;
        }
        world.complete(&Outcome::Ok);
        let plan = world.submit().unwrap();
        order.extend(plan.opened.iter().map(|opened| opened.prompt.len()));
    }
    world.drain(100);
    order
}

#[test]
fn a_short_prompt_goes_before_a_long_one_that_came_a_little_earlier() {
    // 480 tokens more put it back by five times 1.2 ms.
    assert_eq!(starts([(0, prompt(1, 500)), (3, prompt(2, 20))]), [20, 500]);
    assert_eq!(starts([(0, prompt(1, 500)), (8, prompt(2, 20))]), [500, 20]);
}

#[test]
fn what_the_prefix_cache_has_does_not_put_a_prompt_back() {
    assert_eq!(starts([(0, prompt(1, 180)), (1, prompt(3, 200))]), [200, 180]);
    assert_eq!(starts([(0, prompt(1, 180)), (1, prompt(2, 200))]), [180, 200]);
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
    // Beside another tenant a step takes 32 prompt tokens: 40 need two.
    for _ in 0..28 {
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
    assert_eq!(slots(&third), [second.rows[1].slot.number()]);
    assert_eq!(world.scheduler.late_rows(&mut rows), Some(second.id));
    assert_eq!(rows, [LateRow { slot: second.rows[0].slot, request: RequestId(1), is_live: true }]);
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
