//! The arithmetic of 8-bit floats (e4m3, without infinities), the same bits for every device: what an
//! element means, and how rows of wider numbers become elements with a scale.
//!
//! Loops have no branches, so that the compiler makes vector instructions of them: this runs over all
//! weights of a model at load.

use half::f16;

use crate::WeightType;

/// The value of an element. 0x7f and 0xff are not numbers.
#[must_use]
pub fn e4m3_to_f32(element: u8) -> f32 {
    let bits = u32::from(element);
    // The seven bits below f32's exponent field's top, then its bias instead of e4m3's; the product
    // also makes subnormal elements normal.
    let size = f32::from_bits((bits & 0x7f) << 20) * f32::from_bits(EXPONENT_120);
    let size = if bits & 0x7f == 0x7f { f32::NAN } else { size };
    f32::from_bits(size.to_bits() | (bits & 0x80) << 24)
}

/// Whether no element is one of the two that are not numbers.
#[must_use]
pub fn all_numbers(elements: &[u8]) -> bool {
    let (chunks, rest) = elements.as_chunks::<LANES>();
    let odd = |element: &u8| element & 0x7f == 0x7f;
    let any = |chunk: &[u8]| chunk.iter().fold(false, |any, element| any | odd(element));
    !chunks.iter().any(|chunk| any(chunk)) && !any(rest)
}

/// A row with an element that has no finite scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite {
    /// Counted from the first row given.
    pub row: usize,
}

/// Quantises whole rows of `cols` elements, stored as F32, F16 or Bf16, little-endian. For each row:
/// `scale = max(abs(row)) / 448`, or 1 where that is 0, and each element is `w / scale`, both in f32,
/// rounded to the nearest e4m3 number, ties to even; what lies beyond 448 becomes 448.
///
/// # Errors
/// A row that holds an infinity or something that is not a number.
///
/// # Panics
/// If the type is another one, or the lengths do not fit each other.
pub fn quantise_rows(
    weight_type: WeightType,
    stored: &[u8],
    cols: usize,
    elements: &mut [u8],
    scales: &mut [f32],
) -> Result<(), NotFinite> {
    let rows = scales.len();
    assert!(
        elements.len() == rows * cols && stored.len() == rows * cols * weight_type.block_bytes(),
        "{rows} rows of {cols} elements: {} bytes stored, {} elements",
        stored.len(),
        elements.len()
    );
    match weight_type {
        WeightType::F32 => {
            each_row(stored.as_chunks().0, cols, elements, scales, largest_32, f32::from_le_bytes)
        }
        WeightType::Bf16 => {
            let largest = |row: &[[u8; 2]]| bf16_to_f32(largest_16(row));
            each_row(stored.as_chunks().0, cols, elements, scales, largest, bf16_to_f32)
        }
        WeightType::F16 => {
            let largest = |row: &[[u8; 2]]| half_to_f32(largest_16(row));
            each_row(stored.as_chunks().0, cols, elements, scales, largest, finite_half_to_f32)
        }
        other => panic!("{other:?} is not quantised"),
    }
}

#[inline(always)]
fn each_row<const BYTES: usize>(
    stored: &[[u8; BYTES]],
    cols: usize,
    elements: &mut [u8],
    scales: &mut [f32],
    largest: impl Fn(&[[u8; BYTES]]) -> f32,
    number: impl Fn([u8; BYTES]) -> f32,
) -> Result<(), NotFinite> {
    for (row, to_scale) in scales.iter_mut().enumerate() {
        let stored = &stored[row * cols..][..cols];
        let most = largest(stored);
        if !most.is_finite() {
            return Err(NotFinite { row });
        }
        let quotient = most / MAX;
        let scale = if quotient == 0.0 { 1.0 } else { quotient };
        for (element, bytes) in elements[row * cols..][..cols].iter_mut().zip(stored) {
            *element = e4m3_from_f32(number(*bytes) / scale);
        }
        *to_scale = scale;
    }
    Ok(())
}

/// The largest magnitude; not finite if an element is not. Without the sign, the order of floats is that
/// of their bits, and what is not a number is above infinity.
fn largest_32(row: &[[u8; 4]]) -> f32 {
    let size = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) & SIZE;
    f32::from_bits(row.iter().fold(0, |most, bytes| most.max(size(bytes))))
}

