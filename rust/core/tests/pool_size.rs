//! A KV pool that shrinks and grows while requests run. The oracle of `world` checks every token, so a block
//! that was taken away too early, or given to two, is seen.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod world;

use ingle_core::KvGroups;
use ingle_sim::Outcome;

use world::oracle::request;
use world::rng::Rng;
use world::{World, config, prompt, run, shape, world};

const NUM_BLOCKS: u32 = 48;

/// Shrinks to `num_blocks` in rounds of `most` blocks, as an engine thread does; what is in the way is preempted.
fn shrink(world: &mut World, num_blocks: u32, most: u32) {
    while !world.scheduler.shrink_pool(num_blocks, most) {
        world.scheduler.verify();
    }
    world.scheduler.preempt_beyond();
    world.scheduler.verify();
    while world.scheduler.num_blocks_beyond() > 0 {
        assert!(
            world.complete(&Outcome::Ok),
            "blocks beyond the end without a step that names them"
        );
    }
    assert!(world.scheduler.least_pool() <= num_blocks);
}

#[test]
fn answers_are_right_while_the_pool_changes_at_random() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let mut shape = shape(NUM_BLOCKS, 4);
        if seed % 2 == 1 {
            shape.kv_groups = KvGroups::new(&[None, Some(8)]);
        }
        let mut world = world(config(shape));
        let mut next = 1;
        for _ in 0..150 {
            match rng.range(0, 5) {
                0 => {
                    let (len, max_tokens) = (rng.range(1, 40), rng.range(1, 20));
                    world.admit(request(next, &prompt(next as u32 % 5, len), max_tokens)).unwrap();
                    next += 1;
                }
                1 => shrink(&mut world, rng.range(0, NUM_BLOCKS), rng.range(1, 20)),
                2 => {
                    world.scheduler.grow_pool(rng.range(0, NUM_BLOCKS));
                    world.scheduler.verify();
                }
                3 => {
                    world.submit();
                }
                _ => {
                    world.complete(&Outcome::Ok);
                }
            }
            if let Some(plan) = world.submit() {
                let end = world.scheduler.pool_blocks();
                let blocks = plan.rows.iter().flat_map(|row| &*row.new_blocks);
                assert!(blocks.into_iter().all(|block| block.0 < end), "{plan:?}");
            }
        }
        world.scheduler.grow_pool(NUM_BLOCKS);
        world.drain(10_000);
    }
}

#[test]
fn cached_prefixes_below_the_end_stay_and_those_beyond_are_forgotten() {
    let mut world = world(config(shape(NUM_BLOCKS, 4)));
    // Blocks 0 to 9, then 10 to 19.
    assert_eq!(run(&mut world, request(1, &prompt(1, 40), 1)), 0);
    assert_eq!(run(&mut world, request(2, &prompt(2, 40), 1)), 0);
    shrink(&mut world, 15, 3);
    let stats = world.scheduler.stats();
    assert_eq!((stats.num_blocks, stats.num_free_blocks, stats.num_cached_blocks), (15, 0, 15));
    assert_eq!(run(&mut world, request(3, &prompt(1, 40), 1)), 36);
    assert_eq!(run(&mut world, request(4, &prompt(2, 40), 1)), 20, "half of it is there");
    world.scheduler.grow_pool(NUM_BLOCKS);
    assert_eq!(world.scheduler.stats().num_blocks, NUM_BLOCKS);
}

#[test]
fn a_request_that_needs_more_than_there_is_waits_for_memory() {
    let mut world = world(config(shape(NUM_BLOCKS, 4)));
    shrink(&mut world, 5, 100);
    world.admit(request(1, &prompt(1, 40), 8)).unwrap();
    assert!(world.submit().is_none());
    let wanted = world.scheduler.wanted_blocks();
    assert!((11..=NUM_BLOCKS).contains(&wanted), "{wanted}");
    world.scheduler.grow_pool(wanted);
    world.drain(100);
    assert_eq!(world.scheduler.wanted_blocks(), 0);
}

#[test]
fn a_request_alone_that_outgrows_a_small_pool_goes_on_when_it_grows() {
    let mut world = world(config(shape(NUM_BLOCKS, 4)));
    shrink(&mut world, 5, 100);
    world.admit(request(1, &prompt(1, 10), 30)).unwrap();
    while world.submit().is_some() || world.complete(&Outcome::Ok) {}
    assert_eq!(world.alive().len(), 1, "it waits");
    assert!(world.scheduler.wanted_blocks() > 5);
    world.scheduler.grow_pool(NUM_BLOCKS);
    world.drain(100);
}

#[test]
fn only_requests_in_the_way_are_preempted() {
    let mut world = world(config(shape(NUM_BLOCKS, 4)));
    for number in 1..=4 {
        world.admit(request(number, &prompt(number as u32, 31), 8)).unwrap();
    }
    world.submit().unwrap();
    world.submit();
    world.complete(&Outcome::Ok);
    let before = world.scheduler.stats();
    assert_eq!(before.num_running, 4);
    shrink(&mut world, 20, 100);
    let after = world.scheduler.stats();
    assert_eq!(after.counters.preemptions - before.counters.preemptions, 2);
    assert_eq!(after.num_running, 2, "the first two have blocks 0 to 17");
    world.scheduler.grow_pool(NUM_BLOCKS);
    world.drain(1000);
}

#[test]
fn a_pool_grows_beyond_what_it_began_with() {
    let mut world = world(config(shape(12, 4)));
    // The simulated device checks block numbers, so this test gives the new ones to nobody.
    world.scheduler.reserve_blocks(NUM_BLOCKS);
    assert_eq!(world.scheduler.pool_blocks(), 12);
    world.scheduler.grow_pool(1000);
    assert_eq!(world.scheduler.pool_blocks(), NUM_BLOCKS);
    world.scheduler.verify();
    assert_eq!(run(&mut world, request(1, &prompt(1, 8), 1)), 0, "the lowest blocks come first");
}
