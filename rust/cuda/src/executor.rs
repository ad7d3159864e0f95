//! [5] Runs plans on one GPU, or on a group of ranks. The engine thread calls `submit` and `sample`. Nothing here blocks,
//! except for data that exceeds `slots::staging_bytes` and for a step that fails. Nothing is
//! allocated on the device.
//!
//! A step is one copy of packed metadata, the launches (one graph launch once it is recorded), the
//! copies back and an event, all on one stream. The waiter thread turns the event into the
//! completion. late_samples.rs samples rows that wait for masks.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use ingle_core::{
    Executor, ExecutorError, ExecutorShape, KvMemory, ResizeSink, RestSink, RowMask, SleepLevel,
    StepId, StepPlan,
};

use crate::CudaError;
use crate::buffers::OUT_BYTES;
use crate::extras::{Extras, padded};
use crate::group::{Group, Member as _};
use crate::launches::LaunchCounters;
use crate::memory::{copy_to_device, copy_to_host};
use crate::metadata::{PackedStep, PlanLimits, SlotRecord, pack};
use crate::model::StepShape;
use crate::rank::Rank;
use crate::sleep::{Rest, RestJob, Sleeper};
use crate::slots::{check_opened, open_slots};
use crate::waiter::{Message, StepBuffers, Submitted};

/// The executor of one model, on one GPU or divided among several.
#[derive(Debug)]
pub struct CudaExecutor {
    pub(crate) launches: Arc<LaunchCounters>,
    pub(crate) to_waiter: Option<Sender<Message>>,
    pub(crate) waiter: Option<JoinHandle<()>>,
    /// Host buffers that came back from the waiter.
    pub(crate) free: Receiver<StepBuffers>,
    /// Host buffers of steps that could not be started.
    pub(crate) spare: Vec<StepBuffers>,
    pub(crate) slots: Vec<SlotRecord>,
    /// The step whose late rows wait for masks; later steps stand in `queued` until then.
    pub(crate) late: Option<LateStep>,
    pub(crate) queued: VecDeque<StepPlan>,
    pub(crate) lost: Arc<OnceLock<String>>,
    pub(crate) shape: ExecutorShape,
    pub(crate) sleeper: Arc<Sleeper>,
    pub(crate) group: Group,
}

/// A step whose forward pass is queued and whose late samples are not.
#[derive(Debug)]
pub(crate) struct LateStep {
    pub(crate) packed: PackedStep,
    pub(crate) submitted: Submitted,
}

/// Steps that may be submitted and not completed.
pub(crate) const STEPS_IN_FLIGHT: u32 = 2;
/// Sets of host buffers: one more than steps in flight, since a set comes back before its completion.
pub(crate) const BUFFER_SETS: usize = STEPS_IN_FLIGHT as usize + 1;

impl Executor for CudaExecutor {
    fn shape(&self) -> ExecutorShape {
        self.shape
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), ExecutorError> {
        self.check_lost()?;
        if self.late.is_some() || !self.queued.is_empty() {
            self.queued.push_back(plan);
            return Ok(());
        }
        self.start(&plan)
    }

    fn deepest_sleep(&self) -> SleepLevel {
        // Without the copy the weights would come from files, which takes threads and memory that a locked process
        // cannot get.
        if self.group.model().weight_memory.can_sleep() {
            SleepLevel::Offload
        } else {
            SleepLevel::Pause
        }
    }

    fn sleep(&mut self, level: SleepLevel, done: RestSink) {
        match level {
            SleepLevel::Pause => done(Ok(())),
            SleepLevel::Offload | SleepLevel::Discard => self.rest(Rest::Sleep, done),
        }
    }

    fn wake(&mut self, done: RestSink) {
        self.rest(Rest::Wake, done);
    }

    fn kv_memory(&self) -> Option<KvMemory> {
        self.pool_memory()
    }

    fn resize_kv(&mut self, bytes: u64, done: ResizeSink) {
        done(self.resized_pool(bytes));
    }

    fn sample(&mut self, step: StepId, masks: Vec<RowMask>) -> Result<(), ExecutorError> {
        self.check_lost()?;
        match self.late.take() {
            Some(late) if late.submitted.id == step => {
                let sampled = self.sample_late(late, &masks);
                self.start_queued();
                sampled
            }
            other => {
                self.late = other;
                Err(ExecutorError::StepFailed(format!("step {step} waits for no mask")))
            }
        }
    }
}

impl CudaExecutor {
    /// The waiter does it, which has nothing else to do while no step is in flight.
    fn rest(&self, rest: Rest, done: RestSink) {
        match self.check_lost() {
            Ok(()) => {
                let sleeper = Arc::clone(&self.sleeper);
                self.send(Message::Rest(RestJob { rest, sleeper, done }));
            }
            Err(error) => done(Err(error)),
        }
    }

    pub(crate) fn check_lost(&self) -> Result<(), ExecutorError> {
        match self.lost.get() {
            Some(reason) => Err(ExecutorError::DeviceLost(reason.clone())),
            None => Ok(()),
        }
    }

    /// Remembers a sticky error, so that every later step fails the same way.
    pub(crate) fn note(&self, error: &CudaError) -> ExecutorError {
        if error.is_sticky() {
            let _ = self.lost.set(error.to_string());
        }
        error.to_executor_error()
    }

    fn start_queued(&mut self) {
        while self.late.is_none() {
            let Some(plan) = self.queued.pop_front() else { break };
            if let Err(error) = self.start(&plan) {
                self.send(Message::Failed(plan.id, error));
            }
        }
    }

