//! [6] The launches behind the last layer: head, sampler, prompt log-probs, pooling. Engine thread, or the
//! capture thread while it records.

use crate::CudaError;
use crate::buffers::OUT_BYTES;
use crate::contract::SAMPLE_CHUNK;
use crate::forward::NormArgs;
use crate::gemm::GemmArgs;
use crate::model::Model;
use crate::module::{Launch, args};
use crate::registry::Entry;
use crate::shapes::Shapes;
use crate::stream::Stream;

impl Model {
    /// Queues final norm and head for the step's sample rows.
    ///
    /// # Safety
    /// As `step`, behind `layers`.
    pub(crate) unsafe fn sample_logits(
        &self,
        stream: &Stream,
        samples: u32,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promises.
        unsafe { self.logits(stream, samples, self.buffers.sample_rows) }
    }

    /// Queues final norm and head for the residual rows that `row_index` lists.
    ///
    /// # Safety
    /// As `step`, behind `layers`; `row_index` holds `rows` row numbers.
    pub(crate) unsafe fn logits(
        &self,
        stream: &Stream,
        rows: u32,
        row_index: u64,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        // SAFETY: the caller's promises.
        unsafe {
            let (x, weight) = (buffers.residual, self.weights.final_norm);
            self.norm(stream, rows, NormArgs { x, row_index, weight, out: buffers.sampled })?;
            let args =
                GemmArgs { x: buffers.sampled, w: self.weights.lm_head, out: buffers.logits };
            self.gemms.run(stream, rows, Shapes::of(&self.spec).head, args)?;
            if let Some(cap) = self.spec.final_logit_softcap {
                let kernel = self.kernels.only(Entry::SoftcapRows)?;
                let launch = Launch::plane(self.spec.vocab_size.div_ceil(SAMPLE_CHUNK), rows, 256);
                kernel.launch(stream, launch, args![&self.dims, buffers.logits, cap])?;
            }
        }
        Ok(())
    }

    /// Queues the sampler for the samples that `meta` lists, the first of which has its logits at
    /// `logits`.
    ///
    /// # Safety
    /// As `step`; the list and the logits have at most `samples` rows.
    pub(crate) unsafe fn sample(
        &self,
        stream: &Stream,
        samples: u32,
        meta: u64,
        logits: u64,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let chunks = self.sizes.vocab_chunks;
        // SAFETY: the caller's promises; sizes as laid out in `Buffers`.
        unsafe {
            self.kernels.only(Entry::SampleScan)?.launch(
                stream,
                Launch::plane(chunks, samples, 256),
                args![
                    &self.dims,
                    logits,
                    buffers.work,
                    meta,
                    buffers.slots,
                    buffers.counts,
                    buffers.mask,
                    buffers.bias,
                    buffers.banned,
                    buffers.sample_partials,
                ],
            )?;
            self.kernels.only(Entry::SampleFinish)?.launch(
                stream,
                Launch::linear(samples, self.kernels.only(Entry::SampleFinish)?.max_block()),
                args![
                    &self.dims,
                    logits,
                    buffers.work,
                    meta,
                    buffers.slots,
                    buffers.counts,
                    buffers.sample_partials,
                    buffers.last_token,
                    buffers.out,
                ],
            )?;
            self.kernels.only(Entry::LogProbsSamples)?.launch(
                stream,
                Launch::linear(samples, self.kernels.only(Entry::LogProbsSamples)?.max_block()),
                args![&self.dims, logits, meta, buffers.slots, buffers.out],
            )
        }
    }

    /// Queues log-probs of the listed rows from `start` on: `rows` of them, with `top` alternatives.
    ///
    /// # Safety
    /// As `step`, behind `layers`; the lists hold `start + rows` entries, rows and targets in range.
    pub(crate) unsafe fn list_log_probs(
        &self,
        stream: &Stream,
        start: u64,
        rows: u32,
        top: u32,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        // SAFETY: the caller's promises.
        unsafe {
            self.logits(stream, rows, buffers.list_rows + start * 4)?;
            self.kernels.only(Entry::LogProbsRows)?.launch(
                stream,
                Launch::linear(rows, self.kernels.only(Entry::LogProbsRows)?.max_block()),
                args![
                    &self.dims,
                    buffers.logits,
                    buffers.list_targets + start * 4,
                    top,
                    buffers.list_out + start * OUT_BYTES,
                ],
            )
        }
    }

    /// Queues pooling of the step's rows that ask for it.
    ///
    /// # Safety
    /// As `step`, behind `layers`; the step has `tokens` padded token rows and `rows` rows.
    pub(crate) unsafe fn pool(
        &self,
        stream: &Stream,
        tokens: u32,
        rows: u32,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let (residual, scale) = (buffers.residual, buffers.pool_scale);
        // SAFETY: the caller's promises.
        unsafe {
            self.kernels.only(Entry::PoolScale)?.launch(
                stream,
                Launch::linear(tokens, 256),
                args![&self.dims, residual, scale, self.spec.norm.eps],
            )?;
            self.kernels.only(Entry::PoolRows)?.launch(
                stream,
                Launch::plane(rows, self.spec.hidden_size.div_ceil(256), 256),
                args![
                    &self.dims,
                    buffers.meta,
                    residual,
                    scale,
                    self.weights.final_norm,
                    buffers.pool_sums,
                    buffers.pooled,
                ],
            )
        }
    }
}
