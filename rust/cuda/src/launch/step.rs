//! Launches of step_prepare.cu, slot_state.cu and the table kernel of rope_kv.cu.

use super::Launcher;
use crate::CudaError;
use crate::attention_kinds::AttentionKinds;
use crate::contract::{Dims, OpenJob, PROMPT_ROWS, QUERY_ROWS, Words};
use crate::device_slice::DeviceSlice;
use crate::module::{Launch, args};
use crate::registry::Entry;
use crate::variant::Variant;

/// Of step_prepare_tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepPrepare<'a> {
    /// StepHeader and its lists, words.
    pub(crate) step: DeviceSlice<u32>,
    /// `[num_slots]`
    pub(crate) last_token: DeviceSlice<u32>,
    /// `[num_groups, num_slots, max_blocks]`
    pub(crate) block_table: DeviceSlice<u32>,
    /// `[tokens]` each
    pub(crate) token_ids: DeviceSlice<u32>,
    pub(crate) positions: DeviceSlice<u32>,
    pub(crate) slot_of_token: DeviceSlice<u32>,
    /// `[num_groups, tokens]`
    pub(crate) kv_slot: DeviceSlice<u32>,
    /// KV groups.
    pub(crate) num_groups: u32,
    /// `[samples]`
    pub(crate) sample_rows: DeviceSlice<u32>,
    /// As `AttentionKinds::words` has them.
    pub(crate) plan_kinds: DeviceSlice<u32>,
    /// `[num_plans, plan_words]`
    pub(crate) plans: DeviceSlice<u32>,
    pub(crate) plan_words: u32,
    /// Entries that a plan has room for.
    pub(crate) plan_entries: u32,
    /// Padded token rows and sample rows.
    pub(crate) tokens: u32,
    pub(crate) samples: u32,
    pub(crate) attention: &'a AttentionKinds,
    /// PLAN_WHOLE, PLAN_NOT_CAUSAL.
    pub(crate) flags: u32,
    pub(crate) prompts: PromptPlans,
}

/// The part of step_prepare_tokens that is for attention_prefill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptPlans {
    /// Whether rows of prompts get plans of their own.
    pub(crate) split: bool,
    /// `[num_plans, prompt_words]`
    pub(crate) plans: DeviceSlice<u32>,
    pub(crate) words: u32,
    /// `[num_layers]`
    pub(crate) counters: DeviceSlice<u32>,
}

/// Of rope_table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeTable {
    /// `[half]`
    pub(crate) inv_freq: DeviceSlice<f32>,
    /// `[positions, half]`
    pub(crate) table: DeviceSlice<[f32; 2]>,
    pub(crate) attention_factor: f32,
    pub(crate) positions: u32,
}

impl Launcher<'_> {
    /// Queues the unpacking of a step's metadata.
    pub(crate) fn step_prepare(&self, a: &StepPrepare<'_>) -> Result<(), CudaError> {
        let Dims { num_slots, max_blocks, .. } = *self.dims;
        let (slots, tokens) = (u64::from(num_slots), u64::from(a.tokens));
        holds!(a.last_token, slots);
        holds!(a.block_table, u64::from(a.num_groups) * slots * u64::from(max_blocks));
        for per_token in [a.token_ids, a.positions, a.slot_of_token] {
            holds!(per_token, tokens);
        }
        holds!(a.kv_slot, u64::from(a.num_groups) * tokens);
        holds!(a.sample_rows, u64::from(a.samples));
        let (num_plans, split) = (a.attention.len(), u32::from(a.prompts.split));
        holds!(a.plan_kinds, a.attention.num_words());
        holds!(a.plans, u64::from(num_plans) * u64::from(a.plan_words));
        holds!(a.prompts.plans, u64::from(num_plans) * u64::from(a.prompts.words));
        let differ = a.attention.differ();
        let build = if differ { Variant::PlanKinds } else { Variant::Plain };
        let kernel = self.kernels.build(Entry::StepPrepareTokens, build)?;
        // Where kinds differ, the kernel has the sizes of each from the kinds themselves.
        let first = &a.attention.kinds[0];
        let prompt_tile = first.prompt.as_ref().map_or(0, |prompt| prompt.kv_tile);
        let launch = Launch::linear(1 + num_plans * (1 + split), 1024);
        // SAFETY: these are the parameters of step_prepare_tokens in its order; the slices were checked above,
        // and the step's lists lie behind its header (`metadata::pack`).
        unsafe {
            kernel.launch(
                self.stream,
                launch,
                args![
                    self.dims,
                    a.step,
                    a.last_token,
                    a.block_table,
                    a.token_ids,
                    a.positions,
                    a.slot_of_token,
                    a.kv_slot,
                    a.sample_rows,
                    a.plan_kinds,
                    a.plans,
                    a.plan_words,
                    a.plan_entries,
                    a.tokens,
                    a.samples,
                    first.launch.grid,
                    QUERY_ROWS,
                    first.launch.kv_tile,
                    a.flags,
                    num_plans,
                    a.prompts.plans,
                    a.prompts.words,
                    a.prompts.counters,
                    a.prompts.counters.len() as u32,
                    PROMPT_ROWS,
                    prompt_tile,
                    split,
                    a.num_groups,
                ],
            )
        }
    }

    /// Queues the table of rotations.
    pub(crate) fn rope_table(&self, a: &RopeTable) -> Result<(), CudaError> {
        let half = a.inv_freq.len() as u32;
        let pairs = a.positions * half;
        holds!(a.table, u64::from(pairs));
        // It is the same in all builds.
        let build = self.kernels.builds(Entry::RopeTable).next();
        let missing = || CudaError::Unsupported("no kernel for tables of angles".to_owned());
        let (_, kernel) = build.ok_or_else(missing)?;
        // SAFETY: these are the parameters of rope_table in its order, which has no Dims; the table holds a pair
        // for each position and frequency (checked above).
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(pairs.div_ceil(256), 256),
                args![a.inv_freq, a.attention_factor, a.table, a.positions, half],
            )
        }
    }

    /// Queues the counts of slots that open with penalties; each slot is in one job.
    pub(crate) fn sample_open(
        &self,
        counts: DeviceSlice<u16>,
        ids: DeviceSlice<u32>,
        jobs: DeviceSlice<u32>,
    ) -> Result<(), CudaError> {
        let Dims { num_slots, vocab_size, .. } = *self.dims;
        holds!(counts, u64::from(num_slots) * u64::from(vocab_size));
        let num_jobs = (jobs.len() / OpenJob::COUNT as u64) as u32;
        let kernel = self.kernels.only(Entry::SampleOpen)?;
        // SAFETY: these are the parameters of sample_open in its order; counts has a row for each slot (checked
        // above), and `slots::check_opened` has checked the slots and ids of jobs.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(num_jobs, 1024),
                args![self.dims, counts, ids, jobs],
            )
        }
    }
}
