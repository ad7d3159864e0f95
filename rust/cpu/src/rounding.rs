//! Activations rounded for the products of `CpuPrecision::Fast`, once for all outputs. Workers.
//!
//! Where weights are bf16, an activation becomes the nearest bf16. Where they are in a block format, each 32 inputs get a
//! step, their largest size over 127, and an activation becomes the nearest multiple of it.

use std::ops::Range;

use crate::elementwise::add_lanes;
use crate::shared::Shared;
use crate::vector_path::{Arithmetic, per_path};

/// What activations are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// bf16
    Halves,
    /// Signed bytes with a step for every 32.
    Bytes,
}

/// Inputs that share a step.
pub(crate) const STEP_INPUTS: usize = 32;

/// Room for `len` rounded activations. No page is touched unless a product needs it.
#[derive(Debug)]
pub(crate) struct Rounding {
    halves: Vec<u16>,
    bytes: Vec<i8>,
    /// By 32 inputs.
    steps: Vec<f32>,
    /// Of bytes, by 16 inputs.
    sums: Vec<i32>,
}

/// What rounding writes, by row.
pub(crate) struct RoundingParts<'a> {
    pub(crate) halves: Shared<'a, u16>,
    pub(crate) bytes: Shared<'a, i8>,
    pub(crate) steps: Shared<'a>,
    pub(crate) sums: Shared<'a, i32>,
}

/// Rounded rows, from the first on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounded<'a> {
    pub(crate) halves: &'a [u16],
    pub(crate) bytes: &'a [i8],
    pub(crate) steps: &'a [f32],
    pub(crate) sums: &'a [i32],
    /// Inputs from row to row of `halves` and `bytes`, a multiple of 32; a row has a step for every 32 and a sum for
    /// every 16 of them.
    pub(crate) stride: usize,
}

impl Rounding {
    pub(crate) fn zeroed(len: usize) -> Self {
        Self {
            halves: vec![0; len],
            bytes: vec![0; len],
            steps: vec![0.0; len / STEP_INPUTS],
            sums: vec![0; len / 16],
        }
    }

    pub(crate) fn parts(&mut self, stride: usize) -> RoundingParts<'_> {
        RoundingParts {
            halves: Shared::rows(&mut self.halves, stride),
            bytes: Shared::rows(&mut self.bytes, stride),
            steps: Shared::rows(&mut self.steps, stride / STEP_INPUTS),
            sums: Shared::rows(&mut self.sums, stride / 16),
        }
    }

    pub(crate) fn rows(&self, stride: usize, rows: Range<usize>) -> Rounded<'_> {
        let (first, end) = (rows.start * stride, rows.end * stride);
        Rounded {
            halves: &self.halves[first..end],
            bytes: &self.bytes[first..end],
            steps: &self.steps[first / STEP_INPUTS..end / STEP_INPUTS],
            sums: &self.sums[first / 16..end / 16],
            stride,
        }
    }
}

impl Rounded<'_> {
    /// Without the rows before `row`.
    pub(crate) fn skip_rows(self, row: usize) -> Self {
        self.skip(row * self.stride)
    }

    /// Without the inputs before `input`, a multiple of 32.
    pub(crate) fn skip_inputs(self, input: usize) -> Self {
        self.skip(input)
    }

    fn skip(self, inputs: usize) -> Self {
        Self {
            halves: &self.halves[inputs..],
            bytes: &self.bytes[inputs..],
            steps: &self.steps[inputs / STEP_INPUTS..],
            sums: &self.sums[inputs / 16..],
            stride: self.stride,
        }
    }

    /// # Panics
    /// If there are fewer than `rows` rows of `depth` inputs.
    pub(crate) fn assert_holds(self, rows: usize, depth: usize) {
        let need = (rows - 1) * self.stride + depth;
        assert!(self.stride.is_multiple_of(STEP_INPUTS), "a step across rows");
        assert!(self.halves.len() >= need && self.bytes.len() >= need, "activations too short");
        assert!(self.steps.len() * STEP_INPUTS >= need, "steps of activations too short");
        assert!(self.sums.len() * 16 >= need, "sums of activations too short");
    }
}

per_path! { pub(crate) fn round_to_halves(x: &[f32], halves: &mut [u16]) = round_to_halves_body }

#[inline(always)]
fn round_to_halves_body<A: Arithmetic>(x: &[f32], halves: &mut [u16]) {
    for (x, half) in x.iter().zip(halves) {
        let bits = x.to_bits();
        // To the nearest, and to the even one of two.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        *half = if x.is_nan() { 0x7fc0 } else { rounded as u16 };
    }
}

