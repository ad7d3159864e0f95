//! [4] [7] Block tables of requests over all groups of layers: blocks are allocated as rows need them, and
//! released when a group's window has passed them. Engine thread only.
//!
//! A group that keeps everything has the blocks of all known tokens from a request's start, as only
//! decoding may run out of blocks. A group with a window starts with one window's worth. Its further
//! blocks come with each chunk of a prompt, so that a long prompt does not hold all of them at once.

use crate::counts::count;
use crate::flight::Draft;
use crate::ids::RequestIndex;
use crate::live_request::Phase;
use crate::scheduler::Scheduler;

impl Scheduler {
    /// How many places of the group's block table have a block when a request starts, of `num_places` in all
    /// and `num_cached` found in the prefix cache.
    pub(crate) fn places_at_start(&self, group: usize, num_places: u32, num_cached: u32) -> u32 {
        let (groups, block_size) = (&self.shape.kv_groups, self.shape.block_size);
        let first = groups.first_read(group, num_cached * block_size, block_size);
        let most = groups.most_places(group, block_size, self.shape.max_steps_in_flight);
        first.saturating_add(most).max(num_cached + 1).min(num_places)
    }

    /// Gives the request blocks for the first `num_places` places in every group. The caller has checked that
    /// they are available.
    pub(crate) fn extend_tables(&mut self, index: RequestIndex, num_places: u32) {
        for group in 0..self.shape.kv_groups.len() {
            self.extend_table(index, group, num_places);
        }
    }

    /// As `extend_tables`, for one group.
    pub(crate) fn extend_table(&mut self, index: RequestIndex, group: usize, num_places: u32) {
        let request = &mut self.requests[index];
        let tenant = request.ticket.tenant;
        let (blocks, _) = request.blocks_of_mut(group);
        let num_new = num_places.saturating_sub(count(blocks.len()));
        for _ in 0..num_new {
            match self.kv.allocate() {
                Some(block) => blocks.push(block),
                None => unreachable!("available blocks were counted wrongly"),
            }
        }
        self.fairness.tenants.holding_mut(tenant).num_blocks += num_new;
    }

    /// Adds to the step as much of the request's prefill as the step has rows and the pool has blocks for.
    pub(crate) fn push_chunk(&mut self, index: RequestIndex, draft: &mut Draft) {
        let num_covered =
            if self.shape.kv_groups.is_plain() { u32::MAX } else { self.num_covered(index, draft) };
        let request = &self.requests[index];
        let num_tokens = draft.push_chunk(index, request, num_covered, &mut self.fairness);
        if !self.shape.kv_groups.is_plain() {
            let end = self.requests[index].num_submitted + num_tokens;
            draft.num_promised += self.num_missing(index, end.div_ceil(self.shape.block_size));
        }
    }

    /// How many tokens after those submitted have blocks available in every group.
    fn num_covered(&self, index: RequestIndex, draft: &mut Draft) -> u32 {
        let (request, block_size) = (&self.requests[index], self.shape.block_size);
        let start = request.num_submitted;
        let end = request.prefill_end.min(start.saturating_add(draft.room()));
        let num_available = self.kv.num_available().saturating_sub(draft.num_promised);
        let mut num_places = end.div_ceil(block_size);
        while self.num_missing(index, num_places) > num_available {
            draft.is_short = true;
            num_places -= 1;
            if num_places * block_size <= start {
                return 0;
            }
        }
        num_places * block_size - start
    }

    /// Blocks that the request lacks for the first `num_places` places in every group.
    fn num_missing(&self, index: RequestIndex, num_places: u32) -> u32 {
        let missing = |group| {
            let (blocks, _) = self.requests[index].blocks_of(group);
            num_places.saturating_sub(count(blocks.len()))
        };
        (0..self.shape.kv_groups.len()).map(missing).sum()
    }

    /// Releases the blocks of a running request that rows from position `end` on do not read. The row up to
    /// `end` has been committed, so no earlier row is in flight.
    pub(crate) fn release_passed(&mut self, index: RequestIndex, end: u32) {
        if self.requests[index].phase != Phase::Running {
            return;
        }
        for group in 0..self.shape.kv_groups.len() {
            let first = self.shape.kv_groups.first_read(group, end, self.shape.block_size);
            let request = &mut self.requests[index];
            let (tenant, num_shared) = (request.ticket.tenant, request.num_shared_places);
            let (blocks, num_passed) = request.blocks_of_mut(group);
            let from = std::mem::replace(num_passed, first.max(*num_passed));
            let passed = blocks[from as usize..first.max(from) as usize].iter();
            passed.for_each(|&block| self.kv.pool.release(block));
            let num_shared = num_shared.clamp(from, first.max(from)) - from;
            request.num_shared_blocks -= num_shared;
            let holding = self.fairness.tenants.holding_mut(tenant);
            holding.num_blocks -= first.max(from) - from - num_shared;
        }
    }

    /// Recounts how far windows have passed a request's tables. Panics if a block is held too long or not
    /// long enough.
    pub(crate) fn verify_windows(&self, index: RequestIndex) {
        let request = &self.requests[index];
        if request.phase != Phase::Running {
            return;
        }
        let rows = self.in_flight.iter().flat_map(|step| &step.rows);
        let starts = rows.filter(|row| row.request == index).map(|row| row.start);
        let next = starts.min().unwrap_or(request.num_submitted);
        for group in 0..self.shape.kv_groups.len() {
            let (blocks, num_passed) = request.blocks_of(group);
            let first = self.shape.kv_groups.first_read(group, next, self.shape.block_size);
            assert_eq!(num_passed, first, "{}: passed places of group {group}", request.id());
            let num_needed = request.num_submitted.div_ceil(self.shape.block_size);
            assert!(count(blocks.len()) >= num_needed, "{}: group {group}", request.id());
        }
    }
}
