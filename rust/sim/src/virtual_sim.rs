//! [5] Completes steps when a test says so, under a clock that the test moves. Checks every plan
//! against the contract and panics on a violation: positions must be in sequence, KV blocks must
//! hold exactly the request's own prefix, and no slot or block may be reused while a submitted step
//! names it. Starts no thread.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ingle_core::{
    BlockId, CompletionSink, Executor, ExecutorError, ExecutorShape, Micros, PlanRow, RowMask,
    RowOutput, RowStatus, SampleMode, SlotId, StepCompletion, StepId, StepOutput, StepPlan,
    TokenId,
};

use crate::answer::{log_probs_of, masked, pooled_of, prompt_log_probs_of};
use crate::kv_model::{KvModel, by_group};
use crate::{Answers, Profile};

/// Executor whose steps complete through its `VirtualDriver`.
#[derive(Debug)]
pub struct VirtualSim {
    state: Arc<Mutex<VirtualState>>,
}

/// The test's side: moves the clock, completes steps, injects failures. Clones drive the same one.
#[derive(Clone)]
pub struct VirtualDriver {
    state: Arc<Mutex<VirtualState>>,
    sink: CompletionSink,
}

/// How the oldest step ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As planned.
    Ok,
    /// The row with this number (modulo the number of rows) is not finite.
    NotFinite(usize),
    /// The step fails; what it should have written is worthless.
    Fails(ExecutorError),
}

/// Stands for a token that was computed from a failed step's results: it must never reach a client.
pub const TAINTED_TOKEN: TokenId = TokenId(u32::MAX);

#[derive(Debug)]
struct VirtualState {
    shape: ExecutorShape,
    profile: Profile,
    answers: Answers,
    now: Micros,
    model: KvModel,
    steps: VecDeque<SubmittedStep>,
    last_id: StepId,
    /// Block table of each slot as of the last submitted step.
    tables: Vec<Vec<Vec<BlockId>>>,
    /// For each block, the number of submitted steps' rows that name it.
    block_uses: Vec<u32>,
    refusal: Option<ExecutorError>,
}

#[derive(Debug)]
struct SubmittedStep {
    plan: StepPlan,
    ends_at: Micros,
    /// Blocks that it names, with repetitions.
    blocks: Vec<BlockId>,
    /// Absent until they come.
    masks: Option<Vec<RowMask>>,
    needs_masks: bool,
}

impl VirtualSim {
    /// An executor and the handle that drives it.
    #[must_use]
    pub fn new(
        shape: ExecutorShape,
        profile: Profile,
        answers: Answers,
        sink: CompletionSink,
    ) -> (Self, VirtualDriver) {
        let state = VirtualState {
            shape,
            profile,
            answers,
            now: Micros(0),
            model: KvModel::new(&shape),
            steps: VecDeque::new(),
            last_id: StepId(0),
            tables: vec![vec![Vec::new(); shape.kv_groups.len()]; shape.num_slots as usize],
            block_uses: vec![0; shape.num_blocks as usize],
            refusal: None,
        };
        let state = Arc::new(Mutex::new(state));
        (Self { state: Arc::clone(&state) }, VirtualDriver { state, sink })
    }
}

impl Executor for VirtualSim {
    fn shape(&self) -> ExecutorShape {
        lock(&self.state).shape
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), ExecutorError> {
        lock(&self.state).submit(plan)
    }

    fn sample(&mut self, step: StepId, masks: Vec<RowMask>) -> Result<(), ExecutorError> {
        lock(&self.state).sample(step, masks);
        Ok(())
    }
}

impl std::fmt::Debug for VirtualDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualDriver").field("state", &self.state).finish_non_exhaustive()
    }
}

impl VirtualDriver {
    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Micros {
        lock(&self.state).now
    }

    /// Moves the clock, never back.
    pub fn advance_to(&self, now: Micros) {
        let mut state = lock(&self.state);
        state.now = state.now.max(now);
    }

    /// When the oldest step ends; nothing if there is none or it waits for masks.
    #[must_use]
    pub fn next_completion(&self) -> Option<Micros> {
        lock(&self.state).steps.front().filter(|step| step.is_ready()).map(|step| step.ends_at)
    }

    /// Steps submitted and not completed.
    #[must_use]
    pub fn num_in_flight(&self) -> usize {
        lock(&self.state).steps.len()
    }

    /// The next `submit` is refused with this error.
    pub fn refuse_next_submit(&self, error: ExecutorError) {
        lock(&self.state).refusal = Some(error);
    }

