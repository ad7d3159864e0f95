//! [5] Packs a plan into the words that `step_prepare.cu` and the sampler read. Engine thread only.
//! Everything that a kernel uses as an index is checked here: slots, blocks, positions, token ids.

use ingle_core::{
    KvGroups, OpenedSlot, PlanRow, Pooling, SampleMode, SlotId, StateCopies, StepPlan, TokenSource,
};

use crate::contract::{
    BlockUpdate, NONE, POOL_ENDS, POOL_LAST, POOL_MEAN, PROMPT_ROW, SAMPLE_LATE, SAMPLE_MASKED,
    StateSave, StepHeader, StepRow, StepSample, Words,
};
use crate::dims::EngineDims;
use crate::prompt_launch::is_prompt;

/// What the host remembers of each slot to check plans and to decode results.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotRecord {
    /// Between opened and closed: for whom.
    pub(crate) open: Option<SlotId>,
    /// Length of its block tables, one a KV group.
    pub(crate) num_blocks: u32,
    /// Log-probs wanted with each sample.
    pub(crate) log_probs: Option<u32>,
    /// The mask of `allowed_token_ids`, if any.
    pub(crate) allowed: Option<Box<[u32]>>,
}

impl SlotRecord {
    /// The record of a slot that opens now.
    pub(crate) fn open(opened: &OpenedSlot, groups: &KvGroups, vocab_size: u32) -> Self {
        let allowed = opened.sampling.allowed_token_ids.as_ref().map(|ids| {
            let mut mask = vec![0u32; vocab_size.div_ceil(32) as usize];
            for id in ids.iter().filter(|id| id.0 < vocab_size) {
                mask[id.index() / 32] |= 1 << (id.0 % 32);
            }
            mask.into_boxed_slice()
        });
        Self {
            open: Some(opened.slot),
            num_blocks: (opened.cached_blocks.len() / groups.len()) as u32,
            log_probs: opened.sampling.log_probs,
            allowed,
        }
    }
}

/// Where one row's results will be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RowPlace {
    pub(crate) slot: SlotId,
    /// Index into the sampler's output.
    pub(crate) sample: Option<u32>,
    pub(crate) wants_log_probs: bool,
    /// Range of the list of prompt log-probs.
    pub(crate) list: std::ops::Range<u32>,
    /// Alternatives wanted with each of them.
    pub(crate) list_top: u32,
    /// Index into the pooled vectors.
    pub(crate) pooled: Option<u32>,
}

/// A packed step apart from its words.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PackedStep {
    /// Words used.
    pub(crate) words: usize,
    /// Token rows.
    pub(crate) num_tokens: u32,
    /// Samples that are taken with the step; they come first in the list.
    pub(crate) num_now: u32,
    /// Samples that wait for masks.
    pub(crate) num_late: u32,
    /// One per row of the plan.
    pub(crate) rows: Vec<RowPlace>,
    /// Slots of the late samples, in order.
    pub(crate) late_slots: Vec<SlotId>,
    /// Token rows and targets of prompt log-probs.
    pub(crate) list_rows: Vec<u32>,
    pub(crate) list_targets: Vec<u32>,
    /// The most alternatives that any prompt log-prob requests.
    pub(crate) list_top: u32,
    /// Whether any row pools.
    pub(crate) has_pooled: bool,
    /// Whether any row goes to prompt attention.
    pub(crate) has_prompts: bool,
}

/// Limits that plans are checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanLimits {
    pub(crate) engine: EngineDims,
    pub(crate) vocab_size: u32,
    pub(crate) num_blocks: u32,
    pub(crate) kv_groups: KvGroups,
    pub(crate) max_updates: u32,
    /// Query heads a KV head, where prompts have a kernel of their own.
    pub(crate) prompt_group: Option<u32>,
    /// Copies of states.
    pub(crate) num_snapshots: u32,
}

