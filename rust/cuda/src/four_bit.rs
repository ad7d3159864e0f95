//! 4-bit matrices on the device: their forms, and how a row range of a file becomes records (kernels/four_bit.cuh). Plain
//! data and arithmetic.

use ingle_model::{GroupedRows, Order, ScaleType, TensorView, WeightType, Zero};

use crate::contract::{
    FB_COLUMN_BYTES, FB_E2M1, FB_INT4, FB_SCALE_BF16, FB_SCALE_E8M0, FB_SCALE_F16,
    four_bit_group_bytes, four_bit_record_bytes,
};

/// What the codes of a matrix are, and what lies beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FourBitForm {
    pub(crate) scale: GroupScale,
    /// A zero each group; else all are 8.
    pub(crate) zeros: bool,
    /// Columns of a record: 64 or 128.
    pub(crate) block: u32,
    /// Groups of columns in it.
    pub(crate) groups: u32,
}

/// The type of a group's scale. `E8M0` goes with e2m1 codes, the others with integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum GroupScale {
    F16,
    Bf16,
    E8M0,
}

impl FourBitForm {
    /// The form of a matrix, if kernels can read it: groups of at least 32 columns in the usual order, whole groups of 16
    /// rows.
    pub(crate) fn of(view: &TensorView) -> Option<Self> {
        if view.weight_type == WeightType::Q4_0 {
            let is_whole = view.rows.is_multiple_of(16) && view.order == Order::Rows;
            let form = Self { scale: GroupScale::F16, zeros: false, block: 64, groups: 2 };
            return is_whole.then_some(form);
        }
        let groups = view.groups.as_ref()?;
        let scale = match (view.weight_type, groups.scale_type) {
            (WeightType::F4E2M1, ScaleType::E8M0) => GroupScale::E8M0,
            (WeightType::Int4, ScaleType::Number(WeightType::F16)) => GroupScale::F16,
            (WeightType::Int4, ScaleType::Number(WeightType::Bf16)) => GroupScale::Bf16,
            _ => return None,
        };
        let zeros = match groups.zero {
            Zero::None | Zero::Constant(8) => false,
            Zero::Constant(_) => return None,
            Zero::Stored { .. } => true,
        };
        let is_usual = groups.groups_of_columns.is_none();
        let is_whole = view.rows.is_multiple_of(16) && view.cols.is_multiple_of(8);
        if !is_usual || !is_whole {
            return None;
        }
        let wide = groups.group.is_multiple_of(128) && view.cols.is_multiple_of(128);
        let (block, groups) = match groups.group {
            // One group of the whole row is as wide as the row.
            group if group >= view.cols => (if wide { 128 } else { 64 }, 1),
            group if wide && group.is_multiple_of(128) => (128, 1),
            group if group.is_multiple_of(64) => (64, 1),
            32 => (64, 2),
            _ => return None,
        };
        Some(Self { scale, zeros, block, groups })
    }

    /// What checkpoints store.
    pub(crate) fn stored(self) -> WeightType {
        // Of integers in GGUF too, as far as a product is concerned.
        if self.scale == GroupScale::E8M0 { WeightType::F4E2M1 } else { WeightType::Int4 }
    }

    /// Bytes of the scales and zeros of a group.
    fn group_bytes(self) -> u32 {
        let scale = if self.scale == GroupScale::E8M0 { 1 } else { 2 };
        four_bit_group_bytes(scale, u32::from(self.zeros))
    }

    /// Bytes of a record: 16 rows and `block` columns.
    pub(crate) fn record_bytes(self) -> u32 {
        four_bit_record_bytes(self.block, self.groups, self.group_bytes())
    }

    /// Records of 16 rows of `k` columns.
    pub(crate) fn records(self, k: u32) -> u32 {
        k.div_ceil(self.block)
    }

    /// Bytes of a matrix `[n, k]`; `n` is a multiple of 16.
    pub(crate) fn bytes(self, n: u32, k: u32) -> u64 {
        u64::from(n / 16) * u64::from(self.records(k)) * u64::from(self.record_bytes())
    }

