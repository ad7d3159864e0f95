//! [5] Runs one plan, from slots to outputs. Driver thread only; the arithmetic is shared with the
//! pool.

use std::sync::OnceLock;

use ingle_core::{
    ExecutorError, KvGroups, PlanRow, Pooling, RowMask, RowOutput, RowStatus, SampleMode, SlotId,
    StateCopies, StateCopy, StepOutput, StepPlan, TokenId, TokenLogProbs, TokenSource,
};

use crate::elementwise::all_finite;
use crate::model::{Model, Sequence};
use crate::panel::LOGIT_ROWS;
use crate::sampler::{SampleRow, log_probs, sample};
use crate::slot::Slot;
use crate::weight_store::WeightStore;

/// The model with its open slots.
#[derive(Debug)]
pub(crate) struct Stepper {
    model: Model,
    slots: Vec<Option<Slot>>,
    limits: Limits,
}

/// What a plan may ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) block_size: u32,
    pub(crate) kv_groups: KvGroups,
    pub(crate) num_slots: u32,
    pub(crate) num_snapshots: u32,
    pub(crate) max_num_seqs: u32,
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) max_model_len: u32,
    /// Ids below this can be sampled.
    pub(crate) num_valid: usize,
}

/// The position of a plan's row in the forward pass.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Row of the plan.
    index: usize,
    /// Its last row in the forward pass.
    last: usize,
}

impl Stepper {
    pub(crate) fn new(model: Model, limits: Limits) -> Self {
        let slots = (0..limits.num_slots).map(|_| None).collect();
        Self { model, slots, limits }
    }

    /// Closes all slots and gives back weights, KV blocks and states.
    pub(crate) fn sleep(&mut self) {
        self.slots.fill_with(|| None);
        self.model.sleep();
    }

    /// Takes them back.
    ///
    /// # Errors
    /// `ExecutorError::Unchanged` if the weights cannot be read; then it sleeps on.
    pub(crate) fn wake(&mut self, store: &WeightStore) -> Result<(), ExecutorError> {
        let woken = self.model.wake(|pool| store.take(pool));
        woken.map_err(|error| ExecutorError::Unchanged(error.to_string()))
    }

    /// Gives the KV pool so many blocks.
    ///
    /// # Errors
    /// `ExecutorError::Unchanged` if there is no memory for them.
    pub(crate) fn resize_kv(&mut self, num_blocks: u32) -> Result<(), ExecutorError> {
        self.model.resize_kv(num_blocks).map_err(ExecutorError::Unchanged)
    }

    /// Runs a step. `wait_for_masks` is called once, if rows are sampled late, after everything else is
    /// done.
    pub(crate) fn run(
        &mut self,
        plan: StepPlan,
        wait_for_masks: impl FnOnce() -> Option<Vec<RowMask>>,
    ) -> Result<StepOutput, ExecutorError> {
        if self.model.is_asleep() {
            return Err(failed("the executor sleeps".to_owned()));
        }
        let StepPlan { id, closed, opened, rows, states } = plan;
        for slot in closed {
            *self.slot_entry(slot)? = None;
        }
        let num_groups = self.limits.kv_groups.len();
        for opened in opened {
            let slot = opened.slot;
            let open = Slot::open(opened, &self.limits.kv_groups);
            let uneven = || failed(format!("slot {slot}: cached blocks of {num_groups} groups"));
            *self.slot_entry(slot)? = Some(open.ok_or_else(uneven)?);
        }
        let tokens = self.prepare(&rows)?;
        self.restore(&states)?;
        self.forward(&rows, &tokens, &states.saved);
        let mut outputs: Vec<RowOutput> = rows.iter().map(|row| empty_output(row.slot)).collect();
        let mut sampled: Vec<Option<TokenId>> = vec![None; rows.len()];
        let (mut now, mut late) = (Vec::new(), Vec::new());
        let mut first = 0;
        for (index, row) in rows.iter().enumerate() {
            let place = Place { index, last: first + row.num_tokens as usize - 1 };
            if let Some(count) = row.wants.prompt_log_probs {
                self.prompt_log_probs(row, &tokens[index], (first, count), &mut outputs[index]);
            }
            if row.wants.pooled.is_some() {
                self.pool_rows(row, first, &mut outputs[index]);
            }
            match row.wants.sample {
                SampleMode::None => {}
                SampleMode::Now => now.push(place),
                SampleMode::Late => late.push(place),
            }
            first += row.num_tokens as usize;
        }
        for places in now.chunks(LOGIT_ROWS) {
            self.compute_logits(places);
            self.sample(places, &rows, &[], (&mut outputs, &mut sampled));
        }
        if !late.is_empty() {
            // The head runs before the wait, as long as its rows fit at once.
            self.compute_logits(&late[..late.len().min(LOGIT_ROWS)]);
            let masks = wait_for_masks()
                .ok_or_else(|| ExecutorError::DeviceLost("the executor was dropped".to_owned()))?;
            for (slice, places) in late.chunks(LOGIT_ROWS).enumerate() {
                if slice > 0 {
                    self.compute_logits(places);
                }
                self.sample(places, &rows, &masks, (&mut outputs, &mut sampled));
            }
        }
        Ok(StepOutput { id, rows: outputs, tokens: sampled.into_iter().flatten().collect() })
    }