/// Checks the rows of a plan and packs them into `words`; grows the slots' block tables in `slots`.
///
/// # Errors
/// One line that names row and value; then `slots` may have changed and the step must fail.
pub(crate) fn pack(
    plan: &StepPlan,
    limits: &PlanLimits,
    slots: &mut [SlotRecord],
    words: &mut [u32],
) -> Result<PackedStep, String> {
    let num_rows = plan.rows.len();
    let num_tokens = plan.num_scheduled_tokens();
    let engine = &limits.engine;
    if num_rows > engine.max_rows as usize || num_tokens > engine.max_tokens as usize {
        return Err(format!(
            "{num_rows} rows of {num_tokens} tokens, built for {} of {}",
            engine.max_rows, engine.max_tokens
        ));
    }
    let tokens_at = StepHeader::COUNT + num_rows * StepRow::COUNT;
    let updates_at = tokens_at + num_tokens;
    check_copies(&plan.states, limits, slots)?;
    let mut packed = PackedStep { num_tokens: num_tokens as u32, ..PackedStep::default() };
    let mut first_token = 0u32;
    let mut num_updates = 0usize;
    for (index, row) in plan.rows.iter().enumerate() {
        let record = record_of(row, slots).map_err(|reason| format!("row {index}: {reason}"))?;
        check_row(row, limits).map_err(|reason| format!("row {index}: {reason}"))?;
        let updates = &mut words[updates_at + num_updates * BlockUpdate::COUNT..];
        let num_left = limits.max_updates as usize - num_updates;
        num_updates += write_updates(row, limits, record, (updates, num_left))
            .map_err(|reason| format!("row {index}: {reason}"))?;
        let end = row.start + row.num_tokens;
        if end > record.num_blocks * engine.block_size {
            return Err(format!("row {index}: position {end} beyond its blocks"));
        }
        let is_prompt =
            limits.prompt_group.is_some_and(|group| is_prompt(row.start, row.num_tokens, group));
        packed.has_prompts |= is_prompt;
        write_tokens(row, &mut words[tokens_at + first_token as usize..]);
        let step_row = StepRow {
            slot: row.slot.number(),
            start: row.start,
            num_tokens: row.num_tokens,
            first_token,
            flags: pooled_flags(row) | if is_prompt { PROMPT_ROW } else { 0 },
            sample_index: NONE,
            ..StepRow::default()
        };
        step_row.write(&mut words[row_at(index)..]);
        packed.add_row(row, record, first_token);
        first_token += row.num_tokens;
    }
    let samples_at = updates_at + num_updates * BlockUpdate::COUNT;
    let num_samples = write_samples(plan, &mut packed, words, samples_at);
    let saves_at = samples_at + num_samples as usize * StepSample::COUNT;
    let header = StepHeader {
        num_rows: num_rows as u32,
        num_tokens: num_tokens as u32,
        num_samples,
        num_updates: num_updates as u32,
        rows_at: StepHeader::COUNT as u32,
        tokens_at: tokens_at as u32,
        updates_at: updates_at as u32,
        samples_at: samples_at as u32,
        step_id: plan.id.0 as u32,
        saves_at: saves_at as u32,
        ..StepHeader::default()
    };
    header.write(words);
    packed.words = saves_at + write_saves(plan, limits, words, saves_at) * StateSave::COUNT;
    Ok(packed)
}

/// Errors: a copy of a state whose slot is not open or whose place does not exist, or two to one place.
fn check_copies(
    states: &StateCopies,
    limits: &PlanLimits,
    slots: &[SlotRecord],
) -> Result<(), String> {
    for copy in states.restored.iter().chain(&states.saved) {
        let record = slots.get(copy.slot.index());
        if record.is_none_or(|record| record.open != Some(copy.slot)) {
            return Err(format!("a copy of slot {}, which is not open", copy.slot));
        }
        if copy.snapshot.0 >= limits.num_snapshots {
            return Err(format!("snapshot {} of {}", copy.snapshot, limits.num_snapshots));
        }
    }
    let mut places: Vec<u32> = states.saved.iter().map(|copy| copy.snapshot.0).collect();
    places.sort_unstable();
    match places.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("snapshot {} twice", pair[0])),
        None => Ok(()),
    }
}

