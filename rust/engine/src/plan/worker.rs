//! One worker in virtual time: the real scheduler, steps that take as long as the profile says, as many in
//! flight as the device has.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ingle_core::{
    CoreEvent, ExecutorShape, Micros, NewRequest, Pacer, RequestId, RequestKind, RowOutput,
    RowStatus, SampleMode, SamplingParams, Scheduler, SchedulerConfig, StepOutput, StepPlan,
    StopRules, TenantId, TokenId,
};
use ingle_sim::Profile;

use super::requests::{Arrival, Served};

/// A worker and what it has in flight.
pub(super) struct Worker {
    scheduler: Scheduler,
    pacer: Option<Pacer>,
    /// When the step that is held back will be planned.
    plan_at: Option<Micros>,
    steps: VecDeque<(Micros, StepOutput)>,
    running: HashMap<RequestId, Running>,
    events: Vec<CoreEvent>,
    busy_us: u64,
    num_steps: u64,
}

struct Running {
    arrived: Micros,
    first: Option<Micros>,
    num_tokens: u32,
}

/// What all workers share: prompts are equal in all but their length.
pub(super) struct Common<'a> {
    pub(super) profile: &'a Profile,
    pub(super) prompts: HashMap<u32, Arc<[TokenId]>>,
    pub(super) sampling: Arc<SamplingParams>,
}

impl Worker {
    pub(super) fn new(shape: ExecutorShape, max_model_len: u32, profile: &Profile) -> Self {
        let pacer = Pacer::new(&shape);
        let scheduler = Scheduler::new(SchedulerConfig {
            shape,
            max_model_len,
            max_queue: u32::MAX,
            weight_tokens: profile.weight_tokens(),
            // Only lengths are known, so no prompt shares anything.
            enable_prefix_caching: false,
            whole_prompts: false,
            cache_secret: 0,
        });
        Self {
            scheduler,
            pacer,
            plan_at: None,
            steps: VecDeque::new(),
            running: HashMap::new(),
            events: Vec::new(),
            busy_us: 0,
            num_steps: 0,
        }
    }

    /// When the oldest step ends or the next one is planned, whichever comes first.
    pub(super) fn next_event(&self) -> Option<Micros> {
        let end = self.steps.front().map(|(end, _)| *end);
        self.plan_at.into_iter().chain(end).min()
    }

    pub(super) fn num_requests(&self) -> usize {
        self.running.len()
    }

    pub(super) fn busy_us(&self) -> u64 {
        self.busy_us
    }

    pub(super) fn num_steps(&self) -> u64 {
        self.num_steps
    }

    /// Takes a request that comes now.
    pub(super) fn admit(&mut self, id: u64, arrival: &Arrival, common: &mut Common<'_>) {
        let id = RequestId(id);
        let prompt = common.prompts.entry(arrival.num_prompt).or_insert_with(|| {
            std::iter::repeat_n(TokenId(0), arrival.num_prompt as usize).collect()
        });
        let request = NewRequest {
            id,
            kind: RequestKind::Generate,
            late_sampled: false,
            stop: StopRules {
                max_tokens: arrival.num_answer,
                min_tokens: 0,
                end_token_ids: Arc::default(),
            },
            prompt: Arc::clone(prompt),
            sampling: Arc::clone(&common.sampling),
            priority: 0,
            tenant: TenantId(0),
            cache_salt: 0,
            block_hashes: None,
            prompt_log_probs: None,
            leader: None,
        };
        let admitted = self.scheduler.admit(request, arrival.at);
        assert!(admitted.is_ok(), "a request that was cut to fit is refused: {admitted:?}");
        self.running.insert(id, Running { arrived: arrival.at, first: None, num_tokens: 0 });
        self.submit(arrival.at, common.profile);
    }

    /// What comes next: the oldest step ends, or the next one is planned. Requests that are over go to `served`.
    pub(super) fn advance(&mut self, profile: &Profile, served: &mut Vec<Served>) {
        let end = self.steps.front().map(|(end, _)| *end);
        if let Some(at) = self.plan_at.filter(|&at| end.is_none_or(|end| at < end)) {
            return self.submit(at, profile);
        }
        let Some((now, output)) = self.steps.pop_front() else { return };
        if let Some(pacer) = &mut self.pacer {
            pacer.completed(now);
        }
        self.scheduler.commit(output, now, &mut self.events);
        for event in self.events.drain(..) {
            match event {
                CoreEvent::Tokens { id, tokens, .. } => {
                    if let Some(running) = self.running.get_mut(&id) {
                        running.first.get_or_insert(now);
                        running.num_tokens += tokens.len() as u32;
                    }
                }
                CoreEvent::Finished { id, .. } => {
                    if let Some(running) = self.running.remove(&id) {
                        let first = running.first.unwrap_or(now);
                        let later = running.num_tokens.saturating_sub(1).max(1);
                        served.push(Served {
                            end: now,
                            num_tokens: running.num_tokens,
                            ttft_us: (first.0 - running.arrived.0) as f64,
                            tpot_us: (now.0 - first.0) as f64 / f64::from(later),
                        });
                    }
                }
                _ => {}
            }
        }
        self.submit(now, profile);
    }

    fn submit(&mut self, now: Micros, profile: &Profile) {
        loop {
            self.plan_at = self.pacer.as_mut().and_then(|pacer| pacer.hold(now));
            if self.plan_at.is_some() {
                return;
            }
            let Some(plan) = self.scheduler.plan(now) else { return };
            if let Some(pacer) = &mut self.pacer {
                pacer.submitted(plan.num_scheduled_tokens() as u32, now);
            }
            let starts = self.steps.back().map_or(now, |(end, _)| (*end).max(now));
            let micros = (profile.step_seconds(&plan) * 1e6).ceil() as u64;
            self.busy_us += micros;
            self.num_steps += 1;
            self.steps.push_back((Micros(starts.0 + micros), output_of(&plan)));
        }
    }
}

/// What a device would answer: any token for each row that wants one.
fn output_of(plan: &StepPlan) -> StepOutput {
    let row = |sample| {
        let wants = sample != SampleMode::None;
        u32::from(wants)
    };
    let rows: Vec<RowOutput> = plan
        .rows
        .iter()
        .map(|each| RowOutput {
            slot: each.slot,
            status: RowStatus::Ok,
            num_tokens: row(each.wants.sample),
            log_probs: Vec::new(),
            prompt_log_probs: Vec::new(),
            pooled: Vec::new(),
        })
        .collect();
    let num_tokens = rows.iter().map(|row| row.num_tokens as usize).sum();
    StepOutput { id: plan.id, rows, tokens: vec![TokenId(1); num_tokens] }
}
