//! [4] Which KV blocks a request holds, group by group. Engine thread only.

use crate::BlockId;
use crate::counts::count;
use crate::kv::GroupBlocks;
use crate::live_request::LiveRequest;

impl LiveRequest {
    /// Blocks that it holds and did not find in the prefix cache.
    pub(crate) fn num_new_blocks(&self) -> u32 {
        let num_others = |other: &GroupBlocks| count(other.blocks.len()) - other.num_passed;
        let num_first = count(self.table.blocks.len()) - self.table.num_passed;
        let num_others = self.other_groups.iter().map(num_others).sum::<u32>();
        num_first + num_others - self.num_shared_blocks
    }

    /// The group's block table, and how many of its first places are not held.
    pub(crate) fn blocks_of(&self, group: usize) -> (&[BlockId], u32) {
        match group.checked_sub(1) {
            None => (&self.table.blocks, self.table.num_passed),
            Some(other) => {
                let other = &self.other_groups[other];
                (&other.blocks, other.num_passed)
            }
        }
    }

    /// As `blocks_of`, to be changed.
    pub(crate) fn blocks_of_mut(&mut self, group: usize) -> (&mut Vec<BlockId>, &mut u32) {
        match group.checked_sub(1) {
            None => (&mut self.table.blocks, &mut self.table.num_passed),
            Some(other) => {
                let other = &mut self.other_groups[other];
                (&mut other.blocks, &mut other.num_passed)
            }
        }
    }

    /// The blocks that it holds, group by group, each last first.
    pub(crate) fn held(&self) -> impl Iterator<Item = BlockId> {
        (0..=self.other_groups.len()).flat_map(|group| {
            let (blocks, num_passed) = self.blocks_of(group);
            blocks[num_passed as usize..].iter().rev().copied()
        })
    }

    /// Gives up all blocks, in the order of `held`.
    pub(crate) fn close_tables(&mut self) -> impl Iterator<Item = BlockId> + use<> {
        let others = std::mem::take(&mut self.other_groups);
        self.table.close().chain(others.into_iter().flat_map(GroupBlocks::close))
    }
}