/// As `largest_32` for the two types of 16 bits. Signed, since every processor has that maximum.
fn largest_16(row: &[[u8; 2]]) -> [u8; 2] {
    let size = |bytes: &[u8; 2]| i16::from_le_bytes(*bytes) & 0x7fff;
    row.iter().fold(0, |most: i16, bytes| most.max(size(bytes))).to_le_bytes()
}

/// The nearest element, ties to even, at most 448 in size; what is not a number becomes 448.
#[inline(always)]
#[must_use]
pub fn e4m3_from_f32(value: f32) -> u8 {
    let bits = value.to_bits();
    let size = f32::from_bits(bits & SIZE);
    let size = if size < MAX { size } else { MAX };
    // Adding 2^14 rounds to multiples of 2^-9, the step of the smallest elements, as f32 rounds.
    let small = (size + SMALL_STEP).to_bits() & 0xff;
    // Half of what the 20 lower bits can hold, less one where the bit above is even.
    let even = size.to_bits() >> 20 & 1;
    let rounded = (size.to_bits() + 0x7_ffff + even) >> 20;
    let normal = rounded.wrapping_sub(BIAS_DIFFERENCE << 3);
    let element = if size < SMALLEST_NORMAL { small } else { normal };
    (element | bits >> 24 & 0x80) as u8
}

fn bf16_to_f32(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

fn half_to_f32(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

/// Without branches: the exponent moves by 112 with a product, which also makes subnormal halves normal.
#[inline(always)]
fn finite_half_to_f32(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes));
    let size = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(EXPONENT_112);
    f32::from_bits(size.to_bits() | (bits & 0x8000) << 16)
}