/// Lists the copies of states that each row makes, by rising end; returns how many.
fn write_saves(plan: &StepPlan, limits: &PlanLimits, words: &mut [u32], saves_at: usize) -> usize {
    let mut count = 0;
    for (index, row) in plan.rows.iter().enumerate() {
        let of_row = plan.states.saved.iter().filter(|copy| copy.slot == row.slot);
        let mut saves: Vec<StateSave> = of_row
            .filter(|copy| (row.start + 1..=row.start + row.num_tokens).contains(&copy.end))
            .map(|copy| StateSave {
                end: copy.end,
                place: limits.engine.num_slots + copy.snapshot.0,
            })
            .collect();
        if saves.is_empty() {
            continue;
        }
        saves.sort_unstable_by_key(|save| save.end);
        words[row_at(index) + FIRST_SAVE] = count as u32;
        words[row_at(index) + NUM_SAVES] = saves.len() as u32;
        for save in saves {
            save.write(&mut words[saves_at + count * StateSave::COUNT..]);
            count += 1;
        }
    }
    count
}

/// Lists a row's new blocks, of which there may be `num_left`; returns how many. Tables of all KV groups stand
/// one after the other: slots are counted through them.
fn write_updates(
    row: &PlanRow,
    limits: &PlanLimits,
    record: &mut SlotRecord,
    (words, num_left): (&mut [u32], usize),
) -> Result<usize, String> {
    let num_new = row.new_blocks.len();
    if num_new == 0 {
        return Ok(0);
    }
    if num_new > num_left {
        return Err(format!("more than {} new blocks", limits.max_updates));
    }
    let num_groups = limits.kv_groups.len();
    let groups = limits.kv_groups.split(&row.new_blocks);
    let groups = groups.ok_or_else(|| format!("{num_new} new blocks of {num_groups} KV groups"))?;
    let first = record.num_blocks;
    let mut updates = words.chunks_exact_mut(BlockUpdate::COUNT);
    for (group, blocks) in groups.enumerate() {
        let slot = group as u32 * limits.engine.num_slots + row.slot.number();
        for (index, block) in (first..).zip(blocks) {
            if block.0 >= limits.num_blocks || index >= limits.engine.max_blocks {
                return Err(format!("block {block} at {index}"));
            }
            if let Some(words) = updates.next() {
                BlockUpdate { slot, index, block: block.0 }.write(words);
            }
        }
    }
    record.num_blocks += (num_new / num_groups) as u32;
    Ok(num_new)
}

impl PackedStep {
    fn add_row(&mut self, row: &PlanRow, record: &SlotRecord, first_token: u32) {
        let list_start = self.list_rows.len() as u32;
        if let (Some(top), TokenSource::Host(ids)) = (row.wants.prompt_log_probs, &row.source) {
            self.list_top = self.list_top.max(top);
            let targets = ids.iter().skip(1).chain(row.wants.next_prompt_token.iter());
            for (i, target) in targets.enumerate() {
                self.list_rows.push(first_token + i as u32);
                self.list_targets.push(target.0);
            }
        }
        self.has_pooled |= row.wants.pooled.is_some();
        self.rows.push(RowPlace {
            slot: row.slot,
            sample: None,
            wants_log_probs: record.log_probs.is_some(),
            list: list_start..self.list_rows.len() as u32,
            list_top: row.wants.prompt_log_probs.unwrap_or(0),
            pooled: row.wants.pooled.filter(|p| p.is_last).map(|_| self.rows.len() as u32),
        });
    }
}

/// Lists the samples, those of `SampleMode::Now` first; returns how many.
fn write_samples(
    plan: &StepPlan,
    packed: &mut PackedStep,
    words: &mut [u32],
    samples_at: usize,
) -> u32 {
    let mut count = 0u32;
    for mode in [SampleMode::Now, SampleMode::Late] {
        let mut token_row = 0u32;
        for (index, row) in plan.rows.iter().enumerate() {
            token_row += row.num_tokens;
            if row.wants.sample != mode {
                continue;
            }
            let flags = if mode == SampleMode::Late { SAMPLE_LATE } else { 0 };
            let sample = StepSample {
                row: index as u32,
                token_row: token_row - 1,
                slot: row.slot.number(),
                flags,
            };
            sample.write(&mut words[samples_at + count as usize * StepSample::COUNT..]);
            words[row_at(index) + SAMPLE_INDEX] = count;
            packed.rows[index].sample = Some(count);
            if mode == SampleMode::Late {
                packed.late_slots.push(row.slot);
                packed.num_late += 1;
            } else {
                packed.num_now += 1;
            }
            count += 1;
        }
    }
    count
}

