//! [4] [7] How requests find and offer computed prefixes. Engine thread only.
//!
//! Blocks of tokens that the host knows are offered when the step that completes them is submitted,
//! because later steps run after it. Blocks of sampled tokens are offered at commit, when they are
//! known. The block of a token sampled beyond the end is never offered.

use crate::counts::count;
use crate::ids::RequestIndex;
use crate::kv::{Link, Parent, PrefixCache};
use crate::live_request::LiveRequest;
use crate::scheduler::Scheduler;
use crate::{BlockId, SnapshotId, StepId};

/// What a waiting request would start with.
pub(crate) struct Fit {
    /// What the prefix cache has.
    pub(crate) cached: Cached,
    /// Blocks for the rest.
    pub(crate) num_new: u32,
    /// Cached ones that could be evicted until it takes them.
    pub(crate) num_evictable: u32,
}

/// Computed blocks of a request's first tokens.
#[derive(Default)]
pub(crate) struct Cached {
    /// Places of the block tables that they fill.
    pub(crate) num_places: u32,
    /// As in `OpenedSlot`: `num_places` for each group. Where a window has passed, the group's first block
    /// that it has not passed stands in for one that is not needed.
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) parent: Option<Parent>,
    /// Of the state after their tokens, where layers keep one.
    pub(crate) snapshot: Option<SnapshotId>,
}

impl Cached {
    /// The group's part of the list.
    pub(crate) fn of_group(&self, group: usize) -> &[BlockId] {
        let num_places = self.num_places as usize;
        &self.blocks[group * num_places..][..num_places]
    }
}

impl Fit {
    /// Blocks that must be available for the request to start.
    pub(crate) fn num_missing(&self) -> u32 {
        self.num_new + self.num_evictable
    }
}

impl Scheduler {
    /// What the request would start with now: room for all its known tokens, or one window of them.
    pub(crate) fn fit(&mut self, index: RequestIndex) -> Fit {
        let cached = self.find_cached(index);
        let (block_size, num_cached) = (self.shape.block_size, cached.num_places);
        let num_places = self.requests[index].num_tokens().div_ceil(block_size);
        let (mut num_new, mut num_evictable) = (0, 0);
        for group in 0..self.shape.kv_groups.len() {
            num_new += self.places_at_start(group, num_places, num_cached) - num_cached;
            let evictable = self.held_of(&cached, group).iter();
            let evictable = evictable.filter(|&&block| self.kv.pool.is_unowned(block));
            num_evictable += count(evictable.count());
        }
        Fit { cached, num_new, num_evictable }
    }