/// The largest e4m3 number.
const MAX: f32 = 448.0;
/// The smallest with all bits of its mantissa: 2^-6.
const SMALLEST_NORMAL: f32 = 0.015_625;
/// 2^(23 - 9)
const SMALL_STEP: f32 = 16_384.0;
/// Of f32's exponents and e4m3's.
const BIAS_DIFFERENCE: u32 = 127 - 7;
/// 2^120 and 2^112, as bits.
const EXPONENT_120: u32 = (120 + 127) << 23;
const EXPONENT_112: u32 = (112 + 127) << 23;
/// All bits but the sign.
const SIZE: u32 = 0x7fff_ffff;
const LANES: usize = 32;

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    /// By the definition of the format, without bit tricks.
    fn defined(element: u8) -> f32 {
        let (exponent, mantissa) = (i32::from(element >> 3 & 15), f32::from(element & 7));
        let size = match (exponent, element & 7) {
            (15, 7) => f32::NAN,
            (0, _) => mantissa * 2.0_f32.powi(-9),
            _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
        };
        if element & 0x80 == 0 { size } else { -size }
    }

    /// The element with the nearest value; of two, the one with an even mantissa.
    fn nearest(value: f32) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let distance = |element: u8| (f64::from(defined(element)) - f64::from(value.abs())).abs();
        let best = (0..0x7f_u8)
            .min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1))));
        best.unwrap() | sign
    }

    #[test]
    fn test_every_element_has_the_defined_value() {
        for element in 0..=u8::MAX {
            let (ours, want) = (e4m3_to_f32(element), defined(element));
            assert!(ours.to_bits() == want.to_bits() || (ours.is_nan() && want.is_nan()));
        }
        assert_eq!(e4m3_to_f32(0x7e), 448.0);
    }

    #[test]
    fn test_values_round_to_the_nearest_element_and_ties_to_even() {
        for element in 0..0x7e {
            let (low, high) = (defined(element), defined(element + 1));
            let middle = f32::midpoint(low, high);
            for value in [low, middle.next_down(), middle, middle.next_up()] {
                assert_eq!(e4m3_from_f32(value), nearest(value), "{value}");
                assert_eq!(e4m3_from_f32(-value), nearest(-value), "-{value}");
            }
        }
        for value in [448.0, 449.0, 464.0, 480.0, 1e30] {
            assert_eq!((e4m3_from_f32(value), e4m3_from_f32(-value)), (0x7e, 0xfe), "{value}");
        }
    }

    #[test]
    fn test_rows_become_elements_with_the_scale_of_their_largest() {
        // 75: two whole chunks and a part of one.
        let (rows, cols) = (4, 75);
        let number = |row: usize, col: usize| {
            let value = ((row * 131 + col * 71) % 257) as f32 / 64.0 - 2.0;
            if row == 2 { 0.0 } else { value * 10.0_f32.powi(row as i32 * 3 - 4) }
        };
        type Stored = (WeightType, fn(f32) -> Vec<u8>, fn(f32) -> f32);
        let types: [Stored; 3] = [
            (WeightType::F32, |v| v.to_le_bytes().to_vec(), |v| v),
            (
                WeightType::Bf16,
                |v| bf16::from_f32(v).to_le_bytes().to_vec(),
                |v| bf16::from_f32(v).to_f32(),
            ),
            (
                WeightType::F16,
                |v| f16::from_f32(v * 1e-3).to_le_bytes().to_vec(),
                |v| f16::from_f32(v * 1e-3).to_f32(),
            ),
        ];
        for (weight_type, store, value) in types {
            let at = |index: usize| number(index / cols, index % cols);
            let stored: Vec<u8> = (0..rows * cols).flat_map(|index| store(at(index))).collect();
            let (mut elements, mut scales) = (vec![0; rows * cols], vec![0.0; rows]);
            quantise_rows(weight_type, &stored, cols, &mut elements, &mut scales).unwrap();
            for row in 0..rows {
                let values: Vec<f32> = (0..cols).map(|col| value(number(row, col))).collect();
                let most = values.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
                let scale = if row == 2 { 1.0 } else { most / 448.0 };
                assert_eq!(scales[row], scale, "{weight_type:?} row {row}");
                for (col, value) in values.iter().enumerate() {
                    let (ours, want) = (elements[row * cols + col], nearest(value / scale));
                    assert_eq!(ours, want, "{weight_type:?} {row}, {col}: {value}");
                }
            }
        }
    }

    #[test]
    fn test_a_row_that_is_not_finite_is_named() {
        for odd in [f32::NAN, f32::INFINITY, -f32::INFINITY] {
            let bytes =
                |numbers: [f32; 4]| numbers.into_iter().flat_map(f32::to_le_bytes).collect();
            let stored: Vec<u8> = bytes([1.0, 2.0, odd, 3.0]);
            let (mut elements, mut scales) = ([0; 4], [0.0; 2]);
            let result = quantise_rows(WeightType::F32, &stored, 2, &mut elements, &mut scales);
            assert_eq!(result, Err(NotFinite { row: 1 }));
        }
        for odd in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY] {
            let stored = [f16::ONE, odd].map(f16::to_le_bytes).concat();
            let result = quantise_rows(WeightType::F16, &stored, 2, &mut [0; 2], &mut [0.0]);
            assert_eq!(result, Err(NotFinite { row: 0 }));
        }
    }

    #[test]
    fn test_every_finite_half_widens_exactly() {
        for half in 0..=u16::MAX {
            let want = f16::from_bits(half).to_f32();
            if want.is_finite() {
                let ours = finite_half_to_f32(half.to_le_bytes());
                assert_eq!(ours.to_bits(), want.to_bits(), "{half:#x}");
            }
        }
    }

    #[test]
    fn test_an_element_that_is_not_a_number_is_found_wherever_it_stands() {
        for len in [1, 32, 33, 100] {
            for at in 0..len {
                let mut elements = vec![0x7e; len];
                assert!(all_numbers(&elements));
                elements[at] = if at % 2 == 0 { 0x7f } else { 0xff };
                assert!(!all_numbers(&elements), "{at} of {len}");
            }
        }
    }

    #[test]
    fn test_a_row_too_small_for_a_scale_becomes_zero() {
        let stored: Vec<u8> = [1e-45_f32, 0.0].into_iter().flat_map(f32::to_le_bytes).collect();
        let (mut elements, mut scales) = ([1; 2], [0.0; 1]);
        quantise_rows(WeightType::F32, &stored, 2, &mut elements, &mut scales).unwrap();
        assert_eq!((elements, scales), ([0; 2], [1.0]));
    }
}
