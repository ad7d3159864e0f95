//! A scheduler, the virtual executor and an oracle that knows what every request must answer. Shared by
//! the tests of this folder; each test moves it along and every event is checked as it comes.

#![allow(dead_code, unreachable_pub, reason = "each test program uses another part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

pub mod digest;
pub mod oracle;
pub mod rng;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use ingle_core::{
    AdmitError, CoreEvent, Executor, ExecutorError, ExecutorShape, FinishReason, KvGroups, LateRow,
    Micros, NewRequest, RequestFault, RequestId, RowMask, Scheduler, SchedulerConfig, SlotId,
    StepCompletion, StepId, StepPlan, TokenId,
};
use ingle_sim::{Answers, Outcome, Profile, VirtualDriver, VirtualSim};

use digest::Digest;
use oracle::Tracked;

/// Everything that takes part in a test.
pub struct World {
    pub scheduler: Scheduler,
    pub sim: VirtualSim,
    pub driver: VirtualDriver,
    pub requests: BTreeMap<RequestId, Tracked>,
    pub answers: Answers,
    pub num_steps: u64,
    /// Set to check every counter after every operation.
    pub verifies: bool,
    /// Of all plans and events so far.
    pub digest: Digest,
    completions: Arc<Mutex<Vec<StepCompletion>>>,
    /// Owners of the rows of each submitted step.
    rows_of: HashMap<StepId, Vec<RequestId>>,
    owners: HashMap<SlotId, RequestId>,
    events: Vec<CoreEvent>,
    /// That failed or had a row that was not finite.
    num_bad_steps: u32,
}

impl World {
    pub fn new(config: SchedulerConfig, profile: Profile, answers: Answers) -> Self {
        let completions = Arc::new(Mutex::new(Vec::new()));
        let inbox = Arc::clone(&completions);
        let sink = Arc::new(move |completion| inbox.lock().unwrap().push(completion));
        let (sim, driver) = VirtualSim::new(config.shape, profile, answers.clone(), sink);
        Self {
            scheduler: Scheduler::new(config),
            sim,
            driver,
            requests: BTreeMap::new(),
            answers,
            num_steps: 0,
            verifies: true,
            digest: Digest::default(),
            completions,
            rows_of: HashMap::new(),
            owners: HashMap::new(),
            events: Vec::new(),
            num_bad_steps: 0,
        }
    }

    /// Admits a request; the oracle watches it from now on.
    pub fn admit(&mut self, request: NewRequest) -> Result<(), AdmitError> {
        let tracked = Tracked::new(&request, &self.answers, self.sim.shape().vocab_size);
        let result = self.scheduler.admit(request, self.driver.now());
        if result.is_ok() {
            self.requests.insert(tracked.id, tracked);
        }
        self.verify();
        result
    }

    /// Plans and submits one step, if there is one to submit.
    pub fn submit(&mut self) -> Option<StepPlan> {
        let plan = self.scheduler.plan(self.driver.now())?;
        self.num_steps += 1;
        self.digest.add_plan(&plan);
        self.verify();
        for opened in &plan.opened {
            let owner = self.requests.values().find(|r| Arc::ptr_eq(&r.prompt, &opened.prompt));
            let owner = owner.expect("a slot is opened for nobody");
            assert!(owner.end.is_none(), "a slot is opened for {}, which has ended", owner.id);
            assert_eq!(opened.generated, owner.tokens, "tokens of {} at its start", owner.id);
            self.owners.insert(opened.slot, owner.id);
        }
        let owners = plan.rows.iter().map(|row| self.owners[&row.slot]).collect();
        self.rows_of.insert(plan.id, owners);
        if let Err(error) = self.sim.submit(plan.clone()) {
            self.fail(plan.id, &error);
        }
        self.issue_masks();
        Some(plan)
    }

    /// Completes the oldest step, if there is one.
    pub fn complete(&mut self, outcome: &Outcome) -> bool {
        if !self.driver.complete_next(outcome) {
            return false;
        }
        self.take_completions_without_masks();
        self.issue_masks();
        true
    }

