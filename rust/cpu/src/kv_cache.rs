//! Keys and values of all layers, in f32, in blocks of `block_size` tokens. Written and read by the
//! workers of the current step.
//!
//! ```text
//! [layer of a group][block][kv_head] { keys [head_dim][block_size], values [block_size][value_stride] }
//! ```
//! Keys are transposed so that 16 of them fill a register for each element of the query; values are
//! padded to whole panels of 32. A block belongs to the layers of one KV group at a time.

use ingle_core::BlockId;
use ingle_model::{KvLayout, KvPlace, ModelSpec};

use crate::panel::PANEL;
use crate::rows::Shared;

/// The pool of KV blocks.
#[derive(Debug)]
pub(crate) struct KvCache {
    data: Vec<f32>,
    sizes: KvSizes,
    /// Of each layer.
    places: Vec<KvPlace>,
}

/// Offsets of keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvSizes {
    pub(crate) block_size: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_stride: usize,
    num_heads: usize,
    num_blocks: usize,
}

impl KvSizes {
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
        ((index * self.num_blocks + block.index()) * self.num_heads + head) * self.head_len()
    }
}

impl KvCache {
    pub(crate) fn new(spec: &ModelSpec, block_size: u32, num_blocks: u32) -> Self {
        let layout = KvLayout::of(spec);
        let head_dim = spec.head_dim as usize;
        let sizes = KvSizes {
            block_size: block_size as usize,
            head_dim,
            value_stride: head_dim.next_multiple_of(PANEL),
            num_heads: spec.num_kv_heads as usize,
            num_blocks: num_blocks as usize,
        };
        let len = layout.layers_per_group * sizes.num_blocks * sizes.num_heads * sizes.head_len();
        Self { data: vec![0.0; len], sizes, places: layout.places }
    }

    /// A layer's group and its place in it.
    pub(crate) fn place(&self, layer: usize) -> KvPlace {
        self.places[layer]
    }

    pub(crate) fn sizes(&self) -> KvSizes {
        self.sizes
    }

    /// Keys and values of one head in one block, for the layer at `index` in the block's group.
    pub(crate) fn head(&self, index: usize, block: BlockId, head: usize) -> (&[f32], &[f32]) {
        let start = self.sizes.head_start(index, block, head);
        self.data[start..][..self.sizes.head_len()].split_at(self.sizes.keys_len())
    }

    pub(crate) fn shared(&mut self) -> Shared<'_> {
        Shared::new(&mut self.data)
    }
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
