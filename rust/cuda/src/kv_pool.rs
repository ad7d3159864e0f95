//! The KV pool: `[block][layer of a group][K, V][kv_head][token][head_dim]` at addresses that never move. The
//! loading thread creates it; the engine thread may resize it while no step is in flight.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::CudaError;
use crate::arena::Region;
use crate::context::Context;
use crate::device_slice::{DevicePtr, Kv};
use crate::memory::fill;
use crate::stream::Stream;

/// The pool's addresses and memory.
#[derive(Debug)]
pub(crate) struct KvPool {
    /// First block.
    base: DevicePtr<Kv>,
    /// Bytes from a block to the next.
    block_stride: u64,
    /// Bytes from a layer to the next in a block.
    layer_stride: u64,
    /// Touched at load and by `resize` only.
    backing: Mutex<Backing>,
}

/// The cache as one layer of a KV group sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvLayer {
    /// First block.
    pub(crate) base: DevicePtr<Kv>,
    /// Bytes from a block to the next, and to this layer in a block.
    pub(crate) block_stride: u64,
    pub(crate) layer_offset: u64,
}

impl KvLayer {
    /// The layer's part of the first block.
    pub(crate) fn start(self) -> DevicePtr<Kv> {
        self.base.skip_bytes(self.layer_offset)
    }
}

/// ```text
/// [0, cleared)        blocks: backed, and filled with zeros in the stream's order
/// [cleared, mapped)   backed, never filled; not empty only after a failure
/// ```
#[derive(Debug)]
struct Backing {
    region: Region,
    cleared: u64,
}

impl KvPool {
    /// Reserves addresses for `most_bytes` and backs the first `bytes`.
    pub(crate) fn new(
        context: &Arc<Context>,
        bytes: u64,
        most_bytes: u64,
        block_stride: u64,
        layers_per_group: u64,
    ) -> Result<Self, CudaError> {
        let mut region = Region::reserve(context, most_bytes.max(bytes))?;
        region.grow_to(bytes)?;
        let (base, layer_stride) = (region.base().cast(), block_stride / layers_per_group);
        let backing = Mutex::new(Backing { region, cleared: 0 });
        Ok(Self { base, block_stride, layer_stride, backing })
    }

    /// The pool as layer `index` of any group sees it.
    pub(crate) fn layer(&self, index: usize) -> KvLayer {
        let layer_offset = index as u64 * self.layer_stride;
        KvLayer { base: self.base, block_stride: self.block_stride, layer_offset }
    }

