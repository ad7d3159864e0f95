//! Matrices of 4-bit codes with a scale for each group of columns: where published checkpoints keep
//! their parts, and the one form in which executors get them. Load only.

use std::io;

use half::{bf16, f16};

use crate::weights::{GroupView, Packing, ScaleType, TensorView, WeightSource, WeightType, Zero};

impl ScaleType {
    fn bytes(self) -> usize {
        match self {
            Self::Number(weight_type) => weight_type.block_bytes(),
            Self::E8M0 => 1,
        }
    }

    fn value(self, bytes: &[u8]) -> f32 {
        match self {
            Self::Number(WeightType::F16) => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Self::Number(WeightType::Bf16) => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Self::Number(_) => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            Self::E8M0 if bytes[0] == u8::MAX => f32::NAN,
            // 2^-127 is a subnormal f32.
            Self::E8M0 if bytes[0] == 0 => f32::from_bits(1 << 22),
            Self::E8M0 => f32::from_bits(u32::from(bytes[0]) << 23),
        }
    }
}

/// Some rows of a matrix, in the form that all packings become.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedRows {
    /// `[rows, cols / 8]`: eight codes a word, the first column in the lowest bits.
    pub codes: Vec<u32>,
    /// `[rows, groups]`
    pub scales: Vec<f32>,
    /// `[rows, groups]`, 0 to 16; 0 for `F4E2M1`.
    pub zeros: Vec<u8>,
}

impl GroupView {
    /// Groups of a row of `cols` columns.
    #[must_use]
    pub fn groups(&self, cols: u32) -> usize {
        cols.div_ceil(self.group) as usize
    }

    /// The group of each of `cols` columns.
    ///
    /// # Errors
    /// Those of the source, and `InvalidData` for a group that does not exist.
    pub fn column_groups(&self, source: &dyn WeightSource, cols: u32) -> io::Result<Vec<u32>> {
        let Some(tensor) = &self.groups_of_columns else {
            return Ok((0..cols).map(|column| column / self.group).collect());
        };
        let mut bytes = vec![0; cols as usize * 4];
        source.read_at(tensor.file, tensor.offset, &mut bytes)?;
        let groups: Vec<u32> = words(&bytes).collect();
        let number = self.groups(cols);
        match groups.iter().position(|group| *group as usize >= number) {
            None => Ok(groups),
            Some(column) => {
                let group = groups[column].cast_signed();
                let text = format!("column {column} is in group {group} of {number}");
                Err(invalid(&tensor.name, &text))
            }
        }
    }
}

impl TensorView {
    /// Reads `count` rows from row `first`, with their scales and zeros.
    ///
    /// # Errors
    /// Those of the source, and `InvalidData` for a scale that is not finite.
    ///
    /// # Panics
    /// If the view has no `groups`, or fewer rows.
    pub fn read_grouped(
        &self,
        source: &dyn WeightSource,
        first: usize,
        count: usize,
    ) -> io::Result<GroupedRows> {
        let Some(view) = &self.groups else { panic!("{}: no 4-bit matrix", self.name) };
        assert!(first + count <= self.rows as usize, "{}: rows beyond the last", self.name);
        let reader = Reader {
            source,
            view,
            first: view.first_row as usize + first * view.row_step as usize,
            count,
            step: view.row_step as usize,
            tensor_rows: view.tensor_rows as usize,
            first_word: view.first_col as usize / 8,
            tensor_words: view.tensor_cols as usize / 8,
            cols: self.cols as usize,
            first_group: view.first_group as usize,
            tensor_groups: view.tensor_groups as usize,
            groups: view.groups(self.cols),
        };
        Ok(GroupedRows {
            codes: reader.codes(self)?,
            scales: reader.scales()?,
            zeros: reader.zeros()?,
        })
    }
}