    /// Ends the oldest step, moving the clock to its end, and hands it to the sink. False if there is
    /// none or it waits for masks.
    pub fn complete_next(&self, outcome: &Outcome) -> bool {
        let completion = lock(&self.state).complete_next(outcome);
        let is_some = completion.is_some();
        if let Some(completion) = completion {
            (self.sink)(completion);
        }
        is_some
    }
}

impl SubmittedStep {
    fn is_ready(&self) -> bool {
        self.masks.is_some() || !self.needs_masks
    }
}

impl VirtualState {
    fn submit(&mut self, plan: StepPlan) -> Result<(), ExecutorError> {
        assert!(plan.id > self.last_id, "step {} after step {}", plan.id, self.last_id);
        self.last_id = plan.id;
        if let Some(error) = self.refusal.take() {
            return Err(error);
        }
        self.check_sizes(&plan);
        for slot in plan.closed.iter().chain(plan.opened.iter().map(|opened| &opened.slot)) {
            let is_named = self.steps.iter().any(|step| step.names(*slot));
            assert!(!is_named, "slot {slot} changes hands while a submitted step names it");
            self.tables[slot.index()].iter_mut().for_each(Vec::clear);
        }
        let groups = self.shape.kv_groups;
        for opened in &plan.opened {
            let tables = self.tables[opened.slot.index()].iter_mut();
            for (table, cached) in tables.zip(by_group(&opened.cached_blocks, groups)) {
                table.extend_from_slice(cached);
            }
        }
        for block in plan.rows.iter().flat_map(|row| &row.new_blocks) {
            assert_eq!(self.block_uses[block.index()], 0, "block {block} is still in use");
        }
        let mut blocks = Vec::new();
        for row in &plan.rows {
            self.check_row(row);
            let tables = self.tables[row.slot.index()].iter_mut();
            for (group, (table, new)) in tables.zip(by_group(&row.new_blocks, groups)).enumerate() {
                table.extend_from_slice(new);
                // No fewer than it reads and writes, and no more: an executor has room for these alone.
                let (end, block_size) = (row.start + row.num_tokens, self.shape.block_size);
                assert_eq!(table.len(), end.div_ceil(block_size) as usize, "{row:?}");
                let first = groups.first_read(group, row.start, block_size);
                blocks.extend_from_slice(&table[first as usize..]);
            }
        }
        for block in &blocks {
            self.block_uses[block.index()] += 1;
        }
        let starts_at = self.steps.back().map_or(self.now, |step| step.ends_at.max(self.now));
        let micros = (self.profile.step_seconds(&plan) * 1e6).ceil() as u64;
        let needs_masks = plan.rows.iter().any(|row| row.wants.sample == SampleMode::Late);
        let ends_at = Micros(starts_at.0 + micros);
        self.steps.push_back(SubmittedStep { plan, ends_at, blocks, masks: None, needs_masks });
        Ok(())
    }

    fn check_sizes(&self, plan: &StepPlan) {
        let shape = &self.shape;
        assert!(!plan.rows.is_empty(), "step {} has no rows", plan.id);
        assert!(plan.rows.len() <= shape.max_num_seqs as usize, "step {}: rows", plan.id);
        let num_tokens = plan.num_scheduled_tokens();
        assert!(num_tokens <= shape.max_num_batched_tokens as usize, "step {}: tokens", plan.id);
        let max_steps = shape.max_steps_in_flight as usize;
        assert!(self.steps.len() < max_steps, "step {}: too many in flight", plan.id);
        let saved = &plan.states.saved;
        for (place, copy) in saved.iter().enumerate() {
            let is_double = saved[..place].iter().any(|other| other.snapshot == copy.snapshot);
            assert!(!is_double, "step {} saves to {} twice", plan.id, copy.snapshot);
            let has_row = plan.rows.iter().any(|row| row.slot == copy.slot);
            assert!(has_row, "step {} saves a state without a row", plan.id);
        }
        let is_prefill = |row: &PlanRow| row.source != ingle_core::TokenSource::LastSampled;
        assert!(plan.rows.is_sorted_by_key(is_prefill), "step {}: decode rows first", plan.id);
        for (place, row) in plan.rows.iter().enumerate() {
            let is_double = plan.rows[..place].iter().any(|other| other.slot == row.slot);
            assert!(!is_double, "step {} has two rows of slot {}", plan.id, row.slot);
        }
    }

