//! Models the contents of an executor's KV blocks and slots as prefix hashes instead of vectors.
//! Checks every plan against the executor's contract and panics on a violation. For tests.
//!
//! A position's content is the hash of all tokens up to it, so the next row that reads a block
//! detects whether it was reused, evicted or shared wrongly. Each group of layers has a table of its own and
//! reads no more than its window; its hashes differ from those of other groups. Failed steps leave *tainted* content,
//! and everything computed from it is tainted too.

use ingle_core::{
    BlockId, ExecutorShape, KvGroups, OpenedSlot, PlanRow, SlotId, StateCopy, StepPlan, TokenId,
    TokenSource,
};

/// State of the simulated device.
#[derive(Debug)]
pub(crate) struct KvModel {
    block_size: usize,
    groups: KvGroups,
    /// `[num_blocks, block_size]`
    content: Vec<u64>,
    slots: Vec<Option<ModelSlot>>,
    keeps_state: bool,
    /// The prefix that each copy of a state has seen.
    snapshots: Vec<u64>,
}

/// One open slot.
#[derive(Debug)]
pub(crate) struct ModelSlot {
    /// With the owner that it was opened for.
    id: SlotId,
    pub(crate) num_prompt: usize,
    pub(crate) offset: usize,
    pub(crate) log_probs: Option<u32>,
    /// What was computed for it cannot be trusted.
    pub(crate) is_tainted: bool,
    tokens: Vec<TokenId>,
    /// Hash of each prefix of `tokens`.
    hashes: Vec<u64>,
    /// One a group.
    tables: Vec<Vec<BlockId>>,
    num_computed: usize,
}

impl KvModel {
    pub(crate) fn new(shape: &ExecutorShape) -> Self {
        Self {
            block_size: shape.block_size as usize,
            groups: shape.kv_groups,
            content: vec![NOTHING; shape.num_blocks as usize * shape.block_size as usize],
            slots: (0..shape.num_slots).map(|_| None).collect(),
            keeps_state: shape.keeps_state,
            snapshots: vec![NOTHING; shape.num_snapshots as usize],
        }
    }

    /// Closes and opens slots; `offset` comes from the prompt.
    pub(crate) fn begin(&mut self, plan: &StepPlan, offset: impl Fn(&OpenedSlot) -> usize) {
        for slot in &plan.closed {
            self.slots[slot.index()] = None;
        }
        for opened in &plan.opened {
            let tables = by_group(&opened.cached_blocks, self.groups).map(<[_]>::to_vec);
            let tables: Vec<Vec<BlockId>> = tables.collect();
            let mut slot = ModelSlot {
                id: opened.slot,
                num_prompt: opened.prompt.len(),
                offset: offset(opened),
                log_probs: opened.sampling.log_probs,
                is_tainted: false,
                tokens: Vec::new(),
                hashes: Vec::new(),
                num_computed: tables[0].len() * self.block_size,
                tables,
            };
            for &token in opened.prompt.iter().chain(&opened.generated) {
                slot.push(token);
            }
            assert!(slot.num_computed < slot.tokens.len(), "slot {}: nothing to do", opened.slot);
            let restored = &plan.states.restored;
            let state = restored.iter().find(|copy| copy.slot == opened.slot);
            if let Some(state) = state {
                let found = self.snapshots[state.snapshot.index()];
                slot.is_tainted |= found == TAINTED;
                assert_eq!(state.end as usize, slot.num_computed, "slot {}: state", opened.slot);
                let is_right = slot.is_tainted || found == slot.hashes[slot.num_computed - 1];
                assert!(is_right, "slot {}: the state has seen another prefix", opened.slot);
            } else {
                let is_new = !self.keeps_state || slot.num_computed == 0;
                assert!(is_new, "slot {}: blocks without a state", opened.slot);
            }
            self.slots[opened.slot.index()] = Some(slot);
        }
    }

