//! [4] [5] [7] The engine thread: plan, submit, commit, deliver. It alone owns the scheduler, the
//! executor and the running requests. It waits only in its inbox and never takes the GIL.
//! arrivals.rs takes requests in, engine_life.rs has the thread's end, sleep.rs how it gives memory
//! back while nothing runs.

use std::sync::Arc;

use ingle_core::{
    CoreEvent, Executor, ExecutorError, LateRow, RequestFault, Scheduler, SleepLevel,
    StepCompletion, StepId, StepPlan,
};

use crate::balloon::Balloon;
use crate::choice_mask::MaskJob;
use crate::commit::Committer;
use crate::error::EngineError;
use crate::grammar_pool::GrammarPool;
use crate::histogram::add;
use crate::inbox::{Message, Wait};
use crate::pace::Pace;
use crate::presence::Presence;
use crate::rest::{Rest, RestReply, Wakefulness};
use crate::shared::Shared;
use crate::shared_device::DeviceTurns;

/// Everything that only the engine thread touches.
pub(crate) struct EngineThread {
    pub(crate) shared: Arc<Shared>,
    pub(crate) scheduler: Scheduler,
    pub(crate) executor: Box<dyn Executor>,
    /// Where other models use the device too.
    pub(crate) turns: Option<DeviceTurns>,
    pub(crate) pace: Pace,
    pub(crate) wakefulness: Wakefulness,
    /// Waits for the end of steps that nobody waits for any more.
    pub(crate) postponed_rest: Option<(Rest, RestReply)>,
    /// Whether it makes room for another model.
    pub(crate) presence: Presence,
    /// Where the KV pool grows and shrinks.
    pub(crate) balloon: Option<Balloon>,
    pub(crate) committer: Committer,
    pub(crate) core_events: Vec<CoreEvent>,
    masks: GrammarPool,
    /// Messages that have been taken and not been worked off, the next one last.
    pub(crate) left: Vec<Message>,
    /// Reused.
    mask_jobs: Vec<MaskJob>,
    /// Reused.
    pub(crate) late_rows: Vec<LateRow>,
}

/// What a round of messages was.
#[derive(PartialEq)]
enum Received {
    /// All that had come.
    All,
    /// `Shutdown` was next.
    Shutdown,
}

impl EngineThread {
    /// # Errors
    /// `EngineError::Model` if a thread that it needs cannot be started.
    pub(crate) fn new(
        shared: Arc<Shared>,
        scheduler: Scheduler,
        executor: Box<dyn Executor>,
        turns: Option<DeviceTurns>,
    ) -> Result<Self, EngineError> {
        let committer = Committer::new(Arc::clone(&shared));
        let masks = GrammarPool::start(&shared)?;
        let pace = Pace::new(&executor.shape(), turns.is_some());
        Ok(Self {
            shared,
            scheduler,
            executor,
            turns,
            pace,
            wakefulness: Wakefulness::Awake,
            postponed_rest: None,
            presence: Presence::Here,
            balloon: None,
            committer,
            core_events: Vec::new(),
            masks,
            left: Vec::new(),
            mask_jobs: Vec::new(),
            late_rows: Vec::new(),
        })
    }

    /// The executor has no weights yet: the first request brings them, as after a swap.
    pub(crate) fn starting_away(mut self) -> Self {
        self.wakefulness = Wakefulness::Asleep(SleepLevel::Offload);
        self.presence = Presence::Away;
        self.scheduler.let_start(false);
        self
    }

    /// One round a wake-up, until shutdown. A lost device is an error.
    pub(crate) fn serve(&mut self) -> Result<(), String> {
        loop {
            self.wait();
            if self.receive()? == Received::Shutdown {
                return Ok(());
            }
            // The device gets its next steps before this thread spends time on sockets.
            self.submit_steps()?;
            self.committer.deliver(&mut self.scheduler, &mut self.core_events);
            self.pace.end_round(self.committer.now, self.shared.clock);
        }
    }