    fn slot_entry(&mut self, slot: SlotId) -> Result<&mut Option<Slot>, ExecutorError> {
        let num_slots = self.slots.len();
        self.slots
            .get_mut(slot.index())
            .ok_or_else(|| failed(format!("slot {slot} of {num_slots}")))
    }

    fn slot(&mut self, slot: SlotId) -> Result<&mut Slot, ExecutorError> {
        let open = self.slot_entry(slot)?.as_mut().filter(|open| open.id == slot);
        open.ok_or_else(|| {
            failed(format!("slot {slot} is not open for its owner {}", slot.generation()))
        })
    }

    /// Checks the rows, extends their block tables and returns their token ids.
    fn prepare(&mut self, rows: &[PlanRow]) -> Result<Vec<Vec<TokenId>>, ExecutorError> {
        let limits = self.limits;
        let num_tokens: u64 = rows.iter().map(|row| u64::from(row.num_tokens)).sum();
        if rows.len() > limits.max_num_seqs as usize
            || num_tokens > u64::from(limits.max_num_batched_tokens)
        {
            return Err(failed(format!("{} rows with {num_tokens} tokens", rows.len())));
        }
        let (num_blocks, vocab) = (self.model.num_blocks(), self.model.spec().vocab_size);
        let mut tokens = Vec::with_capacity(rows.len());
        for row in rows {
            let slot = self.slot(row.slot)?;
            let new = limits.kv_groups.split(&row.new_blocks).ok_or_else(|| {
                let num_groups = limits.kv_groups.len();
                failed(format!("{} new blocks of {num_groups} groups", row.new_blocks.len()))
            })?;
            slot.tables.iter_mut().zip(new).for_each(|(table, new)| table.extend_from_slice(new));
            let end = u64::from(row.start) + u64::from(row.num_tokens);
            let room = slot.tables[0].len() as u64 * u64::from(limits.block_size);
            if row.num_tokens == 0 || end > room || end > u64::from(limits.max_model_len) {
                return Err(failed(format!(
                    "slot {}: positions {} to {end}, room for {room}, limit {}",
                    row.slot, row.start, limits.max_model_len
                )));
            }
            if let Some(block) = row.new_blocks.iter().find(|block| block.index() >= num_blocks) {
                return Err(failed(format!("block {block} of {num_blocks}")));
            }
            let ids = match &row.source {
                TokenSource::Host(ids) => ids.clone(),
                TokenSource::LastSampled => slot.last_sampled.into_iter().collect(),
            };
            if ids.len() != row.num_tokens as usize || ids.iter().any(|id| id.0 >= vocab) {
                return Err(failed(format!(
                    "slot {}: {} token ids for {} positions, ids below {vocab} wanted",
                    row.slot,
                    ids.len(),
                    row.num_tokens
                )));
            }
            tokens.push(ids);
        }
        Ok(tokens)
    }

    /// Checks the copies and makes those that opened slots begin with.
    fn restore(&mut self, states: &StateCopies) -> Result<(), ExecutorError> {
        let num_snapshots = self.limits.num_snapshots;
        for copy in states.restored.iter().chain(&states.saved) {
            self.slot(copy.slot)?;
            if copy.snapshot.0 >= num_snapshots {
                return Err(failed(format!("snapshot {} of {num_snapshots}", copy.snapshot)));
            }
        }
        for (place, copy) in states.saved.iter().enumerate() {
            if states.saved[..place].iter().any(|other| other.snapshot == copy.snapshot) {
                return Err(failed(format!("snapshot {} twice", copy.snapshot)));
            }
        }
        states.restored.iter().for_each(|copy| self.model.restore(copy));
        Ok(())
    }

    fn forward(&mut self, rows: &[PlanRow], tokens: &[Vec<TokenId>], saved: &[StateCopy]) {
        let slots = &self.slots;
        let of_row = |row: &PlanRow| -> Vec<StateCopy> {
            saved.iter().filter(|copy| copy.slot == row.slot).copied().collect()
        };
        let saves: Vec<Vec<StateCopy>> = rows.iter().map(of_row).collect();
        let sequences: Vec<Sequence<'_>> = rows
            .iter()
            .zip(tokens)
            .zip(&saves)
            .map(|((row, tokens), saves)| Sequence {
                tokens,
                start: row.start,
                tables: slots[row.slot.index()].as_ref().map_or(&[], |slot| &slot.tables),
                slot: row.slot,
                saves,
            })
            .collect();
        self.model.forward(&sequences);
    }

