//! Which scales an fp8 matrix may have, and which of them belong to which of its rows. Plain data.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

/// The scales that a checkpoint's matrices may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scheme {
    /// How many there are; each matrix has one of these ways.
    pub(crate) layouts: Vec<Layout>,
}

/// Which elements of a matrix share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// All.
    Tensor,
    /// Those of a row.
    Channel,
    /// Those of a block of rows and columns.
    Block(u32, u32),
}

impl Layout {
    /// Shapes that the scale of a matrix `[.., rows, cols]` can have; dimensions before the last two (the
    /// experts of a stacked tensor) stay.
    pub(crate) fn shapes(self, shape: &[u64]) -> Vec<Vec<u64>> {
        let Some((&[rows, cols], stacked)) = shape.split_last_chunk::<2>().map(|(a, b)| (b, a))
        else {
            return Vec::new();
        };
        let ends: &[&[u64]] = match self {
            Self::Tensor => &[&[], &[1], &[1, 1]],
            Self::Channel => &[&[rows, 1], &[rows]],
            Self::Block(block_rows, block_cols) => {
                &[&[rows.div_ceil(block_rows.into()), cols.div_ceil(block_cols.into())]]
            }
        };
        ends.iter().map(|end| [stacked, end].concat()).collect()
    }

    /// The scales of `rows` rows from row `first`, of a tensor whose matrices have `matrix_rows` rows and
    /// `cols` columns each; `None` if they begin inside a block, or reach into another matrix.
    pub(crate) fn part(self, first: u64, rows: u64, matrix_rows: u64, cols: u64) -> Option<Part> {
        let matrix = first.checked_div(matrix_rows)?;
        let local = first.checked_rem(matrix_rows)?;
        if local.checked_add(rows)? > matrix_rows {
            return None;
        }
        match self {
            Self::Tensor => Some(Part { first: matrix, rows: 1, cols: 1, block: (rows, cols) }),
            Self::Channel => Some(Part { first, rows, cols: 1, block: (1, cols) }),
            Self::Block(block_rows, block_cols) => {
                let (block_rows, block_cols) = (u64::from(block_rows), u64::from(block_cols));
                if local.checked_rem(block_rows)? != 0 {
                    return None;
                }
                let above = matrix.checked_mul(matrix_rows.div_ceil(block_rows))?;
                Some(Part {
                    first: above.checked_add(local.checked_div(block_rows)?)?,
                    rows: rows.div_ceil(block_rows),
                    cols: cols.div_ceil(block_cols),
                    block: (block_rows, block_cols),
                })
            }
        }
    }
}

/// Rows of a scale tensor, and the block of elements that each scale is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) first: u64,
    pub(crate) rows: u64,
    pub(crate) cols: u64,
    pub(crate) block: (u64, u64),
}

/// Names that the scale of a weight can have: beside `q_proj.weight` lies `q_proj.weight_scale`, beside
/// the stacked `experts.down_proj` lies `experts.down_proj_scale`. "inv" is of the activations' view: both
/// are multiplied with.
pub(crate) fn scale_names(weight: &str) -> [String; 2] {
    [format!("{weight}_scale"), format!("{weight}_scale_inv")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_scales_of_a_part_follow_the_layout() {
        let part = |first, rows, cols, block| Some(Part { first, rows, cols, block });
        // Rows 256 to 383 of a matrix of 384 rows and 300 columns.
        assert_eq!(Layout::Tensor.part(256, 128, 384, 300), part(0, 1, 1, (128, 300)));
        assert_eq!(Layout::Channel.part(256, 128, 384, 300), part(256, 128, 1, (1, 300)));
        let blocks = Layout::Block(128, 128);
        assert_eq!(blocks.part(256, 128, 384, 300), part(2, 1, 3, (128, 128)));
        assert_eq!(blocks.part(256, 100, 356, 300), part(2, 1, 3, (128, 128)));
        assert_eq!(blocks.part(100, 128, 384, 300), None);
    }

    #[test]
    fn test_stacked_matrices_have_blocks_of_their_own() {
        // Matrix 2 of 200 rows: two rows of blocks each, the second partial.
        let blocks = Layout::Block(128, 64);
        let want = Part { first: 4, rows: 2, cols: 1, block: (128, 64) };
        assert_eq!(blocks.part(400, 200, 200, 64), Some(want));
        assert_eq!(blocks.part(400, 300, 200, 64), None);
        let tensor = Layout::Tensor.part(500, 100, 200, 64).unwrap();
        assert_eq!((tensor.first, tensor.block), (2, (100, 64)));
        assert_eq!(blocks.shapes(&[3, 200, 64]), [[3, 2, 1]]);
        assert_eq!(Layout::Tensor.shapes(&[3, 200, 64]), [vec![3], vec![3, 1], vec![3, 1, 1]]);
        assert_eq!(Layout::Channel.shapes(&[200, 64]), [vec![200, 1], vec![200]]);
    }
}
