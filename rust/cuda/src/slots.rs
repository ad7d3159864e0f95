//! [5] Uploads what a newly opened slot needs: sampling parameters, cached blocks, the sparse lists
//! of the sampler. Engine thread only.

use std::collections::BTreeMap;

use ingle_core::{OpenedSlot, SamplingParams};

use crate::CudaError;
use crate::buffers::BufferSizes;
use crate::contract::{
    Bias, MAX_BANNED, MAX_BEST, MAX_LOGIT_BIAS, NONE, OpenJob, PlainSampling, SLOT_HAS_MASK,
    SLOT_HAS_PENALTIES, Slot, StepHeader, StepSample, Words,
};
use crate::device_slice::DeviceSlice;
use crate::dims::EngineDims;
use crate::memory::{PinnedBuffer, copy_from_offset, copy_pageable};
use crate::metadata::SlotRecord;
use crate::model::Model;
use crate::stream::Stream;

/// Most alternatives that come back with a log-probability.
pub const MAX_LOG_PROBS: u32 = MAX_BEST;
/// Most entries of `logit_bias`.
pub const MAX_LOGIT_BIAS_ENTRIES: u32 = MAX_LOGIT_BIAS;
/// Most ids that `min_tokens` can hold back.
pub const MAX_MIN_TOKENS_BANNED: u32 = MAX_BANNED;

/// Pinned memory that small uploads of one step pass through.
#[derive(Debug)]
pub(crate) struct Staging {
    buffer: PinnedBuffer,
    used: usize,
    /// Words that hold this step's uploads; other ranks' are the same ones.
    written: usize,
}

impl Staging {
    /// Staging over the buffer.
    pub(crate) fn new(buffer: PinnedBuffer) -> Self {
        Self { buffer, used: 0, written: 0 }
    }

    /// Starts over; the copies of the step before have been made.
    pub(crate) fn reset(&mut self) {
        self.used = 0;
        self.written = 0;
    }

    /// Words in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Goes back to the first upload, for a rank that gets the same ones.
    pub(crate) fn rewind(&mut self) {
        self.rewind_to(0);
    }

    /// Goes back to the uploads behind `used` words, for a rank that gets the same ones.
    pub(crate) fn rewind_to(&mut self, used: usize) {
        self.used = used;
    }

    /// Queues a copy of the words to the device. Words that do not fit (`staging_bytes` says which step
    /// has such) go as pageable memory, for which the driver may wait for the stream.
    pub(crate) fn push<T>(
        &mut self,
        stream: &Stream,
        destination: DeviceSlice<T>,
        words: &[u32],
    ) -> Result<(), CudaError> {
        if words.is_empty() {
            return Ok(());
        }
        let at = self.used;
        let Some(room) = self.buffer.as_mut_words().get_mut(at..at + words.len()) else {
            return copy_pageable(stream, destination, words);
        };
        // Copies to other ranks may be reading them.
        if at >= self.written {
            room.copy_from_slice(words);
        }
        self.used += words.len().next_multiple_of(4);
        self.written = self.written.max(self.used);
        copy_from_offset(stream, destination, &self.buffer, at * 4, words.len() * 4)
    }
}

/// Pinned bytes that the uploads of one step pass through, so that none of them waits: each row opens
/// its slot with a mask, a bias and a full block table and is sampled late under another mask, all
/// prompt log-probs are wanted, and penalties bring one batch of ids.
///
/// With 256 rows, a vocabulary of 128,256 and 131,072 positions these are 13 MiB, three times: one
/// set of buffers for each step in flight and one on its way back. What may still wait is a step that
/// opens slots with penalties whose tokens are more than `open_ids_words` together, and one near
/// `MOST_STAGING_BYTES`.
pub(crate) fn staging_bytes(vocab_size: u32, engine: &EngineDims, sizes: &BufferSizes) -> u64 {
    // `Staging::push` rounds up to 16 bytes.
    let upload = |words: u64| (words * 4).next_multiple_of(16);
    let mask = upload(u64::from(vocab_size.div_ceil(32)));
    let opened = upload(Slot::COUNT as u64)
        + u64::from(sizes.num_groups) * upload(u64::from(engine.max_blocks))
        + mask
        + upload(u64::from(MAX_LOGIT_BIAS) * Bias::COUNT as u64)
        + upload(u64::from(MAX_BANNED));
    // What one row takes in the jobs of `sample_open` and in the late sampler's metadata.
    let (job, sample) = (size_of::<OpenJob>() as u64, size_of::<StepSample>() as u64);
    let rows = u64::from(engine.max_rows) * (opened + mask + job + sample);
    let header = size_of::<StepHeader>() as u64;
    let whole_step = header + 2 * upload(sizes.list_rows()) + upload(sizes.open_ids_words);
    (rows + whole_step).min(MOST_STAGING_BYTES)
}