impl GroupedRows {
    /// The values of the rows, `[rows, cols]`, by the formula at `GroupView`.
    ///
    /// # Panics
    /// If `out` is not that long.
    pub fn widen(&self, weight_type: WeightType, column_groups: &[u32], out: &mut [f32]) {
        let cols = column_groups.len();
        let rows = out.len() / cols;
        let groups = self.scales.len() / rows;
        assert!(out.len() == rows * cols && self.codes.len() * 8 == out.len(), "other sizes");
        for (row, out) in out.chunks_exact_mut(cols).enumerate() {
            let codes = &self.codes[row * cols / 8..];
            let (scales, zeros) = (&self.scales[row * groups..], &self.zeros[row * groups..]);
            for (column, (value, group)) in out.iter_mut().zip(column_groups).enumerate() {
                let code = (codes[column / 8] >> (column % 8 * 4)) as u8 & 15;
                let group = *group as usize;
                let number = if weight_type == WeightType::F4E2M1 {
                    E2M1[usize::from(code)]
                } else {
                    f32::from(code) - f32::from(zeros[group])
                };
                *value = number * scales[group];
            }
        }
    }
}

/// Rows of one matrix on their way out of the file.
struct Reader<'a> {
    source: &'a dyn WeightSource,
    view: &'a GroupView,
    /// The first row, in the tensors.
    first: usize,
    count: usize,
    step: usize,
    tensor_rows: usize,
    /// Of a row, in words of 8 codes.
    first_word: usize,
    tensor_words: usize,
    cols: usize,
    first_group: usize,
    tensor_groups: usize,
    groups: usize,
}

