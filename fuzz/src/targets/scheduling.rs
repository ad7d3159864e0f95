//! The scheduler as a machine that bytes drive. The world of the core's own tests checks each plan, each
//! event and, after every operation, a full recount of blocks and slots.

#[path = "../../../rust/core/tests/world/mod.rs"]
mod world;

use ingle_core::{
    ExecutorError, ExecutorShape, Micros, RequestId, SchedulerConfig, TenantId, TokenId,
};
use ingle_sim::{Answers, Outcome as StepEnd};

use self::world::{VOCAB_SIZE, World, oracle, profile};
use crate::driver::{Outcome, Target};

/// Blocks: a small pool, prompts that share prefixes, tenants and salts that must not share them.
#[derive(Debug)]
pub(super) struct Blocks;

impl Target for Blocks {
    fn name(&self) -> &'static str {
        "blocks"
    }

    fn max_len(&self) -> usize {
        300
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let mut bytes = Bytes(input);
        let shape = ExecutorShape {
            num_blocks: 3 + bytes.below(10),
            block_size: 4,
            num_slots: 8,
            max_num_seqs: 4,
            max_num_batched_tokens: 32,
            ..world::shape(0, 0)
        };
        play(SchedulerConfig { max_model_len: 40, ..world::config(shape) }, &mut bytes)
    }
}

/// Steps: budgets of rows, tiles and steps in flight of any size, a pool that is large enough.
#[derive(Debug)]
pub(super) struct Batcher;

impl Target for Batcher {
    fn name(&self) -> &'static str {
        "batcher"
    }

    fn max_len(&self) -> usize {
        300
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let mut bytes = Bytes(input);
        let max_num_seqs = 1 + bytes.below(8);
        let shape = ExecutorShape {
            num_blocks: 64,
            block_size: 4 << bytes.below(3),
            num_slots: max_num_seqs + bytes.below(max_num_seqs + 1),
            max_num_seqs,
            max_num_batched_tokens: 1 + bytes.below(48),
            max_steps_in_flight: 1 + bytes.below(3),
            row_tile: 1 << bytes.below(5),
            tenant_rows: 1 + bytes.below(64),
            ..world::shape(0, 0)
        };
        let config = SchedulerConfig {
            max_model_len: 120,
            max_queue: 1 + bytes.below(20),
            weight_tokens: bytes.below(100),
            enable_prefix_caching: bytes.below(4) != 0,
            ..world::config(shape)
        };
        play(config, &mut bytes)
    }
}

/// Operations until the bytes are used up, then everything that is alive to its end.
fn play(config: SchedulerConfig, bytes: &mut Bytes<'_>) -> Outcome {
    // Token 0 is end-of-text: in one of some places.
    let text = (0..211).map(|place: u32| TokenId(place * 7 % 61)).collect();
    let mut world = World::new(config, profile(Micros(1000)), Answers::new(text));
    let mut next_id = 0;
    let mut num_tokens = 0;
    while !bytes.0.is_empty() {
        match bytes.below(16) {
            0..=3 => num_tokens += arrive(&mut world, &mut next_id, bytes),
            4..=8 => drop(world.submit()),
            9..=12 => drop(world.complete(&StepEnd::Ok)),
            13 => {
                let id = RequestId(u64::from(bytes.below(next_id as u32 + 1)));
                world.abort(id);
            }
            14 => {
                let end = match bytes.below(2) {
                    0 => StepEnd::NotFinite(bytes.below(8) as usize),
                    _ => StepEnd::Fails(ExecutorError::StepFailed("injected".to_owned())),
                };
                world.complete(&end);
            }
            _ => world
                .driver
                .advance_to(Micros(world.driver.now().0 + u64::from(bytes.below(256)) * 10_000)),
        }
    }
    world.drain(100 + 20 * num_tokens);
    let counters = world.scheduler.stats().counters;
    Outcome::of((
        counters.admitted.min(12),
        counters.preemptions.min(6),
        counters.prefix_cache_hits.min(6),
        counters.steps.checked_ilog2(),
    ))
}

/// Admits a request; gives the most tokens that it can have.
fn arrive(world: &mut World, next_id: &mut u64, bytes: &mut Bytes<'_>) -> u64 {
    let (stem, len, tail) = (bytes.below(3), 1 + bytes.below(30), bytes.below(4));
    let mut prompt: Vec<u32> = (0..len).map(|i| (stem * 31 + i * 7) % (VOCAB_SIZE - 1)).collect();
    prompt.push(tail);
    let mut request = oracle::request(*next_id, &prompt, 1 + bytes.below(24));
    let flags = bytes.below(256);
    request.tenant = TenantId(flags & 3);
    request.cache_salt = u64::from(flags >> 2 & 1);
    request.priority = if flags & 8 == 0 { 0 } else { -1 };
    request.late_sampled = flags & 16 != 0;
    if flags & 32 != 0 {
        request.stop.end_token_ids = [TokenId(0)].into();
    }
    *next_id += 1;
    let most = prompt.len() as u64 + u64::from(request.stop.max_tokens);
    world.admit(request).map_or(0, |()| most)
}

/// The input, read a byte at a time; zeros behind its end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn below(&mut self, end: u32) -> u32 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        u32::from(first) % end.max(1)
    }
}
