//! [4] Keeps tenants out of each other's way while several are active. Engine thread only. With one
//! active tenant nothing here has an effect.
//!
//! The rule: of n active tenants each may count on 1/n of the slots and of the KV blocks, and on steps
//! that those who hold more do not make much longer. So
//! - a request with which its tenant stays within its share starts before all others, and if there is
//!   no room, whoever holds most gives up its newest requests, but none that it holds by right;
//! - the rows of one tenant above its share take turns where they are more than one step should have
//!   or read more KV, and no tenant has more prompt tokens in a step than that.
//!
//! Why nobody thrashes: who is preempted for another tenant's start keeps at least its share, so while
//! it waits it is not within it and cannot preempt in turn; and a step preempts for at most one
//! request of each tenant. What it had computed stays in the prefix cache as long as there is room.

use crate::ExecutorShape;
use crate::request_table::RequestIndex;
use crate::scheduler::{Scheduler, count};
use crate::tenants::{Holding, TenantIndex};
use crate::waiting_queue::{Standing, Ticket};

/// What each of several active tenants may count on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    num_slots: u32,
    num_blocks: u32,
    /// Token rows of one tenant in a step: about as many as are computed while the weights are read.
    /// A quarter of them is kept for prompts.
    num_rows: u32,
    /// Blocks that its decoding rows read in a step, so that they take less time than the weights.
    num_read_blocks: u32,
}

impl Share {
    /// Nothing if there is nobody to share with.
    pub(crate) fn new(shape: &ExecutorShape, weight_tokens: u32, num_active: u32) -> Option<Self> {
        if num_active < 2 {
            return None;
        }
        Some(Self {
            num_slots: (shape.max_running() / num_active).max(1),
            num_blocks: shape.num_blocks / num_active,
            // An H200 computes 197 rows of an 8B model in the time in which it reads the weights.
            num_rows: (shape.row_tile + shape.row_tile / 2).max(STEP_ROWS_MIN),
            num_read_blocks: weight_tokens / 4 * 3 / shape.block_size,
        })
    }

    /// Whether a tenant that holds this may start a request of so many blocks at others' expense.
    fn admits(&self, holding: Holding, num_blocks: u32) -> bool {
        holding.num_slots < self.num_slots && holding.num_blocks + num_blocks <= self.num_blocks
    }
}

impl Scheduler {
    /// Where the tenant stands that this request belongs to.
    pub(crate) fn standing(&self, ticket: &Ticket) -> Standing {
        let Some(share) = &self.share else { return Standing::Alone };
        if self.num_chunk_tokens_left(ticket.tenant) == 0 {
            return Standing::Served;
        }
        let holding = self.tenants.holding(ticket.tenant);
        let is_within = share.admits(holding, ticket.num_blocks);
        if is_within { Standing::Within } else { Standing::Above }
    }

    /// Prompt tokens that the tenant may still have in the step that is being planned.
    pub(crate) fn num_chunk_tokens_left(&self, tenant: TenantIndex) -> u32 {
        self.share.map_or(u32::MAX, |share| {
            let step = self.tenants.in_step(tenant);
            let num_left = share.num_rows.saturating_sub(step.num_decodes);
            num_left.max(share.num_rows / 4).saturating_sub(step.num_chunk_tokens)
        })
    }

    /// Keeps the step short for those within their share: leaves out requests of tenants above it that
    /// together have more rows, or read more blocks, than theirs. They take turns.
    pub(crate) fn pause_decodes(&mut self) {
        let Some(share) = self.share else { return };
        for place in 0..self.tenants.num_active() {
            let tenant = self.tenants.nth_active(place);
            if self.is_above_share(tenant) {
                self.pause_decodes_of(tenant, &share);
            }
        }
    }

