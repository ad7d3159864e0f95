//! Keys and values of all layers, in f32, in blocks of `block_size` tokens. Written and read by the
//! workers of the current step.
//!
//! ```text
//! [block][place of a group][kv_head] { keys [head_dim][block_size], values [block_size][value_stride] }
//! ```
//! Keys are transposed so that 16 of them fill a register for each element of the query; values are
//! padded to whole panels of 32. A layer with wider keys than others takes several places. A block belongs to the layers of one KV group at a time.

use std::collections::TryReserveError;

use ingle_core::BlockId;
use ingle_model::{HeadSizes, KvLayout, KvPlace, LayerSpec, ModelSpec};

use crate::panel::PANEL;
use crate::rows::Shared;

/// The pool of KV blocks.
#[derive(Debug)]
pub(crate) struct KvCache {
    data: Vec<f32>,
    /// Numbers of one block.
    block_len: usize,
    /// Of each layer.
    layers: Vec<(KvPlace, KvSizes)>,
}

/// Offsets of keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvSizes {
    pub(crate) block_size: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_stride: usize,
    num_heads: usize,
    /// Numbers of one block.
    block_len: usize,
    /// Of those, in one place.
    place_len: usize,
}

impl KvSizes {
    fn of(heads: HeadSizes, block_size: u32) -> Self {
        let head_dim = heads.head_dim as usize;
        Self {
            block_size: block_size as usize,
            head_dim,
            value_stride: head_dim.next_multiple_of(PANEL),
            num_heads: heads.num_kv_heads as usize,
            block_len: 0,
            place_len: 0,
        }
    }

    /// Numbers of one head in one block: keys, then values.
    pub(crate) fn head_len(&self) -> usize {
        self.block_size * (self.head_dim + self.value_stride)
    }

    /// Numbers of the keys of one head in one block.
    pub(crate) fn keys_len(&self) -> usize {
        self.block_size * self.head_dim
    }

    /// Where a head's part of a block begins, for the layer at `index` in the block's group.
    pub(crate) fn head_start(&self, index: usize, block: BlockId, head: usize) -> usize {
        block.index() * self.block_len + index * self.place_len + head * self.head_len()
    }
}

impl KvCache {
    pub(crate) fn new(spec: &ModelSpec, block_size: u32, num_blocks: u32) -> Self {
        let layout = KvLayout::of(spec);
        let place_len = place_len(spec, &layout, block_size);
        let block_len = layout.layers_per_group * place_len;
        let sizes = |layer: &LayerSpec| {
            let of_layer = KvSizes::of(spec.heads(layer), block_size);
            KvSizes { block_len, place_len, ..of_layer }
        };
        let layers = layout.places.iter().copied().zip(spec.layers.iter().map(sizes)).collect();
        let len = block_len * num_blocks as usize;
        Self { data: vec![0.0; len], block_len, layers }
    }

    /// Gives back the blocks beyond `num_blocks`, or adds blocks of zeros. What is large lies in pages of its own, which
    /// the allocator moves without a copy and gives back to the system.
    ///
    /// # Errors
    /// No memory for them; then nothing has changed.
    pub(crate) fn resize(&mut self, num_blocks: u32) -> Result<(), TryReserveError> {
        let len = num_blocks as usize * self.block_len;
        self.data.try_reserve_exact(len.saturating_sub(self.data.len()))?;
        self.data.resize(len, 0.0);
        self.data.shrink_to_fit();
        Ok(())
    }

    /// A layer's group and its place in it, and the sizes of its part of a block.
    pub(crate) fn of_layer(&self, layer: usize) -> (KvPlace, KvSizes) {
        self.layers[layer]
    }

    /// Keys and values of one head in one block, for the layer at `index` in the block's group.
    pub(crate) fn head(
        &self,
        sizes: &KvSizes,
        index: usize,
        block: BlockId,
        head: usize,
    ) -> (&[f32], &[f32]) {
        let start = sizes.head_start(index, block, head);
        self.data[start..][..sizes.head_len()].split_at(sizes.keys_len())
    }

    pub(crate) fn shared(&mut self) -> Shared<'_> {
        Shared::new(&mut self.data)
    }
}

/// Numbers of one block in one place of a group: what its layers need, and no layer more than its places hold.
pub(crate) fn place_len(spec: &ModelSpec, layout: &KvLayout, block_size: u32) -> usize {
    let of_layer = |layer: &LayerSpec| {
        let heads = spec.heads(layer);
        let sizes = KvSizes::of(heads, block_size);
        let places = (heads.kv_width() / layout.unit_width) as usize;
        (sizes.num_heads * sizes.head_len()).div_ceil(places)
    };
    let with_keys = spec.layers.iter().filter(|layer| layer.keeps_keys());
    with_keys.map(of_layer).max().unwrap_or(0)
}

/// Writes one token's key and value to place `offset` of a head's part of a block.
pub(crate) fn write_token(
    sizes: &KvSizes,
    head: &mut [f32],
    offset: usize,
    key: &[f32],
    value: &[f32],
) {
    let (keys, values) = head.split_at_mut(sizes.keys_len());
    for (element, key) in keys[offset..].iter_mut().step_by(sizes.block_size).zip(key) {
        *element = *key;
    }
    values[offset * sizes.value_stride..][..value.len()].copy_from_slice(value);
}
