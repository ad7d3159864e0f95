//! Views of the KV pool for prompt attention. At load only.

use ingle_model::KvLayout;

use crate::CudaError;
use crate::attention_kinds::AttentionKinds;
use crate::context::Context;
use crate::contract::PROMPT_ROW_BYTES;
use crate::dims::EngineDims;
use crate::dtypes::KvDtype;
use crate::kv_pool::KvPool;
use crate::sys::driver::{TENSOR_MAP_DATA_TYPE_BFLOAT16, TENSOR_MAP_DATA_TYPE_FLOAT16, TensorMap};
use crate::tensor_map::{Tiles, tiled_map};

/// One view of the pool for each layer whose prompts have a kernel of their own:
/// {head_dim, token of a block, kv head, K or V, block}.
pub(crate) fn kv_maps(
    context: &Context,
    kv: &KvPool,
    (attention, layout): (&AttentionKinds, &KvLayout),
    engine: &EngineDims,
    dtype: KvDtype,
) -> Result<Vec<Option<TensorMap>>, CudaError> {
    let data_type = match dtype {
        KvDtype::Bf16 => TENSOR_MAP_DATA_TYPE_BFLOAT16,
        KvDtype::F16 => TENSOR_MAP_DATA_TYPE_FLOAT16,
    };
    let view = |(layer, place): (usize, &ingle_model::KvPlace)| {
        let (_, kind) = attention.of_layer(layer);
        let Some(prompt) = &kind.prompt else { return Ok(None) };
        let (heads, block_size) = (kind.heads, engine.block_size);
        let row = u64::from(heads.head_dim) * u64::from(dtype.bytes());
        let head = row * u64::from(block_size);
        let dims = [heads.head_dim, block_size, heads.num_kv_heads, 2].map(u64::from);
        let dims = [dims[0], dims[1], dims[2], dims[3], kv.most_blocks()];
        let part = kv.layer(place.index);
        let strides = [row, head, head * u64::from(heads.num_kv_heads), part.block_stride];
        let box_dims = [PROMPT_ROW_BYTES / dtype.bytes(), block_size.min(prompt.kv_tile), 1, 1, 1];
        tiled_map(context, part.start(), &Tiles { data_type, dims, strides, box_dims }).map(Some)
    };
    layout.places.iter().enumerate().map(view).collect()
}
