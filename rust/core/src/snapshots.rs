//! [4] [7] Copies of what layers keep of a sequence, so that a prefix can be found where blocks alone do not
//! hold it. Engine thread only.
//!
//! A copy is known by the tokens before it, as a block is: it stands beside the KV block that ends with the
//! same token, and what hides that block hides it. Copies are taken at the end of each prompt, every
//! `INTERVAL` tokens of it, and while a request decodes, where each new one replaces the one before.
//! The executor makes all copies in the order of steps, so a place may be used again at once; only within a
//! step no two copies go to one place.

use crate::flight::Draft;
use crate::flight::FlightRow;
use crate::ids::RequestIndex;
use crate::kv::{Link, Parent};
use crate::scheduler::Scheduler;
use crate::shared_prefix::Cached;
use crate::{SnapshotId, StateCopies, StateCopy, StepId};

impl Scheduler {
    /// Shortens a hit to where there is a copy of the state.
    pub(crate) fn find_snapshot(&self, index: RequestIndex, root: Parent, cached: &mut Cached) {
        let found = (1..=cached.num_places).rev().find_map(|end| {
            let block = cached.blocks[end as usize - 1];
            let parent = self.kv.prefix.as_parent(block);
            self.with_link(index, end - 1, parent, |link| self.snapshots.find(link))
                .map(|snapshot| (end, parent, snapshot))
        });
        let (num_places, parent, snapshot) = match found {
            Some((end, parent, snapshot)) => (end, parent, Some(snapshot)),
            None => (0, root, None),
        };
        cached.num_places = num_places;
        cached.blocks.truncate(num_places as usize);
        cached.parent = Some(parent);
        cached.snapshot = snapshot;
    }

    /// Saves the states of a prompt that a later one may go on from.
    pub(crate) fn save_prefill(&mut self, row: &FlightRow, step: StepId, states: &mut StateCopies) {
        let block_size = self.shape.block_size;
        let end = row.start + row.num_tokens;
        let prefill_end = self.requests[row.request].prefill_end;
        // A hit is always short of the last token.
        let last = (prefill_end - 1) / block_size * block_size;
        let interval = (INTERVAL / block_size).max(1) * block_size;
        let first = row.start / interval + 1;
        let between = (first..=end / interval).map(|number| number * interval);
        let points = between.filter(|&at| at < last).chain((last > row.start).then_some(last));
        for at in points.filter(|&at| at <= end).collect::<Vec<_>>() {
            let Some(parent) = self.parent_at(row.request, at / block_size - 1) else { continue };
            let is_known = |link: &Link<'_>| self.snapshots.find(link);
            if self.with_link(row.request, at / block_size - 1, parent, is_known).is_some() {
                continue;
            }
            let Some(snapshot) = self.snapshots.allocate_fresh() else { return };
            self.register_snapshot(row.request, at, (snapshot, parent), step);
            states.saved.push(StateCopy { slot: row.slot, end: at, snapshot });
        }
    }

    /// Saves the state after a row that decodes, now and then; its tokens are known when it is committed.
    pub(crate) fn save_decode(&mut self, index: RequestIndex, end: u32, draft: &mut Draft) {
        let block_size = self.shape.block_size;
        let every = DECODE_INTERVAL_BLOCKS * block_size;
        let request = &self.requests[index];
        if !end.is_multiple_of(every) || request.root.is_none() {
            return;
        }
        let slot = request.slot;
        let Some(snapshot) = self.snapshots.allocate() else { return };
        if let Some(row) = draft.flight.rows.last_mut() {
            row.snapshot = Some(snapshot);
        }
        draft.states.saved.push(StateCopy { slot, end, snapshot });
    }

    /// The state after a committed row can be found from now on; the copy before it is given up.
    pub(crate) fn commit_snapshot(&mut self, row: &FlightRow, snapshot: SnapshotId, step: StepId) {
        let end = row.start + row.num_tokens;
        let parent = self.parent_at(row.request, end / self.shape.block_size - 1);
        let Some(parent) = parent else {
            return self.snapshots.drop_pending(Some(snapshot));
        };
        let entry = self.register_snapshot(row.request, end, (snapshot, parent), step);
        self.snapshots.drop_pending(Some(snapshot));
        let last = self.requests[row.request].last_snapshot.replace((snapshot, entry));
        if let Some((last, entry)) = last {
            self.snapshots.forget(last, entry);
        }
    }

    /// Makes a copy findable that has an owner.
    fn register_snapshot(
        &mut self,
        index: RequestIndex,
        end: u32,
        (snapshot, parent): (SnapshotId, Parent),
        step: StepId,
    ) -> Parent {
        let (request, block_size) = (&self.requests[index], self.shape.block_size);
        let place = end / block_size - 1;
        let tokens = &request.tokens(place * block_size, end);
        let link = Link { group: 0, hash: request.table.hashes[place as usize], parent, tokens };
        self.snapshots.register(snapshot, &link, step)
    }

    /// The KV block that the prefix cache has for a place of the request, as the parent of a copy.
    fn parent_at(&self, index: RequestIndex, place: u32) -> Option<Parent> {
        let hash = *self.requests[index].table.hashes.get(place as usize)?;
        let block = self.kv.prefix.block_of(0, hash)?;
        Some(self.kv.prefix.as_parent(block))
    }

    fn with_link<T>(
        &self,
        index: RequestIndex,
        place: u32,
        parent: Parent,
        act: impl FnOnce(&Link<'_>) -> T,
    ) -> T {
        let (request, block_size) = (&self.requests[index], self.shape.block_size);
        let tokens = &request.tokens(place * block_size, (place + 1) * block_size);
        let hash = request.table.hashes[place as usize];
        act(&Link { group: 0, hash, parent, tokens })
    }
}

/// Tokens of a prompt between two copies.
const INTERVAL: u32 = 2048;
/// Blocks of an answer between two copies, of which the last one stays.
const DECODE_INTERVAL_BLOCKS: u32 = 4;
