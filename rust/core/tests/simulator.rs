//! Ten thousand seeds of load: arrivals, lengths, priorities, tenants, choices, late rows, embeddings,
//! aborts, stop strings, preemptions, failing steps, refused steps, numbers that are not finite, a lost
//! device. Everything is recounted after every operation; the executor checks every plan, the oracle
//! every event.
//!
//! `INGLE_SIM_SEED=n` replays one seed; `INGLE_SIM_SEEDS=n` runs n instead of 10,000. Each run prints a
//! digest of all plans and events: a change that must not alter scheduling leaves it as it was.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it names the seed")]

mod world;

use std::sync::Arc;

use ingle_core::{
    ExecutorError, ExecutorShape, KvGroups, Micros, NewRequest, Pooling, RequestId, RequestKind,
    SchedulerConfig, TenantId, TokenId,
};
use ingle_sim::{Answers, Outcome};

use world::digest::Digest;
use world::rng::Rng;
use world::{VOCAB_SIZE, World, oracle};

#[test]
fn test_seeds_of_load_first_quarter() {
    run_quarter(0);
}

#[test]
fn test_seeds_of_load_second_quarter() {
    run_quarter(1);
}

#[test]
fn test_seeds_of_load_third_quarter() {
    run_quarter(2);
}

#[test]
fn test_seeds_of_load_fourth_quarter() {
    run_quarter(3);
}

#[test]
fn test_plans_of_the_first_seeds_are_unchanged() {
    let mut totals = Totals::default();
    for seed in 0..200 {
        run_seed(seed, KvGroups::ONE, &mut totals);
    }
    assert_eq!(
        totals.digest.value(),
        0x5f8d_ea81_7322_a015,
        "plans or events changed: if that is what the change is for, say so and pin the new digest"
    );
}

/// The same load with groups of layers: all have a window, or some. Windows are shorter and longer than
/// prompts, chunks and blocks.
#[test]
fn test_seeds_of_load_with_windows() {
    let mut totals = Totals::default();
    for seed in seeds_from_env(2_000) {
        let mut rng = Rng(seed ^ 0x7769_6e64_6f77);
        let len = rng.range(1, 4);
        let windows: Vec<Option<u32>> = (0..len)
            .map(|group| match group == 0 && rng.one_in(2) {
                true => None,
                false => Some(rng.pick(&[2, 3, 4, 8, 9, 16, 24, 33])),
            })
            .collect();
        run_seed(seed, KvGroups::new(&windows), &mut totals);
    }
    println!("{totals:?}");
    if std::env::var_os("INGLE_SIM_SEED").is_none() {
        assert!(totals.preemptions > 200, "{totals:?}");
        assert!(totals.cache_hits > 10_000, "{totals:?}");
        assert!(totals.failures > 1_000, "{totals:?}");
    }
}

/// The same load with layers that keep a state: a prefix is found where there is a copy, and copies are few.
#[test]
fn test_seeds_of_load_with_states() {
    let mut totals = Totals::default();
    for seed in seeds_from_env(2_000) {
        run_seed_of(seed, KvGroups::ONE, Some((seed % 7) as u32), &mut totals);
    }
    println!("{totals:?}");
    if std::env::var_os("INGLE_SIM_SEED").is_none() {
        assert!(totals.preemptions > 200, "{totals:?}");
        assert!(totals.cache_hits > 5_000, "{totals:?}");
        assert!(totals.failures > 1_000, "{totals:?}");
    }
}

/// `INGLE_SIM_SEED` alone, or the first `INGLE_SIM_SEEDS`.
fn seeds_from_env(default: u64) -> std::ops::Range<u64> {
    let from_env = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    match from_env("INGLE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_env("INGLE_SIM_SEEDS").unwrap_or(default),
    }
}