/// Packs the metadata of the sampler that runs for late rows alone; returns the words used.
pub(crate) fn pack_late(slots: &[SlotId], masked: &[bool], words: &mut [u32]) -> usize {
    let header = StepHeader { num_samples: slots.len() as u32, ..StepHeader::empty() };
    header.write(words);
    for (index, slot) in slots.iter().enumerate() {
        let flags = if masked[index] { SAMPLE_MASKED } else { 0 };
        let sample = StepSample { row: index as u32, token_row: 0, slot: slot.number(), flags };
        sample.write(&mut words[StepHeader::COUNT + index * StepSample::COUNT..]);
    }
    StepHeader::COUNT + slots.len() * StepSample::COUNT
}

impl StepHeader {
    /// The layout of an empty step.
    pub(crate) fn empty() -> Self {
        let at = Self::COUNT as u32;
        let lists =
            Self { rows_at: at, tokens_at: at, updates_at: at, samples_at: at, ..Self::default() };
        Self { saves_at: at, ..lists }
    }
}

/// The position of a row in the packed words.
fn row_at(index: usize) -> usize {
    StepHeader::COUNT + index * StepRow::COUNT
}

/// The record of a row's slot, if it is open for the row's owner.
fn record_of<'a>(row: &PlanRow, slots: &'a mut [SlotRecord]) -> Result<&'a mut SlotRecord, String> {
    let record = slots.get_mut(row.slot.index()).filter(|record| record.open == Some(row.slot));
    record.ok_or_else(|| {
        format!("slot {} is not open for its owner {}", row.slot, row.slot.generation())
    })
}

fn check_row(row: &PlanRow, limits: &PlanLimits) -> Result<(), String> {
    let end = u64::from(row.start) + u64::from(row.num_tokens);
    if row.num_tokens == 0 || end > u64::from(limits.engine.max_model_len) {
        return Err(format!("{} tokens from {}", row.num_tokens, row.start));
    }
    match &row.source {
        TokenSource::LastSampled if row.num_tokens != 1 => {
            Err(format!("{} tokens of one that was sampled", row.num_tokens))
        }
        TokenSource::LastSampled => Ok(()),
        TokenSource::Host(ids) if ids.len() != row.num_tokens as usize => {
            Err(format!("{} ids for {} tokens", ids.len(), row.num_tokens))
        }
        TokenSource::Host(ids) => {
            let next = row.wants.next_prompt_token.iter();
            match ids.iter().chain(next).find(|id| id.0 >= limits.vocab_size) {
                Some(id) => Err(format!("token {id}, vocabulary of {}", limits.vocab_size)),
                None => Ok(()),
            }
        }
    }
}

fn write_tokens(row: &PlanRow, words: &mut [u32]) {
    match &row.source {
        TokenSource::LastSampled => words[0] = NONE,
        TokenSource::Host(ids) => {
            words.iter_mut().zip(ids).for_each(|(word, id)| *word = id.0);
        }
    }
}

fn pooled_flags(row: &PlanRow) -> u32 {
    match row.wants.pooled {
        None => 0,
        Some(pooled) => {
            let kind = match pooled.pooling {
                Pooling::Mean => POOL_MEAN,
                Pooling::Last => POOL_LAST,
            };
            kind | if pooled.is_last { POOL_ENDS } else { 0 }
        }
    }
}

/// The index of the word of a row that names its sample.
const SAMPLE_INDEX: usize = std::mem::offset_of!(StepRow, sample_index) / 4;
/// Those that say which copies of its state it makes.
const FIRST_SAVE: usize = std::mem::offset_of!(StepRow, first_save) / 4;
const NUM_SAVES: usize = std::mem::offset_of!(StepRow, num_saves) / 4;

#[cfg(test)]
mod tests {
    use super::*;
    use ingle_core::{BlockId, SnapshotId, StateCopy, StepId, TokenId, Wants};

