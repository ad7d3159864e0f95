//! Tensor types of ggml by number.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::WeightType;
use crate::catalogue::Stored;

/// The type with this number; `None` if ggml has none (or has removed it).
pub(super) fn stored_type(number: u32) -> Option<Stored> {
    let known = match number {
        0 => WeightType::F32,
        1 => WeightType::F16,
        2 => WeightType::Q4_0,
        3 => WeightType::Q4_1,
        6 => WeightType::Q5_0,
        7 => WeightType::Q5_1,
        8 => WeightType::Q8_0,
        12 => WeightType::Q4K,
        13 => WeightType::Q5K,
        14 => WeightType::Q6K,
        30 => WeightType::Bf16,
        _ => {
            let (_, name) = UNSUPPORTED.iter().find(|(id, _)| *id == number)?;
            return Some(Stored::Other((*name).to_owned()));
        }
    };
    Some(Stored::Known(known))
}

/// Types that exist and that no executor reads, so that messages can name them.
const UNSUPPORTED: [(u32, &str); 21] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
];