    fn pause_decodes_of(&mut self, tenant: TenantIndex, share: &Share) {
        let last = self.tenants.last_decoded(tenant);
        let start = self.running.partition_point(|&index| self.requests[index].rank <= last);
        let (mut num_rows, mut num_blocks, mut is_full) = (0, 0, false);
        for place in (start..self.running.len()).chain(0..start) {
            let index = self.running[place];
            let request = &mut self.requests[index];
            if request.ticket.tenant != tenant || request.is_prefill() || !request.can_decode() {
                continue;
            }
            num_blocks += count(request.table.blocks.len());
            is_full |= num_rows == share.num_rows - share.num_rows / 4
                || (num_rows > 0 && num_blocks > share.num_read_blocks);
            request.is_paused = is_full;
            if !is_full {
                num_rows += 1;
                self.tenants.set_last_decoded(tenant, request.rank);
            }
        }
    }

    /// Whether the tenant holds more slots or more blocks than its share.
    pub(crate) fn is_above_share(&self, tenant: TenantIndex) -> bool {
        self.share.is_some_and(|share| {
            let holding = self.tenants.holding(tenant);
            holding.num_blocks > share.num_blocks || holding.num_slots > share.num_slots
        })
    }

    /// Preempts for requests that wait within their tenant's share and do not fit, one of each tenant.
    /// Before rows are chosen, so that what it frees comes back a step earlier.
    pub(crate) fn make_room(&mut self) {
        self.num_claimed = 0;
        let Some(share) = self.share else { return };
        let mut wanting = std::mem::take(&mut self.scratch_requests);
        let firsts = self.queue.first_of_tenants();
        wanting.extend(firsts.filter(|(_, ticket)| self.standing(ticket) == Standing::Within));
        let num_slots = count(wanting.len());
        while count(self.running.len()) + num_slots > self.shape.max_running() {
            let Some(victim) = self.victim_for_slot(&share) else { break };
            self.preempt(victim);
        }
        let mut num_claimed = 0;
        for (index, _) in wanting.drain(..) {
            num_claimed += self.num_missing_blocks(index);
        }
        self.scratch_requests = wanting;
        let mut num_returning = self.num_returning_blocks();
        while num_claimed > self.kv.num_available() + num_returning {
            let Some(victim) = self.victim_for_blocks(&share) else { break };
            num_returning += self.preempt(victim);
        }
        self.num_claimed = num_claimed;
    }

    /// Who gives way to a request that runs and needs a block: the worst-ranked of whoever holds most.
    pub(crate) fn victim_for_growth(&self) -> RequestIndex {
        let most = self.share.and_then(|_| self.most_blocks());
        let victim = most.and_then(|tenant| self.newest_of(tenant));
        victim.unwrap_or(self.running[self.running.len() - 1])
    }

    /// Whether somebody holds so many blocks that it would give some to a request within its share.
    pub(crate) fn has_victim_for_blocks(&self) -> bool {
        self.share.is_some_and(|share| self.victim_for_blocks(&share).is_some())
    }

    fn victim_for_slot(&self, share: &Share) -> Option<RequestIndex> {
        let holding = |&tenant: &TenantIndex| self.tenants.holding(tenant).num_slots;
        let tenant = self.tenants.active().max_by_key(holding)?;
        if holding(&tenant) <= share.num_slots {
            return None;
        }
        self.newest_of(tenant)
    }

    fn victim_for_blocks(&self, share: &Share) -> Option<RequestIndex> {
        let tenant = self.most_blocks()?;
        let victim = self.newest_of(tenant)?;
        let num_left =
            self.tenants.holding(tenant).num_blocks - self.requests[victim].num_new_blocks();
        (num_left >= share.num_blocks).then_some(victim)
    }

    fn most_blocks(&self) -> Option<TenantIndex> {
        self.tenants.active().max_by_key(|&tenant| self.tenants.holding(tenant).num_blocks)
    }

    /// The worst-ranked running request of the tenant.
    fn newest_of(&self, tenant: TenantIndex) -> Option<RequestIndex> {
        let mut running = self.running.iter().rev().copied();
        running.find(|&index| self.requests[index].ticket.tenant == tenant)
    }
}

impl ExecutorShape {
    /// Most requests that run: a step must hold a row for each one that decodes.
    pub(crate) fn max_running(&self) -> u32 {
        self.max_num_seqs.min(self.max_num_batched_tokens)
    }
}

/// The least of `Share::num_rows`: a CPU has no tile, and no row of it is free.
const STEP_ROWS_MIN: u32 = 32;
