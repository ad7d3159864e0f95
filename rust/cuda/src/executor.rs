//! [5] Runs plans on one GPU. The engine thread calls `submit` and `sample`. Nothing here blocks,
//! except for data that exceeds `slots::staging_bytes` and for a step that fails. Nothing is
//! allocated on the device.
//!
//! A step is one copy of packed metadata, the launches (one graph launch once it is recorded), the
//! copies back and an event, all on one stream. The waiter thread turns the event into the
//! completion.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use ingle_core::{
    Executor, ExecutorError, ExecutorShape, RestSink, RowMask, SleepLevel, StepId, StepPlan,
};

use crate::CudaError;
use crate::buffers::OUT_BYTES;
use crate::contract::{StepHeader, StepSample, Words};
use crate::dims::LIST_ROWS;
use crate::graphs::{GraphSeal, GraphStats, Graphs};
use crate::launches::LaunchCounters;
use crate::memory::{copy_to_device, copy_to_host, copy_to_offset};
use crate::metadata::{PackedStep, PlanLimits, SlotRecord, pack, pack_late};
use crate::model::{Model, StepShape};
use crate::sleep::{Rest, RestJob, Sleeper};
use crate::slots::{check_opened, open_slots};
use crate::stream::Stream;
use crate::waiter::{Message, StepBuffers, Submitted};

/// The executor of one model on one GPU.
#[derive(Debug)]
pub struct CudaExecutor {
    // Fields drop in this order: threads that use the model first.
    pub(crate) graphs: Option<Graphs>,
    pub(crate) launches: Arc<LaunchCounters>,
    pub(crate) to_waiter: Option<Sender<Message>>,
    pub(crate) waiter: Option<JoinHandle<()>>,
    /// Host buffers that came back from the waiter.
    pub(crate) free: Receiver<StepBuffers>,
    /// Host buffers of steps that could not be started.
    pub(crate) spare: Vec<StepBuffers>,
    pub(crate) stream: Stream,
    pub(crate) slots: Vec<SlotRecord>,
    /// The step whose late rows wait for masks; later steps stand in `queued` until then.
    pub(crate) late: Option<LateStep>,
    pub(crate) queued: VecDeque<StepPlan>,
    pub(crate) lost: Arc<OnceLock<String>>,
    pub(crate) shape: ExecutorShape,
    pub(crate) sleeper: Arc<Sleeper>,
    pub(crate) model: Arc<Model>,
}

/// A step whose forward pass is queued and whose late samples are not.
#[derive(Debug)]
pub(crate) struct LateStep {
    packed: PackedStep,
    submitted: Submitted,
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
        if self.model.weight_memory.can_sleep() { SleepLevel::Offload } else { SleepLevel::Pause }
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
    /// How far graphs are and how steps were launched; no graphs with `enforce_eager`.
    #[must_use]
    pub fn graph_stats(&self) -> GraphStats {
        let (nodes_max, last_error) =
            self.graphs.as_ref().map(Graphs::nodes_and_error).unwrap_or_default();
        GraphStats { launches: self.launches.read(), nodes_max, last_error }
    }

    /// The same numbers, for readers without the executor.
    #[must_use]
    pub fn launch_counters(&self) -> Arc<LaunchCounters> {
        Arc::clone(&self.launches)
    }

    /// Ends the recording of graphs after the start; `None` where none are recorded.
    #[must_use]
    pub fn graph_seal(&self) -> Option<GraphSeal> {
        self.graphs.as_ref().map(Graphs::seal)
    }

    /// Blocks until every graph asked for is recorded. For benchmarks and tests.
    pub fn wait_for_graphs(&self) {
        if let Some(graphs) = &self.graphs {
            graphs.wait_until_idle();
        }
    }

    /// Gives the KV pool this many bytes, rounded up to whole pieces; returns the blocks it then holds.
    /// Waits for the device. The caller names no block beyond the smaller pool any more.
    ///
    /// # Errors
    /// Out of memory, with numbers. The pool then keeps the blocks that it has; `shape` gives their number.
    pub fn resize_kv_pool(&mut self, bytes: u64) -> Result<u32, CudaError> {
        self.model.context.make_current()?;
        self.stream.synchronise()?;
        let resized = self.model.kv.resize(&self.stream, bytes);
        self.shape.num_blocks = self.model.kv.num_blocks();
        resized.map(|()| self.shape.num_blocks)
    }

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