    /// Queues a fill with zeros of what was not filled yet: fresh memory may hold NaN, which survives a
    /// multiplication by zero.
    pub(crate) fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        self.lock().clear(stream)
    }

    /// Grows or shrinks the pool to `bytes`, whole pieces. No step may be in flight.
    ///
    /// # Errors
    /// Out of memory, with numbers, or what the driver says; the pool keeps what it got, and
    /// `num_blocks` counts it.
    pub(crate) fn resize(&self, stream: &Stream, bytes: u64) -> Result<(), CudaError> {
        let mut backing = self.lock();
        let resized = backing.region.shrink_to(bytes).and_then(|()| backing.region.grow_to(bytes));
        // Pieces that were given back may return with any content. Pieces mapped before a failure can be
        // used.
        backing.cleared = backing.cleared.min(backing.region.mapped().len());
        let cleared = backing.clear(stream);
        resized.and(cleared)
    }

    /// Bytes that are backed.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.lock().region.mapped().bytes()
    }

    /// Bytes of addresses.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.lock().region.reserved_bytes()
    }

    /// Bytes from a block to the next.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_stride
    }

    /// Whole blocks that the reserved addresses can hold.
    pub(crate) fn most_blocks(&self) -> u64 {
        self.lock().region.reserved_bytes() / self.block_stride
    }

    /// Whole blocks that can be used.
    pub(crate) fn num_blocks(&self) -> u32 {
        u32::try_from(self.lock().cleared / self.block_stride).unwrap_or(u32::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Backing> {
        self.backing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backing {
    fn clear(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let mapped = self.region.mapped();
        fill(stream, mapped.from(self.cleared), 0)?;
        self.cleared = mapped.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::PIECE_BYTES;
    use crate::fake;
    use crate::sys::driver::CUDA_ERROR_OUT_OF_MEMORY;

    /// Every byte that counts as a block was filled after it was last mapped, whatever failed between.
    #[test]
    fn blocks_are_cleared_pieces_also_after_a_failure() {
        let context = fake::context();
        let stream = Stream::new(&context).unwrap();
        let piece = PIECE_BYTES;
        let pool = KvPool::new(&context, 2 * piece, 32 * piece, piece / 4, 1).unwrap();
        assert_eq!(pool.num_blocks(), 0);
        pool.clear(&stream).unwrap();
        assert_eq!(pool.num_blocks(), 8);

        // Mapping the second of three more pieces fails. The first stays and is cleared.
        fake::fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
        let error = pool.resize(&stream, 5 * piece).unwrap_err().to_string();
        assert!(error.contains("MiB free"), "{error}");
        assert_eq!(pool.num_blocks(), 12);
        // A piece that cannot be made accessible is given back.
        fake::fail("cuMemSetAccess", 0, 1);
        assert!(pool.resize(&stream, 4 * piece).is_err());
        assert_eq!((pool.num_blocks(), fake::calls("cuMemUnmap").len()), (12, 1));
        // Memory that could not be cleared is not used as blocks; the next resize clears it.
        fake::fail("cuMemsetD8Async", 0, 1);
        assert!(pool.resize(&stream, 4 * piece).is_err());
        assert_eq!(pool.num_blocks(), 12);
        pool.resize(&stream, 5 * piece).unwrap();
        assert_eq!(pool.num_blocks(), 20);
        // A piece that went and came back is cleared again.
        pool.resize(&stream, 4 * piece).unwrap();
        pool.resize(&stream, 5 * piece).unwrap();
        let fills: Vec<_> = fake::calls("cuMemsetD8Async")
            .into_iter()
            .map(|(_, address, bytes)| ((address - pool.base.address()) / piece, bytes / piece))
            .collect();
        assert_eq!(fills, [(0, 2), (2, 1), (3, 1), (3, 2), (4, 1)]);
    }

    /// The pool from its start over growth and shrinking to its end.
    fn life() -> Result<(), CudaError> {
        let context = fake::context();
        let stream = Stream::new(&context)?;
        let piece = PIECE_BYTES;
        let pool = KvPool::new(&context, 2 * piece, 8 * piece, piece / 4, 1)?;
        pool.clear(&stream)?;
        pool.resize(&stream, 5 * piece)?;
        pool.resize(&stream, 3 * piece)?;
        pool.resize(&stream, 4 * piece)
    }

    #[test]
    fn every_call_that_fails_once_is_an_error_and_leaks_nothing() {
        let fallible = [
            "cuStreamCreate",
            "cuMemAddressReserve",
            "cuMemCreate",
            "cuMemMap",
            "cuMemSetAccess",
            "cuMemsetD8Async",
        ];
        let pairs = [
            ("cuStreamCreate", "cuStreamDestroy"),
            ("cuMemAddressReserve", "cuMemAddressFree"),
            ("cuMemCreate", "cuMemRelease"),
            ("cuMemMap", "cuMemUnmap"),
        ];
        let made = |name: &str| fake::calls(name).len();
        life().unwrap();
        let counts = fallible.map(|name| (name, made(name)));
        assert!(counts.iter().all(|(_, count)| *count > 0), "{counts:?}");
        for (name, count) in counts {
            for index in 0..count {
                let before = pairs.map(|(begin, end)| (made(begin), made(end)));
                fake::fail(name, index, CUDA_ERROR_OUT_OF_MEMORY);
                assert!(life().is_err(), "{name} {index} fails and nobody hears of it");
                for ((begin, end), (begun, ended)) in pairs.into_iter().zip(before) {
                    let got = made(begin) - begun - usize::from(begin == name);
                    assert_eq!(made(end) - ended, got, "{name} {index}: {begin} and {end}");
                }
            }
        }
    }
}
