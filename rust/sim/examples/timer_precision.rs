//! How late completions come, in microseconds, for steps of 4 ms submitted one ahead:
//! `cargo run --release -p ingle-sim --example timer_precision`. Run it under `time` for the CPU cost.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::error::Error;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ingle_core::{
    BlockId, Executor, OpenedSlot, PlanRow, SampleMode, SamplingParams, SlotId, StepId, StepPlan,
    TokenId, TokenSource, Wants,
};
use ingle_sim::{Profile, SimConfig, SimExecutor};

const NUM_STEPS: u32 = 1000;
const STEP_US: f64 = 4000.0;

fn main() -> Result<(), Box<dyn Error>> {
    let profile = Profile {
        weight_bytes: 0.0,
        flops_per_row: 0.0,
        flops_per_sample: 0.0,
        kv_bytes_per_token: 0.0,
        overhead_us: STEP_US,
        ..Profile::default()
    };
    let shape = profile.shape(64, 8, 64, 64);
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let sink = move |_| {
        if let Ok(sender) = sender.lock() {
            let _gone = sender.send(Instant::now()).is_err();
        }
    };
    let config = SimConfig { profile, speed: 1.0, shape };
    let mut sim = SimExecutor::new(config, Arc::new([TokenId(1)]), Arc::new(sink))?;
    let begin = Instant::now();
    sim.submit(step(0))?;
    let mut late = Vec::new();
    for id in 1..=NUM_STEPS {
        if id < NUM_STEPS {
            sim.submit(step(id))?;
        }
        let at = receiver.recv()?;
        late.push((at - begin).as_secs_f64() * 1e6 - STEP_US * f64::from(id));
    }
    late.sort_by(f64::total_cmp);
    let at = |percent: usize| late[(late.len() - 1) * percent / 100];
    println!(
        "late by p50 {:.0} us, p90 {:.0} us, p99 {:.0} us, most {:.0} us",
        at(50),
        at(90),
        at(99),
        at(100)
    );
    Ok(())
}

fn step(id: u32) -> StepPlan {
    let opened = OpenedSlot {
        slot: SlotId::first(0),
        sampling: Arc::new(SamplingParams::default()),
        prompt: Arc::new([TokenId(1)]),
        generated: Vec::new(),
        cached_blocks: Vec::new(),
    };
    let row = PlanRow {
        slot: SlotId::first(0),
        start: id,
        num_tokens: 1,
        source: TokenSource::LastSampled,
        new_blocks: vec![BlockId(id)],
        wants: Wants { sample: SampleMode::Now, ..Wants::default() },
    };
    StepPlan {
        id: StepId(u64::from(id) + 1),
        closed: Vec::new(),
        opened: if id == 0 { vec![opened] } else { Vec::new() },
        rows: vec![row],
        ..StepPlan::default()
    }
}