    fn check_row(&self, row: &PlanRow) {
        let waits = self.steps.iter().filter(|step| !step.is_ready()).any(|step| {
            let mut rows = step.plan.rows.iter();
            rows.any(|other| other.slot == row.slot && other.wants.sample == SampleMode::Late)
        });
        assert!(!waits, "slot {} runs before its mask was issued", row.slot);
    }

    fn sample(&mut self, id: StepId, masks: Vec<RowMask>) {
        let Some(place) = self.steps.iter().position(|step| step.plan.id == id) else {
            panic!("masks for step {id}, which is not in flight")
        };
        assert_eq!(place, 0, "masks for step {id} before the step before it completed");
        let step = &mut self.steps[place];
        assert!(step.needs_masks && step.masks.is_none(), "step {id} needs no masks");
        for row in step.plan.rows.iter().filter(|row| row.wants.sample == SampleMode::Late) {
            let has_mask = masks.iter().any(|mask| mask.slot == row.slot);
            assert!(has_mask, "step {id}: no mask for slot {}", row.slot);
        }
        step.masks = Some(masks);
    }

    fn complete_next(&mut self, outcome: &Outcome) -> Option<StepCompletion> {
        let step = self.steps.pop_front_if(|step| step.is_ready())?;
        self.now = self.now.max(step.ends_at);
        for block in &step.blocks {
            self.block_uses[block.index()] -= 1;
        }
        let output = self.run(&step, outcome);
        let result = match outcome {
            Outcome::Fails(error) => Err(error.clone()),
            _ => Ok(output),
        };
        Some(StepCompletion { id: step.plan.id, result })
    }

    fn run(&mut self, step: &SubmittedStep, outcome: &Outcome) -> StepOutput {
        let plan = &step.plan;
        let answers = &self.answers;
        self.model.begin(plan, |opened| answers.offset(&opened.prompt));
        let mut output = StepOutput { id: plan.id, ..StepOutput::default() };
        for (place, row) in plan.rows.iter().enumerate() {
            self.model.run_row(row, matches!(outcome, Outcome::Fails(_)));
            let saved = plan.states.saved.iter().filter(|copy| copy.slot == row.slot);
            for copy in saved {
                let range = row.start + 1..=row.start + row.num_tokens;
                assert!(range.contains(&copy.end), "{copy:?} of {row:?}");
                self.model.save(copy);
            }
            let is_finite = *outcome != Outcome::NotFinite(place)
                && !matches!(outcome, Outcome::NotFinite(n) if n % plan.rows.len() == place);
            let masks = step.masks.as_deref().unwrap_or(&[]);
            let row_output = self.row_output(row, is_finite, masks, &mut output.tokens);
            output.rows.push(row_output);
        }
        output
    }

    fn row_output(
        &mut self,
        row: &PlanRow,
        is_finite: bool,
        masks: &[RowMask],
        tokens: &mut Vec<TokenId>,
    ) -> RowOutput {
        let vocab_size = self.shape.vocab_size;
        let slot = self.model.slot(row.slot);
        let mut output = RowOutput {
            slot: row.slot,
            status: if is_finite { RowStatus::Ok } else { RowStatus::NotFinite },
            num_tokens: 0,
            log_probs: Vec::new(),
            prompt_log_probs: prompt_log_probs_of(row, vocab_size),
            pooled: Vec::new(),
        };
        slot.is_tainted |= !is_finite;
        if row.wants.pooled.is_some_and(|pooled| pooled.is_last) {
            output.pooled = pooled_of(slot.offset, self.profile.hidden_size);
        }
        if row.wants.sample == SampleMode::None {
            return output;
        }
        let token = self.answers.token(slot.offset, slot.num_generated());
        let mask = masks.iter().find(|mask| mask.slot == row.slot);
        let token = mask.map_or(Some(token), |mask| masked(token, &mask.allowed));
        slot.push(token.unwrap_or(TAINTED_TOKEN));
        match token {
            Some(token) if is_finite => {
                let token = if slot.is_tainted { TAINTED_TOKEN } else { token };
                tokens.push(token);
                output.num_tokens = 1;
                let top = slot.log_probs;
                output.log_probs.extend(top.map(|top| log_probs_of(token, top, vocab_size)));
            }
            _ => output.status = RowStatus::NotFinite,
        }
        output
    }
}

impl SubmittedStep {
    fn names(&self, slot: SlotId) -> bool {
        self.plan.rows.iter().any(|row| row.slot.index() == slot.index())
    }
}

fn lock(state: &Mutex<VirtualState>) -> MutexGuard<'_, VirtualState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
