//! Reads tensors of the parts that a model needs, each checked for its shape. At load only.

use std::cell::RefCell;

use ingle_model::{CopyPlan, ModelSpec, RankModel, TensorView, WeightRole, dequantise};

use crate::CpuError;
use crate::grouped_reader::read_grouped_matrix;
use crate::matrix::PackedMatrix;
use crate::matrix_reader::{File, read_matrix};
use crate::pool::Pool;

/// Reads one rank's tensors.
pub(super) struct Reader<'a> {
    pub(super) model: &'a RankModel,
    pub(super) spec: &'a ModelSpec,
    pub(super) plan: &'a CopyPlan,
    pub(super) file: File<'a>,
    pub(super) pool: &'a RefCell<&'a mut Pool>,
}

impl Reader<'_> {
    pub(super) fn view(
        &self,
        role: WeightRole,
        rows: usize,
        cols: usize,
    ) -> Result<&TensorView, CpuError> {
        let view = self
            .plan
            .tensors
            .get(&role)
            .ok_or_else(|| CpuError::MissingTensor(format!("{role:?}")))?;
        let fits = view.rows as usize == rows && view.cols as usize == cols;
        if fits && cols.is_multiple_of(view.weight_type.block_elements()) {
            return Ok(view);
        }
        Err(CpuError::Shape {
            name: view.name.clone(),
            rows: view.rows,
            cols: view.cols,
            want_rows: rows,
            want_cols: cols,
        })
    }

    pub(super) fn matrix(
        &self,
        role: WeightRole,
        rows: usize,
        cols: usize,
    ) -> Result<PackedMatrix, CpuError> {
        let view = self.view(role, rows, cols)?;
        let mut pool = self.pool.borrow_mut();
        match &view.groups {
            Some(groups) => read_grouped_matrix(&self.file, view, groups, &mut pool),
            None => read_matrix(&self.file, view, &mut pool),
        }
    }

    pub(super) fn vector(&self, role: WeightRole, len: usize) -> Result<Vec<f32>, CpuError> {
        self.numbers(role, 1, len)
    }

    /// A small matrix as it is stored.
    pub(super) fn numbers(
        &self,
        role: WeightRole,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<f32>, CpuError> {
        let view = self.view(role, rows, cols)?;
        let len = rows * cols;
        let blocks = len / view.weight_type.block_elements();
        let mut stored = vec![0u8; blocks * view.weight_type.block_bytes()];
        self.file.read(view, 0, &mut stored)?;
        let mut values = vec![0.0; len];
        dequantise(view.weight_type, &stored, &mut values);
        Ok(values)
    }

    pub(super) fn norm(&self, role: WeightRole, len: usize) -> Result<Vec<f32>, CpuError> {
        let mut weight = self.vector(role, len)?;
        if self.spec.norm.plus_one {
            weight.iter_mut().for_each(|w| *w += 1.0);
        }
        Ok(weight)
    }
}
