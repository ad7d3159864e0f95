//! The number formats of weights, activations and the KV cache. They are three separate settings,
//! although today's kernels require all three to be the same. Plain data.

use ingle_model::WeightType;

use crate::CudaError;
use crate::config::DeviceType;
use crate::contract::{ACT_BYTES, DTYPE_BF16, DTYPE_F16};
use crate::device_slice::{Act, Kv, Weight};
use crate::four_bit::FourBitForm;

/// Of weight matrices on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum WeightDtype {
    Bf16,
    F16,
    /// 8-bit floats without infinities, with a scale each row. Only matrices of layers.
    E4m3,
    /// 4-bit codes in records. Only matrices of layers.
    FourBit(FourBitForm),
}

/// Of what goes from one kernel to the next, apart from the residual stream, which is f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ActDtype {
    Bf16,
    F16,
}

/// Of keys and values in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KvDtype {
    Bf16,
    F16,
}

/// How a product scales its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ScaleMode {
    /// The stored numbers are the weights.
    None,
    /// Each column of the result is multiplied by its scale.
    Channel,
    /// x is e4m3 too. The result is that of the stored numbers: whatever reads it applies the scales of rows and
    /// columns.
    Raw,
    /// Scales of groups of columns, which lie beside the codes.
    Group,
}

/// A combination that there are kernels for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dtypes {
    weight: WeightDtype,
    act: ActDtype,
    kv: KvDtype,
}

impl Dtypes {
    /// All combinations that there are kernels for.
    pub(crate) const ALL: [Self; 2] = [
        Self { weight: WeightDtype::Bf16, act: ActDtype::Bf16, kv: KvDtype::Bf16 },
        Self { weight: WeightDtype::F16, act: ActDtype::F16, kv: KvDtype::F16 },
    ];

    /// These three together.
    ///
    /// # Errors
    /// `Unsupported` if no kernel has them together.
    pub(crate) fn new(weight: WeightDtype, act: ActDtype, kv: KvDtype) -> Result<Self, CudaError> {
        let wanted = Self { weight, act, kv };
        if Self::ALL.contains(&wanted) {
            return Ok(wanted);
        }
        Err(CudaError::Unsupported(format!(
            "weights {weight:?}, activations {act:?}, KV cache {kv:?}: the kernels want all three alike"
        )))
    }

    /// The format that `--dtype` selects for weights stored as `stored`.
    ///
    /// # Errors
    /// As `new`.
    pub(crate) fn of(wanted: DeviceType, stored: WeightType) -> Result<Self, CudaError> {
        let is_f16 = match wanted {
            DeviceType::Auto => stored == WeightType::F16,
            DeviceType::Bf16 => false,
            DeviceType::F16 => true,
        };
        if is_f16 {
            Self::new(WeightDtype::F16, ActDtype::F16, KvDtype::F16)
        } else {
            Self::new(WeightDtype::Bf16, ActDtype::Bf16, KvDtype::Bf16)
        }
    }

    pub(crate) fn weight(self) -> WeightDtype {
        self.weight
    }

    pub(crate) fn act(self) -> ActDtype {
        self.act
    }

    pub(crate) fn kv(self) -> KvDtype {
        self.kv
    }

    /// The macros of a build.
    pub(crate) fn macros(self) -> [String; 3] {
        let number = |is_f16| if is_f16 { DTYPE_F16 } else { DTYPE_BF16 };
        [
            format!("-DWEIGHT_DTYPE={}", number(self.weight == WeightDtype::F16)),
            format!("-DACT_DTYPE={}", number(self.act == ActDtype::F16)),
            format!("-DKV_DTYPE={}", number(self.kv == KvDtype::F16)),
        ]
    }
}

/// Whether e4m3 matrices stay so on a card: it computes products of such numbers, and there are kernels for it.
/// Only bf16 activations hold raw products.
pub(crate) fn has_e4m3(compute_capability: (u32, u32), dtypes: Dtypes) -> bool {
    matches!(compute_capability, (8, 9) | (9, 0)) && dtypes.act() == ActDtype::Bf16
}

impl WeightDtype {
    /// The same as checkpoints name it.
    pub(crate) fn stored(self) -> WeightType {
        match self {
            Self::Bf16 => WeightType::Bf16,
            Self::F16 => WeightType::F16,
            Self::E4m3 => WeightType::F8E4M3,
            Self::FourBit(form) => form.stored(),
        }
    }
}

impl ActDtype {
    /// As entries of kernels are named by it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

impl KvDtype {
    /// Bytes of one number.
    pub(crate) const fn bytes(self) -> u32 {
        match self {
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

// Slices count elements of one size, which every format has.
const _: () = assert!(size_of::<Act>() == ACT_BYTES as usize && size_of::<Weight>() == 2);
const _: () = assert!(size_of::<Kv>() == KvDtype::Bf16.bytes() as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_or_stored_decides() {
        let act = |wanted, stored| Dtypes::of(wanted, stored).unwrap().act();
        assert_eq!(act(DeviceType::Auto, WeightType::F16), ActDtype::F16);
        assert_eq!(act(DeviceType::Auto, WeightType::Q6K), ActDtype::Bf16);
        assert_eq!(act(DeviceType::Bf16, WeightType::F16), ActDtype::Bf16);
        assert_eq!(act(DeviceType::F16, WeightType::Bf16), ActDtype::F16);
    }

    #[test]
    fn a_combination_without_kernels_is_refused() {
        let mixed = Dtypes::new(WeightDtype::F16, ActDtype::Bf16, KvDtype::Bf16).unwrap_err();
        assert_eq!(
            mixed.to_string(),
            "weights F16, activations Bf16, KV cache Bf16: the kernels want all three alike"
        );
        for dtypes in Dtypes::ALL {
            let Dtypes { weight, act, kv } = dtypes;
            assert_eq!(Dtypes::new(weight, act, kv).unwrap(), dtypes);
        }
        assert_eq!(Dtypes::ALL[1].macros(), ["-DWEIGHT_DTYPE=1", "-DACT_DTYPE=1", "-DKV_DTYPE=1"]);
    }
}