    /// The macros of a build.
    pub(crate) fn macros(self) -> Vec<String> {
        let (codes, scale) = match self.scale {
            GroupScale::F16 => (FB_INT4, FB_SCALE_F16),
            GroupScale::Bf16 => (FB_INT4, FB_SCALE_BF16),
            GroupScale::E8M0 => (FB_E2M1, FB_SCALE_E8M0),
        };
        vec![
            format!("-DFB_CODES={codes}"),
            format!("-DFB_SCALE={scale}"),
            format!("-DFB_ZEROS={}", u32::from(self.zeros)),
            format!("-DFB_BLOCK={}", self.block),
            format!("-DFB_GROUPS={}", self.groups),
        ]
    }

    /// Of the name of a build.
    pub(crate) fn suffix(self) -> String {
        let Self { scale, zeros, block, groups } = self;
        format!("{scale:?}{}-{block}x{groups}", if zeros { "-zeros" } else { "" }).to_lowercase()
    }

    /// Writes rows, a multiple of 16 of them, as records. `group` is the file's columns of a group.
    ///
    /// # Errors
    /// A scale of e2m1 codes above 2: weights would not be exact in the kernels' arithmetic.
    pub(crate) fn pack(
        self,
        rows: &GroupedRows,
        cols: u32,
        group: u32,
        out: &mut [u8],
    ) -> std::io::Result<()> {
        let cols = cols as usize;
        let num_rows = rows.codes.len() * 8 / cols;
        let row_groups = rows.scales.len() / num_rows;
        let records = self.records(cols as u32) as usize;
        let mut records_of_rows = out.chunks_exact_mut(self.record_bytes() as usize);
        for first in (0..num_rows).step_by(16) {
            for record in 0..records {
                let Some(out) = records_of_rows.next() else { return Ok(()) };
                let (codes, sides) = out.split_at_mut((self.block * FB_COLUMN_BYTES) as usize);
                let first_column = record * self.block as usize;
                self.pack_codes(&rows.codes, cols / 8, (first, first_column), codes);
                let sides = sides.chunks_exact_mut(self.group_bytes() as usize);
                for (part, side) in sides.enumerate() {
                    let column = first_column + part * (self.block / self.groups) as usize;
                    let index = (column / group as usize).min(row_groups - 1);
                    self.pack_group(rows, (first, row_groups, index), column < cols, side)?;
                }
            }
        }
        Ok(())
    }

