//! [6] Starts the sampler of late rows once their masks are there. Engine thread.

use ingle_core::{LateRow, RowMask};

use crate::choice_mask::MaskResult;
use crate::engine_thread::EngineThread;

impl EngineThread {
    /// Starts the sampler of the oldest step in flight if it waits for masks and all are there.
    pub(crate) fn issue_masks(&mut self) -> Result<bool, String> {
        let mut rows = std::mem::take(&mut self.late_rows);
        let step = self.scheduler.late_rows(&mut rows);
        let masks: Option<Vec<RowMask>> = rows.iter().map(|row| self.row_mask(row)).collect();
        self.late_rows = rows;
        let (Some(id), Some(masks)) = (step, masks) else { return Ok(false) };
        match self.executor.sample(id, masks) {
            Ok(()) => self.scheduler.note_masks_issued(id),
            Err(error) => {
                self.end_turn();
                self.pace.ended(false, self.committer.now);
                self.fail_step(id, error)?;
            }
        }
        Ok(true)
    }

    /// The mask of a late row; `None` while a worker computes it. Rows of ended requests may sample
    /// any token.
    fn row_mask(&self, row: &LateRow) -> Option<RowMask> {
        let allowed = if row.is_live {
            self.committer.mask(row.request)?
        } else {
            let words = self.executor.shape().vocab_size.div_ceil(32) as usize;
            vec![u32::MAX; words].into()
        };
        Some(RowMask { slot: row.slot, allowed })
    }

    pub(crate) fn take_masks(&mut self, results: Vec<MaskResult>) {
        for result in results {
            self.committer.take_mask(result, &mut self.scheduler, &mut self.core_events);
        }
        self.commit();
    }
}
