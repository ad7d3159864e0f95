//! The positions of tensors' bytes. Plain data, plus the trait that reads them.

use std::collections::BTreeMap;

use crate::roles::WeightRole;

/// How elements are stored. Block formats as ggml defines them. `F8E4M3` is the variant without
/// infinities ("e4m3fn"): sign, 4 bits of exponent with bias 7, 3 of mantissa; at most 448. `Int4` and
/// `F4E2M1` are 4-bit codes with a scale for each group of columns; see `GroupView`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the formats")]
pub enum WeightType {
    F32,
    F16,
    Bf16,
    F8E4M3,
    Int4,
    F4E2M1,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4K,
    Q5K,
    Q6K,
}

impl WeightType {
    /// Elements a block; 1 for plain types.
    #[must_use]
    pub fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 | Self::F8E4M3 => 1,
            Self::Int4 | Self::F4E2M1 => 2,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes a block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::F8E4M3 | Self::Int4 | Self::F4E2M1 => 1,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }
}

/// How the elements of a tensor follow each other in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Row by row, without a gap.
    Rows,
    /// Rows come in bands of `rows`, each row without a gap; a band begins `stride` rows behind the one
    /// before: one part of a tensor in which several parts alternate.
    Bands {
        /// Of a band; divides the matrix's rows.
        rows: u32,
        /// Of the tensor, from band to band.
        stride: u32,
    },
    /// Row by row, a row begins `stride` elements behind the one before: some columns of a matrix. A multiple of
    /// `block_elements`.
    Spaced {
        /// From a row to the next.
        stride: u32,
    },
    /// Element (r, c) lies `c * stride + r * step` elements behind the first one: a matrix that is stored
    /// `[in, out]` (step 1), or every other column of one (step 2). Plain types only.
    Columns {
        /// From a column to the next.
        stride: u32,
        /// From a row to the next.
        step: u32,
    },
}

/// One tensor's place: `rows * cols` elements, the first one at `offset` of file `file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorView {
    /// The tensor's name in the file, for errors.
    pub name: String,
    /// Index into `CopyPlan::files`.
    pub file: usize,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Bytes of the elements; `rows * cols / block_elements * block_bytes`.
    pub byte_len: u64,
    /// Where the others lie; `read` knows it.
    pub order: Order,
    /// Storage.
    pub weight_type: WeightType,
    /// 1 for vectors.
    pub rows: u32,
    /// Elements a row; a multiple of `block_elements`.
    pub cols: u32,
    /// What stored elements are multiplied by; only F8E4M3 matrices have one.
    pub scale: Option<ScaleView>,
    /// Where the codes and scales of an `Int4` or `F4E2M1` matrix lie; `read_grouped` reads them. `offset` is
    /// the start of the tensor of codes then.
    pub groups: Option<GroupView>,
    /// Executors keep this matrix as F8E4M3 with a scale a row: `quantise_rows` turns what is stored
    /// into that. Only plain types of 16 or 32 bits without `scale` are marked.
    pub quantise: bool,
}

