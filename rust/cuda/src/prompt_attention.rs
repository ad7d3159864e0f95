//! What attention_prefill.cu needs beside its arguments: where it runs, its launch, its view of the KV pool.
//! Load only.

use crate::CudaError;
use crate::context::Context;
use crate::kv_pool::KvPool;
use crate::module::Launch;
use crate::sys::driver::*;

/// How prompt attention is launched on this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PromptLaunch {
    head_dim: u32,
    /// Tokens a tile.
    pub(crate) kv_tile: u32,
    /// Blocks: one an SM.
    grid: u32,
}

impl PromptLaunch {
    /// `None` where attention.cu does it all: other cards, other head sizes, blocks below a swizzle's 8 rows.
    pub(crate) fn on(
        compute_capability: (u32, u32),
        num_sms: u32,
        head_dim: u32,
        block_size: u32,
    ) -> Option<Self> {
        let fits =
            compute_capability == (9, 0) && PROMPT_HEAD_DIMS.contains(&head_dim) && block_size >= 8;
        let kv_tile = if head_dim == 256 { 64 } else { 128 };
        fits.then_some(Self { head_dim, kv_tile, grid: num_sms })
    }

    /// Dynamic shared memory: q, two stages of K and of V in boxes of 128 bytes a row, barriers.
    pub(crate) fn shared_bytes(&self) -> u32 {
        1024 + (PROMPT_ROWS + 4 * self.kv_tile) * 128 * self.head_dim.div_ceil(64) + 256
    }

    pub(crate) fn launch(&self) -> Launch {
        Launch::linear(self.grid, 384).shared(self.shared_bytes())
    }
}

/// Prompt attention of a loaded model.
#[derive(Debug)]
pub(crate) struct PromptAttention {
    pub(crate) launch: PromptLaunch,
    /// One a layer.
    pub(crate) kv_maps: Vec<TensorMap>,
}

/// One view of the pool a layer: {head_dim, token of a block, kv head, K or V, block}.
pub(crate) fn kv_maps(
    context: &Context,
    kv: &KvPool,
    launch: &PromptLaunch,
    shape: &KvShape,
) -> Result<Vec<TensorMap>, CudaError> {
    let row = u64::from(shape.head_dim) * 2;
    let head = row * u64::from(shape.block_size);
    let dims = [shape.head_dim, shape.block_size, shape.num_kv_heads, 2].map(u64::from);
    let dims = [dims[0], dims[1], dims[2], dims[3], kv.most_blocks()];
    let strides = [row, head, head * u64::from(shape.num_kv_heads), kv.block_stride];
    let box_dims = [64, shape.block_size.min(launch.kv_tile), 1, 1, 1];
    let data_type =
        if shape.f16 { TENSOR_MAP_DATA_TYPE_FLOAT16 } else { TENSOR_MAP_DATA_TYPE_BFLOAT16 };
    (0..shape.num_layers)
        .map(|layer| {
            let mut map = TensorMap { opaque: [0; 16] };
            // SAFETY: every pointer is to a local array of the rank's length that outlives the call, which
            // copies them; the address is only written into the map, not read.
            let code = unsafe {
                context.driver.api.cuTensorMapEncodeTiled(
                    &raw mut map,
                    data_type,
                    5,
                    kv.base + layer * kv.layer_stride,
                    dims.as_ptr(),
                    strides.as_ptr(),
                    box_dims.as_ptr(),
                    [1u32; 5].as_ptr(),
                    TENSOR_MAP_INTERLEAVE_NONE,
                    TENSOR_MAP_SWIZZLE_128B,
                    TENSOR_MAP_L2_PROMOTION_L2_128B,
                    TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                )?
            };
            context.check("cuTensorMapEncodeTiled", code)?;
            Ok(map)
        })
        .collect()
}

/// The pool's shape as attention sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvShape {
    pub(crate) head_dim: u32,
    pub(crate) block_size: u32,
    pub(crate) num_kv_heads: u32,
    pub(crate) num_layers: u64,
    pub(crate) f16: bool,
}

/// Whether a row of a step goes to prompt attention: it fills a tile, and its keys are few enough that
/// one block going through them all takes no longer than attention.cu cutting them over the whole card
/// (one H200, 32 heads of 128: 1.6 us a tile of 128 tokens against 200 TFLOP/s, equal at about 150 tokens).
pub(crate) fn is_prompt(start: u32, num_tokens: u32, group: u32) -> bool {
    let packed = num_tokens * group;
    packed >= PROMPT_ROWS && (start + num_tokens <= 512 || packed >= 4 * PROMPT_ROWS)
}

/// Packed query rows of an entry.
pub(crate) const PROMPT_ROWS: u32 = 128;
/// Widths of a head that it is built for.
pub(crate) const PROMPT_HEAD_DIMS: [u32; 4] = [64, 96, 128, 256];