/// Bound of what `staging_bytes` takes: 1,024 rows with a vocabulary of 262,144 need 82 MiB, which only
/// rows with two masks each would fill.
const MOST_STAGING_BYTES: u64 = 64 << 20;

/// Checks what an opened slot asks of the device.
pub(crate) fn check_opened(
    opened: &OpenedSlot,
    model: &Model,
    num_blocks: u32,
) -> Result<(), String> {
    let params = &opened.sampling;
    let vocab = model.spec.vocab_size;
    let too_many = |what: &str, count: usize, most: u32| {
        if count > most as usize { Err(format!("{count} {what}, at most {most}")) } else { Ok(()) }
    };
    too_many("entries of logit_bias", params.logit_bias.len(), MAX_LOGIT_BIAS)?;
    too_many("ids held back by min_tokens", params.min_tokens_banned.len(), MAX_BANNED)?;
    too_many("log-probs", params.log_probs.unwrap_or(0) as usize, MAX_LOG_PROBS)?;
    let tables = model.kv_groups.split(&opened.cached_blocks);
    let mut tables =
        tables.ok_or_else(|| format!("cached blocks of {} KV groups", model.kv_groups.len()))?;
    let num_cached = tables.next().map_or(0, <[_]>::len);
    too_many("cached blocks", num_cached, model.engine.max_blocks)?;
    let ids = opened.prompt.iter().chain(&opened.generated);
    if params.has_penalties()
        && let Some(id) = ids.clone().find(|id| id.0 >= vocab)
    {
        return Err(format!("token {id}, vocabulary of {vocab}"));
    }
    too_many("tokens", ids.count(), model.engine.max_model_len)?;
    match opened.cached_blocks.iter().find(|block| block.0 >= num_blocks) {
        Some(block) => Err(format!("cached block {block} of {num_blocks}")),
        None if opened.slot.number() >= model.engine.num_slots => {
            Err(format!("slot {} of {}", opened.slot, model.engine.num_slots))
        }
        None => Ok(()),
    }
}

/// Queues the uploads of the opened slots, whose records are in `slots`.
pub(crate) fn open_slots(
    model: &Model,
    stream: &Stream,
    staging: &mut Staging,
    opened: &[OpenedSlot],
    slots: &[SlotRecord],
) -> Result<(), CudaError> {
    let buffers = &model.buffers;
    let mut penalties = PenaltyJobs::default();
    for open in opened {
        let slot = u64::from(open.slot.number());
        let params = &open.sampling;
        let mask = &slots[open.slot.index()].allowed;
        let mut parameters = sampling_of(params, open.generated.len() as u32, mask.is_some());
        // The kernel requires distinct ids.
        let mut sums = BTreeMap::<u32, f32>::new();
        for (id, value) in &params.logit_bias {
            *sums.entry(id.0).or_default() += value;
        }
        let bias: Vec<u32> = sums.iter().flat_map(|(id, value)| [*id, value.to_bits()]).collect();
        parameters.bias_len = sums.len() as u32;
        let mut words = [0; Slot::COUNT];
        parameters.write(&mut words);
        staging.push(stream, buffers.slots.row(slot, 1), &words)?;
        for (group, table) in
            model.kv_groups.split(&open.cached_blocks).into_iter().flatten().enumerate()
        {
            let blocks: Vec<u32> = table.iter().map(|block| block.0).collect();
            let row = group as u64 * u64::from(model.engine.num_slots) + slot;
            let row = buffers.block_table.row(row, u64::from(model.engine.max_blocks));
            staging.push(stream, row, &blocks)?;
        }
        if let Some(mask) = mask {
            staging.push(stream, model.mask_of(open.slot), mask)?;
        }
        staging.push(stream, buffers.bias.row(slot, u64::from(MAX_LOGIT_BIAS)), &bias)?;
        let banned: Vec<u32> = params.min_tokens_banned.iter().map(|id| id.0).collect();
        staging.push(stream, buffers.banned.row(slot, u64::from(MAX_BANNED)), &banned)?;
        if params.has_penalties() {
            penalties.add(model, stream, staging, open)?;
        }
    }
    penalties.launch(model, stream, staging)
}

