//! Owners of every KV block. Engine thread only. free + held + leaving + cached + absent always equals the
//! total.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::BlockId;

/// Counts owners; knows nothing about contents.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Vec<BlockState>,
    /// Lowest id first, so that a pool can shrink from its end.
    free: BinaryHeap<Reverse<BlockId>>,
    /// Cached blocks without owners, a list through `older` and `newer`.
    oldest: Option<BlockId>,
    newest: Option<BlockId>,
    num_cached: u32,
    num_held: u32,
    num_leaving: u32,
    /// Blocks from this one on are not handed out; none of them can be found.
    end: u32,
    /// Those of them that have no owner: their memory may be somebody else's.
    num_absent: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct BlockState {
    /// Requests that run.
    owners: u32,
    /// Requests that have ended while a submitted step still names them.
    leaving_owners: u32,
    /// The prefix cache can find it.
    is_findable: bool,
    older: Option<BlockId>,
    newer: Option<BlockId>,
}

impl BlockPool {
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self {
            blocks: vec![BlockState::default(); num_blocks as usize],
            free: (0..num_blocks).map(|id| Reverse(BlockId(id))).collect(),
            oldest: None,
            newest: None,
            num_cached: 0,
            num_held: 0,
            num_leaving: 0,
            end: num_blocks,
            num_absent: 0,
        }
    }

    /// Adds blocks that are absent, up to `num_blocks` in all.
    pub(crate) fn reserve(&mut self, num_blocks: u32) {
        let num_new = num_blocks.saturating_sub(self.num_blocks());
        self.blocks.resize(self.blocks.len() + num_new as usize, BlockState::default());
        self.num_absent += num_new;
        self.check_totals();
    }

    /// Blocks below this one are handed out.
    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Blocks beyond the end that still have owners.
    pub(crate) fn num_owned_beyond(&self) -> u32 {
        self.num_blocks() - self.end - self.num_absent
    }

    /// One more than the last block that has an owner.
    pub(crate) fn owned_end(&self) -> u32 {
        let num_unowned =
            (0..self.num_blocks()).rev().take_while(|&id| self.is_unowned(BlockId(id)));
        self.num_blocks() - num_unowned.count() as u32
    }

    /// Moves the end. Blocks that come back are free, or keep their owners; those that go must not be
    /// findable.
    pub(crate) fn set_end(&mut self, end: u32) {
        assert!(end <= self.num_blocks(), "block {end} of {}", self.num_blocks());
        let old = std::mem::replace(&mut self.end, end);
        if end < old {
            let num_free = self.num_free();
            self.free.retain(|Reverse(block)| block.0 < end);
            self.num_absent += num_free - self.num_free();
        }
        for block in (old..end).map(BlockId) {
            if self.is_unowned(block) {
                self.free.push(Reverse(block));
                self.num_absent -= 1;
            }
        }
        self.check_totals();
    }

    pub(crate) fn num_free(&self) -> u32 {
        u32::try_from(self.free.len()).unwrap_or(u32::MAX)
    }

    /// Findable and without owner.
    pub(crate) fn num_cached(&self) -> u32 {
        self.num_cached
    }

    pub(crate) fn num_held(&self) -> u32 {
        self.num_held
    }

    pub(crate) fn num_leaving(&self) -> u32 {
        self.num_leaving
    }

    pub(crate) fn num_blocks(&self) -> u32 {
        u32::try_from(self.blocks.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn is_findable(&self, block: BlockId) -> bool {
        self.blocks[block.index()].is_findable
    }

    /// Whether the block has no owner of either kind.
    pub(crate) fn is_unowned(&self, block: BlockId) -> bool {
        let state = &self.blocks[block.index()];
        state.owners == 0 && state.leaving_owners == 0
    }

    /// Whether the block comes back when its one owner gives it up.
    pub(crate) fn has_one_owner(&self, block: BlockId) -> bool {
        let state = &self.blocks[block.index()];
        state.owners == 1 && state.leaving_owners == 0
    }

    /// The free block with the lowest id, now with one owner.
    pub(crate) fn allocate(&mut self) -> Option<BlockId> {
        let Reverse(block) = self.free.pop()?;
        let state = &mut self.blocks[block.index()];
        assert!(
            state.owners == 0 && state.leaving_owners == 0 && !state.is_findable,
            "free block {block} has owners or is cached: {state:?}"
        );
        state.owners = 1;
        self.num_held += 1;
        self.check_totals();
        Some(block)
    }

    /// The next block to evict.
    pub(crate) fn oldest_cached(&self) -> Option<BlockId> {
        self.oldest
    }

    /// One more owner for a findable block.
    pub(crate) fn share(&mut self, block: BlockId) {
        let state = self.blocks[block.index()];
        assert!(state.is_findable, "block {block} is shared though the cache cannot find it");
        if state.owners == 0 {
            if state.leaving_owners > 0 {
                self.num_leaving -= 1;
            } else {
                self.unlink(block);
            }
            self.num_held += 1;
        }
        self.blocks[block.index()].owners += 1;
        self.check_totals();
    }

    /// An owner has ended, but a submitted step still names it.
    pub(crate) fn leave(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.index()];
        assert!(state.owners > 0, "block {block} is left without an owner: {state:?}");
        state.owners -= 1;
        state.leaving_owners += 1;
        if state.owners == 0 {
            self.num_held -= 1;
            self.num_leaving += 1;
        }
        self.check_totals();
    }

    /// An owner gives the block up, and no submitted step names that owner.
    pub(crate) fn release(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.index()];
        assert!(state.owners > 0, "block {block} is released without an owner: {state:?}");
        state.owners -= 1;
        if state.owners == 0 {
            self.num_held -= 1;
            if state.leaving_owners > 0 {
                self.num_leaving += 1;
            } else {
                self.settle(block);
            }
        }
        self.check_totals();
    }

    /// The last submitted step that names a leaving owner has completed.
    pub(crate) fn release_leaving(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.index()];
        assert!(state.leaving_owners > 0, "block {block} is not leaving: {state:?}");
        state.leaving_owners -= 1;
        if state.owners == 0 && state.leaving_owners == 0 {
            self.num_leaving -= 1;
            self.settle(block);
        }
        self.check_totals();
    }

    /// The prefix cache can find the block from now on; it has an owner.
    pub(crate) fn set_cached(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.index()];
        assert!(
            state.owners > 0 && !state.is_findable,
            "block {block} cannot be cached: {state:?}"
        );
        state.is_findable = true;
    }

    /// The prefix cache has forgotten the block.
    pub(crate) fn clear_cached(&mut self, block: BlockId) {
        if self.is_unowned(block) {
            self.unlink(block);
            self.free_or_absent(block);
        }
        self.blocks[block.index()].is_findable = false;
        self.check_totals();
    }

    /// Full recount; `owners` gives for each block how many running and leaving requests name it.
    pub(crate) fn verify_owners(&self, owners: &[(u32, u32)]) {
        for (id, (state, &(running, leaving))) in self.blocks.iter().zip(owners).enumerate() {
            assert_eq!(state.owners, running, "owners of block {id}");
            assert_eq!(state.leaving_owners, leaving, "leaving owners of block {id}");
        }
    }

    /// Recounts every state from the blocks themselves.
    pub(crate) fn verify(&self) {
        let (mut free, mut cached, mut held, mut leaving, mut absent) = (0, 0, 0, 0, 0);
        for (id, state) in (0..).zip(&self.blocks) {
            assert!(id < self.end || !state.is_findable, "block {id} is beyond the end");
            match (state.owners, state.leaving_owners, state.is_findable) {
                (0, 0, false) if id >= self.end => absent += 1,
                (0, 0, false) => free += 1,
                (0, 0, true) => cached += 1,
                (0, _, _) => leaving += 1,
                _ => held += 1,
            }
        }
        assert_eq!(free, self.num_free(), "free blocks");
        assert_eq!(cached, self.num_cached, "cached blocks");
        assert_eq!(held, self.num_held, "held blocks");
        assert_eq!(leaving, self.num_leaving, "leaving blocks");
        assert_eq!(absent, self.num_absent, "absent blocks");
        for &Reverse(block) in &self.free {
            assert!(self.is_unowned(block), "block {block} is free and has an owner");
        }
        let (mut listed, mut next, mut last) = (0, self.oldest, None);
        while let Some(block) = next {
            assert!(self.is_unowned(block), "block {block} may be evicted and has an owner");
            assert_eq!(self.blocks[block.index()].older, last, "eviction list at block {block}");
            listed += 1;
            assert!(listed <= self.num_cached, "the eviction list has a loop");
            last = next;
            next = self.blocks[block.index()].newer;
        }
        assert_eq!(last, self.newest, "end of the eviction list");
        assert_eq!(listed, self.num_cached, "length of the eviction list");
    }

    /// Free list, eviction list and the two counters are kept apart, so this sum can fail.
    fn check_totals(&self) {
        assert_eq!(
            self.num_free() + self.num_held + self.num_leaving + self.num_cached + self.num_absent,
            self.num_blocks(),
            "free + held + leaving + cached + absent blocks"
        );
    }

    /// A block without owners becomes the newest cached one or free.
    fn settle(&mut self, block: BlockId) {
        if !self.blocks[block.index()].is_findable {
            self.free_or_absent(block);
            return;
        }
        let older = self.newest.replace(block);
        match older {
            Some(older) => self.blocks[older.index()].newer = Some(block),
            None => self.oldest = Some(block),
        }
        let state = &mut self.blocks[block.index()];
        state.older = older;
        state.newer = None;
        self.num_cached += 1;
    }

    fn free_or_absent(&mut self, block: BlockId) {
        if block.0 < self.end {
            self.free.push(Reverse(block));
        } else {
            self.num_absent += 1;
        }
    }

    /// Takes an unowned cached block out of the eviction list.
    fn unlink(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.index()];
        let (older, newer) = (state.older.take(), state.newer.take());
        match older {
            Some(older) => self.blocks[older.index()].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.blocks[newer.index()].older = older,
            None => self.newest = older,
        }
        self.num_cached -= 1;
    }
}
