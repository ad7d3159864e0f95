//! The layout of GGUF blocks in a panel: the same bits as in the file, regrouped so that one load reads
//! one field of many outputs.
//!
//! Codes are the integers that a block stores. Of every 32 inputs of an output, the low four bits of
//! the codes fill four words of 32 bits; word `w` has inputs `8 w` to `8 w + 7`. Its byte `b` has input `8 w + b` in the
//! low half and input `8 w + 4 + b` in the high half, so that one mask leaves four codes a byte apart. Such a group of
//! four inputs is a quad: quad `q` has inputs `4 q` to `4 q + 3`. Higher bits fill further words, which are
//! rotated left by four bits, so that a rotation to the right by the place that is named here leaves input `b` of a quad in
//! bits 4 and 5 of byte `b`. Fields in order; `x 32` means one for each output of the panel:
//! ```text
//! Q4_0   per  32: d f16 x 32, 4 words x 32                                   code - 8
//! Q4_1   per  32: d f16 x 32, m f16 x 32, 4 words x 32                       code
//! Q5_0   per  32: d f16 x 32, 4 words x 32, 1 word x 32 (quad q: place q:    code - 16
//!        bit 4)
//! Q5_1   per  32: d f16 x 32, m f16 x 32, 4 words x 32, 1 word x 32          code
//! Q8_0   per  32: d f16 x 32, 32 times i8 x 32                               signed
//! Q4_K   per 256: d, dmin f16 x 32, 8 scales u8 x 32, 8 mins u8 x 32, 8 times as Q4_0's words
//! Q5_K   per 256: the same, 8 times as Q5_0's words
//! Q6_K   per 256: d f16 x 32, 16 scales i8 x 32, 8 times (4 words x 32, 2 words x 32: quad q: word q / 4,
//!        place 2 (q % 4): bits 4 and 5)                                      code - 32
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
    /// Inputs that share a scale: 32 or 16.
    pub(crate) group: usize,
    /// What is subtracted from a code.
    pub(crate) offset: u8,
    /// Whether the value has a minimum beside the scaled code.
    pub(crate) has_min: bool,
}

impl BlockLayout {
    /// Bytes from an output's first code to the next one's.
    pub(crate) const fn column_bytes(self) -> usize {
        if self.words == 8 { 1 } else { 4 }
    }
}

/// Whether the format has blocks of codes, which is all that this file is about.
pub(crate) fn is_block_format(weight_type: WeightType) -> bool {
    match weight_type {
        WeightType::F32
        | WeightType::F16
        | WeightType::Bf16
        | WeightType::F8E4M3
        | WeightType::Int4
        | WeightType::F4E2M1 => false,
        WeightType::Q4_0
        | WeightType::Q4_1
        | WeightType::Q5_0
        | WeightType::Q5_1
        | WeightType::Q8_0
        | WeightType::Q4K
        | WeightType::Q5K
        | WeightType::Q6K => true,
    }
}

/// Sizes for a block format.
///
/// # Panics
/// If the type is a plain one.
pub(crate) const fn layout(weight_type: WeightType) -> BlockLayout {
    let (elements, header, words, offset) = match weight_type {
        WeightType::Q4_0 => (32, 2, 4, 8),
        WeightType::Q4_1 => (32, 4, 4, 0),
        WeightType::Q5_0 => (32, 2, 5, 16),
        WeightType::Q5_1 => (32, 4, 5, 0),
        WeightType::Q8_0 => (32, 2, 8, 0),
        WeightType::Q4K => (256, 20, 4, 0),
        WeightType::Q5K => (256, 20, 5, 0),
        WeightType::Q6K => (256, 18, 6, 32),
        WeightType::F32
        | WeightType::F16
        | WeightType::Bf16
        | WeightType::F8E4M3
        | WeightType::Int4
        | WeightType::F4E2M1 => panic!("not a block format"),
    };
    let header = header * PANEL;
    let bytes = header + elements / 32 * words * PANEL * 4;
    let group = if matches!(weight_type, WeightType::Q6K) { 16 } else { 32 };
    let has_min = offset == 0 && !matches!(weight_type, WeightType::Q8_0);
    BlockLayout { elements, bytes, header, words, group, offset, has_min }
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
            let part_bytes = sizes.words * PANEL * 4;
            for (part, target) in target[sizes.header..].chunks_exact_mut(part_bytes).enumerate() {
                let codes = stored_codes(weight_type, source, part);
                if weight_type == WeightType::Q8_0 {
                    pack_bytes(&codes, lane, target);
                } else {
                    pack_codes(&codes, sizes.words, lane, numbers_mut::<u32>(target));
                }
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

/// Writes 32 codes of one output as bytes.
fn pack_bytes(codes: &[u8; 32], lane: usize, target: &mut [u8]) {
    for (code, target) in codes.iter().zip(target.as_chunks_mut::<PANEL>().0) {
        target[lane] = *code;
    }
}

/// Spreads 32 codes over the words of one output.
fn pack_codes(codes: &[u8; 32], num_words: usize, lane: usize, words: &mut [u32]) {
    for (quad, codes) in codes.as_chunks::<4>().0.iter().enumerate() {
        let codes = u32::from_le_bytes(*codes);
        let (word, high) = (quad / 2 * PANEL + lane, codes >> 4);
        words[word] |= (codes & 0x0f0f_0f0f) << (quad % 2 * 4);
        match num_words {
            5 => words[4 * PANEL + lane] |= ((high & 0x0101_0101) << quad).rotate_left(4),
            6 => {
                let at = (4 + quad / 4) * PANEL + lane;
                words[at] |= ((high & 0x0303_0303) << (quad % 4 * 2)).rotate_left(4);
            }
            _ => {}
        }
    }
}