    fn limits() -> PlanLimits {
        PlanLimits {
            engine: EngineDims {
                block_size: 4,
                max_blocks: 8,
                num_slots: 4,
                max_rows: 3,
                max_tokens: 16,
                max_model_len: 32,
                ranks: 1,
            },
            vocab_size: 100,
            num_blocks: 10,
            kv_groups: KvGroups::ONE,
            max_updates: 6,
            prompt_group: None,
            num_snapshots: 5,
        }
    }

    fn slots() -> Vec<SlotRecord> {
        let open = |number| Some(SlotId::first(number));
        (0..4).map(|number| SlotRecord { open: open(number), ..SlotRecord::default() }).collect()
    }

    fn row(slot: u32, start: u32, ids: &[u32], blocks: &[u32], sample: SampleMode) -> PlanRow {
        PlanRow {
            slot: SlotId::first(slot),
            start,
            num_tokens: ids.len() as u32,
            source: TokenSource::Host(ids.iter().map(|&id| TokenId(id)).collect()),
            new_blocks: blocks.iter().map(|&block| BlockId(block)).collect(),
            wants: Wants { sample, ..Wants::default() },
        }
    }

    fn plan(rows: Vec<PlanRow>) -> StepPlan {
        StepPlan { id: StepId(7), rows, ..StepPlan::default() }
    }

    #[test]
    fn words_stand_where_the_header_says() {
        let mut words = vec![9; 200];
        let mut records = slots();
        records[2].num_blocks = 1;
        let mut decode = row(2, 3, &[0], &[], SampleMode::Late);
        decode.source = TokenSource::LastSampled;
        let prefill = row(1, 0, &[5, 6, 7, 8, 9], &[3, 4], SampleMode::Now);
        let packed =
            pack(&plan(vec![decode, prefill]), &limits(), &mut records, &mut words).unwrap();
        assert_eq!(words[..9], [2, 6, 2, 2, 16, 32, 38, 44, 7]);
        assert_eq!(words[16..24], [2, 3, 1, 0, 0, 1, 0, 0]);
        assert_eq!(words[24..32], [1, 0, 5, 1, 0, 0, 0, 0]);
        assert_eq!(words[32..38], [NONE, 5, 6, 7, 8, 9]);
        assert_eq!(words[38..44], [1, 0, 3, 1, 1, 4]);
        assert_eq!(words[44..52], [1, 5, 1, 0, 0, 0, 2, SAMPLE_LATE]);
        assert_eq!((packed.words, packed.num_now, packed.num_late), (52, 1, 1));
        assert_eq!(packed.rows[0].sample, Some(1));
        assert_eq!(packed.late_slots, [SlotId::first(2)]);
        assert_eq!(records[1].num_blocks, 2);
    }

    /// The tables of a group stand behind those of the group before it.
    #[test]
    fn new_blocks_go_to_the_tables_of_their_groups() {
        let kv_groups = KvGroups::new(&[None, Some(8)]);
        let limits = PlanLimits { kv_groups, ..limits() };
        let (mut words, mut records) = (vec![9; 200], slots());
        records[2].num_blocks = 1;
        let prefill = row(2, 4, &[5, 6, 7, 8, 9], &[3, 4, 7, 8], SampleMode::Now);
        let packed = pack(&plan(vec![prefill]), &limits, &mut records, &mut words).unwrap();
        assert_eq!(records[2].num_blocks, 3);
        let updates_at = words[6] as usize;
        assert_eq!(words[3], 4);
        assert_eq!(words[updates_at..updates_at + 12], [2, 1, 3, 2, 2, 4, 6, 1, 7, 6, 2, 8]);
        assert_eq!(packed.words, updates_at + 12 + 4);
        let uneven = row(2, 9, &[5, 6, 7, 8, 9], &[3, 4, 5], SampleMode::Now);
        let error = pack(&plan(vec![uneven]), &limits, &mut slots(), &mut words).unwrap_err();
        assert!(error.contains("3 new blocks of 2 KV groups"), "{error}");
    }