impl TensorView {
    /// Fills `out` with elements as they are stored, row by row, from element `start` on: a multiple of
    /// `block_elements`, and unless the order is `Rows` the start of a row.
    ///
    /// # Errors
    /// Those of the source.
    ///
    /// # Panics
    /// If `out` does not hold whole blocks, or whole rows where that is needed; if there are `groups`.
    pub fn read(
        &self,
        source: &dyn WeightSource,
        start: u64,
        out: &mut [u8],
    ) -> std::io::Result<()> {
        assert!(self.groups.is_none(), "{}: read_grouped reads it", self.name);
        let (block, size) = (self.weight_type.block_elements(), self.weight_type.block_bytes());
        let (stride, step) = match self.order {
            Order::Rows => {
                let start = start / block as u64 * size as u64;
                return source.read_at(self.file, self.offset + start, out);
            }
            Order::Bands { rows, stride } => {
                let row_bytes = self.cols as usize / block * size;
                let first = (start / u64::from(self.cols)) as u32;
                let place = (self.file, self.offset);
                return read_bands(source, place, (rows, stride), (first, row_bytes), out);
            }
            Order::Spaced { stride } => {
                let bytes = |cols: u32| cols as usize / block * size;
                let row = start / u64::from(self.cols);
                let place = (self.file, self.offset + row * bytes(stride) as u64);
                return read_spaced(source, place, (bytes(self.cols), bytes(stride)), out);
            }
            Order::Columns { stride, step } => (stride, step),
        };
        let (stride, step, cols) = (stride as usize, step as usize, self.cols as usize);
        let rows = out.len() / (cols * size);
        assert!(block == 1 && rows * cols * size == out.len(), "{}: whole rows", self.name);
        let first = start / cols as u64 * step as u64 * size as u64;
        // What the rows take of one column.
        let run = (rows - 1) * step + 1;
        let mut put = |column: usize, stored: &[u8]| {
            for (row, element) in stored.chunks(step * size).enumerate() {
                out[(row * cols + column) * size..][..size].copy_from_slice(&element[..size]);
            }
        };
        if 2 * run >= stride {
            let mut stored = vec![0; ((cols - 1) * stride + run) * size];
            source.read_at(self.file, self.offset + first, &mut stored)?;
            for (column, stored) in stored.chunks(stride * size).enumerate() {
                put(column, &stored[..run * size]);
            }
            return Ok(());
        }
        let mut stored = vec![0; run * size];
        for column in 0..cols {
            let at = first + (column * stride * size) as u64;
            source.read_at(self.file, self.offset + at, &mut stored)?;
            put(column, &stored);
        }
        Ok(())
    }

    /// Bytes of elements and scales in memory: as stored, or as fp8 if `quantise` says so.
    #[must_use]
    pub fn loaded_bytes(&self) -> u64 {
        if self.quantise {
            return u64::from(self.rows) * (u64::from(self.cols) + 4);
        }
        let of_groups = self
            .groups
            .as_ref()
            .map_or(0, |view| u64::from(self.rows) * view.groups(self.cols) as u64 * GROUP_BYTES);
        self.byte_len + of_groups + self.scale.as_ref().map_or(0, |scale| scale.byte_len)
    }
}

/// Fills `out` with whole rows from `first` on; see `Order::Bands`.
pub(crate) fn read_bands(
    source: &dyn WeightSource,
    (file, offset): (usize, u64),
    (rows, stride): (u32, u32),
    (mut first, row_bytes): (u32, usize),
    mut out: &mut [u8],
) -> std::io::Result<()> {
    assert!(out.len().is_multiple_of(row_bytes), "whole rows");
    while !out.is_empty() {
        let (band, within) = (first / rows, first % rows);
        let take = ((rows - within) as usize).min(out.len() / row_bytes);
        let (now, rest) = out.split_at_mut(take * row_bytes);
        let row = u64::from(band) * u64::from(stride) + u64::from(within);
        source.read_at(file, offset + row * row_bytes as u64, now)?;
        first += take as u32;
        out = rest;
    }
    Ok(())
}

/// Fills `out` with whole rows of `row_bytes`, each `stride` bytes behind the one before.
pub(crate) fn read_spaced(
    source: &dyn WeightSource,
    (file, first): (usize, u64),
    (row_bytes, stride): (usize, usize),
    out: &mut [u8],
) -> std::io::Result<()> {
    assert!(out.len().is_multiple_of(row_bytes), "whole rows");
    if row_bytes >= READ_ALONE_BYTES {
        for (row, out) in (0_u64..).zip(out.chunks_exact_mut(row_bytes)) {
            source.read_at(file, first + row * stride as u64, out)?;
        }
        return Ok(());
    }
    let rows = out.len() / row_bytes;
    let mut stored = vec![0; rows.saturating_sub(1) * stride + row_bytes];
    source.read_at(file, first, &mut stored)?;
    for (stored, out) in stored.chunks(stride).zip(out.chunks_exact_mut(row_bytes)) {
        out.copy_from_slice(&stored[..row_bytes]);
    }
    Ok(())
}

