//! Keys and values of all layers, in f32 or e4m3 (`KvFormat`), in blocks of `block_size` tokens. Written and read by
//! the workers of the current step.
//!
//! ```text
//! [block][place of a group][kv_head] { keys [head_dim][block_size], values [block_size][value_stride] }
//! ```
//! The key of latent attention holds its value; a block has such keys where values would be, and no other ones.
//! Keys are transposed so that 16 of them fill a register for each element of the query; values are
//! padded to whole panels of 32. A layer with wider keys than others takes several places. A block belongs to the
//! layers of one KV group at a time.

use std::collections::TryReserveError;

use ingle_core::BlockId;
use ingle_model::{
    KvFormat, KvLayout, KvPlace, KvScales, LayerSpec, ModelSpec, e4m3_from_f32, e4m3_to_f32,
};

use crate::panel::PANEL;
use crate::rows::Shared;

/// The pool of KV blocks.
#[derive(Debug)]
pub(crate) struct KvCache {
    numbers: Numbers,
    /// Numbers of one block.
    block_len: usize,
    /// Of each layer.
    layers: Vec<(KvPlace, KvSizes)>,
}

/// The numbers of all blocks, as they are stored.
#[derive(Debug)]
enum Numbers {
    F32(Vec<f32>),
    E4m3(Vec<u8>),
}

/// Keys or values of one head in one block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stored<'a> {
    F32(&'a [f32]),
    /// Elements, and what each is multiplied by.
    E4m3(&'a [u8], f32),
}

impl Stored<'_> {
    /// Copies numbers from `start` on.
    pub(crate) fn copy(self, start: usize, to: &mut [f32]) {
        match self {
            Self::F32(from) => to.copy_from_slice(&from[start..][..to.len()]),
            Self::E4m3(from, scale) => {
                for (to, element) in to.iter_mut().zip(&from[start..]) {
                    *to = e4m3_to_f32(*element) * scale;
                }
            }
        }
    }
}

/// The cache, to be written by several workers.
pub(crate) enum SharedKv<'a> {
    F32(Shared<'a, f32>),
    E4m3(Shared<'a, u8>),
}

/// Offsets of keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvSizes {
    pub(crate) block_size: usize,
    pub(crate) head_dim: usize,
    /// Of the keys that lie by themselves; 0 if they hold the values.
    pub(crate) key_dim: usize,
    pub(crate) value_stride: usize,
    num_heads: usize,
    /// Numbers of one block.
    block_len: usize,
    /// Of those, in one place.
    place_len: usize,
    /// Of no effect in f32.
    scales: KvScales,
}

impl KvSizes {
    fn of(spec: &ModelSpec, layer: &LayerSpec, block_size: u32) -> Self {
        let heads = spec.heads(layer);
        let head_dim = heads.head_dim as usize;
        Self {
            block_size: block_size as usize,
            head_dim,
            key_dim: if spec.attention.latent.is_some() { 0 } else { head_dim },
            value_stride: head_dim.next_multiple_of(PANEL),
            num_heads: heads.num_kv_heads as usize,
            block_len: 0,
            place_len: 0,
            scales: KvScales::default(),
        }
    }

    /// Numbers of one head in one block: keys, then values.
    pub(crate) fn head_len(&self) -> usize {
        self.block_size * (self.key_dim + self.value_stride)
    }

    /// Numbers of the keys of one head in one block.
    pub(crate) fn keys_len(&self) -> usize {
        self.block_size * self.key_dim
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
        let sizes = |(index, layer): (usize, &LayerSpec)| {
            // Of the layer that writes what this one reads.
            let writer = layer.keys_of.map_or(index, |source| source as usize);
            let scales = spec.kv_format.scales(writer).unwrap_or_default();
            // A key that holds its value has one scale.
            let value = if spec.attention.latent.is_some() { scales.key } else { scales.value };
            let scales = KvScales { value, ..scales };
            let of_layer = KvSizes::of(spec, layer, block_size);
            KvSizes { block_len, place_len, scales, ..of_layer }
        };
        let all_sizes = spec.layers.iter().enumerate().map(sizes);
        let layers = layout.places.iter().copied().zip(all_sizes).collect();
        let len = block_len * num_blocks as usize;
        let numbers = match spec.kv_format {
            KvFormat::Device => Numbers::F32(vec![0.0; len]),
            KvFormat::Fp8(_) => Numbers::E4m3(vec![0; len]),
        };
        Self { numbers, block_len, layers }
    }

