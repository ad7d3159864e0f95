//! [4] [7] How requests find and offer computed prefixes. Engine thread only.
//!
//! Blocks of tokens that the host knows are offered when the step that completes them is submitted,
//! because later steps run after it. Blocks of sampled tokens are offered at commit, when they are
//! known. The block of a token sampled beyond the end is never offered.

use crate::counts::count;
use crate::ids::RequestIndex;
use crate::kv::{Parent, PrefixCache};
use crate::live_request::LiveRequest;
use crate::scheduler::Scheduler;
use crate::{BlockId, StepId};

/// What a waiting request would start with.
pub(crate) struct Fit {
    /// Blocks of its first tokens that the prefix cache has.
    pub(crate) cached: Vec<BlockId>,
    pub(crate) parent: Option<Parent>,
    /// Blocks for the rest.
    pub(crate) num_new: u32,
    /// Cached ones that could be evicted until it takes them.
    pub(crate) num_evictable: u32,
}

impl Fit {
    /// Blocks that must be available for the request to start.
    pub(crate) fn num_missing(&self) -> u32 {
        self.num_new + self.num_evictable
    }
}

impl Scheduler {
    /// What the request would start with now: room for all its known tokens.
    pub(crate) fn fit(&mut self, index: RequestIndex) -> Fit {
        let (cached, parent) = self.find_cached(index);
        let num_tokens = self.requests[index].num_tokens();
        let num_new = num_tokens.div_ceil(self.shape.block_size) - count(cached.len());
        let evictable = cached.iter().filter(|&&block| self.kv.pool.is_unowned(block));
        Fit { num_evictable: count(evictable.count()), cached, parent, num_new }
    }

    /// The longest known prefix of the request's tokens, always short of the last token, which has to
    /// be computed to sample the next.
    fn find_cached(&mut self, index: RequestIndex) -> (Vec<BlockId>, Option<Parent>) {
        let mut cached = Vec::new();
        let request = &mut self.requests[index];
        let Some(root) = request.root else { return (cached, None) };
        let mut parent = root;
        if !request.takes_cache_hits() {
            return (cached, Some(parent));
        }
        let block_size = self.shape.block_size;
        for place in 0..(request.num_tokens() - 1) / block_size {
            let hash = chain_hash(&mut self.kv.prefix, request, root, place, block_size);
            let Some(block) = self.kv.prefix.block_of(hash) else { break };
            let tokens = request.tokens(place * block_size, (place + 1) * block_size);
            if !self.kv.prefix.matches(block, parent, &tokens) {
                break;
            }
            parent = self.kv.prefix.as_parent(block);
            cached.push(block);
        }
        (cached, Some(parent))
    }

    /// Makes the request's full blocks below position `end`, which `step` completes, findable.
    pub(crate) fn register_blocks(&mut self, index: RequestIndex, end: u32, step: StepId) {
        let block_size = self.shape.block_size;
        let request = &mut self.requests[index];
        let Some(root) = request.root else { return };
        let mut place = count(request.table.num_registered);
        while (place + 1) * block_size <= end {
            let hash = chain_hash(&mut self.kv.prefix, request, root, place, block_size);
            let tokens = request.tokens(place * block_size, (place + 1) * block_size);
            let block = request.table.blocks[place as usize];
            let parent = request.table.parent.unwrap_or(root);
            let next_parent = self.kv.register(block, hash, parent, &tokens, step);
            request.table.parent = Some(next_parent);
            place += 1;
            request.table.num_registered = place as usize;
        }
    }

    /// Nobody may find blocks of this request that `first_bad` or a later step completed.
    pub(crate) fn forget_blocks(&mut self, index: RequestIndex, first_bad: StepId) {
        for &block in &self.requests[index].table.blocks {
            if self.kv.pool.is_findable(block) && self.kv.prefix.filled_by(block) >= first_bad {
                self.kv.forget(block);
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
