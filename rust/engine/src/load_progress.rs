//! How far the weights of a model are that is being loaded. The threads that read count, any thread looks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ingle_model::{Checkpoint, TensorView, WeightSource};

/// Bytes of weights that have been read, of all that there are.
#[derive(Debug, Default)]
pub struct LoadProgress {
    done: AtomicU64,
    total: AtomicU64,
}

impl LoadProgress {
    /// Bytes that have been read, and how many there are; 0 and 0 before the model's files are open. A part that is
    /// read twice counts twice, so the first number can pass the second.
    #[must_use]
    pub fn so_far(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    /// From now on the checkpoint's reads count.
    pub(crate) fn watch(self: &Arc<Self>, checkpoint: &mut Checkpoint) {
        let total: u64 = checkpoint.plan.tensors.values().map(TensorView::loaded_bytes).sum();
        self.total.store(total, Ordering::Relaxed);
        let (inner, progress) = (Arc::clone(&checkpoint.source), Arc::clone(self));
        checkpoint.source = Arc::new(Counted { inner, progress });
    }
}

struct Counted {
    inner: Arc<dyn WeightSource>,
    progress: Arc<LoadProgress>,
}

impl WeightSource for Counted {
    fn read_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(file, offset, buffer)?;
        self.progress.done.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}