    /// Codes of 16 rows from `first_row` on, of the columns from `first_column` on.
    fn pack_codes(
        self,
        codes: &[u32],
        row_words: usize,
        (first_row, first_column): (usize, usize),
        out: &mut [u8],
    ) {
        let places = if self.scale == GroupScale::E8M0 { &E2M1_PLACES } else { &INT4_PLACES };
        let words = row_words.saturating_sub(first_column / 8).min(self.block as usize / 8);
        let mut packed = [0_u32; 256];
        for row in 0..16 {
            let start = (first_row + row) * row_words + first_column / 8;
            for (at, eight) in codes[start..][..words].iter().enumerate() {
                // Two codes for each of four lanes, all in one register of one step of a tile.
                let (tile, step, register) = (at / 8, at % 8 / 2, row / 8 + at % 2 * 2);
                let first = tile * 128 + row % 8 * 16 + step;
                for (lane, byte) in eight.to_le_bytes().into_iter().enumerate() {
                    packed[first + lane * 4] |= places[register][usize::from(byte)];
                }
            }
        }
        for (out, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(packed) {
            *out = word.to_le_bytes();
        }
    }

    /// Scales, then zeros, of one group of 16 rows; scales are 0 where `exists` is false.
    fn pack_group(
        self,
        rows: &GroupedRows,
        (first_row, row_groups, index): (usize, usize, usize),
        exists: bool,
        out: &mut [u8],
    ) -> std::io::Result<()> {
        let size = if self.scale == GroupScale::E8M0 { 1 } else { 2 };
        for place in 0..16 {
            let at = (first_row + place / 2 + place % 2 * 8) * row_groups + index;
            let scale = if exists { rows.scales[at] } else { 0.0 };
            let out = &mut out[..];
            match self.scale {
                GroupScale::F16 => {
                    out[place * 2..][..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes())
                }
                GroupScale::Bf16 => out[place * 2..][..2]
                    .copy_from_slice(&half::bf16::from_f32(scale).to_le_bytes()),
                GroupScale::E8M0 => {
                    let byte = (scale.to_bits() >> 23) as u8;
                    if byte > LARGEST_E8M0 {
                        let text = format!("holds a scale of {scale}; on cuda the largest is 2");
                        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
                    }
                    out[place] = byte;
                }
            }
            if self.zeros {
                out[16 * size + place] = rows.zeros[at];
            }
        }
        Ok(())
    }
}

/// Rows of GGUF's Q4_0 as those of other packings: blocks of 32 columns, an f16 scale and 16 bytes, whose lower halves
/// are the first 16 columns.
pub(crate) fn rows_of_q4_0(stored: &[u8]) -> GroupedRows {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in stored.as_chunks::<18>().0 {
        let [low, high, pairs @ ..] = block;
        scales.push(half::f16::from_le_bytes([*low, *high]).to_f32());
        for shift in [0, 4] {
            for eight in pairs.as_chunks::<8>().0 {
                let word = (0..8).map(|at| u32::from(eight[at] >> shift & 15) << (4 * at));
                codes.push(word.sum());
            }
        }
    }
    let zeros = vec![8; scales.len()];
    GroupedRows { codes, scales, zeros }
}

/// Where two codes of a byte go in a word, by register: the lower one to the lower half, as `fragment` of four_bit.cuh
/// reads them.
const INT4_PLACES: [[u32; 256]; 4] = places(false);
const E2M1_PLACES: [[u32; 256]; 4] = places(true);

const fn places(is_e2m1: bool) -> [[u32; 256]; 4] {
    let mut places = [[0; 256]; 4];
    let mut index = 0;
    while index < 1024 {
        let (register, byte) = (index / 256, index as u32 % 256);
        let (low, high) = (byte & 15, byte >> 4);
        places[register][byte as usize] = if is_e2m1 {
            spread(low, register) | spread(high, register) << 16
        } else {
            (low | high << 16) << (4 * register)
        };
        index += 1;
    }
    places
}

/// The bits of an e2m1 code in one half of a word: sign and the other three.
const fn spread(code: u32, register: usize) -> u32 {
    let (sign, rest) = (code >> 3, code & 7);
    match register {
        3 => sign << 14 | (rest & 4) << 11 | (rest & 3) << 10,
        _ => (sign << 15 | rest << 6) >> (3 * register),
    }
}

/// 2^1, the largest scale whose product with 2^126 is a bf16 number.
const LARGEST_E8M0: u8 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    const FORMS: [FourBitForm; 5] = [
        FourBitForm { scale: GroupScale::Bf16, zeros: false, block: 128, groups: 1 },
        FourBitForm { scale: GroupScale::F16, zeros: true, block: 128, groups: 1 },
        FourBitForm { scale: GroupScale::F16, zeros: true, block: 64, groups: 2 },
        FourBitForm { scale: GroupScale::Bf16, zeros: true, block: 64, groups: 1 },
        FourBitForm { scale: GroupScale::E8M0, zeros: false, block: 64, groups: 2 },
    ];