    fn start(&mut self, plan: &StepPlan) -> Result<(), ExecutorError> {
        if self.sleeper.is_asleep() {
            return Err(ExecutorError::StepFailed("the executor sleeps".to_owned()));
        }
        self.group.leader().make_current().map_err(|error| self.note(&error))?;
        let set = self.spare.pop().or_else(|| self.free.try_recv().ok());
        let mut buffers = set.ok_or_else(|| {
            ExecutorError::StepFailed(format!("more than {STEPS_IN_FLIGHT} steps in flight"))
        })?;
        buffers.staging.reset();
        let packed = match self.check_and_pack(plan, &mut buffers) {
            Ok(packed) => packed,
            Err(reason) => {
                self.spare.push(buffers);
                return Err(ExecutorError::StepFailed(reason));
            }
        };
        if let Err(error) = self.queue(plan, &packed, &mut buffers) {
            return Err(self.abandon(buffers, error));
        }
        let hidden_size = self.group.model().spec.hidden_size as usize;
        let submitted = Submitted { id: plan.id, rows: packed.rows.clone(), hidden_size, buffers };
        if packed.num_late > 0 {
            self.late = Some(LateStep { packed, submitted });
            return Ok(());
        }
        self.finish(submitted)
    }

    /// Takes the buffers of a step that failed half-way back, once no copy uses them. The wait also
    /// shows whether the device itself is lost.
    pub(crate) fn abandon(&mut self, buffers: StepBuffers, error: CudaError) -> ExecutorError {
        if error.is_sticky() {
            self.group.abort();
        }
        let error = error.after_wait(self.group.synchronise());
        self.spare.push(buffers);
        self.note(&error)
    }

    fn check_and_pack(
        &mut self,
        plan: &StepPlan,
        buffers: &mut StepBuffers,
    ) -> Result<PackedStep, String> {
        for slot in &plan.closed {
            if let Some(record) = self.slots.get_mut(slot.index()) {
                *record = SlotRecord::default();
            }
        }
        for opened in &plan.opened {
            check_opened(opened, self.group.model(), self.shape.num_blocks)?;
            let record = SlotRecord::open(
                opened,
                &self.group.model().kv_groups,
                self.group.model().spec.vocab_size,
            );
            self.slots[opened.slot.index()] = record;
        }
        let limits = PlanLimits {
            engine: self.group.model().engine,
            vocab_size: self.group.model().spec.vocab_size,
            num_blocks: self.shape.num_blocks,
            kv_groups: self.group.model().kv_groups,
            max_updates: self.group.model().sizes.max_updates,
            prompt_group: self.group.model().prompt_group,
            num_snapshots: self.shape.num_snapshots,
        };
        pack(plan, &limits, &mut self.slots, buffers.meta.as_mut_words())
    }

    /// Queues everything of a step but the samplers of late rows.
    fn queue(
        &mut self,
        plan: &StepPlan,
        packed: &PackedStep,
        buffers: &mut StepBuffers,
    ) -> Result<(), CudaError> {
        let extras = Extras::of(packed);
        let StepBuffers { meta, staging, .. } = buffers;
        let slots = &self.slots;
        let mut upload = |rank: &Rank| {
            let (model, stream) = (&rank.model, &rank.stream);
            staging.rewind();
            copy_to_device(stream, model.buffers.meta, meta, packed.words * 4)?;
            open_slots(model, stream, staging, &plan.opened, slots)?;
            if let Some(states) = &model.states {
                plan.states.restored.iter().try_for_each(|copy| states.restore(stream, copy))?;
            }
            extras.upload(model, stream, staging)
        };
        if packed.num_tokens == 0 {
            return self.group.each(|_, rank| upload(rank));
        }
        let model = self.group.model();
        let num_samples = packed.num_now + packed.num_late;
        let tokens = padded(model, packed.num_tokens)?;
        let samples = model.buckets.fit_samples(tokens, num_samples).ok_or_else(|| {
            CudaError::Unsupported(format!("{num_samples} samples of {tokens} rows"))
        })?;
        let shape = StepShape { tokens, samples, has_prompts: packed.has_prompts };
        let graphs = if extras.are_wanted() { None } else { self.group.ready(shape) };
        // The metadata of this step is queued ahead on the same stream, which all steps share.
        self.group.step(upload, |number, rank| match &graphs {
            Some(graphs) => graphs[number].launch(&rank.stream),
            None if extras.are_wanted() => extras.step(&rank.model, &rank.stream, shape),
            None => rank.model.step(&rank.stream, shape),
        })?;
        self.launches.launched(graphs.is_some());
        let (model, stream) = (self.group.model(), &self.group.leader().stream);
        extras.copy_back(model, stream, buffers)?;
        let bytes = packed.num_now as usize * OUT_BYTES as usize;
        if bytes > 0 {
            copy_to_host(stream, &buffers.out, model.buffers.out, bytes)?;
        }
        Ok(())
    }

    /// Queues the event and hands the step to the waiter.
    pub(crate) fn finish(&mut self, submitted: Submitted) -> Result<(), ExecutorError> {
        let done = &submitted.buffers.done;
        if let Err(error) = self.group.each(|number, rank| done[number].record(&rank.stream)) {
            return Err(self.abandon(submitted.buffers, error));
        }
        self.send(Message::Submitted(submitted));
        Ok(())
    }

    fn send(&self, message: Message) {
        if let Some(waiter) = &self.to_waiter {
            // The waiter outlives this sender; it ends only when the sender is dropped.
            let _ = waiter.send(message);
        }
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        self.group.drop_graphs();
        self.to_waiter = None;
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.join();
        }
        // A step that no waiter saw (a late one) may still use the memory that is dropped below.
        let _ = self.group.synchronise();
    }
}