    fn check_lost(&self) -> Result<(), ExecutorError> {
        match self.lost.get() {
            Some(reason) => Err(ExecutorError::DeviceLost(reason.clone())),
            None => Ok(()),
        }
    }

    /// Remembers a sticky error, so that every later step fails the same way.
    fn note(&self, error: &CudaError) -> ExecutorError {
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
        self.model.context.make_current().map_err(|error| self.note(&error))?;
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
        let hidden_size = self.model.spec.hidden_size as usize;
        let submitted = Submitted { id: plan.id, rows: packed.rows.clone(), hidden_size, buffers };
        if packed.num_late > 0 {
            self.late = Some(LateStep { packed, submitted });
            return Ok(());
        }
        self.finish(submitted)
    }

    /// Takes the buffers of a step that failed half-way back, once no copy uses them. The wait also
    /// shows whether the device itself is lost.
    fn abandon(&mut self, buffers: StepBuffers, error: CudaError) -> ExecutorError {
        let error = error.after_wait(self.stream.synchronise());
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
            check_opened(opened, &self.model, self.shape.num_blocks)?;
            let record =
                SlotRecord::open(opened, &self.model.kv_groups, self.model.spec.vocab_size);
            self.slots[opened.slot.index()] = record;
        }
        let limits = PlanLimits {
            engine: self.model.engine,
            vocab_size: self.model.spec.vocab_size,
            num_blocks: self.shape.num_blocks,
            kv_groups: self.model.kv_groups,
            max_updates: self.model.sizes.max_updates,
            prompt_group: self.model.prompt_group(),
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
        let model = Arc::clone(&self.model);
        let stream = &self.stream;
        copy_to_device(stream, model.buffers.meta, &buffers.meta, packed.words * 4)?;
        open_slots(&model, stream, &mut buffers.staging, &plan.opened, &self.slots)?;
        if let Some(states) = &model.states {
            plan.states.restored.iter().try_for_each(|copy| states.restore(stream, copy))?;
        }
        if packed.num_tokens == 0 {
            return Ok(());
        }
        let num_samples = packed.num_now + packed.num_late;
        let tokens = self.padded(packed.num_tokens)?;
        let samples = model.buckets.fit_samples(tokens, num_samples).ok_or_else(|| {
            CudaError::Unsupported(format!("{num_samples} samples of {tokens} rows"))
        })?;
        let shape = StepShape { tokens, samples, has_prompts: packed.has_prompts };
        let has_extras = !packed.list_rows.is_empty() || packed.has_pooled;
        let graph = match &self.graphs {
            Some(graphs) if !has_extras => graphs.ready(shape),
            _ => None,
        };
        // The metadata of this step is queued ahead on the same stream, which all steps share.
        match &graph {
            Some(graph) => graph.launch(stream)?,
            None if has_extras => self.queue_with_extras(shape, packed, buffers)?,
            None => model.step(stream, shape)?,
        }
        self.launches.launched(graph.is_some());
        let bytes = packed.num_now as usize * OUT_BYTES as usize;
        if bytes > 0 {
            copy_to_host(stream, &buffers.out, model.buffers.out, bytes)?;
        }
        Ok(())
    }

    fn padded(&self, rows: u32) -> Result<u32, CudaError> {
        self.model.buckets.fit(rows).ok_or_else(|| {
            let largest = self.model.buckets.largest();
            CudaError::Unsupported(format!("{rows} rows, built for {largest}"))
        })
    }

    /// A step with prompt log-probs or pooling: plain launches, the head in slices.
    fn queue_with_extras(
        &self,
        shape: StepShape,
        packed: &PackedStep,
        buffers: &mut StepBuffers,
    ) -> Result<(), CudaError> {
        let (model, stream) = (&self.model, &self.stream);
        model.layers(stream, shape)?;
        self.queue_prompt_log_probs(packed, buffers)?;
        if packed.has_pooled {
            model.pool(stream, shape.tokens, packed.rows.len() as u32)?;
            let width = u64::from(model.spec.hidden_size);
            for row in packed.rows.iter().filter_map(|row| row.pooled) {
                let source = model.buffers.pooled.row(u64::from(row), width);
                let bytes = source.bytes() as usize;
                copy_to_offset(stream, &buffers.pooled, row as usize * bytes, source, bytes)?;
            }
        }
        if shape.samples > 0 {
            model.sample_logits(stream, shape.samples)?;
            let (meta, logits) = (model.buffers.meta, model.buffers.logits);
            model.sample(stream, shape.samples, meta, logits)?;
        }
        Ok(())
    }

