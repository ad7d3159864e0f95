//! One hog and nine polite tenants on the virtual executor with the step times of an 8B model on one
//! H200: what the polite ones wait for, what the hog still gets, what preemption costs.
//!
//! `cargo test --release -p ingle-core --test fairness -- --ignored --nocapture` prints the table of
//! docs/BENCHMARKS.md.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]
#![allow(clippy::print_stdout, reason = "figures for the documents")]

mod world;

use std::collections::BTreeSet;

use ingle_core::{
    ExecutorShape, KvGroups, Micros, NewRequest, RequestId, SchedulerConfig, TenantId, TokenId,
};
use ingle_sim::{Answers, Outcome, Profile};

use world::oracle::request;
use world::rng::Rng;
use world::{VOCAB_SIZE, World};

/// What comes and what it meets.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    max_num_seqs: u32,
    /// Of 64 tokens.
    num_blocks: u32,
    /// Tokens in and out of the hog's requests.
    hog: (u32, u32),
    /// Leading tokens that all the hog's prompts have in common.
    hog_stem: u32,
    /// Tokens in and out of a polite request.
    polite: (u32, u32),
    /// Requests a second of each of the nine.
    polite_rate: f64,
    seconds: u64,
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
struct Figures {
    /// Time to first token of polite requests, sorted, ms.
    ttft_ms: Vec<f64>,
    /// Tokens in and out, without those found in the prefix cache.
    hog_tokens_per_s: f64,
    polite_tokens_per_s: f64,
    step_ms: f64,
    num_polite: u64,
    preemptions: u64,
    /// Token rows that were computed again, of 100 that were needed.
    recomputed_percent: f64,
}

impl Figures {
    fn ttft(&self, share: f64) -> f64 {
        match self.ttft_ms.len() {
            0 => 0.0,
            len => self.ttft_ms[((len - 1) as f64 * share) as usize],
        }
    }
}

struct Load {
    world: World,
    shape: Shape,
    /// Of polite tenants, whose load is the same with and without hogs; and of hogs.
    rngs: [Rng; 2],
    next_id: u64,
    num_hogs: u32,
    /// What each hog has in the system.
    alive_of_hogs: Vec<Vec<RequestId>>,
    /// Next arrival of each polite tenant.
    arrivals: BTreeSet<(Micros, u32)>,
    /// Without first token.
    expected: Vec<(RequestId, Micros)>,
    /// Of polite requests.
    ttft_ms: Vec<f64>,
}

impl Load {
    fn new(shape: Shape, num_polite: u32, has_hog: bool, seed: u64) -> Self {
        let executor = ExecutorShape {
            num_blocks: shape.num_blocks,
            block_size: 64,
            kv_groups: KvGroups::ONE,
            keeps_state: false,
            num_snapshots: 0,
            num_slots: 2 * shape.max_num_seqs,
            max_num_seqs: shape.max_num_seqs,
            max_num_batched_tokens: 2048,
            max_steps_in_flight: 2,
            row_tile: 128,
            tenant_rows: 192,
            steady_rows: u32::MAX,
            busy_rows: u32::MAX,
            pause: Micros(30_000),
            vocab_size: VOCAB_SIZE,
        };
        let config = SchedulerConfig {
            shape: executor,
            max_model_len: 14_000,
            max_queue: 10_000,
            weight_tokens: 114_510,
            enable_prefix_caching: true,
            whole_prompts: false,
            cache_secret: seed,
        };
        let answers = Answers::new((0..97).map(|i| TokenId(i * 7 % 97)).collect());
        let mut world = World::new(config, Profile::default(), answers);
        world.verifies = false;
        let mut load = Self {
            world,
            shape,
            rngs: [Rng(seed), Rng(!seed)],
            next_id: 0,
            num_hogs: u32::from(has_hog),
            alive_of_hogs: vec![Vec::new(); FIRST_POLITE as usize],
            arrivals: BTreeSet::new(),
            expected: Vec::new(),
            ttft_ms: Vec::new(),
        };
        for tenant in FIRST_POLITE..FIRST_POLITE + num_polite {
            load.schedule(tenant, Micros(0));
        }
        load
    }

    /// Exponential gaps: arrivals of independent clients.
    fn schedule(&mut self, tenant: u32, after: Micros) {
        let uniform = (self.rngs[0].next() >> 11) as f64 / (1_u64 << 53) as f64;
        let gap_s = -(1.0 - uniform).ln() / self.shape.polite_rate;
        self.arrivals.insert((Micros(after.0 + (gap_s * 1e6) as u64 + 1), tenant));
    }

    fn request(
        &mut self,
        tenant: TenantId,
        (num_in, num_out): (u32, u32),
        stem: u32,
    ) -> NewRequest {
        let id = self.next_id;
        self.next_id += 1;
        let rng = &mut self.rngs[usize::from(tenant.0 < FIRST_POLITE)];
        let mut prompt: Vec<u32> = (0..stem).map(|i| i * 7 % VOCAB_SIZE).collect();
        // Half to one and a half of the mean.
        let len = rng.range(num_in.div_ceil(2), num_in + num_in / 2);
        prompt.extend((0..len).map(|_| rng.range(0, VOCAB_SIZE - 1)));
        let num_out = rng.range(num_out.div_ceil(2), num_out + num_out / 2);
        let mut request = request(id, &prompt, num_out);
        request.tenant = tenant;
        request.cache_salt = u64::from(tenant.0);
        request
    }