    /// Gives back the blocks beyond `num_blocks`, or adds blocks of zeros. What is large lies in pages of its own, which
    /// the allocator moves without a copy and gives back to the system.
    ///
    /// # Errors
    /// No memory for them; then nothing has changed.
    pub(crate) fn resize(&mut self, num_blocks: u32) -> Result<(), TryReserveError> {
        let len = num_blocks as usize * self.block_len;
        match &mut self.numbers {
            Numbers::F32(numbers) => resize(numbers, len),
            Numbers::E4m3(numbers) => resize(numbers, len),
        }
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
    ) -> (Stored<'_>, Stored<'_>) {
        let start = sizes.head_start(index, block, head);
        let (len, keys) = (sizes.head_len(), sizes.keys_len());
        match &self.numbers {
            Numbers::F32(numbers) => {
                let (keys, values) = numbers[start..][..len].split_at(keys);
                (Stored::F32(keys), Stored::F32(values))
            }
            Numbers::E4m3(numbers) => {
                let (keys, values) = numbers[start..][..len].split_at(keys);
                let KvScales { key, value } = sizes.scales;
                (Stored::E4m3(keys, key), Stored::E4m3(values, value))
            }
        }
    }

    pub(crate) fn shared(&mut self) -> SharedKv<'_> {
        match &mut self.numbers {
            Numbers::F32(numbers) => SharedKv::F32(Shared::new(numbers)),
            Numbers::E4m3(numbers) => SharedKv::E4m3(Shared::new(numbers)),
        }
    }
}

fn resize<T: Copy + Default>(numbers: &mut Vec<T>, len: usize) -> Result<(), TryReserveError> {
    numbers.try_reserve_exact(len.saturating_sub(numbers.len()))?;
    numbers.resize(len, T::default());
    numbers.shrink_to_fit();
    Ok(())
}

impl SharedKv<'_> {
    /// Writes one token's key and value to place `offset` of the part of a block that begins at `start`.
    ///
    /// # Safety
    /// No other reference to that part may live at the same time, on any thread.
    pub(crate) unsafe fn write(
        &self,
        sizes: &KvSizes,
        (start, offset): (usize, usize),
        (key, value): (&[f32], &[f32]),
    ) {
        let len = sizes.head_len();
        match self {
            Self::F32(all) => {
                // SAFETY: the caller promises that nothing else refers to the part.
                let part = unsafe { all.part(start, len) };
                write_token(sizes, part, offset, (key, |x| x), (value, |x| x));
            }
            Self::E4m3(all) => {
                let scales = sizes.scales;
                let of_key = |x| e4m3_from_f32(x / scales.key);
                let of_value = |x| e4m3_from_f32(x / scales.value);
                // SAFETY: the caller promises that nothing else refers to the part.
                let part = unsafe { all.part(start, len) };
                write_token(sizes, part, offset, (key, of_key), (value, of_value));
            }
        }
    }
}

/// Numbers of one block in one place of a group: what its layers need, and no layer more than its places hold.
pub(crate) fn place_len(spec: &ModelSpec, layout: &KvLayout, block_size: u32) -> usize {
    let of_layer = |layer: &LayerSpec| {
        let sizes = KvSizes::of(spec, layer, block_size);
        let places = (spec.heads(layer).kv_width() / layout.unit_width) as usize;
        (sizes.num_heads * sizes.head_len()).div_ceil(places)
    };
    let with_keys = spec.layers.iter().filter(|layer| layer.keeps_keys());
    with_keys.map(of_layer).max().unwrap_or(0)
}

fn write_token<T>(
    sizes: &KvSizes,
    head: &mut [T],
    offset: usize,
    (key, of_key): (&[f32], impl Fn(f32) -> T),
    (value, of_value): (&[f32], impl Fn(f32) -> T),
) {
    let (keys, values) = head.split_at_mut(sizes.keys_len());
    let keys = keys.get_mut(offset..).unwrap_or_default();
    for (element, key) in keys.iter_mut().step_by(sizes.block_size).zip(key) {
        *element = of_key(*key);
    }
    for (element, value) in values[offset * sizes.value_stride..].iter_mut().zip(value) {
        *element = of_value(*value);
    }
}
