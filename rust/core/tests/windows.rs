//! Groups of layers with a window: what a request holds, what it finds, how many run at once. The oracle
//! and the virtual executor of `world` check tokens and contents besides, and `Scheduler::verify` after
//! every operation that no block is held longer or shorter than its window.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod world;

use ingle_core::{ExecutorShape, KvGroups, RequestId, SchedulerConfig};
use ingle_sim::Outcome;

use world::oracle::request;
use world::{World, config, prompt, run, shape, world};

/// One group that keeps everything, one that keeps 8 tokens; blocks of 4.
fn windowed(num_blocks: u32) -> SchedulerConfig {
    let kv_groups = KvGroups::new(&[None, Some(8)]);
    config(ExecutorShape { kv_groups, ..shape(num_blocks, 4) })
}

/// The most blocks that were held at once until all was done.
fn most_held(world: &mut World) -> u32 {
    let mut most = 0;
    while !world.scheduler.is_idle() {
        while world.submit().is_some() {}
        most = most.max(world.scheduler.stats().num_held_blocks);
        world.complete(&Outcome::Ok);
    }
    most
}

#[test]
fn test_a_long_answer_holds_one_window() {
    let mut world = world(windowed(256));
    world.admit(request(1, &prompt(1, 5), 200)).unwrap();
    // 204 tokens in 51 blocks; 8 and one submitted ahead lie in at most 3.
    assert_eq!(most_held(&mut world), 51 + 3);
}

#[test]
fn test_a_long_prompt_holds_the_window_and_its_chunks() {
    let mut config = windowed(256);
    config.shape.max_num_batched_tokens = 16;
    let mut world = world::world(config);
    world.admit(request(1, &prompt(1, 200), 1)).unwrap();
    // 50 blocks, and the window's 2 with two chunks of 4 in flight.
    assert_eq!(most_held(&mut world), 50 + 2 + 8);
}

#[test]
fn test_a_prompt_is_cut_to_the_blocks_there_are() {
    // 25 blocks of everything and what a window needs; with two chunks of 64 tokens it would be 32 more.
    let mut world = world(windowed(25 + 3));
    assert_eq!(run(&mut world, request(1, &prompt(1, 100), 1)), 0);
    let error = world.admit(request(2, &prompt(2, 100), 2)).unwrap_err().to_string();
    assert!(error.contains("29 KV blocks of 4 tokens and the pool has 28"), "{error}");
}

#[test]
fn test_a_next_turn_hits_what_the_window_still_needs() {
    for kv_groups in [
        KvGroups::new(&[None, Some(8)]),
        KvGroups::new(&[None, Some(32), Some(3), Some(8)]),
        KvGroups::new(&[Some(9)]),
        KvGroups::new(&[None, Some(8), Some(12)]).in_chunks(),
    ] {
        let mut world = world(config(ExecutorShape { kv_groups, ..shape(512, 4) }));
        run(&mut world, request(1, &prompt(1, 10), 20));
        let mut next = prompt(1, 10);
        next.extend(world.requests[&RequestId(1)].tokens.iter().map(|token| token.0));
        next.push(1);
        assert_eq!(run(&mut world, request(2, &next, 1)), 28);
        // The window's blocks of an earlier place are there as well while nobody needs the room.
        let mut other = prompt(1, 10);
        other.extend([3, 3, 3]);
        assert_eq!(run(&mut world, request(3, &other, 1)), 8);
    }
}

#[test]
fn test_a_prefix_is_found_only_as_far_as_every_group_has_it() {
    // Request 1 fills 5 + 5 blocks. Request 2 uses all of the first group's but the last, and 2 and 3 of
    // the window's: places 4, 1 and 0 of the window stay old.
    let mut world = world(windowed(5 + 5 + 3));
    run(&mut world, request(1, &prompt(1, 20), 1));
    let again = |world: &mut World, id, len| run(world, request(id, &prompt(1, len), 1));
    assert_eq!(again(&mut world, 2, 18), 16, "all of it is there");
    // 3 + 3 blocks evict three: the last of each group and place 1 of the window.
    run(&mut world, request(3, &prompt(3, 12), 1));
    let stats = world.scheduler.stats();
    assert_eq!((stats.num_free_blocks, stats.num_held_blocks), (0, 0), "{stats:?}");
    assert_eq!(again(&mut world, 4, 18), 16, "it reads places 2 and 3 of the window");
    // That took place 0 for its own last tokens.
    assert_eq!(again(&mut world, 5, 14), 0, "4, 8 or 12 tokens need places 0 or 1 of the window");
}

#[test]
fn test_more_sequences_run_at_once_where_a_window_passes() {
    let num_at_once = |kv_groups| {
        let mut config =
            config(ExecutorShape { kv_groups, max_num_seqs: 64, num_slots: 128, ..shape(400, 4) });
        config.enable_prefix_caching = false;
        let mut world = world::world(config);
        for id in 0..40 {
            world.admit(request(id, &prompt(id as u32, 100), 40)).unwrap();
        }
        let mut most = 0;
        while !world.scheduler.is_idle() {
            while world.submit().is_some() {}
            most = most.max(world.scheduler.stats().num_running);
            world.complete(&Outcome::Ok);
        }
        most
    };
    // Half of the layers have a window, so a block holds half as many layers and 400 are 200 of before.
    let before = num_at_once(KvGroups::new(&[None, None]));
    let after = num_at_once(KvGroups::new(&[None, Some(8)]));
    assert!((6..=7).contains(&before), "{before} of 2 x 25 to 35 blocks in 400");
    assert!((11..=13).contains(&after), "{after} of 28 to 38 blocks in 400");
}