    fn admit(&mut self, request: NewRequest) -> RequestId {
        let id = request.id;
        self.world.admit(request).unwrap();
        id
    }

    fn feed_hogs(&mut self) {
        let most = (OVERLOAD * self.shape.max_num_seqs / self.num_hogs.max(1)) as usize;
        for hog in 0..self.num_hogs {
            let mut alive = std::mem::take(&mut self.alive_of_hogs[hog as usize]);
            alive.retain(|id| self.world.requests[id].end.is_none());
            while alive.len() < most {
                let request = self.request(TenantId(hog), self.shape.hog, self.shape.hog_stem);
                alive.push(self.admit(request));
            }
            self.alive_of_hogs[hog as usize] = alive;
        }
    }

    /// Plays the load for as long as the shape says.
    fn run(&mut self) {
        let end = Micros(self.shape.seconds * 1_000_000);
        loop {
            self.feed_hogs();
            while self.world.submit().is_some() {}
            let completion = self.world.driver.next_completion();
            let arrival = self.arrivals.first().map(|&(at, _)| at);
            let next = [completion, arrival].into_iter().flatten().min();
            let Some(next) = next.filter(|&next| next < end) else { return };
            self.world.driver.advance_to(next);
            if completion == Some(next) {
                self.world.complete(&Outcome::Ok);
                self.note_first_tokens();
            } else if let Some((at, tenant)) = self.arrivals.pop_first() {
                self.schedule(tenant, at);
                let request = self.request(TenantId(tenant), self.shape.polite, 0);
                let id = self.admit(request);
                self.expected.push((id, at));
            }
        }
    }

    fn note_first_tokens(&mut self) {
        let Self { world, expected, ttft_ms, .. } = self;
        let now = world.driver.now();
        expected.retain(|(id, at)| {
            let has_token = !world.requests[id].tokens.is_empty();
            if has_token {
                ttft_ms.push((now.0 - at.0) as f64 / 1e3);
            }
            !has_token
        });
    }

    /// Tokens in and out of the tenant's requests, without those found in the prefix cache.
    fn num_tokens_of(&self, tenant: TenantId) -> u64 {
        let requests = self.world.requests.values().filter(|tracked| tracked.tenant == tenant);
        let tokens = requests.filter_map(|tracked| {
            let num_cached = tracked.num_cached_tokens? as usize;
            Some(tracked.prompt.len() + tracked.tokens.len() - num_cached)
        });
        tokens.sum::<usize>() as u64
    }

    fn sum_up(&self) -> Figures {
        // Whoever has no token yet has waited at least so long.
        let now = self.world.driver.now();
        let waiting = self.expected.iter().map(|(_, at)| (now.0 - at.0) as f64 / 1e3);
        let mut ttft_ms: Vec<f64> = self.ttft_ms.iter().copied().chain(waiting).collect();
        ttft_ms.sort_by(f64::total_cmp);
        let hog = (0..FIRST_POLITE).map(|hog| self.num_tokens_of(TenantId(hog))).sum::<u64>();
        let polite = FIRST_POLITE..FIRST_POLITE + NUM_POLITE;
        let polite = polite.map(|tenant| self.num_tokens_of(TenantId(tenant))).sum::<u64>();
        let seconds = self.shape.seconds as f64;
        let counters = self.world.scheduler.stats().counters;
        Figures {
            num_polite: ttft_ms.len() as u64,
            ttft_ms,
            hog_tokens_per_s: hog as f64 / seconds,
            polite_tokens_per_s: polite as f64 / seconds,
            step_ms: seconds * 1e3 / counters.steps as f64,
            preemptions: counters.preemptions,
            recomputed_percent: 100.0
                * (counters.scheduled_tokens as f64 / (hog + polite) as f64 - 1.0),
        }
    }
}

const SHORT: Shape = Shape {
    name: "32 in, 512 out",
    max_num_seqs: 64,
    num_blocks: 14_014,
    hog: (32, 512),
    hog_stem: 0,
    polite: (128, 32),
    polite_rate: 4.0,
    seconds: 20,
};
const CHAT: Shape =
    Shape { name: "600 in, 400 out, 256 slots", hog: (600, 400), max_num_seqs: 256, ..SHORT };
const LONG: Shape = Shape { name: "8,192 in, 64 out", hog: (8192, 64), ..SHORT };
const MANY: Shape = Shape { name: "16 in, 4 out", hog: (16, 4), ..SHORT };
const STEM: Shape =
    Shape { name: "4,096 shared and 64 in, 128 out", hog: (64, 128), hog_stem: 4096, ..SHORT };
const FULL: Shape =
    Shape { name: "512 in, 512 out, pool of 41k", hog: (512, 512), num_blocks: 640, ..SHORT };

