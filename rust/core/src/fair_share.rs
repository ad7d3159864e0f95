//! [4] Isolates tenants from each other while several are active. Engine thread only. With one active
//! tenant it has no effect.
//!
//! The rule: of n active tenants, each can count on 1/n of the slots and KV blocks, and on steps that
//! tenants with more do not make much longer. Therefore:
//! - A request that keeps its tenant within its share starts before all others. If there is no room,
//!   the tenant that holds most gives up its newest requests, but none within its own share
//!   (`preemption.rs`).
//! - If the rows of one tenant above its share are more than one step should have, or read more KV,
//!   they take turns. No tenant has more prompt tokens in a step than that.
//!
//! Why it does not thrash: a tenant whose request is preempted for another tenant keeps at least its
//! share. While that request waits, the tenant is not within its share, so it cannot preempt in turn. A
//! step preempts for at most one request of each tenant. What the request had computed stays in the
//! prefix cache as long as there is room.

use crate::counts::count;
use crate::ids::TenantIndex;
use crate::request_table::RequestTable;
use crate::running::RunningSet;
use crate::tenants::{Holding, Tenants};
use crate::ticket::{Standing, Ticket};
use crate::{ExecutorShape, KvGroups, Micros};

/// What tenants have received and hold, and what each may count on in this step.
#[derive(Debug)]
pub(crate) struct FairShare {
    pub(crate) tenants: Tenants,
    /// Of each tenant in the step that was planned last; absent if there is only one.
    share: Option<Share>,
    /// Blocks that requests within their tenant's share wait for.
    pub(crate) num_claimed_blocks: u32,
    weight_tokens: u32,
    kv_groups: KvGroups,
    block_size: u32,
    num_ahead: u32,
}

/// What each of several active tenants may count on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) num_slots: u32,
    pub(crate) num_blocks: u32,
    /// Token rows of one tenant in a step: about as many as are computed while the weights are read.
    /// A quarter of them is kept for prompts.
    num_rows: u32,
    /// Blocks that its decoding rows read in a step, so that they take less time than the weights.
    num_read_blocks: u32,
}

impl Share {
    /// Absent with only one active tenant.
    fn new(
        shape: &ExecutorShape,
        num_blocks: u32,
        weight_tokens: u32,
        num_active: u32,
    ) -> Option<Self> {
        if num_active < 2 {
            return None;
        }
        Some(Self {
            num_slots: (shape.max_running() / num_active).max(1),
            num_blocks: num_blocks / num_active,
            num_rows: shape.tenant_rows,
            num_read_blocks: weight_tokens / 4 * 3 / shape.block_size,
        })
    }

    /// Whether a tenant that holds this may start a request of so many blocks at others' expense.
    fn admits(&self, holding: Holding, num_blocks: u32) -> bool {
        holding.num_slots < self.num_slots && holding.num_blocks + num_blocks <= self.num_blocks
    }
}

impl FairShare {
    pub(crate) fn new(shape: &ExecutorShape, weight_tokens: u32) -> Self {
        Self {
            tenants: Tenants::default(),
            share: None,
            num_claimed_blocks: 0,
            weight_tokens,
            kv_groups: shape.kv_groups,
            block_size: shape.block_size,
            num_ahead: shape.max_steps_in_flight,
        }
    }

    /// Begins a step: counts the active tenants and divides what there is among them, blocks as many as the pool has
    /// now.
    pub(crate) fn begin_step(&mut self, shape: &ExecutorShape, num_blocks: u32, now: Micros) {
        let num_active = self.tenants.begin_step(now);
        self.share = Share::new(shape, num_blocks, self.weight_tokens, num_active);
        self.num_claimed_blocks = 0;
    }

    pub(crate) fn share(&self) -> Option<Share> {
        self.share
    }

    /// Where the tenant stands that this request belongs to.
    pub(crate) fn standing(&self, ticket: &Ticket) -> Standing {
        let Some(share) = &self.share else { return Standing::Alone };
        if self.num_chunk_tokens_left(ticket.tenant) == 0 {
            return Standing::Served;
        }
        let holding = self.tenants.holding(ticket.tenant);
        let num_blocks =
            self.kv_groups.num_blocks(ticket.num_blocks, self.block_size, self.num_ahead);
        let is_within = share.admits(holding, num_blocks);
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

    /// Whether the tenant holds more slots or more blocks than its share.
    pub(crate) fn is_above_share(&self, tenant: TenantIndex) -> bool {
        self.share.is_some_and(|share| {
            let holding = self.tenants.holding(tenant);
            holding.num_blocks > share.num_blocks || holding.num_slots > share.num_slots
        })
    }

    /// Keeps the step short for tenants within their share: leaves out requests of tenants above it
    /// that together have more rows, or read more blocks, than theirs. They take turns.
    pub(crate) fn pause_decodes(&mut self, running: &RunningSet, requests: &mut RequestTable) {
        let Some(share) = self.share else { return };
        for place in 0..self.tenants.num_active() {
            let tenant = self.tenants.nth_active(place);
            if self.is_above_share(tenant) {
                self.pause_decodes_of(tenant, &share, running, requests);
            }
        }
    }

    fn pause_decodes_of(
        &mut self,
        tenant: TenantIndex,
        share: &Share,
        running: &RunningSet,
        requests: &mut RequestTable,
    ) {
        let start = running.place_after(self.tenants.last_decoded(tenant));
        let (mut num_rows, mut num_blocks, mut is_full) = (0, 0, false);
        for place in (start..running.len()).chain(0..start) {
            let request = &mut requests[running.at(place)];
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
}
