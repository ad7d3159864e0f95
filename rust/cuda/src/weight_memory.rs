//! The device memory of the weights, and its copy in pinned host memory for models that can sleep: made at load, since a
//! locked process can reserve none. The loading thread makes the copy; the waiter thread gives memory back and takes it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::CudaError;
use crate::arena::Region;
use crate::context::Context;
use crate::device_slice::DeviceSlice;
use crate::memory::{PinnedBuffer, copy_to_device, copy_to_host};
use crate::stream::Stream;

/// What a region holds, in host memory, piece by piece.
#[derive(Debug)]
pub(crate) struct HostCopy {
    pieces: Vec<PinnedBuffer>,
    bytes: u64,
}

impl HostCopy {
    /// Copies a region that nothing writes meanwhile. Each thread reserves a piece while others copy theirs.
    ///
    /// # Errors
    /// Host memory that cannot be pinned, or what the driver says.
    pub(crate) fn of(
        context: &Arc<Context>,
        source: DeviceSlice<u8>,
        num_threads: usize,
    ) -> Result<Self, CudaError> {
        let parts = parts_of(source);
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::with_capacity(parts.len()));
        let work = || -> Result<(), CudaError> {
            context.make_current()?;
            let stream = Stream::new(context)?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(part) = parts.get(number) else { return Ok(()) };
                let bytes = part.bytes() as usize;
                let piece = PinnedBuffer::allocate(context, bytes)?;
                copy_to_host(&stream, &piece, *part, bytes)?;
                stream.synchronise()?;
                done.lock().unwrap_or_else(PoisonError::into_inner).push((number, piece));
            }
        };
        std::thread::scope(|scope| {
            let extra: Vec<_> =
                (1..num_threads.min(parts.len())).map(|_| scope.spawn(work)).collect();
            let own = work();
            let others = extra.into_iter().map(|thread| {
                // A panic goes on as the one it was.
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            others.fold(own, Result::and)
        })?;
        let mut pieces = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        pieces.sort_unstable_by_key(|(number, _)| *number);
        let pieces = pieces.into_iter().map(|(_, piece)| piece).collect();
        Ok(Self { pieces, bytes: source.bytes() })
    }

    /// Bytes of host memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Backs the region and queues the copies back, piece by piece, so that copies run while later pieces are mapped.
    /// They are divided among the streams. The caller keeps `self` until these have passed them.
    fn restore(&self, streams: &[Stream], region: &mut Region) -> Result<(), CudaError> {
        let mut start = 0;
        for (piece, stream) in self.pieces.iter().zip(streams.iter().cycle()) {
            let bytes = PIECE_BYTES.min(self.bytes - start);
            region.grow_to(start + bytes)?;
            let destination = region.mapped().slice(start, bytes);
            copy_to_device(stream, destination, piece, bytes as usize)?;
            start += bytes;
        }
        Ok(())
    }
}

/// The slice in pieces of `PIECE_BYTES`, the last one shorter.
fn parts_of(slice: DeviceSlice<u8>) -> Vec<DeviceSlice<u8>> {
    let starts = (0..slice.len()).step_by(PIECE_BYTES as usize);
    starts.map(|start| slice.slice(start, PIECE_BYTES.min(slice.len() - start))).collect()
}

/// Pieces of pinned memory: large enough for full speed, small enough for threads to share the work.
const PIECE_BYTES: u64 = 256 << 20;

/// The memory of the weights, kept mapped while the model is awake.
#[derive(Debug)]
pub(crate) struct WeightMemory {
    region: Arc<Mutex<Region>>,
    /// `None`: the model never sleeps.
    copy: Option<HostCopy>,
}

impl WeightMemory {
    pub(crate) fn new(region: Arc<Mutex<Region>>, copy: Option<HostCopy>) -> Self {
        Self { region, copy }
    }

    pub(crate) fn can_sleep(&self) -> bool {
        self.copy.is_some()
    }

    /// Bytes of pinned host memory.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.copy.as_ref().map_or(0, HostCopy::bytes)
    }

    /// Unmaps the region. No step may be in flight.
    pub(crate) fn give_back(&self) -> Result<(), CudaError> {
        self.region.lock().unwrap_or_else(PoisonError::into_inner).shrink_to(0)
    }

    /// Backs the region and queues the copies on the streams.
    pub(crate) fn take_back(&self, streams: &[Stream]) -> Result<(), CudaError> {
        let Some(copy) = &self.copy else {
            return Err(CudaError::Unsupported("the weights have no copy".to_owned()));
        };
        let mut region = self.region.lock().unwrap_or_else(PoisonError::into_inner);
        copy.restore(streams, &mut region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::PIECE_BYTES as REGION_PIECE;
    use crate::fake;
    use crate::sys::driver::CUDA_ERROR_OUT_OF_MEMORY;

    fn memory(bytes: u64) -> (WeightMemory, [Stream; 2]) {
        let context = fake::context();
        let region = Region::backed(&context, bytes).unwrap();
        let copy = HostCopy::of(&context, region.mapped(), 1).unwrap();
        let streams = [Stream::new(&context).unwrap(), Stream::new(&context).unwrap()];
        (WeightMemory::new(Arc::new(Mutex::new(region)), Some(copy)), streams)
    }

    #[test]
    fn weights_come_back_whole_and_at_their_addresses() {
        let bytes = PIECE_BYTES + 3 * REGION_PIECE;
        let (memory, streams) = memory(bytes);
        assert_eq!((memory.host_bytes(), memory.can_sleep()), (bytes, true));
        let base = memory.region.lock().unwrap().base().address();
        let whole = [(base, PIECE_BYTES), (base + PIECE_BYTES, 3 * REGION_PIECE)];
        let copies = |name| -> Vec<_> {
            fake::calls(name).into_iter().map(|(_, address, bytes)| (address, bytes)).collect()
        };
        assert_eq!(copies("cuMemcpyDtoHAsync"), whole);
        memory.give_back().unwrap();
        assert_eq!(memory.region.lock().unwrap().mapped().bytes(), 0);
        assert_eq!(fake::calls("cuMemRelease").len(), fake::calls("cuMemCreate").len());
        memory.take_back(&streams).unwrap();
        assert_eq!(memory.region.lock().unwrap().mapped().bytes(), bytes);
        assert_eq!(copies("cuMemcpyHtoDAsync"), whole);
    }

    #[test]
    fn memory_that_is_not_there_any_more_is_an_error_and_nothing_is_copied() {
        let (memory, streams) = memory(2 * REGION_PIECE);
        memory.give_back().unwrap();
        fake::fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
        let error = memory.take_back(&streams).unwrap_err();
        assert!(!error.is_sticky(), "{error}");
        assert!(fake::calls("cuMemcpyHtoDAsync").is_empty());
        memory.give_back().unwrap();
        memory.take_back(&streams).unwrap();
        assert_eq!(fake::calls("cuMemcpyHtoDAsync").len(), 1);
    }
}
