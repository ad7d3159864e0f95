//! The value of stored elements for every `WeightType`: the reference that fast kernels are tested
//! against. Formulas and their order of operations are those of ggml's `dequantize_row_*`.

use half::{bf16, f16};

use crate::{WeightType, e4m3_to_f32};

/// Writes the values of whole blocks; of F8E4M3 without the scale, which lies beside the tensor.
///
/// # Panics
/// If `out` is not a whole number of blocks or `bytes` is not exactly as long as those blocks. For Int4 and
/// F4E2M1, which `GroupedRows` widens.
pub fn dequantise(weight_type: WeightType, bytes: &[u8], out: &mut [f32]) {
    let elements = weight_type.block_elements();
    let size = weight_type.block_bytes();
    assert!(
        out.len().is_multiple_of(elements) && bytes.len() == out.len() / elements * size,
        "{} bytes of {weight_type:?} are not {} elements",
        bytes.len(),
        out.len()
    );
    let block: fn(&[u8], &mut [f32]) = match weight_type {
        WeightType::F32 => |b, y| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        WeightType::F16 => |b, y| y[0] = half_at(b, 0),
        WeightType::Bf16 => |b, y| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        WeightType::F8E4M3 => |b, y| y[0] = e4m3_to_f32(b[0]),
        WeightType::Int4 | WeightType::F4E2M1 => panic!("{weight_type:?} has groups"),
        WeightType::Q8_0 => q8_0,
        WeightType::Q4_0 => q4_0,
        WeightType::Q4_1 => q4_1,
        WeightType::Q5_0 => q5_0,
        WeightType::Q5_1 => q5_1,
        WeightType::Q4K => q4_k,
        WeightType::Q5K => q5_k,
        WeightType::Q6K => q6_k,
    };
    for (bytes, out) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(elements)) {
        block(bytes, out);
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Bytes: scale f16, 32 x i8.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (y, q) in out.iter_mut().zip(&block[2..]) {
        *y = f32::from(q.cast_signed()) * d;
    }
}

/// Bytes: scale f16, 16 x two nibbles; the low ones are the first half of the block.
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (j, q) in block[2..].iter().enumerate() {
        out[j] = (f32::from(q & 15) - 8.0) * d;
        out[j + 16] = (f32::from(q >> 4) - 8.0) * d;
    }
}

/// Bytes: scale f16, minimum f16, 16 x two nibbles.
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (j, q) in block[4..].iter().enumerate() {
        out[j] = f32::from(q & 15) * d + m;
        out[j + 16] = f32::from(q >> 4) * d + m;
    }
}

/// Element `j` of 5 bits: a nibble of `qs` and bit `j` of the four bytes `qh`.
fn five_bits(qh: &[u8], qs: &[u8], j: usize) -> f32 {
    let nibble = if j < 16 { qs[j] & 15 } else { qs[j - 16] >> 4 };
    let high = (qh[j / 8] >> (j % 8)) & 1;
    f32::from(nibble | (high << 4))
}

/// Bytes: scale f16, 32 fifth bits, 16 x two nibbles.
fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (j, y) in out.iter_mut().enumerate() {
        *y = (five_bits(&block[2..6], &block[6..], j) - 16.0) * d;
    }
}

/// Bytes: scale f16, minimum f16, 32 fifth bits, 16 x two nibbles.
fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (j, y) in out.iter_mut().enumerate() {
        *y = five_bits(&block[4..8], &block[8..], j) * d + m;
    }
}

/// Scale and minimum of part `j` of 8, six bits each in twelve bytes.
fn k_scale(scales: &[u8], j: usize) -> (f32, f32) {
    let (scale, minimum) = if j < 4 {
        (scales[j] & 63, scales[j + 4] & 63)
    } else {
        let low = scales[j + 4];
        ((low & 15) | ((scales[j - 4] >> 6) << 4), (low >> 4) | ((scales[j] >> 6) << 4))
    };
    (f32::from(scale), f32::from(minimum))
}

/// Bytes: scale f16, scale of minima f16, 12 of six-bit scales, 4 x 32 x two nibbles; each 32 bytes
/// hold two parts of 32.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, d_min) = (half_at(block, 0), half_at(block, 2));
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = k_scale(&block[4..16], j);
        let (scale, minimum) = (d * scale, d_min * minimum);
        let qs = &block[16 + j / 2 * 32..][..32];
        for (y, q) in out.iter_mut().zip(qs) {
            *y = scale * f32::from((q >> (j % 2 * 4)) & 15) - minimum;
        }
    }
}

/// As `q4_k` with 32 bytes of fifth bits before the nibbles: part `j` has bit `j` of each.
fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, d_min) = (half_at(block, 0), half_at(block, 2));
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = k_scale(&block[4..16], j);
        let (scale, minimum) = (d * scale, d_min * minimum);
        let qs = &block[48 + j / 2 * 32..][..32];
        for ((y, q), high) in out.iter_mut().zip(qs).zip(&block[16..48]) {
            let q = ((q >> (j % 2 * 4)) & 15) | (((high >> j) & 1) << 4);
            *y = scale * f32::from(q) - minimum;
        }
    }
}

/// Bytes: 128 of low nibbles, 64 of high bit pairs, 16 x i8 scales, scale f16. Each half of the block
/// has 64 and 32 of the first two; quarter `k` of a half is 32 elements.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, _) = rest.split_at(16);
    let d = half_at(block, 208);
    for (j, y) in out.iter_mut().enumerate() {
        let (half, quarter, l) = (j / 128, j % 128 / 32, j % 32);
        let nibble = (low[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4)) & 15;
        let pair = (high[half * 32 + l] >> (quarter * 2)) & 3;
        let q = f32::from(nibble | (pair << 4)) - 32.0;
        *y = d * f32::from(scales[j / 16].cast_signed()) * q;
    }
}
