//! Microseconds that planning and committing a step of 256 decoding requests take, on one core:
//! `cargo run --release -p ingle-core --example step_cost`.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ingle_core::{
    CoreEvent, ExecutorShape, KvGroups, Micros, NewRequest, RequestId, RequestKind, RowOutput,
    RowStatus, SampleMode, SamplingParams, Scheduler, SchedulerConfig, StepOutput, StepPlan,
    StopRules, TenantId, TokenId,
};

const NUM_REQUESTS: u32 = 256;
const NUM_PROMPT: u32 = 220;
const NUM_OUTPUT: u32 = 2000;

fn main() {
    for block_size in [16, 64] {
        measure(block_size);
    }
}

fn measure(block_size: u32) {
    let mut scheduler = scheduler(block_size);
    for id in 0..NUM_REQUESTS {
        if let Err(error) = scheduler.admit(request(id), Micros(0)) {
            println!("not admitted: {error}");
            return;
        }
    }
    let mut events: Vec<CoreEvent> = Vec::new();
    let mut in_flight = VecDeque::new();
    let mut times: Vec<(Duration, Duration)> = Vec::new();
    loop {
        let begin = Instant::now();
        let plan = scheduler.plan(Micros(0));
        let planned = begin.elapsed();
        if let Some(plan) = plan {
            in_flight.push_back((output(&plan), planned));
            if in_flight.len() < 2 {
                continue;
            }
        }
        let Some((output, planned)) = in_flight.pop_front() else { break };
        let num_rows = output.rows.len();
        events.clear();
        let begin = Instant::now();
        scheduler.commit(output, Micros(0), &mut events);
        let committed = begin.elapsed();
        if num_rows == NUM_REQUESTS as usize {
            times.push((planned, committed));
        }
    }
    report(block_size, &times);
}

fn report(block_size: u32, times: &[(Duration, Duration)]) {
    let us = |pick: fn(&(Duration, Duration)) -> Duration| {
        let mut sorted: Vec<f64> = times.iter().map(|t| pick(t).as_secs_f64() * 1e6).collect();
        sorted.sort_by(f64::total_cmp);
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        (mean, sorted[sorted.len() / 2], sorted[sorted.len() * 99 / 100])
    };
    println!(
        "block size {block_size}, {} steps of {NUM_REQUESTS} decode rows, us a step",
        times.len()
    );
    for (name, (mean, p50, p99)) in
        [("plan", us(|t| t.0)), ("commit", us(|t| t.1)), ("both", us(|t| t.0 + t.1))]
    {
        println!("  {name:7} mean {mean:6.2}  p50 {p50:6.2}  p99 {p99:6.2}");
    }
}

fn scheduler(block_size: u32) -> Scheduler {
    let num_tokens = NUM_REQUESTS * (NUM_PROMPT + NUM_OUTPUT + block_size);
    Scheduler::new(SchedulerConfig {
        shape: ExecutorShape {
            num_blocks: num_tokens / block_size,
            block_size,
            kv_groups: KvGroups::ONE,
            keeps_state: false,
            num_snapshots: 0,
            num_slots: 2 * NUM_REQUESTS,
            max_num_seqs: NUM_REQUESTS,
            max_num_batched_tokens: 8192,
            max_steps_in_flight: 2,
            row_tile: 128,
            tenant_rows: 192,
            steady_rows: u32::MAX,
            busy_rows: u32::MAX,
            pause: Micros(30_000),
            vocab_size: 128_256,
        },
        max_model_len: 8192,
        max_queue: NUM_REQUESTS,
        weight_tokens: 100_000,
        enable_prefix_caching: true,
        whole_prompts: false,
        cache_secret: 1,
    })
}

fn request(id: u32) -> NewRequest {
    NewRequest {
        id: RequestId(u64::from(id)),
        prompt: (0..NUM_PROMPT).map(|i| TokenId((id * 1009 + i * 31) % 128_000)).collect(),
        sampling: Arc::new(SamplingParams::default()),
        stop: StopRules {
            max_tokens: NUM_OUTPUT,
            end_token_ids: Arc::from([TokenId(128_001), TokenId(128_008), TokenId(128_009)]),
            min_tokens: 0,
        },
        kind: RequestKind::Generate,
        priority: 0,
        tenant: TenantId(id % 4),
        cache_salt: 0,
        block_hashes: None,
        prompt_log_probs: None,
        leader: None,
        late_sampled: false,
    }
}

/// What an executor would bring: a token for each sampled row.
fn output(plan: &StepPlan) -> StepOutput {
    let mut output = StepOutput { id: plan.id, ..StepOutput::default() };
    for row in &plan.rows {
        let is_sampled = row.wants.sample != SampleMode::None;
        output.rows.push(RowOutput {
            slot: row.slot,
            status: RowStatus::Ok,
            num_tokens: u32::from(is_sampled),
            log_probs: Vec::new(),
            prompt_log_probs: Vec::new(),
            pooled: Vec::new(),
        });
        if is_sampled {
            output.tokens.push(TokenId((row.start * 7 + row.slot.number()) % 128_000));
        }
    }
    output
}
