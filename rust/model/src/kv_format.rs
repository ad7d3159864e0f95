//! How an executor keeps keys and values, and the scales that a checkpoint states for an fp8 KV cache.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::WeightType;

/// How keys and values are kept from step to step.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum KvFormat {
    /// In the number format of the device's activations.
    #[default]
    Device,
    /// In e4m3: what is read is `element * scale`, and what is written is the element nearest to
    /// `number / scale`, at most 448 in size. The scales of each layer.
    Fp8(Vec<KvScales>),
}

/// What the elements of a layer's keys and values are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvScales {
    /// Of keys.
    pub key: f32,
    /// Of values.
    pub value: f32,
}

impl Default for KvScales {
    fn default() -> Self {
        Self { key: 1.0, value: 1.0 }
    }
}

impl KvFormat {
    /// Bytes of one number, where `device` is what the device's own format takes.
    #[must_use]
    pub fn bytes(&self, device: u64) -> u64 {
        match self {
            Self::Device => device,
            Self::Fp8(_) => 1,
        }
    }

    /// The scales of a layer; `None` unless the format is fp8.
    #[must_use]
    pub fn scales(&self, layer: usize) -> Option<KvScales> {
        match self {
            Self::Device => None,
            Self::Fp8(scales) => Some(scales.get(layer).copied().unwrap_or_default()),
        }
    }
}

/// A tensor that holds one number.
#[derive(Clone, Debug)]
pub(crate) struct ScaleTensor {
    pub(crate) name: String,
    pub(crate) file: usize,
    /// From the start of the file.
    pub(crate) offset: u64,
    pub(crate) weight_type: WeightType,
}

/// The two tensors of a layer, where the checkpoint has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerScales {
    pub(crate) key: Option<ScaleTensor>,
    pub(crate) value: Option<ScaleTensor>,
}