    /// Runs one row: checks it, reads all KV before it, writes its own. Tainted if the step fails.
    pub(crate) fn run_row(&mut self, row: &PlanRow, fails: bool) {
        let block_size = self.block_size;
        let Some(slot) = &mut self.slots[row.slot.index()] else {
            panic!("a row names slot {}, which is not open", row.slot)
        };
        assert_eq!(slot.id, row.slot, "a row names another owner of its slot");
        let (start, end) = (row.start as usize, (row.start + row.num_tokens) as usize);
        assert!(row.num_tokens > 0, "slot {}: a row without tokens", row.slot);
        assert_eq!(start, slot.num_computed, "slot {}: positions are not contiguous", row.slot);
        for (table, new) in slot.tables.iter_mut().zip(by_group(&row.new_blocks, self.groups)) {
            table.extend_from_slice(new);
            assert!(end <= table.len() * block_size, "slot {}: no block for a row", row.slot);
        }
        match &row.source {
            TokenSource::Host(ids) => {
                assert_eq!(ids.len(), row.num_tokens as usize, "slot {}: ids of a row", row.slot);
                assert_eq!(slot.tokens[start..end], **ids, "slot {}: tokens", row.slot);
            }
            TokenSource::LastSampled => {
                assert_eq!((start + 1, end), (slot.tokens.len(), start + 1), "slot {}", row.slot);
            }
        }
        let place = |table: &[BlockId], position: usize| {
            table[position / block_size].index() * block_size + position % block_size
        };
        for (group, table) in slot.tables.iter().enumerate() {
            // In blocks of one position a place is a position.
            for position in self.groups.first_read(group, row.start, 1) as usize..start {
                let found = self.content[place(table, position)];
                slot.is_tainted |= found == TAINTED;
                assert!(
                    slot.is_tainted || found == content(slot.hashes[position], group),
                    "slot {}: position {position} of group {group} does not hold this prefix",
                    row.slot
                );
            }
        }
        slot.is_tainted |= fails;
        for (group, table) in slot.tables.iter().enumerate() {
            for position in start..end {
                let hash = content(slot.hashes[position], group);
                self.content[place(table, position)] = if slot.is_tainted { TAINTED } else { hash };
            }
        }
        slot.num_computed = end;
        self.check_wants(row, end);
    }

    /// Copies a slot's state while its row runs, which ends at `end` or later.
    pub(crate) fn save(&mut self, copy: &StateCopy) {
        let Some(slot) = &self.slots[copy.slot.index()] else {
            panic!("the state of slot {}, which is not open, is saved", copy.slot)
        };
        let end = copy.end as usize;
        assert!(end > 0 && end <= slot.num_computed, "slot {}: state after {end}", copy.slot);
        let hash = if slot.is_tainted { TAINTED } else { slot.hashes[end - 1] };
        self.snapshots[copy.snapshot.index()] = hash;
    }

    /// The slot of a row that has run.
    pub(crate) fn slot(&mut self, slot: SlotId) -> &mut ModelSlot {
        match &mut self.slots[slot.index()] {
            Some(slot) => slot,
            None => panic!("slot {slot} is not open"),
        }
    }

    fn check_wants(&self, row: &PlanRow, end: usize) {
        let Some(slot) = &self.slots[row.slot.index()] else { return };
        let is_sampled = row.wants.sample != ingle_core::SampleMode::None;
        if is_sampled {
            assert_eq!(end, slot.tokens.len(), "slot {}: a sample before the end", row.slot);
        }
        let next = slot.tokens[..slot.num_prompt].get(end).copied();
        if row.wants.prompt_log_probs.is_some() {
            assert_eq!(row.wants.next_prompt_token, next, "slot {}: next token", row.slot);
        }
        if let Some(pooled) = row.wants.pooled {
            assert_eq!(pooled.is_last, end == slot.num_prompt, "slot {}: end of prompt", row.slot);
        }
    }
}

impl ModelSlot {
    /// One token more: of the prompt or sampled.
    pub(crate) fn push(&mut self, token: TokenId) {
        let before = self.hashes.last().copied().unwrap_or(NOTHING);
        // SplitMix64's finaliser over the hash before and the token.
        let mut hash = before.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(token.0));
        hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.tokens.push(token);
        self.hashes.push((hash ^ hash >> 31) | 1 << 63);
    }

    /// Position of the next token in the output.
    pub(crate) fn num_generated(&self) -> usize {
        self.tokens.len() - self.num_prompt
    }
}

/// The parts of a plan's list of blocks: as many for each group.
pub(crate) fn by_group(
    blocks: &[BlockId],
    groups: KvGroups,
) -> impl Iterator<Item = &[BlockId]> + use<'_> {
    let split = groups.split(blocks);
    split.unwrap_or_else(|| panic!("{} blocks of {} groups", blocks.len(), groups.len()))
}

/// What a group's layers hold of a prefix.
fn content(hash: u64, group: usize) -> u64 {
    hash ^ group as u64
}

/// Never the hash of a prefix: those have the highest bit set.
const NOTHING: u64 = 0;
const TAINTED: u64 = 1;
