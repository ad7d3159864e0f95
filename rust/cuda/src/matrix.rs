//! A weight matrix on the device in the form that products read it. Plain data.

use crate::device_slice::{DeviceSlice, Weight};
use crate::dtypes::{ScaleMode, WeightDtype};
use crate::shapes::{GemmOut, GemmShape};

/// `[n, k]`, row-major.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Matrix {
    /// In the type of `Dtypes::weight`.
    Plain(DeviceSlice<Weight>),
    /// e4m3 numbers. Row `i` counts `scale[i]` times.
    E4m3 {
        /// `[n, k]`
        values: DeviceSlice<u8>,
        /// `[n]`
        scale: DeviceSlice<f32>,
    },
}

impl Matrix {
    /// Elements.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Plain(values) => values.len(),
            Self::E4m3 { values, .. } => values.len(),
        }
    }

    /// The bare address of the first element.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Plain(values) => values.address(),
            Self::E4m3 { values, .. } => values.address(),
        }
    }

    /// Scales of an e4m3 matrix.
    pub(crate) fn scale(&self) -> Option<DeviceSlice<f32>> {
        match self {
            Self::Plain(_) => None,
            Self::E4m3 { scale, .. } => Some(*scale),
        }
    }

    /// Whether its elements are e4m3 numbers.
    pub(crate) fn is_e4m3(&self) -> bool {
        matches!(self, Self::E4m3 { .. })
    }

    /// `plain` for activations as they are: our own kernel widens an e4m3 matrix.
    pub(crate) fn shape(&self, plain: GemmShape) -> GemmShape {
        match self {
            Self::Plain(_) => plain,
            Self::E4m3 { .. } => {
                GemmShape { weight: WeightDtype::E4m3, scale: ScaleMode::Channel, ..plain }
            }
        }
    }

    /// `plain` for activations that were quantised; `None` for a plain matrix. The product is raw: whatever reads it
    /// applies the scales of rows and columns.
    pub(crate) fn raw_shape(&self, plain: GemmShape) -> Option<GemmShape> {
        let raw = GemmShape {
            weight: WeightDtype::E4m3,
            scale: ScaleMode::Raw,
            out: GemmOut::Device,
            ..plain
        };
        (self.is_e4m3() && plain.out != GemmOut::Gated).then_some(raw)
    }
}
