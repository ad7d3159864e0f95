//! [4] The engine's state machine: what it owns, and the plan of a step. Engine thread only.
//!
//! Decoding rows come first, one token each. Prefill chunks fill the rest of the token budget
//! (prefill.rs): first those of running requests by rank, then those of starting requests (starts.rs).
//! A request that starts gets the blocks of all its known tokens at once, so only decoding can run out
//! of blocks; then the running request with the worst rank is preempted (preemption.rs). fair_share.rs
//! decides how several tenants share a step. admission.rs takes requests in, step_commit.rs results.

use crate::fair_share::FairShare;
use crate::flight::{Draft, InFlight};
use crate::kv::{KvCache, Snapshots};
use crate::request_table::RequestTable;
use crate::running::RunningSet;
use crate::slots::Slots;
use crate::waiting_queue::WaitingQueue;
use crate::{
    Counters, ExecutorShape, Limits, Micros, PlanRow, SampleMode, SchedulerConfig, StepPlan,
    TokenSource, Wants,
};

/// Owns requests, queue, slots and KV blocks. `plan` and `commit` alternate freely as long as commits
/// come in the order of plans.
///
/// With `max_steps_in_flight` 2 a step is planned before the tokens of the one before it are known:
/// rows that decode name the slot's last sampled token instead of an id.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) shape: ExecutorShape,
    pub(crate) limits: Limits,
    pub(crate) enable_prefix_caching: bool,
    /// Whether a request can begin with blocks of another one at all.
    pub(crate) shares: bool,
    pub(crate) whole_prompts: bool,
    pub(crate) requests: RequestTable,
    pub(crate) queue: WaitingQueue,
    pub(crate) running: RunningSet,
    pub(crate) fairness: FairShare,
    pub(crate) kv: KvCache,
    pub(crate) snapshots: Snapshots,
    pub(crate) slots: Slots,
    pub(crate) in_flight: InFlight,
    pub(crate) now: Micros,
    /// Most token rows of a step that has parts of prompts.
    pub(crate) most_rows: u32,
    /// Whether waiting requests may start.
    pub(crate) starts: bool,
    pub(crate) counters: Counters,
}

impl Scheduler {
    /// An empty scheduler.
    ///
    /// # Panics
    /// If a size is zero or there are fewer slots than `max_num_seqs`.
    #[must_use]
    pub fn new(config: SchedulerConfig) -> Self {
        config.check();
        let shape = config.shape;
        let shares = !config.whole_prompts && (!shape.keeps_state || shape.num_snapshots > 0);
        Self {
            shape,
            limits: Limits::new(&config),
            enable_prefix_caching: config.enable_prefix_caching && shares,
            shares,
            whole_prompts: config.whole_prompts,
            requests: RequestTable::default(),
            queue: WaitingQueue::default(),
            running: RunningSet::default(),
            fairness: FairShare::new(&shape, config.weight_tokens),
            kv: KvCache::new(shape.num_blocks, shape.block_size, config.cache_secret),
            snapshots: Snapshots::new(&shape, config.cache_secret),
            slots: Slots::new(shape.num_slots),
            in_flight: InFlight::new(),
            now: Micros(0),
            most_rows: u32::MAX,
            starts: true,
            counters: Counters::default(),
        }
    }

