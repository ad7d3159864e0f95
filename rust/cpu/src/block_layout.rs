//! The layout of GGUF blocks in a panel: the same bits as in the file, regrouped so that one load reads
//! one field of many outputs.
//!
//! Codes are the integers that a block stores. Of every 32 inputs of an output, the low four bits of
//! the codes fill four words of 32 bits (input k: word k / 8, bits 4 (k % 8) and up), higher bits fill
//! further words. Fields in order; `x 32` means one for each output of the panel:
//! ```text
//! Q4_0   per  32: d f16 x 32, 4 words x 32                                   code - 8
//! Q4_1   per  32: d f16 x 32, m f16 x 32, 4 words x 32                       code
//! Q5_0   per  32: d f16 x 32, 4 words x 32, 1 word x 32 (bit k: bit 4)       code - 16
//! Q5_1   per  32: d f16 x 32, m f16 x 32, 4 words x 32, 1 word x 32          code
//! Q8_0   per  32: d f16 x 32, 8 words x 32 (input k: word k / 4, byte k % 4) signed
//! Q4_K   per 256: d, dmin f16 x 32, 8 scales u8 x 32, 8 mins u8 x 32, 8 times as Q4_0's words
//! Q5_K   per 256: the same, 8 times as Q5_0's words
//! Q6_K   per 256: d f16 x 32, 16 scales i8 x 32, 8 times (4 words x 32, 2 words x 32:
//!        input k: word k / 16, bits 2 (k % 16) and up: bits 4 and 5)         code - 32
//! ```
//! The formats are ggml's (`ggml-common.h`); Q4_K and Q5_K grow by 2.8 and 2.3 % because their packed
//! 6-bit scales take a byte here.

use ingle_model::WeightType;

use crate::aligned::numbers_mut;
use crate::panel::PANEL;

/// Sizes of one block of a panel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockLayout {
    /// Inputs a block: 32 or 256.
    pub(crate) elements: usize,
    /// Bytes for 32 outputs.
    pub(crate) bytes: usize,
    /// Bytes before the first words.
    pub(crate) header: usize,
    /// Words for 32 inputs of an output.
    pub(crate) words: usize,
}

/// Sizes for a block format.
///
/// # Panics
/// If the type is a plain one.
pub(crate) fn layout(weight_type: WeightType) -> BlockLayout {
    let (elements, header, words) = match weight_type {
        WeightType::Q4_0 => (32, 2, 4),
        WeightType::Q4_1 => (32, 4, 4),
        WeightType::Q5_0 => (32, 2, 5),
        WeightType::Q5_1 => (32, 4, 5),
        WeightType::Q8_0 => (32, 2, 8),
        WeightType::Q4K => (256, 20, 4),
        WeightType::Q5K => (256, 20, 5),
        WeightType::Q6K => (256, 18, 6),
        WeightType::F32
        | WeightType::F16
        | WeightType::Bf16
        | WeightType::F8E4M3
        | WeightType::Int4
        | WeightType::F4E2M1 => panic!("not a block format"),
    };
    let header = header * PANEL;
    let bytes = header + elements / 32 * words * PANEL * 4;
    BlockLayout { elements, bytes, header, words }
}

/// Fills a panel from stored rows of `row_bytes`.
pub(crate) fn pack_panel(
    weight_type: WeightType,
    row_bytes: usize,
    stored: &[u8],
    panel: &mut [u8],
) {
    let sizes = layout(weight_type);
    let block_bytes = weight_type.block_bytes();
    for (index, target) in panel.chunks_exact_mut(sizes.bytes).enumerate() {
        for (lane, row) in stored.chunks_exact(row_bytes).enumerate() {
            let source = &row[index * block_bytes..][..block_bytes];
            pack_header(weight_type, source, lane, target);
            let words = numbers_mut::<u32>(&mut target[sizes.header..]);
            for (part, words) in words.chunks_exact_mut(sizes.words * PANEL).enumerate() {
                let codes = stored_codes(weight_type, source, part);
                pack_codes(&codes, sizes.words, lane, words);
            }
        }
    }
}

/// Scales and minimums of one stored block.
fn pack_header(weight_type: WeightType, source: &[u8], lane: usize, target: &mut [u8]) {
    let mut halves = |field: usize, at: usize| {
        let to = (field * PANEL + lane) * 2;
        target[to..to + 2].copy_from_slice(&source[at..at + 2]);
    };
    match weight_type {
        WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 => halves(0, 0),
        WeightType::Q6K => {
            halves(0, 208);
            for (i, scale) in source[192..208].iter().enumerate() {
                target[2 * PANEL + i * PANEL + lane] = *scale;
            }
        }
        _ => {
            halves(0, 0);
            halves(1, 2);
        }
    }
    if matches!(weight_type, WeightType::Q4K | WeightType::Q5K) {
        for i in 0..8 {
            let (scale, min) = packed_scale(&source[4..16], i);
            target[4 * PANEL + i * PANEL + lane] = scale;
            target[12 * PANEL + i * PANEL + lane] = min;
        }
    }
}

