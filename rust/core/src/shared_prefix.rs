//! [4] [7] How requests find and offer computed prefixes. Engine thread only.
//!
//! Blocks of tokens that the host knows are offered when the step that completes them is submitted:
//! later steps run behind it. Blocks of sampled tokens are offered at commit, when they are known; the
//! block of a token that was sampled beyond the end is never offered.

use crate::kv::Parent;
use crate::request_table::RequestIndex;
use crate::scheduler::{Scheduler, count};
use crate::{BlockId, StepId};

impl Scheduler {
    /// The longest known prefix of the request's tokens, always short of the last token, which has to
    /// be computed to sample the next.
    pub(crate) fn find_cached(&mut self, index: RequestIndex) -> (Vec<BlockId>, Option<Parent>) {
        let mut cached = Vec::new();
        let request = &mut self.requests[index];
        let Some(root) = request.root else { return (cached, None) };
        let mut parent = root;
        if !request.takes_cache_hits() {
            return (cached, Some(parent));
        }
        let block_size = self.shape.block_size;
        for place in 0..(request.num_tokens() - 1) / block_size {
            let tokens = &mut self.scratch_tokens;
            let hash = self.kv.prefix.hash_of(request, root, place as usize, tokens);
            let Some(block) = self.kv.prefix.block_of(hash) else { break };
            tokens.clear();
            request.copy_tokens(place * block_size, (place + 1) * block_size, tokens);
            if !self.kv.prefix.matches(block, parent, tokens) {
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
        while (count(request.table.num_registered) + 1) * block_size <= end {
            let place = request.table.num_registered;
            let tokens = &mut self.scratch_tokens;
            let hash = self.kv.prefix.hash_of(request, root, place, tokens);
            tokens.clear();
            request.copy_tokens(count(place) * block_size, count(place + 1) * block_size, tokens);
            let block = request.table.blocks[place];
            let parent = request.table.parent.unwrap_or(root);
            request.table.parent = Some(self.kv.register(block, hash, parent, tokens, step));
            request.table.num_registered += 1;
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