impl Model {
    /// The address of a slot's mask.
    pub(crate) fn mask_of(&self, slot: ingle_core::SlotId) -> DeviceSlice<u32> {
        let words = u64::from(self.spec.vocab_size.div_ceil(32));
        self.buffers.mask.row(u64::from(slot.number()), words)
    }
}

/// Token ids that fill the counts of slots with penalties, gathered into as few launches as fit.
#[derive(Default)]
struct PenaltyJobs {
    ids: Vec<u32>,
    jobs: Vec<u32>,
}

impl PenaltyJobs {
    fn add(
        &mut self,
        model: &Model,
        stream: &Stream,
        staging: &mut Staging,
        open: &OpenedSlot,
    ) -> Result<(), CudaError> {
        let count = open.prompt.len() + open.generated.len();
        if (self.ids.len() + count) as u64 > model.sizes.open_ids_words {
            self.launch(model, stream, staging)?;
        }
        let (prompt, generated) = (open.prompt.len() as u32, open.generated.len() as u32);
        let job = OpenJob {
            slot: open.slot.number(),
            first_id: self.ids.len() as u32,
            num_prompt: prompt,
            num_generated: generated,
        };
        let at = self.jobs.len();
        self.jobs.resize(at + OpenJob::COUNT, 0);
        job.write(&mut self.jobs[at..]);
        self.ids.extend(open.prompt.iter().chain(&open.generated).map(|id| id.0));
        Ok(())
    }

    fn launch(
        &mut self,
        model: &Model,
        stream: &Stream,
        staging: &mut Staging,
    ) -> Result<(), CudaError> {
        if self.jobs.is_empty() {
            return Ok(());
        }
        let buffers = &model.buffers;
        staging.push(stream, buffers.open_ids, &self.ids)?;
        staging.push(stream, buffers.open_jobs, &self.jobs)?;
        let jobs = buffers.open_jobs.slice(0, self.jobs.len() as u64);
        model.launcher(stream).sample_open(buffers.counts, buffers.open_ids, jobs)?;
        self.ids.clear();
        self.jobs.clear();
        Ok(())
    }
}

/// Sampling parameters in the layout that kernels read.
fn sampling_of(params: &SamplingParams, num_generated: u32, has_mask: bool) -> Slot {
    let mask = if has_mask { SLOT_HAS_MASK } else { 0 };
    let penalties = if params.has_penalties() { SLOT_HAS_PENALTIES } else { 0 };
    Slot {
        plain: PlainSampling::of(params),
        min_tokens: params.min_tokens,
        seed_low: params.seed as u32,
        seed_high: (params.seed >> 32) as u32,
        choice: params.choice_index,
        position: num_generated,
        log_probs: params.log_probs.unwrap_or(NONE),
        flags: mask | penalties,
        bias_len: params.logit_bias.len() as u32,
        banned_len: params.min_tokens_banned.len() as u32,
    }
}

#[cfg(test)]
mod tests {
    use ingle_core::{SAMPLING_FIELDS, TokenId};

    use super::*;
    use crate::device_slice::DevicePtr;
    use crate::fake;

