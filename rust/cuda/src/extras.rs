//! [5] What some steps want besides sampled tokens: prompt log-probs and pooling. Such a step is launched kernel by
//! kernel, the head in slices. Engine thread only.

use crate::CudaError;
use crate::buffers::OUT_BYTES;
use crate::dims::LIST_ROWS;
use crate::memory::{copy_to_host, copy_to_offset};
use crate::metadata::PackedStep;
use crate::model::{Model, StepShape};
use crate::slots::Staging;
use crate::stream::Stream;
use crate::waiter::StepBuffers;

/// The extras of a packed step.
#[derive(Clone, Copy)]
pub(crate) struct Extras<'a> {
    packed: &'a PackedStep,
}

impl<'a> Extras<'a> {
    pub(crate) fn of(packed: &'a PackedStep) -> Self {
        Self { packed }
    }

    /// Whether there are any.
    pub(crate) fn are_wanted(&self) -> bool {
        !self.packed.list_rows.is_empty() || self.packed.has_pooled
    }

    /// Queues the upload of the lists. They are padded with row 0 to whole slices, for which their buffers are laid out.
    pub(crate) fn upload(
        &self,
        model: &Model,
        stream: &Stream,
        staging: &mut Staging,
    ) -> Result<(), CudaError> {
        let padded = self.packed.list_rows.len().next_multiple_of(LIST_ROWS as usize);
        for (list, place) in [
            (&self.packed.list_rows, model.buffers.list_rows),
            (&self.packed.list_targets, model.buffers.list_targets),
        ] {
            let mut words = list.clone();
            words.resize(padded, 0);
            staging.push(stream, place, &words)?;
        }
        Ok(())
    }

    /// Queues the step with its extras.
    pub(crate) fn step(
        &self,
        model: &Model,
        stream: &Stream,
        shape: StepShape,
    ) -> Result<(), CudaError> {
        let packed = self.packed;
        model.layers(stream, shape)?;
        let count = packed.list_rows.len();
        for start in (0..count).step_by(LIST_ROWS as usize) {
            let rows = padded(model, (count - start).min(LIST_ROWS as usize) as u32)?;
            model.list_log_probs(stream, start as u64, rows, packed.list_top)?;
        }
        if packed.has_pooled {
            model.pool(stream, shape.tokens, packed.rows.len() as u32)?;
        }
        if shape.samples > 0 {
            model.sample_logits(stream, shape.samples)?;
            let (meta, logits) = (model.buffers.meta, model.buffers.logits);
            model.sample(stream, shape.samples, meta, logits)?;
        }
        Ok(())
    }

    /// Queues the copies of the extras to the host, behind the step.
    pub(crate) fn copy_back(
        &self,
        model: &Model,
        stream: &Stream,
        buffers: &StepBuffers,
    ) -> Result<(), CudaError> {
        let bytes = self.packed.list_rows.len() * OUT_BYTES as usize;
        if bytes > 0 {
            copy_to_host(stream, &buffers.list_out, model.buffers.list_out, bytes)?;
        }
        let width = u64::from(model.spec.hidden_size);
        for row in self.packed.rows.iter().filter_map(|row| row.pooled) {
            let source = model.buffers.pooled.row(u64::from(row), width);
            let bytes = source.bytes() as usize;
            copy_to_offset(stream, &buffers.pooled, row as usize * bytes, source, bytes)?;
        }
        Ok(())
    }
}

/// The padded size of a step of `rows` rows.
pub(crate) fn padded(model: &Model, rows: u32) -> Result<u32, CudaError> {
    model.buckets.fit(rows).ok_or_else(|| {
        let largest = model.buckets.largest();
        CudaError::Unsupported(format!("{rows} rows, built for {largest}"))
    })
}