/// Every fourth seed, so that the test runner can spread them over cores.
fn run_quarter(quarter: u64) {
    let mut totals = Totals::default();
    let seeds = seeds_from_env(10_000);
    if std::env::var_os("INGLE_SIM_SEED").is_some() {
        run_seed(seeds.start, KvGroups::ONE, &mut totals);
        return;
    }
    let num_run = seeds.end / 4;
    for seed in seeds.skip(quarter as usize).step_by(4) {
        run_seed(seed, KvGroups::ONE, &mut totals);
    }
    // A simulator that never reaches the hard cases proves nothing.
    assert!(totals.preemptions > num_run / 2, "{totals:?}");
    assert!(totals.cache_hits > 10 * num_run, "{totals:?}");
    assert!(totals.failures > num_run / 2, "{totals:?}");
    println!("{totals:?}");
}

#[derive(Debug, Default)]
struct Totals {
    requests: u64,
    steps: u64,
    preemptions: u64,
    cache_hits: u64,
    failures: u64,
    /// Of all plans and events, seed by seed.
    digest: Digest,
}

/// Names the seed if the test dies.
struct NameSeed(u64);

impl Drop for NameSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {0}: replay with INGLE_SIM_SEED={0}", self.0);
        }
    }
}

fn run_seed(seed: u64, kv_groups: KvGroups, totals: &mut Totals) {
    run_seed_of(seed, kv_groups, None, totals);
}

/// `num_snapshots`: layers keep a state, and there is room for so many copies.
fn run_seed_of(seed: u64, kv_groups: KvGroups, num_snapshots: Option<u32>, totals: &mut Totals) {
    let _name = NameSeed(seed);
    let mut load = Load::new(seed, kv_groups, num_snapshots);
    let num_operations = load.rng.range(20, 500);
    for _ in 0..num_operations {
        load.operate();
    }
    if load.rng.one_in(10) {
        load.world.lose_device();
    } else {
        // Each token is computed at least once; recomputing after preemptions is the rest.
        load.world.drain(100 + 20 * load.num_tokens);
    }
    let counters = load.world.scheduler.stats().counters;
    totals.requests += counters.admitted;
    totals.steps += counters.steps;
    totals.preemptions += counters.preemptions;
    totals.cache_hits += counters.prefix_cache_hits;
    totals.failures += load.num_failures;
    totals.digest.add(&load.world.digest.value().to_le_bytes());
}

struct Load {
    rng: Rng,
    world: World,
    next_id: u64,
    /// Of all requests, prompts and outputs.
    num_tokens: u64,
    num_failures: u64,
    /// Prompts start with one of these, so that they share prefixes.
    stems: Vec<Vec<u32>>,
    fails: bool,
}

impl Load {
    fn new(seed: u64, kv_groups: KvGroups, num_snapshots: Option<u32>) -> Self {
        let mut rng = Rng(seed);
        let max_num_seqs = rng.range(1, 8);
        let shape = ExecutorShape {
            // More of them where each request takes blocks of several groups.
            num_blocks: rng.range(3, 16) * kv_groups.len() as u32,
            block_size: rng.pick(&[4, 8, 16]),
            kv_groups,
            keeps_state: num_snapshots.is_some(),
            num_snapshots: num_snapshots.unwrap_or(0),
            num_slots: max_num_seqs + rng.range(0, max_num_seqs),
            max_num_seqs,
            max_num_batched_tokens: rng.range(2, 48),
            max_steps_in_flight: rng.pick(&[1, 2, 2, 3]),
            row_tile: rng.pick(&[1, 4, 16]),
            tenant_rows: 32,
            steady_rows: u32::MAX,
            busy_rows: u32::MAX,
            pause: Micros(30_000),
            vocab_size: VOCAB_SIZE,
        };
        let config = SchedulerConfig {
            shape,
            max_model_len: rng.range(8, 120),
            max_queue: rng.range(1, 20),
            weight_tokens: rng.range(0, 100),
            enable_prefix_caching: !rng.one_in(4),
            whole_prompts: false,
            cache_secret: rng.next(),
        };
        // Token 0 is end-of-text; rare, so that outputs have all lengths.
        let text: Vec<TokenId> = (0..211).map(|_| TokenId(rng.range(0, 60))).collect();
        let step_time = rng.pick(&[Micros(1), Micros(10_000), Micros(3_000_000)]);
        let stems = (0..3).map(|_| (0..40).map(|_| rng.range(0, 99)).collect()).collect();
        let mut world = World::new(config, world::profile(step_time), Answers::new(text.into()));
        world.verifies = true;
        let fails = rng.one_in(2);
        Self { rng, world, next_id: 0, num_tokens: 0, num_failures: 0, stems, fails }
    }

