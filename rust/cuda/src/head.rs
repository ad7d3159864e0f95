//! [6] The launches after the last layer: head, sampler, prompt log-probs, pooling. Engine thread,
//! or the capture thread while it records. Each follows `Model::layers` of its step.

use crate::CudaError;
use crate::device_slice::DeviceSlice;
use crate::gemm::{GemmArgs, GemmInput, GemmResult};
use crate::launch::{PoolRows, RmsNorm, SampleFinish, SampleScan, Scores};
use crate::matrix::Matrix;
use crate::model::Model;
use crate::stream::Stream;

impl Model {
    /// Queues final norm and head for the step's sample rows.
    pub(crate) fn sample_logits(&self, stream: &Stream, samples: u32) -> Result<(), CudaError> {
        self.logits(stream, samples, self.buffers.sample_rows)
    }

    /// Queues final norm and head for the `rows` residual rows that `row_index` lists.
    pub(crate) fn logits(
        &self,
        stream: &Stream,
        rows: u32,
        row_index: DeviceSlice<u32>,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let norm = RmsNorm {
            x: buffers.residual,
            row_index: Some(row_index),
            weight: self.weights.head_norm,
            out: buffers.sampled,
            eps: self.spec.norm.eps,
        };
        self.norm(stream, rows, norm)?;
        // A rank's own columns go through the sampler's memory, which is not in use yet.
        let own = if self.place.is_some() { buffers.work } else { buffers.logits };
        let out = GemmResult::F32(own);
        let (x, w) = (GemmInput::Act(buffers.sampled), Matrix::Plain(self.weights.lm_head));
        let args = GemmArgs { x, w, out };
        self.gemms.run(stream, rows, self.shapes().head, args)?;
        if let Some(place) = &self.place {
            self.launcher(stream).ranks_gather(&place.exchange, rows, &place.gather(own))?;
        }
        match self.spec.final_logit_softcap {
            Some(cap) => self.launcher(stream).softcap_rows(rows, buffers.logits, cap),
            None => Ok(()),
        }
    }

    /// Queues the sampler for the `samples` that `step` lists, the first of which has its logits at the start
    /// of `logits`.
    pub(crate) fn sample(
        &self,
        stream: &Stream,
        samples: u32,
        step: DeviceSlice<u32>,
        logits: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        let (launcher, buffers) = (self.launcher(stream), &self.buffers);
        let scores = Scores {
            logits,
            work: buffers.work,
            step,
            slots: buffers.slots,
            counts: buffers.counts,
            partials: buffers.sample_partials,
            chunks: self.sizes.vocab_chunks,
        };
        let scan = SampleScan { mask: buffers.mask, bias: buffers.bias, banned: buffers.banned };
        let finish = SampleFinish { last_token: buffers.last_token, out: buffers.out };
        launcher.sample_scan(samples, &scores, &scan)?;
        launcher.sample_finish(samples, &scores, &finish)?;
        launcher.log_probs_samples(samples, &scores, buffers.out)
    }

    /// Queues log-probs of the listed rows from `start` on: `rows` of them, with `top` alternatives.
    pub(crate) fn list_log_probs(
        &self,
        stream: &Stream,
        start: u64,
        rows: u32,
        top: u32,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        self.logits(stream, rows, buffers.list_rows.from(start))?;
        let (targets, out) = (buffers.list_targets.from(start), buffers.list_out.from(start));
        self.launcher(stream).log_probs_rows(rows, buffers.logits, targets, top, out)
    }

    /// Queues pooling of the step's rows that ask for it: `tokens` padded token rows, `rows` rows.
    pub(crate) fn pool(&self, stream: &Stream, tokens: u32, rows: u32) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let pool = PoolRows {
            step: buffers.meta,
            residual: buffers.residual,
            scale: buffers.pool_scale,
            weight: self.weights.final_norm,
            sums: buffers.pool_sums,
            out: buffers.pooled,
            eps: self.spec.norm.eps,
        };
        self.launcher(stream).pool(tokens, rows, &pool)
    }
}