    #[test]
    fn a_row_lists_the_copies_of_its_state_by_rising_end() {
        let copy = |slot, end, snapshot| StateCopy {
            slot: SlotId::first(slot),
            end,
            snapshot: SnapshotId(snapshot),
        };
        let first = row(1, 4, &[5, 6, 7, 8], &[3, 4], SampleMode::Now);
        let second = row(3, 0, &[5], &[6], SampleMode::Now);
        let mut plan = plan(vec![first, second]);
        plan.states.restored = vec![copy(1, 4, 2)];
        plan.states.saved = vec![copy(1, 8, 2), copy(3, 1, 0), copy(1, 6, 4)];
        let mut words = vec![9; 200];
        let packed = pack(&plan, &limits(), &mut slots(), &mut words).unwrap();
        let saves_at = words[9] as usize;
        // Places of snapshots stand behind those of four slots.
        assert_eq!(words[saves_at..packed.words], [6, 8, 8, 6, 1, 4]);
        assert_eq!((words[16 + 6], words[16 + 7]), (0, 2));
        assert_eq!((words[24 + 6], words[24 + 7]), (2, 1));
        for (saved, reason) in [
            (vec![copy(1, 8, 5)], "snapshot 5 of 5"),
            (vec![copy(1, 8, 2), copy(3, 1, 2)], "snapshot 2 twice"),
            (vec![copy(9, 8, 2)], "a copy of slot 9, which is not open"),
        ] {
            plan.states.saved = saved;
            let error = pack(&plan, &limits(), &mut slots(), &mut words).unwrap_err();
            assert!(error.contains(reason), "{error} should say {reason}");
        }
    }

    #[test]
    fn nothing_out_of_range_gets_through() {
        let cases = [
            (row(1, 0, &[100], &[0], SampleMode::Now), "token 100"),
            (row(1, 0, &[1], &[10], SampleMode::Now), "block 10"),
            (row(1, 0, &[1], &[], SampleMode::Now), "beyond its blocks"),
            (row(1, 32, &[1], &[0], SampleMode::Now), "1 tokens from 32"),
            (row(9, 0, &[1], &[0], SampleMode::Now), "slot 9 is not open"),
            (row(1, 0, &[], &[0], SampleMode::Now), "0 tokens"),
        ];
        for (bad, reason) in cases {
            let error = pack(&plan(vec![bad]), &limits(), &mut slots(), &mut [0; 200]).unwrap_err();
            assert!(error.contains(reason), "{error} should say {reason}");
        }
        let mut later = row(1, 0, &[1], &[0], SampleMode::Now);
        later.slot = later.slot.next();
        let error = pack(&plan(vec![later]), &limits(), &mut slots(), &mut [0; 200]).unwrap_err();
        assert!(error.contains("slot 1 is not open for its owner 1"), "{error}");
        let mut next = row(1, 0, &[1, 2], &[0], SampleMode::None);
        next.wants.prompt_log_probs = Some(0);
        next.wants.next_prompt_token = Some(TokenId(100));
        assert!(pack(&plan(vec![next]), &limits(), &mut slots(), &mut [0; 200]).is_err());
    }

    #[test]
    fn prompt_log_probs_aim_at_the_next_token() {
        let mut words = vec![0; 200];
        let mut prompt = row(0, 0, &[5, 6, 7], &[0], SampleMode::None);
        prompt.wants.prompt_log_probs = Some(2);
        prompt.wants.next_prompt_token = Some(TokenId(8));
        let first = row(3, 0, &[1], &[1], SampleMode::Now);
        let packed = pack(&plan(vec![first, prompt]), &limits(), &mut slots(), &mut words).unwrap();
        assert_eq!(packed.list_rows, [1, 2, 3]);
        assert_eq!(packed.list_targets, [6, 7, 8]);
        assert_eq!(packed.rows[1].list, 0..3);
        assert_eq!(packed.list_top, 2);
    }

    #[test]
    fn late_samples_get_a_list_of_their_own() {
        let mut words = vec![9; 64];
        let used = pack_late(&[SlotId::first(3), SlotId::first(1)], &[true, false], &mut words);
        assert_eq!(used, 24);
        assert_eq!((words[2], words[7]), (2, 16));
        assert_eq!(words[16..24], [0, 0, 3, SAMPLE_MASKED, 1, 0, 1, 0]);
    }
}
