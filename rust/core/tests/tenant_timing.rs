//! What another tenant has computed changes nothing of a request's steps, and so nothing of its time.
//! Counted under the simulator's clock; tests/load/test_tenant_timing.py measures it over HTTP.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod world;

use ingle_core::{TenantId, TokenId};
use ingle_sim::{Answers, Outcome, Profile};

use world::oracle::request;
use world::rng::Rng;
use world::{World, config, shape};

const NUM_PAIRS: u32 = 10_000;
const BLOCK_SIZE: u32 = 16;

/// What can be seen of a request's steps: positions, blocks taken and found, and the time.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    rows: Vec<(u32, u32, usize, usize)>,
    micros: u64,
}

/// A pool of so many blocks: where it is small, the second request evicts what the first left.
fn new_world(num_blocks: u32) -> World {
    let answers = Answers::new((0..97).map(|i| TokenId(i * 7 % 97)).collect());
    // A clock on which each row counts.
    let profile = Profile { hidden_size: 4, ..Profile::default() };
    let mut world = World::new(config(shape(num_blocks, BLOCK_SIZE)), profile, answers);
    world.verifies = false;
    world
}

/// Runs one tenant's request to its end.
fn see(world: &mut World, id: u64, tenant: u32, prompt: &[u32]) -> Seen {
    let mut asked = request(id, prompt, 2);
    (asked.tenant, asked.cache_salt) = (TenantId(tenant), u64::from(tenant));
    let began = world.driver.now();
    world.admit(asked).unwrap();
    let mut seen = Seen::default();
    while !world.scheduler.is_idle() {
        while let Some(plan) = world.submit() {
            let cached = plan.opened.iter().map(|slot| slot.cached_blocks.len()).sum();
            let rows = plan.rows.iter();
            seen.rows
                .extend(rows.map(|row| (row.start, row.num_tokens, row.new_blocks.len(), cached)));
        }
        world.complete(&Outcome::Ok);
    }
    seen.micros = world.driver.now().0 - began.0;
    seen
}

#[test]
fn test_ten_thousand_pairs_see_nothing_of_another_tenants_prefix() {
    let mut rng = Rng(11);
    let mut num_own_hits = 0;
    for pair in 0..NUM_PAIRS {
        let len = rng.range(1, 200);
        let mut prompt = || (0..len).map(|_| rng.range(0, 96)).collect::<Vec<_>>();
        let (asked, other) = (prompt(), prompt());
        let num_blocks = rng.pick(&[16, 20, 64]);
        // The other tenant has asked for the same, or for something else of this length.
        let probe = |first: &[u32], first_tenant| {
            let mut world = new_world(num_blocks);
            see(&mut world, 1, first_tenant, first);
            see(&mut world, 2, 2, &asked)
        };
        let (hit, miss) = (probe(&asked, 1), probe(&other, 1));
        assert_eq!(hit, miss, "pair {pair}");
        // The tenant's own prefix is seen: the comparison is not blind.
        num_own_hits += u32::from(probe(&asked, 2).micros < miss.micros);
    }
    assert!(num_own_hits > NUM_PAIRS / 2, "{num_own_hits}");
}