/// Rows that lie apart are read with what lies between them if they are shorter.
const READ_ALONE_BYTES: usize = 4096;
/// Bytes of a group's scale and zero in memory.
const GROUP_BYTES: u64 = 5;

/// Where the scales of a matrix lie: `rows * cols` numbers, row-major, from `offset` of file `file` on in
/// `order`, each for a block of the matrix:
/// `value(r, c) = element(r, c) * scale[r / block_rows][c / block_cols]`, in f32.
///
/// One scale a tensor is one block of the whole matrix; one a row has `block_rows` 1 and `block_cols`
/// equal to the matrix's columns. The last block of a row or column of blocks may be partial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleView {
    /// The tensor's name in the file, for errors.
    pub name: String,
    /// Index into `CopyPlan::files`.
    pub file: usize,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Bytes; `rows * cols * block_bytes` of the type.
    pub byte_len: u64,
    /// F32, Bf16 or F16.
    pub weight_type: WeightType,
    /// Blocks below each other.
    pub rows: u32,
    /// Blocks beside each other.
    pub cols: u32,
    /// Rows of the matrix a block.
    pub block_rows: u32,
    /// Columns of the matrix a block.
    pub block_cols: u32,
    /// `Rows`, `Bands` of rows of scales, or `Spaced`.
    pub order: Order,
}

/// Where the codes, scales and zeros of a matrix lie:
/// `value(r, c) = (code(r, c) - zero[r][group(c)]) * scale[r][group(c)]` for `Int4` and
/// `e2m1(code(r, c)) * scale[r][group(c)]` for `F4E2M1`, in f32.
///
/// The tensors can hold more rows and columns than the matrix: row `r` of the matrix is row
/// `first_row + r * row_step` of them, column `c` is column `first_col + c`, and its groups begin with
/// `first_group`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// The order of the codes, scales and zeros in their tensors.
    pub packing: Packing,
    /// The matrix's first row in the tensors.
    pub first_row: u32,
    /// From a row to the next; above 1 only with `Packing::Rows`.
    pub row_step: u32,
    /// Rows of the tensors.
    pub tensor_rows: u32,
    /// The matrix's first column in the tensors; a multiple of 8.
    pub first_col: u32,
    /// Columns of the tensor of codes.
    pub tensor_cols: u32,
    /// The matrix's first group.
    pub first_group: u32,
    /// Groups of a row of the tensors.
    pub tensor_groups: u32,
    /// Columns of a group; the last one may be partial. Column `c` is in group `c / group`, unless
    /// `groups_of_columns` says otherwise.
    pub group: u32,
    /// The scales.
    pub scale: GroupTensor,
    /// The type of the scales.
    pub scale_type: ScaleType,
    /// The zeros.
    pub zero: Zero,
    /// The group of each column, `[cols]` i32: quantised in another order than the columns'.
    pub groups_of_columns: Option<GroupTensor>,
}

/// The order of codes in 32-bit words, of `rows` rows and `cols` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Codes `[rows, cols / 8]`, the first column in the lowest bits; scales `[rows, groups]`; zeros
    /// `[rows / 8, groups]`.
    Rows,
    /// Codes `[cols, rows / 8]`, rows 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits up; scales
    /// `[groups, rows]`; zeros `[groups, rows / 8]` in the same order.
    Awq,
    /// Codes `[cols / 8, rows]`, the first column in the lowest bits; scales `[groups, rows]`; zeros
    /// `[groups, rows / 8]`, the first row in the lowest bits.
    Gptq,
}

/// The type of a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleType {
    /// A plain type.
    Number(WeightType),
    /// A byte `e` for `2^(e - 127)`; 255 is no number.
    E8M0,
}

