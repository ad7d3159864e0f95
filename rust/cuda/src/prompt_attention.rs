//! Prompt attention of a loaded model: its launch and its view of the KV pool. At load only.

use crate::CudaError;
use crate::context::Context;
use crate::contract::PROMPT_ROW_BYTES;
use crate::dtypes::KvDtype;
use crate::kv_pool::KvPool;
use crate::prompt_launch::PromptLaunch;
use crate::sys::driver::{TENSOR_MAP_DATA_TYPE_BFLOAT16, TENSOR_MAP_DATA_TYPE_FLOAT16, TensorMap};
use crate::tensor_map::{Tiles, tiled_map};

/// Prompt attention of a loaded model.
#[derive(Debug)]
pub(crate) struct PromptAttention {
    pub(crate) launch: PromptLaunch,
    /// One for each layer of a KV group.
    pub(crate) kv_maps: Vec<TensorMap>,
}

/// One view of the pool for each layer of a group: {head_dim, token of a block, kv head, K or V, block}.
pub(crate) fn kv_maps(
    context: &Context,
    kv: &KvPool,
    launch: &PromptLaunch,
    shape: &KvShape,
) -> Result<Vec<TensorMap>, CudaError> {
    let row = u64::from(shape.head_dim) * u64::from(shape.dtype.bytes());
    let head = row * u64::from(shape.block_size);
    let dims = [shape.head_dim, shape.block_size, shape.num_kv_heads, 2].map(u64::from);
    let dims = [dims[0], dims[1], dims[2], dims[3], kv.most_blocks()];
    let stride = kv.layer(0).block_stride;
    let strides = [row, head, head * u64::from(shape.num_kv_heads), stride];
    let box_dims =
        [PROMPT_ROW_BYTES / shape.dtype.bytes(), shape.block_size.min(launch.kv_tile), 1, 1, 1];
    let data_type = match shape.dtype {
        KvDtype::Bf16 => TENSOR_MAP_DATA_TYPE_BFLOAT16,
        KvDtype::F16 => TENSOR_MAP_DATA_TYPE_FLOAT16,
    };
    (0..shape.layers_per_group)
        .map(|layer| {
            let start = kv.layer(layer).start();
            tiled_map(context, start, &Tiles { data_type, dims, strides, box_dims })
        })
        .collect()
}

/// The pool's shape as attention sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvShape {
    pub(crate) head_dim: u32,
    pub(crate) block_size: u32,
    pub(crate) num_kv_heads: u32,
    pub(crate) layers_per_group: usize,
    pub(crate) dtype: KvDtype,
}