    /// The rows of a record as kernels read them: lanes, registers, halves.
    fn unpack(form: FourBitForm, record: &[u8], row: usize, column: usize) -> f32 {
        let (tile, step, in_step) = (column / 64, column % 64 / 16, column % 16);
        let lane = row % 8 * 4 + in_step % 8 / 2;
        let register = row / 8 + in_step / 8 * 2;
        let at = tile * 512 + lane * 16 + step * 4;
        let word = u32::from_le_bytes(record[at..][..4].try_into().unwrap());
        let half = word >> (column % 2 * 16) & 0xffff;
        let group = column / (form.block / form.groups) as usize;
        let side = &record[form.block as usize * 8 + group * form.group_bytes() as usize..];
        let place = row % 8 * 2 + row / 8;
        if form.scale == GroupScale::E8M0 {
            // As a kernel: a mask, bf16, times 2^126 and the scale.
            let bits = match register {
                3 => half << 1 & 0x8000 | half >> 4 & 0xc0 | half >> 5 & 0x100,
                _ => half << (3 * register) & 0x81c0,
            };
            let small = half::bf16::from_bits(bits as u16).to_f32();
            return small * 2f32.powi(i32::from(side[place]) - 1);
        }
        let code = (half >> (4 * register) & 15) as f32;
        let scale: [u8; 2] = side[place * 2..][..2].try_into().unwrap();
        let scale = match form.scale {
            GroupScale::F16 => half::f16::from_le_bytes(scale).to_f32(),
            _ => half::bf16::from_le_bytes(scale).to_f32(),
        };
        let zero = if form.zeros { f32::from(side[32 + place]) } else { 8.0 };
        (code - zero) * scale
    }

    #[test]
    fn records_hold_what_the_rows_held() {
        let mut state = 1_u32;
        let mut next = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for form in FORMS {
            for (num_rows, cols) in
                [(16, form.block), (48, 2 * form.block), (16, 3 * form.block / 2)]
            {
                let group = form.block / form.groups;
                let row_groups = cols.div_ceil(group);
                let rows = GroupedRows {
                    codes: (0..num_rows * cols / 8)
                        .map(|_| next(65536) << 16 | next(65536))
                        .collect(),
                    scales: (0..num_rows * row_groups)
                        .map(|_| 2f32.powi(next(12) as i32 - 11))
                        .collect(),
                    zeros: (0..num_rows * row_groups)
                        .map(|_| if form.zeros { next(17) as u8 } else { 8 })
                        .collect(),
                };
                let kind = match form.scale {
                    GroupScale::E8M0 => WeightType::F4E2M1,
                    _ => WeightType::Int4,
                };
                let mut want = vec![0.0; (num_rows * cols) as usize];
                let column_groups: Vec<u32> = (0..cols).map(|column| column / group).collect();
                rows.widen(kind, &column_groups, &mut want);
                let mut packed = vec![0xff; form.bytes(num_rows, cols) as usize];
                form.pack(&rows, cols, group, &mut packed).unwrap();
                let records: Vec<&[u8]> = packed.chunks(form.record_bytes() as usize).collect();
                for row in 0..num_rows {
                    for column in 0..cols {
                        let record = row / 16 * form.records(cols) + column / form.block;
                        let (row_in, column_in) = (row % 16, column % form.block);
                        let found = unpack(
                            form,
                            records[record as usize],
                            row_in as usize,
                            column_in as usize,
                        );
                        let want = want[(row * cols + column) as usize];
                        assert_eq!(found, want, "{form:?} {row} {column}");
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_of_gguf_become_the_same_numbers() {
        let stored: Vec<u8> = (0..4 * 18_u32)
            .map(|at| match at % 18 {
                0 => 0x10 + (at / 18) as u8,
                1 => 0x2c,
                _ => (at * 37 + 11) as u8,
            })
            .collect();
        let (mut want, mut found) = (vec![0.0; 128], vec![0.0; 128]);
        ingle_model::dequantise(WeightType::Q4_0, &stored, &mut want);
        let groups: Vec<u32> = (0..64).map(|column| column / 32).collect();
        rows_of_q4_0(&stored).widen(WeightType::Int4, &groups, &mut found);
        assert_eq!(found, want);
    }

    #[test]
    fn scales_beyond_the_kernels_arithmetic_are_refused() {
        let form = FORMS[4];
        let rows = |scale| GroupedRows {
            codes: vec![0; 128],
            scales: vec![scale; 32],
            zeros: vec![0; 32],
        };
        let mut out = vec![0; form.record_bytes() as usize];
        assert!(form.pack(&rows(2.0), 64, 32, &mut out).is_ok());
        let refused = form.pack(&rows(4.0), 64, 32, &mut out).unwrap_err();
        assert_eq!(refused.to_string(), "holds a scale of 4; on cuda the largest is 2");
    }
}