    /// Behind the layers. The lists are padded with row 0 to whole slices, for which their buffers are laid out.
    fn queue_prompt_log_probs(
        &self,
        packed: &PackedStep,
        buffers: &mut StepBuffers,
    ) -> Result<(), CudaError> {
        let (model, stream) = (&self.model, &self.stream);
        let count = packed.list_rows.len();
        let padded = count.next_multiple_of(LIST_ROWS as usize);
        for (list, place) in [
            (&packed.list_rows, model.buffers.list_rows),
            (&packed.list_targets, model.buffers.list_targets),
        ] {
            let mut words = list.clone();
            words.resize(padded, 0);
            buffers.staging.push(stream, place, &words)?;
        }
        for start in (0..count).step_by(LIST_ROWS as usize) {
            let rows = self.padded((count - start).min(LIST_ROWS as usize) as u32)?;
            model.list_log_probs(stream, start as u64, rows, packed.list_top)?;
        }
        let bytes = count * OUT_BYTES as usize;
        if bytes > 0 {
            copy_to_host(stream, &buffers.list_out, model.buffers.list_out, bytes)?;
        }
        Ok(())
    }

    fn sample_late(&mut self, late: LateStep, masks: &[RowMask]) -> Result<(), ExecutorError> {
        let LateStep { packed, mut submitted } = late;
        match self.queue_late(&packed, &mut submitted.buffers, masks) {
            Ok(()) => self.finish(submitted),
            Err(error) => Err(self.abandon(submitted.buffers, error)),
        }
    }

    fn queue_late(
        &mut self,
        packed: &PackedStep,
        buffers: &mut StepBuffers,
        masks: &[RowMask],
    ) -> Result<(), CudaError> {
        let (model, stream) = (&self.model, &self.stream);
        model.context.make_current()?;
        let mut masked = vec![false; packed.late_slots.len()];
        let words = model.spec.vocab_size.div_ceil(32) as usize;
        for mask in masks {
            let index = packed.late_slots.iter().position(|slot| *slot == mask.slot);
            let index = index.filter(|_| mask.allowed.len() == words).ok_or_else(|| {
                CudaError::Unsupported(format!(
                    "a mask of {} words for slot {}, want {words} and a late row",
                    mask.allowed.len(),
                    mask.slot
                ))
            })?;
            masked[index] = true;
            let row = model.mask_of(mask.slot);
            match &self.slots[mask.slot.index()].allowed {
                None => buffers.staging.push(stream, row, &mask.allowed)?,
                Some(allowed) => {
                    let both: Vec<u32> =
                        allowed.iter().zip(mask.allowed.iter()).map(|(a, b)| a & b).collect();
                    buffers.staging.push(stream, row, &both)?;
                }
            }
        }
        let mut meta = vec![0; StepHeader::COUNT + StepSample::COUNT * packed.late_slots.len()];
        pack_late(&packed.late_slots, &masked, &mut meta);
        buffers.staging.push(stream, model.buffers.late_meta, &meta)?;
        // The step's forward pass is the last work queued on this stream, so the logits of its late rows, which
        // stand behind those of the others, are still there.
        let vocab_size = u64::from(model.spec.vocab_size);
        let logits = model.buffers.logits.from(u64::from(packed.num_now) * vocab_size);
        model.sample(stream, packed.num_late, model.buffers.late_meta, logits)?;
        let bytes = packed.num_late as usize * OUT_BYTES as usize;
        let offset = packed.num_now as usize * OUT_BYTES as usize;
        copy_to_offset(stream, &buffers.out, offset, model.buffers.out, bytes)
    }

    /// Queues the event and hands the step to the waiter.
    fn finish(&mut self, submitted: Submitted) -> Result<(), ExecutorError> {
        if let Err(error) = submitted.buffers.done.record(&self.stream) {
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
        // The driver needs it to free what is dropped below. An error (a lost device) cannot be
        // reported here.
        let _ = self.model.context.make_current();
        self.graphs = None;
        self.to_waiter = None;
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.join();
        }
        // A step that no waiter saw (a late one) may still use the memory that is dropped below.
        let _ = self.stream.synchronise();
    }
}