    /// Takes the messages that have come; sleeps if there are none and nothing else is to do.
    fn wait(&mut self) {
        let wait = if !self.core_events.is_empty() || self.resizes_on() {
            // `deliver` found clients gone: the next plan can use what they held. Or others wait for memory.
            Wait::No
        } else if let Some(until_plan) = self.pace.wait(self.shared.clock) {
            until_plan
        } else if self.scheduler.is_full() && !self.scheduler.waits_for_masks() {
            Wait::ForStep
        } else {
            // Any message can let a step that waits for masks continue, or end it.
            Wait::ForAny
        };
        self.shared.inbox.take(&mut self.left, wait);
        self.left.reverse();
        self.committer.now = self.shared.clock.now();
    }

    /// Works off the messages: requests enter the scheduler, results of steps are committed.
    fn receive(&mut self) -> Result<Received, String> {
        while let Some(message) = self.left.pop() {
            match message {
                Message::Submit(submission, tenant) => self.admit(*submission, &tenant),
                Message::Abort(key) => {
                    self.committer.abort(key, &mut self.scheduler, &mut self.core_events);
                }
                Message::Attach(key, socket) => self.committer.attach(key, socket),
                Message::Ping(key) => self.committer.ping(key),
                Message::Completed(completion) => self.complete(completion)?,
                Message::Masks(results) => self.take_masks(results),
                // `submit_steps` follows.
                Message::Turn => {}
                Message::ClearPrefixCache => {
                    self.scheduler.clear_prefix_cache();
                }
                Message::Rest(rest, reply) => self.rest(rest, reply),
                Message::Rested(rested) => self.rested(rested)?,
                Message::Swap(swap) => self.swap(swap),
                Message::Swapped(swapped) => self.swapped(swapped)?,
                Message::Resized(resized) => self.resized(resized)?,
                Message::Shutdown => return Ok(Received::Shutdown),
            }
        }
        self.commit();
        self.resize_on();
        self.leave_if_quiet();
        Ok(Received::All)
    }

    /// Commits a step, or ends the requests of one that failed.
    fn complete(&mut self, completion: StepCompletion) -> Result<(), String> {
        let now = self.committer.now;
        add(&self.shared.metrics.steps, 1);
        self.end_turn();
        self.pace.ended(completion.result.is_ok(), now);
        self.shared.progress(now);
        match completion.result {
            Ok(output) => {
                self.scheduler.commit(output, now, &mut self.core_events);
                self.commit();
            }
            Err(error) => self.fail_step(completion.id, error)?,
        }
        if let Some((rest, reply)) = self.postponed_rest.take() {
            self.rest(rest, reply);
        }
        Ok(())
    }

    /// Turns the core's events into text and ends, and hands out the mask jobs that follow from them.
    pub(crate) fn commit(&mut self) {
        self.committer.commit(&mut self.core_events, &mut self.scheduler);
        self.committer.take_mask_jobs(&mut self.mask_jobs);
        self.masks.put(&mut self.mask_jobs);
    }

    /// Plans and submits as many steps as may be in flight, and starts the sampler of late rows whose
    /// masks are there.
    fn submit_steps(&mut self) -> Result<(), String> {
        loop {
            while let Some(plan) = self.next_plan() {
                let id = plan.id;
                let num_rows = plan.num_scheduled_tokens() as u32;
                self.shared.metrics.iteration_tokens.observe(u64::from(num_rows));
                if let Some(turns) = &self.turns {
                    turns.submitted(num_rows);
                }
                if let Err(error) = self.executor.submit(plan) {
                    self.end_turn();
                    self.fail_step(id, error)?;
                } else {
                    self.pace.submitted(num_rows, self.committer.now);
                }
            }
            if !self.issue_masks()? {
                break;
            }
        }
        self.ask_for_pool();
        self.shared.metrics.gauges.refresh(&self.scheduler.stats());
        Ok(())
    }

    fn next_plan(&mut self) -> Option<StepPlan> {
        let now = self.committer.now;
        match &self.turns {
            Some(_) => self.plan_in_turn(),
            None if self.pace.plans(now, self.scheduler.waits_for_masks()) => {
                self.scheduler.plan(now)
            }
            None => None,
        }
    }

    /// The requests of a failed step end with an error; a lost device ends the loop.
    pub(crate) fn fail_step(&mut self, id: StepId, error: ExecutorError) -> Result<(), String> {
        let ExecutorError::StepFailed(reason) = error else { return Err(error.to_string()) };
        self.scheduler.fail_step(id, RequestFault::StepFailed(reason), &mut self.core_events);
        self.commit();
        Ok(())
    }
}