    /// Whether as many steps are in flight as may be: then none is planned before one ends.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.in_flight.len() >= self.shape.max_steps_in_flight
    }

    /// The next step, or nothing: no request can use one now, or enough steps are in flight. The
    /// caller must submit it, or call `fail_step` if that fails.
    ///
    /// # Panics
    /// If requests are alive, no step is in flight and still none can be planned.
    pub fn plan(&mut self, now: Micros) -> Option<StepPlan> {
        self.now = self.now.max(now);
        if self.is_full() {
            return None;
        }
        let flight = self.in_flight.draft();
        let max_tokens = self.shape.max_num_batched_tokens;
        let mut draft = Draft::new(flight, self.running.len(), max_tokens, !self.whole_prompts);
        self.fairness.begin_step(&self.shape, self.kv.pool.end(), self.now);
        if self.starts {
            self.make_room();
        }
        self.fairness.pause_decodes(&self.running, &mut self.requests);
        self.plan_decodes(&mut draft);
        if draft.rows.is_empty() && self.fairness.share().is_some() && self.in_flight.is_empty() {
            // The requests whose turn it was may have been preempted. Nothing is paused any more, so plan again.
            draft.prefills.clear();
            self.plan_decodes(&mut draft);
        }
        self.bound_rows(&mut draft);
        self.plan_prefills(&mut draft);
        if self.starts {
            self.start_waiting(&mut draft);
        }
        // Only the last chunk may be cut, so a tenant above its share comes last.
        draft.chunks.sort_by_key(|chunk| {
            self.fairness.is_above_share(self.requests[chunk.request].ticket.tenant)
        });
        draft.fit_to_tile(self.shape.row_tile);
        if draft.is_empty() {
            self.in_flight.recycle(draft.flight);
            if self.in_flight.is_empty() && draft.is_short && self.running.len() > 1 {
                // All of them lack blocks for a chunk. One alone always fits.
                self.preempt(self.running.at(self.running.len() - 1));
                return self.plan(now);
            }
            let has_work =
                if self.starts { self.requests.num_alive() > 0 } else { !self.is_quiet() };
            // With less memory than it is sure of, it waits for more.
            let is_stuck = self.in_flight.is_empty() && has_work && !self.lacks_memory();
            assert!(!is_stuck, "no step can be planned: {:?}", self.stats());
            return None;
        }
        Some(self.submit(draft))
    }

    /// One row for every request that has its prompt behind it; collects those that have not.
    fn plan_decodes(&mut self, draft: &mut Draft) {
        let mut place = 0;
        while place < self.running.len() {
            let index = self.running.at(place);
            place += 1;
            let request = &self.requests[index];
            if request.is_prefill() {
                draft.prefills.push(index);
                continue;
            }
            if std::mem::take(&mut self.requests[index].is_paused) {
                continue;
            }
            let request = &self.requests[index];
            if !request.can_decode() {
                continue;
            }
            let covered = request.table.covers(request.num_submitted, self.shape.block_size);
            if !covered {
                let has_grown = self.grow(index, draft);
                // `grow` may have preempted this request or some before it.
                place = self.running.place_after(self.requests[index].rank);
                if !has_grown {
                    continue;
                }
            }
            let request = &mut self.requests[index];
            let end = request.num_submitted + 1;
            let new_blocks = request.take_unsent(end, self.shape.block_size);
            let late = request.request.late_sampled;
            draft.rows.push(PlanRow {
                slot: request.slot,
                start: request.num_submitted,
                num_tokens: 1,
                source: TokenSource::LastSampled,
                new_blocks,
                wants: Wants { sample: sample_mode(late), ..Wants::default() },
            });
            draft.flight.push_row(index, request, 1, true);
            if self.shape.num_snapshots > 0 {
                self.save_decode(index, end, draft);
            }
            let request = &self.requests[index];
            let tenants = &mut self.fairness.tenants;
            tenants.charge(request.ticket.tenant, 1);
            tenants.in_step_mut(request.ticket.tenant).num_decodes += 1;
            draft.num_tokens += 1;
        }
    }

    /// Turns the draft into a plan and remembers it as submitted.
    fn submit(&mut self, mut draft: Draft) -> StepPlan {
        let id = draft.flight.id;
        for chunk in std::mem::take(&mut draft.chunks) {
            self.push_prefill_row(chunk, &mut draft);
        }
        // Only now, so that no row of this step could have found a block that this step fills.
        for place in 0..draft.flight.rows.len() {
            let row = draft.flight.rows[place];
            if row.start < self.requests[row.request].prefill_end {
                self.register_prefill(&row, id, &mut draft.states);
            }
        }
        self.snapshots.end_step();
        self.counters.steps += 1;
        self.counters.scheduled_tokens += u64::from(draft.num_tokens);
        self.in_flight.push(draft.flight);
        self.check_slots();
        let (opened, rows, states) = (draft.opened, draft.rows, draft.states);
        StepPlan { id, closed: self.slots.take_closed(), opened, rows, states }
    }

    /// Slots that are free and slots that requests hold are counted apart.
    pub(crate) fn check_slots(&self) {
        self.slots.check(self.running.num_holding());
    }
}

pub(crate) fn sample_mode(is_late: bool) -> SampleMode {
    if is_late { SampleMode::Late } else { SampleMode::Now }
}