    const ENGINE: EngineDims = EngineDims {
        block_size: 64,
        max_blocks: 2049,
        num_slots: 512,
        max_rows: 256,
        max_tokens: 2048,
        max_model_len: 131_073,
        ranks: 1,
    };
    const SIZES: BufferSizes = BufferSizes {
        tokens: 2048,
        samples: 256,
        meta_words: 0,
        num_groups: 1,
        max_updates: 0,
        plan_words: 0,
        prompt_words: 0,
        plan_entries: 0,
        open_ids_words: 131_073 * 2 + 65_536,
        vocab_chunks: 0,
    };

    /// The fullest step that is counted on passes through pinned memory, to the last word; the next
    /// word is the first that does not.
    #[test]
    fn a_full_step_copies_nothing_that_may_wait() {
        let context = fake::context();
        let stream = Stream::new(&context).unwrap();
        let bytes = staging_bytes(128_256, &ENGINE, &SIZES);
        assert_eq!(bytes >> 20, 13);
        let mut staging = Staging::new(PinnedBuffer::new(&context, bytes as usize).unwrap());
        let room = DeviceSlice::<u32>::new(DevicePtr::new(1 << 20), 1 << 20);
        let mut push = |words: u64| staging.push(&stream, room, &vec![0; words as usize]).unwrap();
        for _ in 0..ENGINE.max_rows {
            push(Slot::COUNT as u64);
            push(u64::from(ENGINE.max_blocks));
            push(128_256 / 32);
            push(u64::from(MAX_LOGIT_BIAS) * 2);
            push(u64::from(MAX_BANNED));
            push(128_256 / 32);
        }
        push(SIZES.open_ids_words);
        push(u64::from(ENGINE.max_rows) * 4);
        push(SIZES.list_rows());
        push(SIZES.list_rows());
        push(16 + u64::from(ENGINE.max_rows) * 4);
        assert_eq!(fake::calls(fake::PAGEABLE), []);
        push(1);
        assert_eq!(fake::calls(fake::PAGEABLE).len(), 1);
    }

    #[test]
    fn pinned_memory_is_bounded() {
        let most = EngineDims { max_rows: 1024, ..ENGINE };
        assert_eq!(staging_bytes(262_144, &most, &SIZES), MOST_STAGING_BYTES);
        assert!(staging_bytes(151_936, &ENGINE, &SIZES) < MOST_STAGING_BYTES);
    }

    #[test]
    fn every_parameter_reaches_its_field() {
        let params = SamplingParams {
            temperature: 0.5,
            top_k: 7,
            min_tokens: 6,
            seed: 0x1_0000_0002,
            choice_index: 3,
            presence_penalty: 1.0,
            log_probs: Some(4),
            logit_bias: vec![(TokenId(1), 2.0)],
            min_tokens_banned: vec![TokenId(1), TokenId(2)],
            ..SamplingParams::default()
        };
        let expected = Slot {
            plain: PlainSampling::of(&params),
            min_tokens: 6,
            seed_low: 2,
            seed_high: 1,
            choice: 3,
            position: 9,
            log_probs: 4,
            flags: SLOT_HAS_MASK | SLOT_HAS_PENALTIES,
            bias_len: 1,
            banned_len: 2,
        };
        assert_eq!(sampling_of(&params, 9, true), expected);
        let none = sampling_of(&SamplingParams::default(), 0, false);
        assert_eq!((none.log_probs, none.flags), (NONE, 0));
    }

    /// The order of the plain fields is the core's table, which the header is written from.
    #[test]
    fn a_plain_field_is_the_word_at_its_place_in_the_table() {
        for (place, field) in SAMPLING_FIELDS.iter().enumerate() {
            let mut params = SamplingParams::unset();
            let value = if field.is_whole { 7.0 } else { 0.25 };
            field.put(&mut params, value, &value).unwrap();
            let mut words = [0; Slot::COUNT];
            sampling_of(&params, 0, false).write(&mut words);
            let expected = if field.is_whole { 7 } else { 0.25f32.to_bits() };
            assert_eq!(words[place], expected, "{}", field.name);
        }
    }
}
