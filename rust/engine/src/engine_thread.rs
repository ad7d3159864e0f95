//! [4] [5] [7] The engine thread: plans, submits, commits. It alone owns scheduler, executor and
//! running requests; it sleeps in one place, its inbox, and never takes the interpreter lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ingle_core::{
    CoreEvent, Executor, ExecutorError, LateRow, RequestFault, RowMask, Scheduler, StepCompletion,
};

use crate::commit::Committer;
use crate::deliver::error_payload;
use crate::grammar_pool::{GrammarPool, MaskJob, MaskResult};
use crate::histogram::add;
use crate::inbox::Message;
use crate::outbox::Event;
use crate::prepare::Submission;
use crate::shared::{EngineState, Shared, TenantLoad};

/// Everything that only the engine thread touches.
pub(crate) struct EngineThread {
    shared: Arc<Shared>,
    scheduler: Scheduler,
    executor: Box<dyn Executor>,
    committer: Committer,
    core_events: Vec<CoreEvent>,
    masks: GrammarPool,
    /// Messages that have been taken and not been worked off, the next one last.
    left: Vec<Message>,
    /// Reused.
    mask_jobs: Vec<MaskJob>,
    /// Reused.
    late_rows: Vec<LateRow>,
}

/// Why the loop ended.
enum Ended {
    /// `Shutdown` came.
    Shutdown,
    /// The device or the engine itself failed for good.
    Fatal(String),
}

impl EngineThread {
    pub(crate) fn new(
        shared: Arc<Shared>,
        scheduler: Scheduler,
        executor: Box<dyn Executor>,
    ) -> Self {
        let committer = Committer::new(Arc::clone(&shared));
        let masks = GrammarPool::new(Arc::clone(&shared));
        Self {
            shared,
            scheduler,
            executor,
            committer,
            core_events: Vec::new(),
            masks,
            left: Vec::new(),
            mask_jobs: Vec::new(),
            late_rows: Vec::new(),
        }
    }