    /// Commits what the driver has completed; masks stay due.
    pub fn take_completions_without_masks(&mut self) {
        let completions = std::mem::take(&mut *self.completions.lock().unwrap());
        for completion in completions {
            match completion.result {
                Ok(output) => {
                    let rows = self.rows_of.remove(&completion.id).unwrap();
                    let not_finite: HashSet<RequestId> = (rows.iter().zip(&output.rows))
                        .filter(|(_, row)| row.status != ingle_core::RowStatus::Ok)
                        .map(|(&id, _)| id)
                        .collect();
                    self.scheduler.commit(output, self.driver.now(), &mut self.events);
                    self.verify();
                    self.take_events(&not_finite);
                    self.num_bad_steps += u32::from(!not_finite.is_empty());
                }
                Err(error) => self.fail(completion.id, &error),
            }
        }
    }

    /// Aborts; true if the request had not ended.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let was_alive = self.requests.get(&id).is_some_and(|tracked| tracked.end.is_none());
        let is_aborted = self.scheduler.abort(id, &mut self.events);
        assert_eq!(is_aborted, was_alive, "abort of {id}");
        assert_eq!(self.events.len(), usize::from(was_alive), "events of an abort");
        if let Some(CoreEvent::Finished { id: ended, reason, .. }) = self.events.first() {
            assert_eq!((*ended, reason), (id, &FinishReason::Abort));
        }
        self.verify();
        self.take_events(&HashSet::new());
        is_aborted
    }

    /// Runs until nothing is alive; panics after `max_steps`.
    pub fn drain(&mut self, max_steps: u64) {
        let first = self.num_steps;
        while !self.scheduler.is_idle() {
            while self.submit().is_some() {}
            self.complete(&Outcome::Ok);
            assert!(self.num_steps - first <= max_steps, "not done after {max_steps} steps");
        }
        self.check_drained();
    }

    /// Ends everything as if the device were lost.
    pub fn lose_device(&mut self) {
        let fault = RequestFault::DeviceLost("it fell off the bus".to_owned());
        self.scheduler.fail_all(&fault, &mut self.events);
        self.verify();
        let alive = self.requests.values().filter(|tracked| tracked.end.is_none());
        let alive: HashSet<RequestId> = alive.map(|tracked| tracked.id).collect();
        self.take_events(&alive);
        self.check_drained();
    }

    /// Requests that have not ended.
    pub fn alive(&self) -> Vec<RequestId> {
        let alive = self.requests.values().filter(|tracked| tracked.end.is_none());
        alive.map(|tracked| tracked.id).collect()
    }

    pub fn end_of(&self, id: u64) -> Option<&FinishReason> {
        self.requests[&RequestId(id)].end.as_ref()
    }

    fn check_drained(&self) {
        self.scheduler.verify();
        let stats = self.scheduler.stats();
        assert_eq!((stats.num_running, stats.num_waiting, stats.num_leaving), (0, 0, 0));
        assert_eq!((stats.num_held_blocks, stats.num_leaving_blocks), (0, 0), "{stats:?}");
        assert_eq!(stats.num_free_blocks + stats.num_cached_blocks, stats.num_blocks);
        assert_eq!(stats.counters.admitted, stats.counters.finished);
        for tracked in self.requests.values() {
            assert!(tracked.end.is_some(), "{} never ended", tracked.id);
        }
    }

    fn verify(&self) {
        if self.verifies {
            self.scheduler.verify();
        }
    }

    /// A step that failed ends exactly the requests that have a row in it and are alive.
    fn fail(&mut self, id: StepId, error: &ExecutorError) {
        self.num_bad_steps += 1;
        let rows = self.rows_of.remove(&id).unwrap();
        let alive: HashSet<RequestId> =
            rows.into_iter().filter(|id| self.requests[id].end.is_none()).collect();
        let fault = RequestFault::StepFailed(error.to_string());
        self.scheduler.fail_step(id, fault, &mut self.events);
        self.verify();
        assert_eq!(self.events.len(), alive.len(), "events of a failed step");
        self.take_events(&alive);
    }

    fn issue_masks(&mut self) {
        let mut rows: Vec<LateRow> = Vec::new();
        let Some(step) = self.scheduler.late_rows(&mut rows) else { return };
        let masks = rows.iter().map(|row| {
            let tracked = &self.requests[&row.request];
            assert!(tracked.end.is_none() || !row.is_live, "{} has ended", row.request);
            RowMask { slot: row.slot, allowed: tracked.mask(tracked.tokens.len()) }
        });
        let masks = masks.collect();
        self.sim.sample(step, masks).unwrap();
        self.scheduler.note_masks_issued(step);
        self.verify();
    }

    /// Checks all new events; `failing` are the requests that end with an error, and only those do.
    fn take_events(&mut self, failing: &HashSet<RequestId>) {
        let mut failed = HashSet::new();
        let mut stopped = Vec::new();
        for event in std::mem::take(&mut self.events) {
            self.digest.add_event(&event);
            let id = oracle::id_of(&event);
            let tracked = self.requests.get_mut(&id).expect("an event of an unknown request");
            let is_failure =
                matches!(&event, CoreEvent::Finished { reason: FinishReason::Error(_), .. });
            if is_failure {
                failed.insert(id);
            }
            if tracked.take(event) {
                stopped.push(id);
            }
        }
        for id in &failed {
            assert!(failing.contains(id), "{id} failed without a cause");
        }
        // After one bad step a row that is not finite may be one whose result is dropped anyway.
        for id in failing.iter().filter(|_| self.num_bad_steps == 0) {
            assert!(self.requests[id].end.is_some(), "{id} outlived its failure");
        }
        for id in stopped {
            if self.requests[&id].end.is_none() {
                assert!(self.scheduler.finish(id, FinishReason::Stop, &mut self.events));
                self.verify();
                self.take_events(&HashSet::new());
            }
        }
    }
}