    /// The blocks of a hit that the request takes for a group.
    pub(crate) fn held_of<'a>(&self, cached: &'a Cached, group: usize) -> &'a [BlockId] {
        let block_size = self.shape.block_size;
        let first =
            self.shape.kv_groups.first_read(group, cached.num_places * block_size, block_size);
        &cached.of_group(group)[first as usize..]
    }

    /// The longest known prefix of the request's tokens, always short of the last token, which has to
    /// be computed to sample the next.
    pub(crate) fn find_cached(&mut self, index: RequestIndex) -> Cached {
        let mut cached = Cached::default();
        let request = &mut self.requests[index];
        let Some(root) = request.root else { return cached };
        let mut parent = root;
        cached.parent = Some(root);
        if !request.takes_cache_hits() {
            return cached;
        }
        let block_size = self.shape.block_size;
        for place in 0..(request.num_tokens() - 1) / block_size {
            let hash = chain_hash(&mut self.kv.prefix, request, root, place, block_size);
            let Some(block) = self.kv.prefix.block_of(0, hash) else { break };
            let tokens = &request.tokens(place * block_size, (place + 1) * block_size);
            if !self.kv.prefix.matches(block, &Link { group: 0, hash, parent, tokens }) {
                break;
            }
            parent = self.kv.prefix.as_parent(block);
            cached.blocks.push(block);
        }
        cached.num_places = count(cached.blocks.len());
        cached.parent = Some(parent);
        if self.shape.kv_groups.len() > 1 && cached.num_places > 0 {
            self.find_in_other_groups(index, root, &mut cached);
        }
        if self.shape.keeps_state {
            self.find_snapshot(index, root, &mut cached);
        }
        cached
    }

    /// Shortens what the first group has until every other group has what the next row reads, and adds it.
    fn find_in_other_groups(&self, index: RequestIndex, root: Parent, cached: &mut Cached) {
        let (groups, block_size) = (&self.shape.kv_groups, self.shape.block_size);
        let first = std::mem::take(&mut cached.blocks);
        let mut num_places = cached.num_places;
        let mut group = 1;
        // A place that a group lacks is behind the prefix; then all groups are looked at again.
        while group < groups.len() && num_places > 0 {
            let places = groups.first_read(group, num_places * block_size, block_size)..num_places;
            let lacks = |&place: &u32| self.find_beside(index, group, place, &first).is_none();
            match places.rev().find(lacks) {
                Some(place) => (num_places, group) = (place, 1),
                None => group += 1,
            }
        }
        cached.num_places = num_places;
        if num_places == 0 {
            cached.parent = Some(root);
            return;
        }
        cached.parent = Some(self.kv.prefix.as_parent(first[num_places as usize - 1]));
        cached.blocks.extend_from_slice(&first[..num_places as usize]);
        for group in 1..groups.len() {
            let from = groups.first_read(group, num_places * block_size, block_size);
            let places = (0..num_places).map(|place| place.max(from));
            let found = places.filter_map(|place| self.find_beside(index, group, place, &first));
            cached.blocks.extend(found);
        }
    }

    /// The group's block with the tokens of the first group's block at `place`.
    fn find_beside(
        &self,
        index: RequestIndex,
        group: usize,
        place: u32,
        first: &[BlockId],
    ) -> Option<BlockId> {
        let (request, block_size) = (&self.requests[index], self.shape.block_size);
        let hash = request.table.hashes[place as usize];
        let block = self.kv.prefix.block_of(group, hash)?;
        let tokens = &request.tokens(place * block_size, (place + 1) * block_size);
        let parent = self.kv.prefix.as_parent(first[place as usize]);
        let link = Link { group, hash, parent, tokens };
        self.kv.prefix.matches(block, &link).then_some(block)
    }

    /// Makes the request's full blocks below position `end`, which `step` completes, findable.
    pub(crate) fn register_blocks(&mut self, index: RequestIndex, end: u32, step: StepId) {
        let block_size = self.shape.block_size;
        let request = &mut self.requests[index];
        let Some(root) = request.root else { return };
        let mut place = count(request.table.num_registered);
        while (place + 1) * block_size <= end {
            let hash = chain_hash(&mut self.kv.prefix, request, root, place, block_size);
            let tokens = &request.tokens(place * block_size, (place + 1) * block_size);
            let block = request.table.blocks[place as usize];
            let parent = request.table.parent.unwrap_or(root);
            let next_parent =
                self.kv.register(block, &Link { group: 0, hash, parent, tokens }, step);
            for (other, held) in request.other_groups.iter().enumerate() {
                let link = Link { group: other + 1, hash, parent: next_parent, tokens };
                self.kv.register(held.blocks[place as usize], &link, step);
            }
            request.table.parent = Some(next_parent);
            place += 1;
            request.table.num_registered = place as usize;
        }
    }

    /// Nobody may find blocks of this request that `first_bad` or a later step completed.
    pub(crate) fn forget_blocks(&mut self, index: RequestIndex, first_bad: StepId) {
        let request = &self.requests[index];
        for group in 0..self.shape.kv_groups.len().min(1 + request.other_groups.len()) {
            let (blocks, num_passed) = request.blocks_of(group);
            let (passed, held) = blocks.split_at(num_passed as usize);
            // Blocks that a window has passed may have another content now. The cache knows by the hash
            // where theirs still is.
            let hashes = request.table.hashes.iter().take(passed.len());
            let known = hashes.filter_map(|&hash| self.kv.prefix.block_of(group, hash));
            let known: Vec<BlockId> = known.chain(held.iter().copied()).collect();
            for block in known {
                if self.kv.pool.is_findable(block) && self.kv.prefix.filled_by(block) >= first_bad {
                    self.kv.forget(block);
                }
            }
        }
    }
}

/// Hash of the request's chain up to its block number `place`, which holds known tokens. Computed
/// once.
fn chain_hash(
    prefix: &mut PrefixCache,
    request: &mut LiveRequest,
    root: Parent,
    place: u32,
    block_size: u32,
) -> u128 {
    while count(request.table.hashes.len()) <= place {
        let next = count(request.table.hashes.len());
        let before = match request.table.hashes.last() {
            Some(&hash) => hash,
            None => prefix.root_hash(root),
        };
        let tokens = request.tokens(next * block_size, (next + 1) * block_size);
        let hash = prefix.chain_hash(before, &tokens);
        request.table.hashes.push(hash);
    }
    request.table.hashes[place as usize]
}
