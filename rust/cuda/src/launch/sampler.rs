//! Launches of sampler.cu and log_probs.cu.

use super::Launcher;
use crate::CudaError;
use crate::contract::{Bias, Dims, MAX_BANNED, MAX_LOGIT_BIAS, SampleOut, SamplePartial, Slot};
use crate::device_slice::DeviceSlice;
use crate::module::{Launch, args};
use crate::registry::Entry;

/// What the samples of a step are taken from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scores {
    /// `[samples, vocab_size]` each; `work` is written where a slot changes its logits
    pub(crate) logits: DeviceSlice<f32>,
    pub(crate) work: DeviceSlice<f32>,
    /// StepHeader and its lists, words.
    pub(crate) step: DeviceSlice<u32>,
    /// `[num_slots]`
    pub(crate) slots: DeviceSlice<Slot>,
    /// `[num_slots, vocab_size]`
    pub(crate) counts: DeviceSlice<u16>,
    /// `[samples, chunks]`
    pub(crate) partials: DeviceSlice<SamplePartial>,
    pub(crate) chunks: u32,
}

/// Arguments of sample_scan other than the scores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleScan {
    /// `[num_slots, ceil(vocab_size / 32)]`
    pub(crate) mask: DeviceSlice<u32>,
    /// `[num_slots, MAX_LOGIT_BIAS]`
    pub(crate) bias: DeviceSlice<Bias>,
    /// `[num_slots, MAX_BANNED]`
    pub(crate) banned: DeviceSlice<u32>,
}

/// Arguments of sample_finish other than the scores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleFinish {
    /// `[num_slots]`
    pub(crate) last_token: DeviceSlice<u32>,
    /// `[samples]`
    pub(crate) out: DeviceSlice<SampleOut>,
}

impl Launcher<'_> {
    /// Queues the first pass of the sampler over `samples` rows.
    pub(crate) fn sample_scan(
        &self,
        samples: u32,
        s: &Scores,
        a: &SampleScan,
    ) -> Result<(), CudaError> {
        let Dims { num_slots, vocab_size, .. } = *self.dims;
        let slots = u64::from(num_slots);
        self.check_scores(samples, s);
        holds!(a.mask, slots * u64::from(vocab_size.div_ceil(32)));
        holds!(a.bias, slots * u64::from(MAX_LOGIT_BIAS));
        holds!(a.banned, slots * u64::from(MAX_BANNED));
        let kernel = self.kernels.only(Entry::SampleScan)?;
        // SAFETY: these are the parameters of sample_scan in its order; the slices were checked above, and the
        // samples of a step name open slots (`metadata::pack`).
        unsafe {
            kernel.launch(
                self.stream,
                Launch::plane(s.chunks, samples, kernel.max_block()),
                args![
                    self.dims, s.logits, s.work, s.step, s.slots, s.counts, a.mask, a.bias,
                    a.banned, s.partials,
                ],
            )
        }
    }

    /// Queues the second pass, after `sample_scan`.
    pub(crate) fn sample_finish(
        &self,
        samples: u32,
        s: &Scores,
        a: &SampleFinish,
    ) -> Result<(), CudaError> {
        self.check_scores(samples, s);
        holds!(a.last_token, u64::from(self.dims.num_slots));
        holds!(a.out, u64::from(samples));
        let kernel = self.kernels.only(Entry::SampleFinish)?;
        // SAFETY: these are the parameters of sample_finish in its order; the slices were checked above, and the
        // samples of a step name open slots (`metadata::pack`).
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(samples, kernel.max_block()),
                args![
                    self.dims,
                    s.logits,
                    s.work,
                    s.step,
                    s.slots,
                    s.counts,
                    s.partials,
                    a.last_token,
                    a.out,
                ],
            )
        }
    }

    /// Queues the log-probs of samples whose slots request them, after `sample_finish`.
    pub(crate) fn log_probs_samples(
        &self,
        samples: u32,
        s: &Scores,
        out: DeviceSlice<SampleOut>,
    ) -> Result<(), CudaError> {
        self.check_scores(samples, s);
        holds!(out, u64::from(samples));
        let kernel = self.kernels.only(Entry::LogProbsSamples)?;
        // SAFETY: these are the parameters of log_probs_samples in its order; the slices were checked above, and the
        // samples of a step name open slots (`metadata::pack`).
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(samples, kernel.max_block()),
                args![self.dims, s.logits, s.step, s.slots, out],
            )
        }
    }

    /// Queues the log-probs of `rows` listed tokens with `top` alternatives.
    pub(crate) fn log_probs_rows(
        &self,
        rows: u32,
        logits: DeviceSlice<f32>,
        targets: DeviceSlice<u32>,
        top: u32,
        out: DeviceSlice<SampleOut>,
    ) -> Result<(), CudaError> {
        holds!(logits, self.vocab(rows));
        holds!(targets, u64::from(rows));
        holds!(out, u64::from(rows));
        let kernel = self.kernels.only(Entry::LogProbsRows)?;
        // SAFETY: these are the parameters of log_probs_rows in its order; the slices were checked above, and the
        // kernel bounds each target by the vocabulary.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, kernel.max_block()),
                args![self.dims, logits, targets, top, out],
            )
        }
    }

    fn check_scores(&self, samples: u32, s: &Scores) {
        let slots = self.dims.num_slots;
        holds!(s.logits, self.vocab(samples));
        holds!(s.work, self.vocab(samples));
        holds!(s.slots, u64::from(slots));
        holds!(s.counts, self.vocab(slots));
        holds!(s.partials, u64::from(samples) * u64::from(s.chunks));
    }
}
