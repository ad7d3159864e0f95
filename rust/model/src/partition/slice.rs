//! Parts of a tensor: the same storage, read from another place on.

use std::ops::Range;

use crate::{GroupView, Order, ScaleView, TensorView};

impl TensorView {
    /// The view of some rows; the reason if there is no cut at them.
    pub(super) fn rows_of(&self, rows: Range<u32>) -> Result<Self, String> {
        if matches!(self.order, Order::Bands { .. }) {
            return Err("its rows alternate with others".to_owned());
        }
        let mut part = Self { rows: rows.end - rows.start, ..self.clone() };
        if let Some(groups) = &mut part.groups {
            // Rows of 4-bit codes are counted, not skipped.
            groups.first_row += rows.start * groups.row_step;
        } else {
            let stride = match self.order {
                Order::Rows | Order::Bands { .. } => self.cols,
                Order::Spaced { stride } => stride,
                Order::Columns { step, .. } => step,
            };
            part.offset += self.bytes_of(u64::from(rows.start) * u64::from(stride));
        }
        if let Some(scale) = &self.scale {
            part.scale = Some(scale.rows_of(rows, self.rows)?);
        }
        Ok(part.measured())
    }

    /// The view of some columns; the reason if there is no cut at them. A matrix that becomes fp8 at load gets its
    /// scale a row from these columns alone.
    pub(super) fn columns_of(&self, columns: Range<u32>) -> Result<Self, String> {
        let cols = columns.end - columns.start;
        let mut part = Self { cols, ..self.clone() };
        if let Some(groups) = &self.groups {
            part.groups = Some(groups.columns_of(columns, self.cols)?);
            return Ok(part.measured());
        }
        let block = u32::try_from(self.weight_type.block_elements()).unwrap_or(u32::MAX);
        if !columns.start.is_multiple_of(block) || !cols.is_multiple_of(block) {
            return Err(no_cut(&columns, &format!("blocks of {block} ({:?})", self.weight_type)));
        }
        let (stride, order) = match self.order {
            Order::Bands { .. } => return Err("its rows alternate with others".to_owned()),
            // A vector stays without gaps.
            Order::Rows if self.rows == 1 => (1, Order::Rows),
            Order::Rows => (1, Order::Spaced { stride: self.cols }),
            order @ Order::Spaced { .. } => (1, order),
            order @ Order::Columns { stride, .. } => (stride, order),
        };
        part.order = order;
        part.offset += self.bytes_of(u64::from(columns.start) * u64::from(stride));
        if let Some(scale) = &self.scale {
            part.scale = Some(scale.columns_of(columns)?);
        }
        Ok(part.measured())
    }

    fn bytes_of(&self, elements: u64) -> u64 {
        let (block, bytes) = (self.weight_type.block_elements(), self.weight_type.block_bytes());
        elements / block as u64 * bytes as u64
    }

    fn measured(self) -> Self {
        let byte_len = self.bytes_of(u64::from(self.rows) * u64::from(self.cols));
        Self { byte_len, ..self }
    }
}

impl ScaleView {
    fn rows_of(&self, rows: Range<u32>, matrix_rows: u32) -> Result<Self, String> {
        let count = rows.end - rows.start;
        if self.rows == 1 && self.block_rows >= matrix_rows {
            return Ok(self.clone());
        }
        let block = self.block_rows;
        if !rows.start.is_multiple_of(block) {
            return Err(format!(
                "rows {} to {} have no cut at blocks of {block} rows with a scale",
                rows.start, rows.end
            ));
        }
        let stride = match self.order {
            Order::Spaced { stride } => stride,
            _ => self.cols,
        };
        let skipped = u64::from(rows.start / block) * u64::from(stride);
        Ok(Self { rows: count.div_ceil(block), ..self.from(skipped) }.measured())
    }

    fn columns_of(&self, columns: Range<u32>) -> Result<Self, String> {
        let count = columns.end - columns.start;
        if self.cols == 1 {
            return Ok(Self { block_cols: count, ..self.clone() });
        }
        let block = self.block_cols;
        if !columns.start.is_multiple_of(block) {
            return Err(no_cut(&columns, &format!("blocks of {block} with a scale")));
        }
        let skipped = u64::from(columns.start / block);
        let order = match self.order {
            Order::Rows => Order::Spaced { stride: self.cols },
            order => order,
        };
        Ok(Self { cols: count.div_ceil(block), order, ..self.from(skipped) }.measured())
    }

    /// From this element on.
    fn from(&self, element: u64) -> Self {
        let size = self.weight_type.block_bytes() as u64;
        Self { offset: self.offset + element * size, ..self.clone() }
    }

    fn measured(self) -> Self {
        let size = self.weight_type.block_bytes() as u64;
        Self { byte_len: u64::from(self.rows) * u64::from(self.cols) * size, ..self }
    }
}

impl GroupView {
    fn columns_of(&self, columns: Range<u32>, matrix_cols: u32) -> Result<Self, String> {
        let count = columns.end - columns.start;
        if self.groups_of_columns.is_some() {
            return Err(no_cut(&columns, "columns in another order than their groups (act order)"));
        }
        if !columns.start.is_multiple_of(8) || !count.is_multiple_of(8) {
            return Err(no_cut(&columns, "words of 8 codes"));
        }
        let first_col = self.first_col + columns.start;
        if self.group >= matrix_cols {
            return Ok(Self { first_col, group: count, ..self.clone() });
        }
        if !columns.start.is_multiple_of(self.group) {
            return Err(no_cut(&columns, &format!("groups of {}", self.group)));
        }
        let first_group = self.first_group + columns.start / self.group;
        Ok(Self { first_col, first_group, ..self.clone() })
    }
}

fn no_cut(columns: &Range<u32>, blocks: &str) -> String {
    format!("columns {} to {} have no cut at {blocks}", columns.start, columns.end)
}
