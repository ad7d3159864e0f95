//! A weight matrix on the device in the form that products read it. Plain data.

use crate::device_slice::{DeviceSlice, Weight};
use crate::dtypes::{ScaleMode, WeightDtype};
use crate::four_bit::FourBitForm;
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
    /// 4-bit codes with scales of groups of columns.
    FourBit {
        /// Records, as kernels/four_bit.cuh has them.
        records: DeviceSlice<u8>,
        /// `n * k`
        elements: u64,
        form: FourBitForm,
    },
}

impl Matrix {
    /// Elements.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Plain(values) => values.len(),
            Self::E4m3 { values, .. } => values.len(),
            Self::FourBit { elements, .. } => *elements,
        }
    }

    /// The memory of its elements or records.
    pub(crate) fn as_bytes(&self) -> DeviceSlice<u8> {
        match self {
            Self::Plain(values) => values.as_bytes(),
            Self::E4m3 { values, .. } => *values,
            Self::FourBit { records, .. } => *records,
        }
    }

    /// Scales of an e4m3 matrix.
    pub(crate) fn scale(&self) -> Option<DeviceSlice<f32>> {
        match self {
            Self::Plain(_) | Self::FourBit { .. } => None,
            Self::E4m3 { scale, .. } => Some(*scale),
        }
    }

    /// Whether its elements are e4m3 numbers.
    pub(crate) fn is_e4m3(&self) -> bool {
        matches!(self, Self::E4m3 { .. })
    }

    /// The form of a matrix of 4-bit codes.
    pub(crate) fn four_bit(&self) -> Option<FourBitForm> {
        match self {
            Self::FourBit { form, .. } => Some(*form),
            Self::Plain(_) | Self::E4m3 { .. } => None,
        }
    }

    /// `plain` for activations as they are: our own kernels widen an e4m3 matrix and 4-bit codes.
    pub(crate) fn shape(&self, plain: GemmShape) -> GemmShape {
        match self {
            Self::Plain(_) => plain,
            Self::E4m3 { .. } => {
                GemmShape { weight: WeightDtype::E4m3, scale: ScaleMode::Channel, ..plain }
            }
            Self::FourBit { form, .. } => {
                GemmShape { weight: WeightDtype::FourBit(*form), scale: ScaleMode::Group, ..plain }
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
