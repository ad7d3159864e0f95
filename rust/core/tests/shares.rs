//! What several active tenants may count on: slots, blocks, rows of a step; and that one tenant alone is
//! not touched by it. The oracle of `world` checks all tokens besides.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod world;

use std::collections::HashSet;

use ingle_core::{Micros, NewRequest, RequestId, StepPlan, TenantId};
use ingle_sim::Outcome;

use world::oracle::request;
use world::{World, config, prompt, shape, world};

const HOG: TenantId = TenantId(0);
const POLITE: TenantId = TenantId(1);

fn of(tenant: TenantId, id: u64, num_prompt: u32, max_tokens: u32) -> NewRequest {
    let mut request = request(id, &prompt(id as u32, num_prompt), max_tokens);
    request.tenant = tenant;
    request
}

fn advance(world: &mut World, num_steps: u64) {
    for _ in 0..num_steps {
        while world.submit().is_some() {}
        world.complete(&Outcome::Ok);
    }
}

/// Steps until the request has a token.
fn steps_to_first_token(world: &mut World, id: u64) -> u64 {
    let mut num_steps = 0;
    while world.requests[&RequestId(id)].tokens.is_empty() {
        advance(world, 1);
        num_steps += 1;
        assert!(num_steps < 1000, "{id} waits for ever");
    }
    num_steps
}

fn chunk_of(plan: &StepPlan) -> u32 {
    plan.rows.iter().map(|row| row.num_tokens).max().unwrap()
}

#[test]
fn test_slot_is_taken_from_the_largest_holder() {
    let mut world = world(config(shape(64, 4)));
    for id in 0..20 {
        world.admit(of(HOG, id, 8, 40)).unwrap();
    }
    advance(&mut world, 4);
    assert_eq!(world.scheduler.stats().num_running, 8);
    world.admit(of(POLITE, 100, 8, 4)).unwrap();
    // The one in flight and, behind it, its own.
    assert_eq!(steps_to_first_token(&mut world, 100), 2);
    assert_eq!(world.scheduler.stats().counters.preemptions, 1);
    world.drain(2000);
}

#[test]
fn test_tenant_at_its_share_waits_like_all_others() {
    let mut world = world(config(shape(64, 4)));
    for id in 0..20 {
        world.admit(of(HOG, id, 8, 40)).unwrap();
    }
    advance(&mut world, 4);
    for id in 100..120 {
        world.admit(of(POLITE, id, 8, 20)).unwrap();
    }
    advance(&mut world, 12);
    assert_eq!(world.scheduler.stats().counters.preemptions, 4, "half of eight slots, no more");
    world.drain(2000);
}

#[test]
fn test_priority_counts_only_among_those_within_their_share() {
    let mut world = world(config(shape(64, 4)));
    for id in 0..20 {
        let mut request = of(HOG, id, 8, 40);
        request.priority = -100;
        world.admit(request).unwrap();
    }
    advance(&mut world, 4);
    world.admit(of(POLITE, 100, 8, 4)).unwrap();
    assert_eq!(steps_to_first_token(&mut world, 100), 2);
    world.drain(2000);
}

#[test]
fn test_blocks_are_taken_from_the_largest_holder_and_kept_from_its_growth() {
    let mut world = world(config(shape(40, 4)));
    for id in 0..8 {
        world.admit(of(HOG, id, 12, 40)).unwrap();
    }
    while world.scheduler.stats().num_free_blocks > 0 {
        advance(&mut world, 1);
    }
    world.admit(of(POLITE, 100, 40, 4)).unwrap();
    // A prompt of 40 takes two steps beside others; one more until blocks have come back.
    assert!(steps_to_first_token(&mut world, 100) <= 5);
    assert!(world.scheduler.stats().counters.preemptions <= 5);
    world.drain(2000);
}