    /// Runs until shutdown. After a fatal fault it goes on refusing what still comes.
    pub(crate) fn run(mut self) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.serve()));
        match ended {
            Ok(Ended::Shutdown) => self.stop(),
            Ok(Ended::Fatal(message)) => self.die(&message),
            Err(panic) => self.die(&format!("engine thread panicked: {}", panic_text(&*panic))),
        }
    }

    fn serve(&mut self) -> Ended {
        loop {
            // A step that waits for masks may go on, or be given up, for any message.
            let is_full = self.scheduler.is_full() && !self.scheduler.waits_for_masks();
            self.shared.inbox.take(&mut self.left, is_full);
            self.left.reverse();
            self.committer.now = self.shared.clock.now();
            while let Some(message) = self.left.pop() {
                match message {
                    Message::Submit(submission, tenant) => self.admit(*submission, &tenant),
                    Message::Abort(key) => {
                        self.committer.abort(key, &mut self.scheduler, &mut self.core_events);
                    }
                    Message::Attach(key, socket) => self.committer.attach(key, socket),
                    Message::Ping(key) => self.committer.ping(key),
                    Message::Completed(completion) => {
                        if let Err(fatal) = self.complete(completion) {
                            return Ended::Fatal(fatal);
                        }
                    }
                    Message::Masks(results) => self.take_masks(results),
                    Message::Shutdown => return Ended::Shutdown,
                }
            }
            self.settle();
            // The device gets its next step before this thread spends time on sockets.
            if let Err(fatal) = self.submit_steps() {
                return Ended::Fatal(fatal);
            }
            self.refresh_gauges();
            self.committer.deliver(&mut self.scheduler, &mut self.core_events);
            if !self.core_events.is_empty() {
                // Clients found gone while sending: what they held is free for the next plan.
                self.settle();
                if let Err(fatal) = self.submit_steps() {
                    return Ended::Fatal(fatal);
                }
                self.refresh_gauges();
                self.committer.deliver(&mut self.scheduler, &mut self.core_events);
            }
        }
    }

    fn admit(&mut self, submission: Submission, tenant: &Arc<TenantLoad>) {
        let Submission { stream, requests } = submission;
        let key = stream.key;
        let metrics = &self.shared.metrics;
        metrics.request_params_n.observe(u64::from(stream.n));
        for prompt in &stream.prompts {
            metrics.request_prompt_tokens.observe(prompt.ids.len() as u64);
        }
        self.committer.streams.insert(key, stream);
        self.committer.tenants.entry(tenant.id).or_insert_with(|| Arc::clone(tenant));
        let now = self.committer.now;
        for (at, request) in requests.into_iter().enumerate() {
            metrics.request_params_max_tokens.observe(u64::from(request.stop.max_tokens));
            let Err(error) = self.scheduler.admit(request, now) else { continue };
            // Checked on the caller's thread, so this is our own mistake; the request still ends.
            self.committer.end_with_error(key, &error.to_string(), "not_admitted", 500);
            if let Some(stream) = self.committer.streams.get_mut(&key) {
                let missing = &mut stream.choices[at..];
                self.shared.release(tenant, missing.len() as u32);
                missing.iter_mut().for_each(|choice| choice.is_over = true);
            }
            self.committer.drop_stream(key, &mut self.scheduler, &mut self.core_events);
            return;
        }
        self.committer.want_masks(key);
    }

    fn take_masks(&mut self, results: Vec<MaskResult>) {
        for result in results {
            self.committer.take_mask(result, &mut self.scheduler, &mut self.core_events);
        }
        self.settle();
    }

    fn complete(&mut self, completion: StepCompletion) -> Result<(), String> {
        let now = self.committer.now;
        add(&self.shared.metrics.steps, 1);
        self.shared.progress(now);
        match completion.result {
            Ok(output) => self.scheduler.commit(output, now, &mut self.core_events),
            Err(ExecutorError::StepFailed(reason)) => {
                let fault = RequestFault::StepFailed(reason);
                self.scheduler.fail_step(completion.id, fault, &mut self.core_events);
            }
            Err(error @ ExecutorError::DeviceLost(_)) => return Err(error.to_string()),
        }
        self.settle();
        Ok(())
    }

    /// Works off the core's events, and sends grammars on their way to the masks that follow.
    fn settle(&mut self) {
        self.committer.commit(&mut self.core_events, &mut self.scheduler);
        self.committer.take_mask_jobs(&mut self.mask_jobs);
        if let Err(message) = self.masks.start(&mut self.mask_jobs) {
            let fault = (message, "grammar_failed", 500);
            for job in std::mem::take(&mut self.mask_jobs) {
                let (scheduler, events) = (&mut self.scheduler, &mut self.core_events);
                self.committer.fail_grammar(job.id, &fault, scheduler, events);
            }
            self.committer.commit(&mut self.core_events, &mut self.scheduler);
        }
    }

    /// Plans and submits as many steps as may be in flight, and starts the sampler of late rows whose
    /// masks are there.
    fn submit_steps(&mut self) -> Result<(), String> {
        self.plan_steps()?;
        while self.issue_masks()? {
            self.plan_steps()?;
        }
        Ok(())
    }

    /// Starts the sampler of the oldest step in flight if it waits for masks and all are there.
    fn issue_masks(&mut self) -> Result<bool, String> {
        let mut rows = std::mem::take(&mut self.late_rows);
        let step = self.scheduler.late_rows(&mut rows);
        let masks: Option<Vec<RowMask>> = rows.iter().map(|row| self.row_mask(row)).collect();
        self.late_rows = rows;
        let (Some(id), Some(masks)) = (step, masks) else { return Ok(false) };
        match self.executor.sample(id, masks) {
            Ok(()) => self.scheduler.note_masks_issued(id),
            Err(ExecutorError::StepFailed(reason)) => {
                let fault = RequestFault::StepFailed(reason);
                self.scheduler.fail_step(id, fault, &mut self.core_events);
                self.settle();
            }
            Err(error @ ExecutorError::DeviceLost(_)) => return Err(error.to_string()),
        }
        Ok(true)
    }

    /// The mask of a late row; `None` while a worker computes it. Rows of ended requests may sample
    /// whatever they like.
    fn row_mask(&self, row: &LateRow) -> Option<RowMask> {
        let allowed = if row.is_live {
            self.committer.mask(row.request)?
        } else {
            let words = self.executor.shape().vocab_size.div_ceil(32) as usize;
            vec![u32::MAX; words].into()
        };
        Some(RowMask { slot: row.slot, allowed })
    }

    fn plan_steps(&mut self) -> Result<(), String> {
        while let Some(plan) = self.scheduler.plan(self.committer.now) {
            let id = plan.id;
            self.shared.metrics.iteration_tokens.observe(plan.num_scheduled_tokens() as u64);
            match self.executor.submit(plan) {
                Ok(()) => {}
                Err(ExecutorError::StepFailed(reason)) => {
                    let fault = RequestFault::StepFailed(reason);
                    self.scheduler.fail_step(id, fault, &mut self.core_events);
                    self.settle();
                }
                Err(error @ ExecutorError::DeviceLost(_)) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    fn refresh_gauges(&self) {
        let stats = self.scheduler.stats();
        self.shared.metrics.gauges.refresh(&stats);
    }

    fn stop(mut self) {
        self.shared.advance(EngineState::Stopped);
        self.committer.end_all_with_error(SHUT_DOWN, "shutdown", 503);
        self.shared.outbox.publish(&mut self.committer.events);
        self.shared.outbox.announce();
        self.refuse_rest(SHUT_DOWN, "shutdown", 503);
        // Dropping the executor waits for its threads.
    }

    fn die(mut self, message: &str) {
        self.shared.advance(EngineState::Dead);
        self.committer.end_all_with_error(message, "engine_dead", 500);
        let payload = error_payload(message, "engine_dead", 500);
        self.committer.events.push(Event { key: ENGINE_KEY, payload });
        self.shared.outbox.publish(&mut self.committer.events);
        let mut batch = std::mem::take(&mut self.left);
        while !self.refuse_batch(&mut batch, message, "engine_dead", 500) {
            self.shared.inbox.take(&mut batch, false);
        }
        self.refuse_rest(message, "engine_dead", 500);
    }

    /// Answers what came after the end, without waiting for more.
    fn refuse_rest(&mut self, message: &str, code: &str, status: u16) {
        let mut batch = std::mem::take(&mut self.left);
        self.refuse_batch(&mut batch, message, code, status);
        self.shared.inbox.close(&mut batch);
        self.refuse_batch(&mut batch, message, code, status);
    }

    /// Ends requests that nobody will run; true if `Shutdown` was among the messages.
    fn refuse_batch(
        &mut self,
        batch: &mut Vec<Message>,
        message: &str,
        code: &str,
        status: u16,
    ) -> bool {
        let mut shutdown = false;
        for item in batch.drain(..) {
            match item {
                Message::Submit(submission, _) => {
                    self.shared.release_at_end(submission.requests.len() as u32);
                    // A stream needs a frame of it: whoever waits may have no other to put the head before.
                    let key = submission.stream.key;
                    self.committer.streams.insert(key, submission.stream);
                    self.committer.end_with_error(key, message, code, status);
                    self.committer.streams.remove(&key);
                }
                Message::Abort(key) => self.shared.outbox.forget(key),
                Message::Shutdown => shutdown = true,
                Message::Attach(..)
                | Message::Ping(_)
                | Message::Completed(_)
                | Message::Masks(_) => {}
            }
        }
        self.shared.outbox.publish(&mut self.committer.events);
        shutdown
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// The engine's own key in events.
const ENGINE_KEY: u64 = 0;
const SHUT_DOWN: &str = "the server is shutting down";