    fn operate(&mut self) {
        match self.rng.range(0, 19) {
            0..=3 => self.arrive(),
            4..=10 => {
                if self.fails && self.rng.one_in(40) {
                    let error = ExecutorError::StepFailed("refused".to_owned());
                    self.world.driver.refuse_next_submit(error);
                    self.num_failures += 1;
                }
                self.world.submit();
            }
            11..=17 => {
                let outcome = self.outcome();
                self.num_failures += u64::from(outcome != Outcome::Ok);
                self.world.complete(&outcome);
            }
            18 => {
                // Exact ids only: ended and unknown ones do nothing.
                let id = RequestId(u64::from(self.rng.range(0, self.next_id as u32 + 1)));
                self.world.abort(id);
            }
            _ => {
                let pause = u64::from(self.rng.range(0, 2_000_000));
                self.world.driver.advance_to(Micros(self.world.driver.now().0 + pause));
            }
        }
    }

    fn outcome(&mut self) -> Outcome {
        if self.fails && self.rng.one_in(25) {
            return match self.rng.range(0, 1) {
                0 => Outcome::NotFinite(self.rng.range(0, 9) as usize),
                _ => Outcome::Fails(ExecutorError::StepFailed("injected".to_owned())),
            };
        }
        Outcome::Ok
    }

    /// One request, or several choices of one prompt.
    fn arrive(&mut self) {
        let first = self.request();
        let num_choices = if self.rng.one_in(5) { self.rng.range(2, 4) } else { 1 };
        for choice in 0..num_choices {
            let mut request = first.clone();
            request.id = RequestId(self.next_id);
            // The oracle tells requests apart by where their prompts lie.
            request.prompt = Arc::from(&*first.prompt);
            request.leader = (choice > 0).then_some(first.id);
            self.next_id += 1;
            let num_tokens = request.prompt.len() as u64 + u64::from(request.stop.max_tokens);
            let id = request.id;
            if self.world.admit(request).is_ok() {
                self.num_tokens += num_tokens;
                if self.rng.one_in(8) {
                    let stops_after = self.rng.range(1, 10) as usize;
                    let tracked = self.world.requests.get_mut(&id).unwrap();
                    tracked.stops_after = Some(stops_after);
                }
            }
        }
    }

    fn request(&mut self) -> NewRequest {
        let rng = &mut self.rng;
        let stem = &self.stems[rng.range(0, 2) as usize];
        let mut prompt = stem[..rng.range(0, 40) as usize].to_vec();
        for _ in 0..rng.range(0, 6) {
            prompt.push(rng.range(0, 99));
        }
        prompt.push(rng.range(0, 3));
        let mut request = oracle::request(self.next_id, &prompt, rng.range(1, 30));
        let mut ends = vec![TokenId(0)];
        if rng.one_in(4) {
            ends.clear();
        }
        if rng.one_in(4) {
            ends.push(TokenId(rng.range(1, 60)));
        }
        request.stop.end_token_ids = ends.into();
        request.stop.min_tokens = if rng.one_in(4) { rng.range(0, 6) } else { 0 };
        request.priority = rng.pick(&[0, 0, 0, -1, 5]);
        request.tenant = TenantId(rng.range(0, 4));
        request.cache_salt = u64::from(rng.range(0, 1));
        match rng.range(0, 9) {
            0 => request.kind = RequestKind::Embed(Pooling::Mean),
            1 => request.kind = RequestKind::Embed(Pooling::Last),
            2 | 3 => request.late_sampled = true,
            4 => request.prompt_log_probs = Some(rng.range(0, 3)),
            _ => {}
        }
        request
    }
}
