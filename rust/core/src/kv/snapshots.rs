//! Places for copies of states. Engine thread only.

use super::{KvCache, Link, Parent};
use crate::{BlockId, ExecutorShape, SnapshotId, StepId};

/// Places for copies: each is free, known by its tokens, or waits for its step's commit. The least recently
/// used one is evicted first.
#[derive(Debug)]
pub(crate) struct Snapshots {
    cache: KvCache,
    /// What the step that is being planned saves of prompts; owned, so that no other copy of the step goes there.
    fresh: Vec<SnapshotId>,
}

impl Snapshots {
    pub(crate) fn new(shape: &ExecutorShape, secret: u64) -> Self {
        let num_snapshots = if shape.keeps_state { shape.num_snapshots } else { 0 };
        Self { cache: KvCache::new(num_snapshots, shape.block_size, secret), fresh: Vec::new() }
    }

    /// A place with an owner for the rest of the step's planning.
    pub(crate) fn allocate_fresh(&mut self) -> Option<SnapshotId> {
        let snapshot = self.allocate()?;
        self.fresh.push(snapshot);
        Some(snapshot)
    }

    /// A place with an owner; none if all have one.
    pub(crate) fn allocate(&mut self) -> Option<SnapshotId> {
        self.cache.allocate().map(|place| SnapshotId(place.0))
    }

    /// Where the state after the link's tokens is.
    pub(crate) fn find(&self, link: &Link<'_>) -> Option<SnapshotId> {
        let place = self.cache.prefix.block_of(0, link.hash)?;
        self.cache.prefix.matches(place, link).then_some(SnapshotId(place.0))
    }

    /// The copy is used now; returns the step that makes it.
    pub(crate) fn touch(&mut self, snapshot: SnapshotId) -> StepId {
        let place = BlockId(snapshot.0);
        self.cache.pool.share(place);
        self.cache.pool.release(place);
        self.cache.prefix.filled_by(place)
    }

    /// The step is planned: what it saves of prompts may be evicted by the next one.
    pub(crate) fn end_step(&mut self) {
        for snapshot in std::mem::take(&mut self.fresh) {
            self.cache.pool.release(BlockId(snapshot.0));
        }
    }

    /// A copy that waited for its commit is worth nothing.
    pub(crate) fn drop_pending(&mut self, snapshot: Option<SnapshotId>) {
        if let Some(snapshot) = snapshot {
            self.cache.pool.release(BlockId(snapshot.0));
        }
    }

    /// Nobody may find copies that `first_bad` or a later step makes.
    pub(crate) fn forget_since(&mut self, first_bad: StepId) {
        for place in (0..self.cache.pool.num_blocks()).map(BlockId) {
            let pool = &self.cache.pool;
            if pool.is_findable(place) && self.cache.prefix.filled_by(place) >= first_bad {
                self.cache.forget(place);
            }
        }
    }

    /// Nobody may find any copy.
    pub(crate) fn forget_all(&mut self) {
        self.cache.forget_all();
    }

    /// Makes a copy findable that has an owner; returns its entry.
    pub(crate) fn register(
        &mut self,
        snapshot: SnapshotId,
        link: &Link<'_>,
        step: StepId,
    ) -> Parent {
        self.cache.register(BlockId(snapshot.0), link, step)
    }

    /// Forgets a copy that nobody uses, if its place has not got another one by now.
    pub(crate) fn forget(&mut self, snapshot: SnapshotId, entry: Parent) {
        let (place, pool) = (BlockId(snapshot.0), &self.cache.pool);
        if pool.is_findable(place)
            && pool.is_unowned(place)
            && self.cache.prefix.as_parent(place) == entry
        {
            self.cache.forget(place);
        }
    }

    /// Full recount; `pending` are those that wait for their commit. Panics on a broken invariant.
    pub(crate) fn verify(&self, pending: impl Iterator<Item = SnapshotId>) {
        let mut owners = vec![(0, 0); self.cache.pool.num_blocks() as usize];
        for snapshot in pending {
            owners[snapshot.index()].0 += 1;
        }
        self.cache.pool.verify_owners(&owners);
        self.cache.verify();
    }
}