per_path! {
    /// A row with a number that is not finite gets a step that is not a number.
    pub(crate) fn round_to_bytes(x: &[f32], bytes: &mut [i8], steps: &mut [f32], sums: &mut [i32])
        = round_to_bytes_body
}

#[inline(always)]
fn round_to_bytes_body<A: Arithmetic>(
    x: &[f32],
    bytes: &mut [i8],
    steps: &mut [f32],
    sums: &mut [i32],
) {
    // Adding 1.5 * 2^23 leaves the nearest whole number in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let stretches =
        x.as_chunks::<STEP_INPUTS>().0.iter().zip(bytes.as_chunks_mut::<STEP_INPUTS>().0);
    for ((x, bytes), (step, sums)) in
        stretches.zip(steps.iter_mut().zip(sums.as_chunks_mut::<2>().0))
    {
        let (mut sizes, mut broken) = ([0.0f32; 16], [0.0f32; 16]);
        for x in x.as_chunks::<16>().0 {
            for lane in 0..16 {
                let size = x[lane].abs();
                sizes[lane] = if size > sizes[lane] { size } else { sizes[lane] };
                // Zero, or not a number.
                broken[lane] += x[lane] * 0.0;
            }
        }
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                sizes[lane] = sizes[lane].max(sizes[lane + width]);
            }
        }
        let size = sizes[0];
        let inverse = if size < SMALLEST { 0.0 } else { 127.0 / size };
        *step = size / 127.0 + add_lanes(broken);
        let mut whole = [0i32; STEP_INPUTS];
        for (whole, x) in whole.iter_mut().zip(x) {
            let shifted = x * inverse + ROUND;
            *whole = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
        }
        for (byte, whole) in bytes.iter_mut().zip(&whole) {
            *byte = *whole as i8;
        }
        for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks::<16>().0) {
            *sum = bytes.iter().map(|byte| i32::from(*byte)).sum();
        }
    }
}

/// 2^-100; its inverse is far from infinite.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::testing::Random;
    use crate::vector_path::VectorPath;

    #[test]
    fn test_halves_are_the_nearest_ones_on_every_path() {
        let mut random = Random(7);
        let mut x: Vec<f32> = (0..4096).map(|_| f32::from_bits(random.bits() as u32)).collect();
        x.extend([0.0, -0.0, f32::INFINITY, f32::MAX, f32::NAN, 1.0 + 1.0 / 256.0]);
        for path in VectorPath::all() {
            let mut halves = vec![0; x.len()];
            round_to_halves(path, &x, &mut halves);
            for (x, half) in x.iter().zip(halves) {
                let (ours, want) = (bf16::from_bits(half), bf16::from_f32(*x));
                assert!(ours == want || (ours.is_nan() && want.is_nan()), "{x}: {ours} {want}");
            }
        }
    }

    #[test]
    fn test_bytes_are_the_nearest_multiples_of_a_step_on_every_path() {
        let mut random = Random(8);
        let mut x = random.floats(96);
        x[40] = 300.0;
        x[64..].fill(0.0);
        for path in VectorPath::all() {
            let (mut bytes, mut steps, mut sums) = (vec![0i8; 96], vec![0.0; 3], vec![0; 6]);
            round_to_bytes(path, &x, &mut bytes, &mut steps, &mut sums);
            assert_eq!(steps[1], 300.0 / 127.0);
            assert_eq!((steps[2], bytes[64]), (0.0, 0));
            for (k, (x, byte)) in x.iter().zip(&bytes).enumerate() {
                let step = steps[k / STEP_INPUTS];
                assert!((f32::from(*byte) * step - x).abs() <= 0.5001 * step, "{}", path.name());
            }
            for (sum, bytes) in sums.iter().zip(bytes.chunks(16)) {
                assert_eq!(*sum, bytes.iter().map(|byte| i32::from(*byte)).sum::<i32>());
            }
        }
    }

    #[test]
    fn test_what_is_not_finite_makes_its_step_not_a_number() {
        for path in VectorPath::all() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = vec![1.0; 64];
                x[37] = bad;
                let (mut bytes, mut steps, mut sums) = (vec![0i8; 64], vec![0.0; 2], vec![0; 4]);
                round_to_bytes(path, &x, &mut bytes, &mut steps, &mut sums);
                assert!(steps[0].is_finite() && steps[1].is_nan(), "{} {bad}", path.name());
            }
        }
    }
}
