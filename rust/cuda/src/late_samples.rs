//! [6] Samples the late rows of a step once their masks have come: the forward pass is queued already.
//! Engine thread only.

use ingle_core::{ExecutorError, RowMask, SlotId};

use crate::CudaError;
use crate::buffers::OUT_BYTES;
use crate::contract::{StepHeader, StepSample, Words};
use crate::executor::{CudaExecutor, LateStep};
use crate::group::Member as _;
use crate::memory::copy_to_offset;
use crate::metadata::{PackedStep, pack_late};
use crate::waiter::StepBuffers;

/// What late rows may sample: which of them have a mask, and the masks.
struct LateMasks {
    masked: Vec<bool>,
    words: Vec<(SlotId, Vec<u32>)>,
}

impl CudaExecutor {
    pub(crate) fn sample_late(
        &mut self,
        late: LateStep,
        masks: &[RowMask],
    ) -> Result<(), ExecutorError> {
        let LateStep { packed, mut submitted } = late;
        match self.queue_late(&packed, &mut submitted.buffers, masks) {
            Ok(()) => self.finish(submitted),
            Err(error) => Err(self.abandon(submitted.buffers, error)),
        }
    }

    fn queue_late(
        &mut self,
        packed: &PackedStep,
        buffers: &mut StepBuffers,
        masks: &[RowMask],
    ) -> Result<(), CudaError> {
        self.group.leader().make_current()?;
        let late = self.late_masks(packed, masks)?;
        let mut meta = vec![0; StepHeader::COUNT + StepSample::COUNT * packed.late_slots.len()];
        pack_late(&packed.late_slots, &late.masked, &mut meta);
        let staged = buffers.staging.used();
        self.group.each(|_, rank| {
            let (model, stream) = (&rank.model, &rank.stream);
            buffers.staging.rewind_to(staged);
            for (slot, words) in &late.words {
                buffers.staging.push(stream, model.mask_of(*slot), words)?;
            }
            buffers.staging.push(stream, model.buffers.late_meta, &meta)?;
            // The step's forward pass is the last work queued on this stream, so the logits of its late rows, which
            // stand behind those of the others, are still there.
            let vocab_size = u64::from(model.spec.vocab_size);
            let logits = model.buffers.logits.from(u64::from(packed.num_now) * vocab_size);
            model.sample(stream, packed.num_late, model.buffers.late_meta, logits)
        })?;
        let bytes = packed.num_late as usize * OUT_BYTES as usize;
        let offset = packed.num_now as usize * OUT_BYTES as usize;
        let (model, stream) = (self.group.model(), &self.group.leader().stream);
        copy_to_offset(stream, &buffers.out, offset, model.buffers.out, bytes)
    }

    /// The masks of late rows, each with what its slot allows.
    fn late_masks(&self, packed: &PackedStep, masks: &[RowMask]) -> Result<LateMasks, CudaError> {
        let mut masked = vec![false; packed.late_slots.len()];
        let num_words = self.group.model().spec.vocab_size.div_ceil(32) as usize;
        let mut words = Vec::with_capacity(masks.len());
        for mask in masks {
            let index = packed.late_slots.iter().position(|slot| *slot == mask.slot);
            let index = index.filter(|_| mask.allowed.len() == num_words).ok_or_else(|| {
                CudaError::Unsupported(format!(
                    "a mask of {} words for slot {}, want {num_words} and a late row",
                    mask.allowed.len(),
                    mask.slot
                ))
            })?;
            masked[index] = true;
            let allowed = match &self.slots[mask.slot.index()].allowed {
                None => mask.allowed.to_vec(),
                Some(allowed) => {
                    allowed.iter().zip(mask.allowed.iter()).map(|(a, b)| a & b).collect()
                }
            };
            words.push((mask.slot, allowed));
        }
        Ok(LateMasks { masked, words })
    }
}