#[test]
fn test_growing_request_takes_blocks_from_the_largest_holder() {
    let mut world = world(config(shape(24, 4)));
    for id in 0..4 {
        world.admit(of(HOG, id, 12, 40)).unwrap();
    }
    advance(&mut world, 3);
    world.admit(of(POLITE, 100, 4, 40)).unwrap();
    let mut openings = 0;
    while world.end_of(100).is_none() {
        while let Some(plan) = world.submit() {
            let polite = &world.requests[&RequestId(100)].prompt;
            openings += plan.opened.iter().filter(|opened| opened.prompt == *polite).count();
        }
        world.complete(&Outcome::Ok);
    }
    assert_eq!(openings, 1, "the newest of all, but not of those who hold most");
    world.drain(2000);
}

#[test]
fn test_prompts_share_a_step_only_between_tenants() {
    let mut sizes = shape(400, 4);
    sizes.max_num_batched_tokens = 256;
    let mut world = world(config(sizes));
    world.admit(of(HOG, 0, 900, 1)).unwrap();
    assert_eq!(chunk_of(&world.submit().unwrap()), 256, "alone it has the whole step");
    world.admit(of(POLITE, 1, 20, 1)).unwrap();
    let plan = world.submit().unwrap();
    let chunks: Vec<u32> = plan.rows.iter().map(|row| row.num_tokens).collect();
    assert_eq!(chunks, [20, 32], "whoever holds more than its share comes last");
    world.complete(&Outcome::Ok);
    world.complete(&Outcome::Ok);
    assert_eq!(chunk_of(&world.submit().unwrap()), 32, "the other may come back");
    world.driver.advance_to(Micros(20_000_000));
    assert_eq!(chunk_of(&world.submit().unwrap()), 256, "it did not");
    world.drain(100);
}

#[test]
fn test_rows_above_the_share_take_turns_if_they_read_too_much() {
    let mut sizes = config(shape(256, 4));
    sizes.weight_tokens = 64; // Rows above a share read 48 tokens a step.
    let mut world = world(sizes);
    for id in 0..8 {
        world.admit(of(HOG, id, 16, 40)).unwrap();
    }
    world.admit(of(POLITE, 100, 4, 300)).unwrap();
    advance(&mut world, 20);
    let plan = world.submit().unwrap();
    assert!(plan.rows.len() <= 4, "{} rows of at least 16 tokens", plan.rows.len());
    let lens: Vec<usize> = (0..7).map(|id| world.requests[&RequestId(id)].tokens.len()).collect();
    let (least, most) = (lens.iter().min().unwrap(), lens.iter().max().unwrap());
    assert!(most - least <= 2 && *most < 15, "{lens:?} tokens");
    world.drain(2000);
}

#[test]
fn test_overdue_backlog_of_a_hog_does_not_hold_up_others() {
    let mut world = world(config(shape(64, 4)));
    for id in 0..200 {
        world.admit(of(HOG, id, 8, 40)).unwrap();
    }
    advance(&mut world, 4);
    world.driver.advance_to(Micros(60_000_000));
    for id in 1000..1040 {
        world.admit(of(POLITE, id, 8, 3)).unwrap();
        let num_steps = steps_to_first_token(&mut world, id);
        assert!(num_steps <= 3, "{id} waited for {num_steps} steps");
    }
    world.drain(5000);
}

#[test]
fn test_request_larger_than_its_share_does_not_starve() {
    // 32 blocks, three tenants: a share is 10 blocks, the large one needs 24.
    let mut world = world(config(shape(32, 4)));
    let (mut id, mut alive) = (1, HashSet::new());
    world.admit(of(TenantId(9), 0, 90, 4)).unwrap();
    while world.end_of(0).is_none() {
        alive.retain(|id| world.end_of(*id).is_none());
        while alive.len() < 4 {
            world.admit(of(TenantId(id as u32 % 2), id, 12, 12)).unwrap();
            alive.insert(id);
            id += 1;
        }
        advance(&mut world, 1);
        let now = world.driver.now();
        world.driver.advance_to(Micros(now.0 + 200_000));
        assert!(id < 1000, "1,000 others went first");
    }
    world.drain(2000);
}