const SHAPES: [Shape; 11] = [
    SHORT,
    Shape { name: "32 in, 512 out, 256 slots", max_num_seqs: 256, ..SHORT },
    CHAT,
    LONG,
    Shape { name: "8,192 in, 64 out, 256 slots", max_num_seqs: 256, ..LONG },
    MANY,
    STEM,
    FULL,
    Shape { name: "8,192 in, 256 out, pool of 96k", hog: (8192, 256), num_blocks: 1500, ..SHORT },
    Shape { name: "32 in, 512 out; polite 1/s", polite_rate: 1.0, ..SHORT },
    Shape { name: "32 in, 512 out; polite 16/s", polite_rate: 16.0, ..SHORT },
];

#[test]
#[ignore = "prints figures; takes a minute"]
fn test_figures_of_all_shapes() {
    println!(
        "| the hog's requests | one alone p99 | nine alone p50 / p99 | beside the hog | ratio | hog alone \
         | hog + polite tok/s | step ms | preempted | again % |\n|---|---|---|---|---|---|---|---|---|---|"
    );
    for shape in SHAPES {
        let one = run(shape, 1, false);
        let alone = run(shape, NUM_POLITE, false);
        let both = run(shape, NUM_POLITE, true);
        let hog = run(shape, 0, true);
        println!(
            "| {} | {:.1} | {:.1} / {:.1} | {:.1} / {:.1} | {:.2} | {:.0} | {:.0} + {:.0} | {:.1} \
             | {} | {:.1} |",
            shape.name,
            one.ttft(0.99),
            alone.ttft(0.5),
            alone.ttft(0.99),
            both.ttft(0.5),
            both.ttft(0.99),
            both.ttft(0.99) / alone.ttft(0.99),
            hog.hog_tokens_per_s,
            both.hog_tokens_per_s,
            both.polite_tokens_per_s,
            both.step_ms,
            both.preemptions,
            both.recomputed_percent,
        );
    }
}

#[test]
fn test_polite_tenants_wait_at_most_twice_as_long_beside_a_hog() {
    for shape in [SHORT, CHAT, LONG, MANY, STEM, FULL] {
        // Six seconds are too few requests for a 99th percentile.
        let shape = Shape { seconds: 12, ..shape };
        let alone = run(shape, NUM_POLITE, false);
        let both = run(shape, NUM_POLITE, true);
        let name = shape.name;
        let (before, after) = (alone.ttft(0.99), both.ttft(0.99));
        assert!(after <= 2.0 * before, "{name}: p99 {after} ms, {before} ms alone");
        let served = both.polite_tokens_per_s / alone.polite_tokens_per_s;
        assert!(served > 0.97, "{name}: {served} of what they have alone");
        // No thrash: a polite request takes at most its own room from others.
        assert!(both.preemptions <= 2 * both.num_polite, "{name}: {both:?}");
        assert!(both.recomputed_percent < 12.0, "{name}: {both:?}");
    }
}

#[test]
fn test_the_hog_gets_what_is_left() {
    for (shape, least) in [(SHORT, 0.85), (CHAT, 0.75), (LONG, 0.75), (FULL, 0.9)] {
        let shape = Shape { seconds: 6, ..shape };
        let alone = run(shape, 0, true).hog_tokens_per_s;
        let beside = run(shape, NUM_POLITE, true).hog_tokens_per_s;
        assert!(beside > least * alone, "{}: {beside} tok/s, {alone} alone", shape.name);
    }
}

#[test]
fn test_the_hog_finishes_everything_with_the_right_answers() {
    for shape in [FULL, Shape { max_num_seqs: 8, ..SHORT }] {
        let mut load = Load::new(Shape { seconds: 3, ..shape }, NUM_POLITE, true, SEED);
        load.run();
        // The oracle of the world compares each answer.
        load.world.drain(1_000_000);
    }
}

#[test]
fn test_equal_hogs_share_equally_and_do_not_take_turns_in_preempting() {
    let shape = Shape { seconds: 6, ..FULL };
    let [one, two, five] = [1, 2, 5].map(|num_hogs| {
        let mut load = Load::new(shape, 0, true, SEED);
        load.num_hogs = num_hogs;
        load.run();
        let figures = load.sum_up();
        let tokens = (0..num_hogs).map(|hog| load.num_tokens_of(TenantId(hog)));
        let (least, most) = (tokens.clone().min().unwrap(), tokens.max().unwrap());
        assert!(least * 5 > most * 4, "{num_hogs} hogs had from {least} to {most} tokens");
        figures
    });
    for many in [two, five] {
        assert!(many.recomputed_percent < one.recomputed_percent + 20.0, "{many:?}, {one:?}");
    }
}

fn run(shape: Shape, num_polite: u32, has_hog: bool) -> Figures {
    let mut load = Load::new(shape, num_polite, has_hog, SEED);
    load.run();
    load.sum_up()
}

/// The hog keeps this many times what can run at once in the system.
const OVERLOAD: u32 = 4;
const NUM_POLITE: u32 = 9;
/// Lower ones are hogs.
const FIRST_POLITE: u32 = 10;
const SEED: u64 = 1;