/// A prompt of this length that shares nothing with those of other numbers.
pub fn prompt(number: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (number * 31 + i * 7) % VOCAB_SIZE).collect()
}

/// Runs one request alone; returns how many tokens of its prompt were found in the prefix cache.
pub fn run(world: &mut World, request: NewRequest) -> u32 {
    let id = request.id;
    world.admit(request).unwrap();
    world.drain(10_000);
    world.requests[&id].num_cached_tokens.unwrap()
}

/// Sizes for small tests.
pub fn shape(num_blocks: u32, block_size: u32) -> ExecutorShape {
    ExecutorShape {
        num_blocks,
        block_size,
        kv_groups: KvGroups::ONE,
        keeps_state: false,
        num_snapshots: 0,
        num_slots: 16,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_steps_in_flight: 2,
        row_tile: 1,
        tenant_rows: 32,
        steady_rows: u32::MAX,
        busy_rows: u32::MAX,
        pause: Micros(30_000),
        vocab_size: VOCAB_SIZE,
    }
}

pub fn config(shape: ExecutorShape) -> SchedulerConfig {
    SchedulerConfig {
        shape,
        max_model_len: 1000,
        max_queue: 1000,
        weight_tokens: 1000,
        enable_prefix_caching: true,
        whole_prompts: false,
        cache_secret: 0x5eed,
    }
}

/// Steps of about this length.
pub fn profile(step: Micros) -> Profile {
    Profile {
        weight_bytes: 0.0,
        flops_per_row: 0.0,
        flops_per_sample: 0.0,
        kv_bytes_per_token: 0.0,
        overhead_us: step.0 as f64,
        hidden_size: 4,
        ..Profile::default()
    }
}

/// A world with a text in which no end-of-text occurs.
pub fn world(config: SchedulerConfig) -> World {
    let answers = Answers::new((0..97).map(|i| TokenId(i * 7 % 97)).collect());
    World::new(config, profile(Micros(1000)), answers)
}

pub const VOCAB_SIZE: u32 = 100;