/// Scale and minimum `i` of the twelve bytes that hold eight of each in 6 bits.
fn packed_scale(bytes: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        (bytes[i] & 63, bytes[i + 4] & 63)
    } else {
        let low = bytes[i + 4];
        ((low & 15) | (bytes[i - 4] >> 6 << 4), (low >> 4) | (bytes[i] >> 6 << 4))
    }
}

/// The 32 codes of part `part` of a stored block, in the order of inputs.
fn stored_codes(weight_type: WeightType, block: &[u8], part: usize) -> [u8; 32] {
    match weight_type {
        WeightType::Q8_0 => std::array::from_fn(|k| block[2 + k]),
        WeightType::Q4_0 => halves_of(&block[2..18]),
        WeightType::Q4_1 => halves_of(&block[4..20]),
        WeightType::Q5_0 => with_bits(halves_of(&block[6..22]), &block[2..6]),
        WeightType::Q5_1 => with_bits(halves_of(&block[8..24]), &block[4..8]),
        WeightType::Q4K => {
            let low = &block[16 + part / 2 * 32..][..32];
            std::array::from_fn(|k| low[k] >> (part % 2 * 4) & 15)
        }
        WeightType::Q5K => {
            let (low, high) = (&block[48 + part / 2 * 32..][..32], &block[16..48]);
            std::array::from_fn(|k| low[k] >> (part % 2 * 4) & 15 | (high[k] >> part & 1) << 4)
        }
        WeightType::Q6K => {
            let (half, quarter) = (part / 4, part % 4);
            let low = &block[half * 64 + quarter % 2 * 32..][..32];
            let high = &block[128 + half * 32..][..32];
            std::array::from_fn(|k| {
                low[k] >> (quarter / 2 * 4) & 15 | (high[k] >> (quarter * 2) & 3) << 4
            })
        }
        WeightType::F32
        | WeightType::F16
        | WeightType::Bf16
        | WeightType::F8E4M3
        | WeightType::Int4
        | WeightType::F4E2M1 => unreachable!(),
    }
}

/// Codes 0 to 15 are the low halves of 16 bytes, 16 to 31 the high ones.
fn halves_of(bytes: &[u8]) -> [u8; 32] {
    let mut codes = [0; 32];
    for (k, byte) in bytes[..16].iter().enumerate() {
        codes[k] = byte & 15;
        codes[k + 16] = byte >> 4;
    }
    codes
}

/// Adds bit k of four bytes to code k, as its bit 4.
fn with_bits(mut codes: [u8; 32], bits: &[u8]) -> [u8; 32] {
    for (k, code) in codes.iter_mut().enumerate() {
        *code |= (bits[k / 8] >> (k % 8) & 1) << 4;
    }
    codes
}

/// Spreads 32 codes over the words of one output.
fn pack_codes(codes: &[u8; 32], num_words: usize, lane: usize, words: &mut [u32]) {
    if num_words == 8 {
        for (word, codes) in codes.as_chunks::<4>().0.iter().enumerate() {
            words[word * PANEL + lane] = u32::from_le_bytes(*codes);
        }
        return;
    }
    for (word, codes) in codes.as_chunks::<8>().0.iter().enumerate() {
        let codes = u64::from_le_bytes(*codes);
        words[word * PANEL + lane] = squeeze_nibbles(codes);
        let high = codes >> 4;
        match num_words {
            5 => words[4 * PANEL + lane] |= squeeze_bits(high) << (word * 8),
            6 => {
                let at = (4 + word / 2) * PANEL + lane;
                words[at] |= squeeze_pairs(high) << (word % 2 * 16);
            }
            _ => {}
        }
    }
}

/// The low four bits of eight bytes, side by side.
fn squeeze_nibbles(bytes: u64) -> u32 {
    let x = bytes & 0x0f0f_0f0f_0f0f_0f0f;
    let x = (x | x >> 4) & 0x00ff_00ff_00ff_00ff;
    let x = (x | x >> 8) & 0x0000_ffff_0000_ffff;
    (x | x >> 16) as u32
}

/// The low two bits of eight bytes, side by side.
fn squeeze_pairs(bytes: u64) -> u32 {
    let x = bytes & 0x0303_0303_0303_0303;
    let x = (x | x >> 6) & 0x000f_000f_000f_000f;
    let x = (x | x >> 12) & 0x0000_00ff_0000_00ff;
    (x | x >> 24) as u32 & 0xffff
}

/// The lowest bits of eight bytes, side by side.
fn squeeze_bits(bytes: u64) -> u32 {
    ((bytes & 0x0101_0101_0101_0101).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
}