    fn compute_logits(&mut self, places: &[Place]) {
        let rows: Vec<usize> = places.iter().map(|place| place.last).collect();
        self.model.compute_logits(&rows);
    }

    /// Samples rows whose logits were just computed, and notes their tokens in slots and outputs.
    fn sample(
        &mut self,
        places: &[Place],
        rows: &[PlanRow],
        masks: &[RowMask],
        (outputs, sampled): (&mut [RowOutput], &mut [Option<TokenId>]),
    ) {
        let num_valid = self.limits.num_valid;
        let slots = &self.slots;
        let results: Vec<OnceLock<(TokenId, Option<TokenLogProbs>)>> =
            places.iter().map(|_| OnceLock::new()).collect();
        let (logits, pool, path) = self.model.logits_and_pool();
        let vocab = logits.1;
        pool.run(places.len(), &|task, scratch| {
            let slot_id = rows[places[task].index].slot;
            let Some(slot) = &slots[slot_id.index()] else { return };
            let mask = masks.iter().find(|mask| mask.slot == slot_id);
            let row = SampleRow {
                logits: logits.0.row(task, vocab),
                params: &slot.sampling,
                history: &slot.history,
                mask: mask.map(|mask| &*mask.allowed),
                num_valid,
            };
            if let Some(token) = sample(path, &row, &mut scratch.sampler) {
                let wanted = slot.sampling.log_probs;
                let around =
                    wanted.map(|count| log_probs(path, row.logits, num_valid, token, count));
                // A task has its own cell, so this is the first write.
                let _ = results[task].set((token, around));
            }
        });
        for (place, result) in places.iter().zip(results) {
            let output = &mut outputs[place.index];
            let Some((token, log_probs)) = result.into_inner() else {
                output.status = RowStatus::NotFinite;
                continue;
            };
            output.num_tokens = 1;
            output.log_probs.extend(log_probs);
            sampled[place.index] = Some(token);
            if let Some(slot) = &mut self.slots[output.slot.index()] {
                slot.last_sampled = Some(token);
                slot.history.push(token);
            }
        }
    }

    /// Log-probs of the prompt tokens that follow each of the row's positions.
    fn prompt_log_probs(
        &mut self,
        row: &PlanRow,
        tokens: &[TokenId],
        (first, count): (usize, u32),
        output: &mut RowOutput,
    ) {
        let num_valid = self.limits.num_valid;
        let targets: Vec<TokenId> =
            tokens[1..].iter().copied().chain(row.wants.next_prompt_token).collect();
        let places: Vec<usize> = (first..first + targets.len()).collect();
        for (targets, places) in targets.chunks(LOGIT_ROWS).zip(places.chunks(LOGIT_ROWS)) {
            self.model.compute_logits(places);
            let results: Vec<OnceLock<TokenLogProbs>> =
                targets.iter().map(|_| OnceLock::new()).collect();
            let ((logits, vocab), pool, path) = self.model.logits_and_pool();
            pool.run(targets.len(), &|task, _| {
                let logits = logits.row(task, vocab);
                if all_finite(path, logits) {
                    let target = targets[task];
                    // A task has its own cell, so this is the first write.
                    let _ = results[task].set(log_probs(path, logits, num_valid, target, count));
                }
            });
            for result in results {
                match result.into_inner() {
                    Some(result) => output.prompt_log_probs.push(result),
                    None => output.status = RowStatus::NotFinite,
                }
            }
        }
    }

    fn pool_rows(&mut self, row: &PlanRow, first: usize, output: &mut RowOutput) {
        let Some(pooled) = row.wants.pooled else { return };
        let Some(slot) = &mut self.slots[row.slot.index()] else { return };
        let mut hidden = vec![0.0; self.model.spec().hidden_size as usize];
        let last = first + row.num_tokens as usize - 1;
        match pooled.pooling {
            Pooling::Mean => {
                for row in first..=last {
                    self.model.final_hidden(row, &mut hidden);
                    slot.pooled.add(&hidden);
                }
                if pooled.is_last {
                    output.pooled = slot.pooled.mean();
                }
            }
            Pooling::Last if pooled.is_last => {
                self.model.final_hidden(last, &mut hidden);
                output.pooled = hidden;
            }
            Pooling::Last => {}
        }
        if output.pooled.iter().any(|x| !x.is_finite()) {
            output.status = RowStatus::NotFinite;
            output.pooled = Vec::new();
        }
    }
}

fn empty_output(slot: SlotId) -> RowOutput {
    RowOutput {
        slot,
        status: RowStatus::Ok,
        num_tokens: 0,
        log_probs: Vec::new(),
        prompt_log_probs: Vec::new(),
        pooled: Vec::new(),
    }
}

fn failed(reason: String) -> ExecutorError {
    ExecutorError::StepFailed(format!("plan does not fit the executor: {reason}"))
}
