//! Who shares which blocks: prefix hits, salts, eviction, choices of one prompt. The oracle of `world`
//! checks all tokens besides.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod world;

use ingle_core::{FinishReason, Pooling, RequestId, RequestKind, TenantId};
use ingle_sim::Outcome;

use world::oracle::request;
use world::{config, prompt, run, shape, world};

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

/// Under two tenants, whose prompts are cut and turned otherwise, and with more prompts than a step holds.
#[test]
fn test_whole_prompts_are_neither_cut_nor_shared() {
    let mut sizes = config(shape(64, 4));
    sizes.whole_prompts = true;
    sizes.max_model_len = 64;
    sizes.shape.row_tile = 16;
    let mut world = world(sizes);
    let lens = [64, 33, 20, 64, 1, 17, 33, 33];
    for (id, len) in (1..).zip(lens) {
        let mut embedding = request(id, &prompt(1, len), 1);
        embedding.kind = RequestKind::Embed(Pooling::Last);
        embedding.tenant = TenantId((id % 2) as u32);
        world.admit(embedding).unwrap();
    }
    let mut computed = Vec::new();
    while !world.scheduler.is_idle() {
        while let Some(plan) = world.submit() {
            assert!(plan.opened.iter().all(|slot| slot.cached_blocks.is_empty()));
            assert!(plan.rows.iter().all(|row| row.start == 0));
            computed.extend(plan.rows.iter().map(|row| row.num_tokens));
        }
        world.complete(&Outcome::Ok);
    }
    computed.sort_unstable();
    let mut lens = lens.to_vec();
    lens.sort_unstable();
    assert_eq!(computed, lens);
    assert_eq!(world.scheduler.stats().num_cached_blocks, 0);
    let mut long = request(9, &prompt(1, 65), 1);
    long.kind = RequestKind::Embed(Pooling::Last);
    assert!(world.admit(long).is_err());
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

fn with_states(num_snapshots: u32) -> world::World {
    let mut config = config(shape(4096, 4));
    config.max_model_len = 8192;
    config.shape.max_num_batched_tokens = 1000;
    (config.shape.keeps_state, config.shape.num_snapshots) = (true, num_snapshots);
    world::world(config)
}

/// What layers keep of a whole sequence lies in no block.
#[test]
fn test_without_copies_a_state_starts_with_the_first_token() {
    let mut world = with_states(0);
    assert!(!world.scheduler.shares_prefixes());
    for id in [1, 2] {
        assert_eq!(run(&mut world, request(id, &prompt(1, 20), 5)), 0);
    }
    // Choices of one prompt compute it each for itself.
    for id in [3, 4] {
        let mut choice = request(id, &prompt(2, 20), 5);
        choice.leader = (id == 4).then_some(RequestId(3));
        world.admit(choice).unwrap();
    }
    let plan = world.submit().unwrap();
    assert_eq!(plan.opened.len(), 2);
    assert!(plan.rows.iter().all(|row| row.start == 0 && row.num_tokens == 20));
    world.drain(100);
    assert_eq!(world.requests[&RequestId(4)].num_cached_tokens, Some(0));
}

#[test]
fn test_a_second_turn_finds_nine_tenths_of_the_first_where_layers_keep_a_state() {
    for (num_prompt, num_answer) in [(100, 200), (200, 50), (3000, 17), (30, 300)] {
        let mut world = with_states(4);
        run(&mut world, request(1, &prompt(1, num_prompt), num_answer));
        let mut next = prompt(1, num_prompt);
        next.extend(world.requests[&RequestId(1)].tokens.iter().map(|token| token.0));
        let before = next.len() as u32;
        next.extend([1, 2, 3, 4, 5]);
        let found = run(&mut world, request(2, &next, 1));
        assert!(found * 10 >= before * 9, "{found} of {before}");
        // And the prompt alone, as far as one may go.
        let same = run(&mut world, request(3, &prompt(1, num_prompt), 1));
        assert_eq!(same, (num_prompt - 1) / 4 * 4);
    }
}

#[test]
fn test_long_prompts_leave_copies_on_their_way() {
    let mut world = with_states(8);
    run(&mut world, request(1, &prompt(1, 5000), 1));
    for (common, expected) in [(4500, 4096), (4096, 4096), (4095, 2048), (2000, 0)] {
        let mut other = prompt(1, common);
        other.extend(prompt(7, 60));
        assert_eq!(run(&mut world, request(u64::from(common), &other, 1)), expected, "{common}");
    }
}

#[test]
fn test_choices_of_one_prompt_begin_with_a_copy_of_its_state() {
    let mut config = config(shape(256, 4));
    config.enable_prefix_caching = false;
    (config.shape.keeps_state, config.shape.num_snapshots) = (true, 2);
    let mut world = world::world(config);
    for id in 0..3 {
        let mut choice = request(id, &prompt(2, 22), 5);
        choice.leader = (id > 0).then_some(RequestId(0));
        world.admit(choice).unwrap();
    }
    world.drain(100);
    let cached = |id| world.requests[&RequestId(id)].num_cached_tokens.unwrap();
    assert_eq!([cached(0), cached(1), cached(2)], [0, 20, 20]);
}
