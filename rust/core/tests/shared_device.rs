//! Two models on one device in virtual time: `DeviceTime` between two schedulers, step times of an H200.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::collections::{HashMap, VecDeque};

use ingle_core::{
    CoreEvent, DeviceTime, LaneId, Micros, NewRequest, RequestId, RequestKind, RowOutput,
    RowStatus, SampleMode, SamplingParams, Scheduler, SchedulerConfig, StepOutput, StepPlan,
    StopRules, TenantId, TokenId, Turn,
};
use ingle_sim::Profile;

/// One model: its scheduler, its load, and when its requests got their tokens.
struct Model {
    lane: LaneId,
    scheduler: Scheduler,
    profile: Profile,
    prompt_len: u32,
    num_clients: u32,
    next_id: u64,
    in_flight: VecDeque<StepPlan>,
    last_token: HashMap<RequestId, Micros>,
    gaps_us: Vec<u64>,
    num_tokens: u64,
}

impl Model {
    fn new(lane: LaneId, profile: Profile, prompt_len: u32, num_clients: u32) -> Self {
        let shape = profile.shape(64, 256, 2048, 1000);
        let config = SchedulerConfig {
            shape,
            max_model_len: 8192,
            max_queue: u32::MAX,
            weight_tokens: 100_000,
            enable_prefix_caching: false,
            whole_prompts: false,
            cache_secret: 1,
        };
        Self {
            lane,
            scheduler: Scheduler::new(config),
            profile,
            prompt_len,
            num_clients,
            next_id: 0,
            in_flight: VecDeque::new(),
            last_token: HashMap::new(),
            gaps_us: Vec::new(),
            num_tokens: 0,
        }
    }

    /// Each client sends its next request as soon as it has an answer.
    fn fill(&mut self, now: Micros) {
        let stats = self.scheduler.stats();
        for _ in stats.num_running + stats.num_waiting..self.num_clients {
            self.next_id += 1;
            let stop = StopRules {
                max_tokens: 100 + (self.next_id % 7) as u32 * 10,
                min_tokens: 0,
                end_token_ids: [].into(),
            };
            let request = NewRequest {
                id: RequestId(self.next_id),
                kind: RequestKind::Generate,
                late_sampled: false,
                stop,
                prompt: vec![TokenId(5); self.prompt_len as usize].into(),
                sampling: SamplingParams::unset().into(),
                priority: 0,
                tenant: TenantId(0),
                cache_salt: 0,
                block_hashes: None,
                prompt_log_probs: None,
                leader: None,
            };
            self.scheduler.admit(request, now).unwrap();
        }
    }

    fn complete(&mut self, now: Micros) {
        let plan = self.in_flight.pop_front().unwrap();
        let mut output = StepOutput { id: plan.id, ..StepOutput::default() };
        for row in &plan.rows {
            let samples = row.wants.sample != SampleMode::None;
            output.tokens.extend(samples.then_some(TokenId(7)));
            output.rows.push(RowOutput {
                slot: row.slot,
                status: RowStatus::Ok,
                num_tokens: u32::from(samples),
                log_probs: Vec::new(),
                prompt_log_probs: Vec::new(),
                pooled: Vec::new(),
            });
        }
        let mut events = Vec::new();
        self.scheduler.commit(output, now, &mut events);
        for event in events {
            match event {
                CoreEvent::Tokens { id, .. } => {
                    self.num_tokens += 1;
                    if let Some(before) = self.last_token.insert(id, now) {
                        self.gaps_us.push(now.0 - before.0);
                    }
                }
                CoreEvent::Finished { id, .. } => {
                    self.last_token.remove(&id);
                }
                _ => {}
            }
        }
    }

    fn p99_ms(&mut self) -> f64 {
        self.gaps_us.sort_unstable();
        self.gaps_us[self.gaps_us.len() * 99 / 100] as f64 / 1000.0
    }
}

/// Lets the models share the device for some seconds.
fn run(models: &mut [Model], time: &mut DeviceTime, seconds: u64, limits_rows: bool) {
    let mut now = Micros(0);
    let mut device: VecDeque<usize> = VecDeque::new();
    while now.0 < seconds * 1_000_000 {
        for (place, model) in models.iter_mut().enumerate() {
            model.fill(now);
            while !model.scheduler.is_full() {
                let Turn::Now(rows) = time.ask(model.lane, now) else { break };
                let rows = rows.filter(|_| limits_rows);
                model.scheduler.limit_rows(rows.unwrap_or(u32::MAX));
                let Some(plan) = model.scheduler.plan(now) else {
                    let _ = time.pass(model.lane, now);
                    break;
                };
                time.submitted(model.lane, plan.num_scheduled_tokens() as u32, now);
                model.in_flight.push_back(plan);
                device.push_back(place);
            }
        }
        let place = device.pop_front().unwrap();
        let plan = models[place].in_flight.front().unwrap();
        now.0 += (models[place].profile.step_seconds(plan) * 1e6) as u64;
        let _ = time.completed(models[place].lane, now);
        models[place].complete(now);
    }
}

/// A model of the size of SmolLM2-135M on the same card.
fn small() -> Profile {
    Profile {
        weight_bytes: 0.27e9,
        flops_per_row: 0.21e9,
        flops_per_sample: 0.057e9,
        kv_bytes_per_token: 23_040.0,
        ..Profile::default()
    }
}

fn beside_a_saturated_8b(limits_rows: bool) -> (Model, Model) {
    let mut time = DeviceTime::default();
    let lanes = [time.join(1), time.join(1)];
    let mut models =
        [Model::new(lanes[0], Profile::default(), 3000, 64), Model::new(lanes[1], small(), 50, 4)];
    run(&mut models, &mut time, 20, limits_rows);
    models.into()
}

#[test]
fn a_small_model_beside_a_saturated_8b_has_its_next_token_within_20_ms() {
    let (mut large, mut small) = beside_a_saturated_8b(true);
    let p99 = small.p99_ms();
    assert!(p99 <= 20.0, "p99 of the small model's inter-token latency: {p99:.1} ms");
    let (_, mut unlimited) = beside_a_saturated_8b(false);
    let without = unlimited.p99_ms();
    assert!(without > 1.5 * p99, "{without:.1} ms without a limit of rows, {p99:.1} ms with it");
    // What the limit costs the large one.
    let mut time = DeviceTime::default();
    let mut alone = [Model::new(time.join(1), Profile::default(), 3000, 64)];
    run(&mut alone, &mut time, 20, true);
    let share = large.num_tokens as f64 / alone[0].num_tokens as f64;
    assert!(share > 0.4, "the large model has {share:.2} of its tokens");
    assert!(large.p99_ms() < 2.0 * alone[0].p99_ms());
}
