//! The KV pool: `[block][layer][K, V][kv_head][token][head_dim]` at addresses that never move. The loading
//! thread makes it; the engine thread may resize it while no step is in flight.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::CudaError;
use crate::arena::Region;
use crate::context::Context;
use crate::memory::fill;
use crate::stream::Stream;

/// The pool's addresses and the memory behind them.
#[derive(Debug)]
pub(crate) struct KvPool {
    /// First block.
    pub(crate) base: u64,
    /// Bytes from a block to the next.
    pub(crate) block_stride: u64,
    /// Bytes from a layer to the next in a block.
    pub(crate) layer_stride: u64,
    /// Touched at load and by `resize` only.
    region: Mutex<Region>,
}

impl KvPool {
    /// Reserves addresses for `most_bytes` and backs the first `bytes`.
    pub(crate) fn new(
        context: &Arc<Context>,
        bytes: u64,
        most_bytes: u64,
        block_stride: u64,
        num_layers: u64,
    ) -> Result<Self, CudaError> {
        let mut region = Region::reserve(context, most_bytes.max(bytes))?;
        region.grow_to(bytes)?;
        let (base, layer_stride) = (region.base(), block_stride / num_layers);
        Ok(Self { base, block_stride, layer_stride, region: Mutex::new(region) })
    }

    /// Queues a fill with zeros: fresh memory may hold NaN, which survives a multiplication by zero.
    pub(crate) fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        let bytes = self.lock().mapped_bytes();
        fill(stream, self.base, 0, bytes as usize)
    }

    /// Grows or shrinks the pool to `bytes`, whole pieces; returns the whole blocks that it then holds.
    pub(crate) fn resize(&self, stream: &Stream, bytes: u64) -> Result<u32, CudaError> {
        let mut region = self.lock();
        let before = region.mapped_bytes();
        region.shrink_to(bytes)?;
        region.grow_to(bytes)?;
        let now = region.mapped_bytes();
        if now > before {
            fill(stream, self.base + before, 0, (now - before) as usize)?;
        }
        Ok(u32::try_from(now / self.block_stride).unwrap_or(u32::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, Region> {
        self.region.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