/// The codes that stand for 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Zero {
    /// There are none: the codes are floats.
    None,
    /// The same in all groups.
    Constant(u8),
    /// One a row and group.
    Stored {
        /// Where they lie.
        tensor: GroupTensor,
        /// What is added to a stored number; 1 in the first version of GPTQ.
        add: u8,
    },
}

/// A tensor beside the codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupTensor {
    /// Its name in the file, for errors.
    pub name: String,
    /// Index into `CopyPlan::files`.
    pub file: usize,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Bytes.
    pub byte_len: u64,
}

/// Every tensor that the model needs, shapes checked, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyPlan {
    /// File names, for messages; a `WeightSource` reads them by index.
    pub files: Vec<String>,
    /// The position of each part.
    pub tensors: BTreeMap<WeightRole, TensorView>,
}

/// Reads weight bytes: files with pread (never mmap), later object stores. Any thread, several at once.
pub trait WeightSource: Send + Sync {
    /// Fills `buffer` from byte `offset` of file `file`.
    ///
    /// # Errors
    /// An I/O error, also for a file that became shorter; the caller adds the tensor's name.
    fn read_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> std::io::Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file whose element i is i, two bytes each.
    struct Numbers;

    impl WeightSource for Numbers {
        fn read_at(&self, _: usize, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
            let numbers = u16::try_from(offset / 2).expect("short")..;
            for (element, number) in buffer.chunks_exact_mut(2).zip(numbers) {
                element.copy_from_slice(&number.to_le_bytes());
            }
            Ok(())
        }
    }

    #[test]
    fn test_columns_are_read_as_rows_in_any_slice() {
        // Every other column of [5, 2 * 8] from element 3 on, [8, 2] transposed, a vector.
        for (rows, cols, stride, step) in
            [(8, 5, 16, 2), (8, 2, 100, 1), (1, 9, 2, 1), (3, 4, 3, 1)]
        {
            let view = TensorView {
                name: "t".to_owned(),
                file: 0,
                offset: 6,
                byte_len: u64::from(rows * cols * 2),
                order: Order::Columns { stride, step },
                weight_type: WeightType::Bf16,
                rows,
                cols,
                scale: None,
                groups: None,
                quantise: false,
            };
            let at = |row: u32, col: u32| u16::try_from(3 + col * stride + row * step).unwrap();
            for first in 0..rows {
                for count in 1..=rows - first {
                    let mut bytes = vec![0; (count * cols * 2) as usize];
                    view.read(&Numbers, u64::from(first * cols), &mut bytes).unwrap();
                    let read = bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
                    let want = (first..first + count).flat_map(|r| (0..cols).map(move |c| (r, c)));
                    let want: Vec<u16> = want.map(|(row, col)| at(row, col)).collect();
                    assert_eq!(read.collect::<Vec<_>>(), want, "{view:?} {first} {count}");
                }
            }
        }
    }

    #[test]
    fn test_bands_are_read_as_rows_in_any_slice() {
        // Three bands of 2 rows of 4, from row 1 of 5 on.
        let view = TensorView {
            name: "t".to_owned(),
            file: 0,
            offset: 8,
            byte_len: 48,
            order: Order::Bands { rows: 2, stride: 5 },
            weight_type: WeightType::Bf16,
            rows: 6,
            cols: 4,
            scale: None,
            groups: None,
            quantise: false,
        };
        let want: Vec<u16> = [1, 2, 6, 7, 11, 12].iter().flat_map(|r| 4 * r..4 * r + 4).collect();
        for first in 0..6 {
            for last in first + 1..=6 {
                let mut out = vec![0; (last - first) * 8];
                view.read(&Numbers, (first * 4) as u64, &mut out).unwrap();
                let read: Vec<u16> =
                    out.chunks(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]])).collect();
                assert_eq!(read, want[first * 4..last * 4]);
            }
        }
    }
}