impl Reader<'_> {
    fn codes(&self, view: &TensorView) -> io::Result<Vec<u32>> {
        let row_words = self.cols / 8;
        let mut codes = vec![0_u32; self.count * row_words];
        let read = |at: usize, bytes: &mut [u8]| {
            self.source.read_at(view.file, view.offset + at as u64, bytes)
        };
        match self.view.packing {
            Packing::Rows => {
                let row_bytes = self.tensor_words * 4;
                let mut bytes = vec![0; self.span() * row_bytes];
                read(self.first * row_bytes, &mut bytes)?;
                let rows = bytes.chunks_exact(row_bytes).step_by(self.step);
                for (to, row) in codes.chunks_exact_mut(row_words).zip(rows) {
                    let row = words(row).skip(self.first_word);
                    to.iter_mut().zip(row).for_each(|(to, word)| *to = word);
                }
            }
            Packing::Gptq => {
                let mut bytes = vec![0; self.count * 4];
                for column in 0..row_words {
                    let line = self.first_word + column;
                    read((line * self.tensor_rows + self.first) * 4, &mut bytes)?;
                    for (row, word) in words(&bytes).enumerate() {
                        codes[row * row_words + column] = word;
                    }
                }
            }
            Packing::Awq => {
                for column in 0..self.cols {
                    let shift = column % 8 * 4;
                    let line = 8 * self.first_word + column;
                    let row_codes = self.nibbles(view.file, view.offset, line)?;
                    for (row, code) in row_codes.into_iter().enumerate() {
                        codes[row * row_words + column / 8] |= u32::from(code) << shift;
                    }
                }
            }
        }
        Ok(codes)
    }

    fn scales(&self) -> io::Result<Vec<f32>> {
        let (tensor, kind) = (&self.view.scale, self.view.scale_type);
        let size = kind.bytes();
        let mut scales = vec![0.0; self.count * self.groups];
        if self.view.packing == Packing::Rows {
            let row_bytes = self.tensor_groups * size;
            let mut bytes = vec![0; self.span() * row_bytes];
            let start = (self.first * row_bytes) as u64;
            self.source.read_at(tensor.file, tensor.offset + start, &mut bytes)?;
            let rows = bytes.chunks_exact(row_bytes).step_by(self.step);
            for (to, row) in scales.chunks_exact_mut(self.groups).zip(rows) {
                let stored = row.chunks_exact(size).skip(self.first_group);
                to.iter_mut().zip(stored).for_each(|(to, bytes)| *to = kind.value(bytes));
            }
        } else {
            let mut bytes = vec![0; self.count * size];
            for group in 0..self.groups {
                let line = self.first_group + group;
                let start = ((line * self.tensor_rows + self.first) * size) as u64;
                self.source.read_at(tensor.file, tensor.offset + start, &mut bytes)?;
                for (row, bytes) in bytes.chunks_exact(size).enumerate() {
                    scales[row * self.groups + group] = kind.value(bytes);
                }
            }
        }
        match scales.iter().find(|scale| scale.is_nan() || scale.abs() > LARGEST) {
            None => Ok(scales),
            Some(odd) => {
                let text = format!("holds {odd}; the largest scale is {LARGEST:e}");
                Err(invalid(&tensor.name, &text))
            }
        }
    }

    fn zeros(&self) -> io::Result<Vec<u8>> {
        let (tensor, add) = match &self.view.zero {
            Zero::None => return Ok(vec![0; self.count * self.groups]),
            Zero::Constant(zero) => return Ok(vec![*zero; self.count * self.groups]),
            Zero::Stored { tensor, add } => (tensor, *add),
        };
        let mut zeros = vec![0; self.count * self.groups];
        if self.view.packing == Packing::Rows {
            let (first, last) = (self.first / 8, (self.first + self.span()).div_ceil(8));
            let mut bytes = vec![0; (last - first) * self.tensor_groups * 4];
            let start = (first * self.tensor_groups * 4) as u64;
            self.source.read_at(tensor.file, tensor.offset + start, &mut bytes)?;
            let stored: Vec<u32> = words(&bytes).collect();
            for (row, zeros) in zeros.chunks_exact_mut(self.groups).enumerate() {
                let row = self.first + row * self.step;
                let stored = &stored[(row / 8 - first) * self.tensor_groups + self.first_group..];
                for (zero, word) in zeros.iter_mut().zip(stored) {
                    *zero = ((word >> (row % 8 * 4)) as u8 & 15) + add;
                }
            }
            return Ok(zeros);
        }
        for group in 0..self.groups {
            let line = self.first_group + group;
            let stored = self.nibbles(tensor.file, tensor.offset, line)?;
            for (row, zero) in stored.into_iter().enumerate() {
                zeros[row * self.groups + group] = zero + add;
            }
        }
        Ok(zeros)
    }

    /// The numbers of these rows in line `line` of a tensor `[lines, rows / 8]` of words.
    fn nibbles(&self, file: usize, offset: u64, line: usize) -> io::Result<Vec<u8>> {
        let (first, last) = (self.first / 8, (self.first + self.count).div_ceil(8));
        let mut bytes = vec![0; (last - first) * 4];
        let start = (line * (self.tensor_rows / 8) + first) * 4;
        self.source.read_at(file, offset + start as u64, &mut bytes)?;
        let places = match self.view.packing {
            Packing::Awq => AWQ_PLACES,
            Packing::Rows | Packing::Gptq => [0, 1, 2, 3, 4, 5, 6, 7],
        };
        let codes = words(&bytes).flat_map(|word| places.map(|at| (word >> (at * 4)) as u8 & 15));
        Ok(codes.skip(self.first % 8).take(self.count).collect())
    }

    /// Rows from the first to the last, those between included.
    fn span(&self) -> usize {
        self.count.saturating_sub(1) * self.step + usize::from(self.count > 0)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

fn invalid(tensor: &str, text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{tensor} {text}"))
}

/// Leaves room for products with codes.
const LARGEST: f32 = 1e30;

/// The place of each of eight rows in a word of AWQ.
const AWQ_PLACES: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The numbers of the codes of `F4E2M1`: sign, two bits of exponent, one of mantissa.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

#[cfg(test)]
mod tests;
