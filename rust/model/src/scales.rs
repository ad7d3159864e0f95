//! Reads and checks the scales of fp8 matrices. Load only.

use crate::error::ModelError;
use crate::weights::{read_bands, read_spaced};
use crate::{CopyPlan, Order, ScaleView, WeightSource, dequantise};

impl ScaleView {
    /// Reads the scales, `[rows, cols]`, as f32. `open` has checked that all are finite and positive.
    ///
    /// # Errors
    /// What `source` says; the caller adds the tensor's name.
    pub fn read(&self, source: &dyn WeightSource) -> std::io::Result<Vec<f32>> {
        let len = self.rows as usize * self.cols as usize;
        let size = self.weight_type.block_bytes();
        let row_bytes = self.cols as usize * size;
        let mut stored = vec![0; len * size];
        match self.order {
            Order::Bands { rows, stride } => {
                let place = (self.file, self.offset);
                read_bands(source, place, (rows, stride), (0, row_bytes), &mut stored)?;
            }
            Order::Spaced { stride } => {
                let place = (self.file, self.offset);
                read_spaced(source, place, (row_bytes, stride as usize * size), &mut stored)?;
            }
            Order::Rows | Order::Columns { .. } => {
                source.read_at(self.file, self.offset, &mut stored)?;
            }
        }
        let mut values = vec![0.0; len];
        dequantise(self.weight_type, &stored, &mut values);
        Ok(values)
    }
}

/// Errors: a scale that no weight can have. There are few of them, so that all are looked at before
/// anybody allocates memory for weights.
pub(crate) fn check(plan: &CopyPlan, source: &dyn WeightSource) -> Result<(), ModelError> {
    for scale in plan.tensors.values().filter_map(|view| view.scale.as_ref()) {
        let file = plan.files.get(scale.file).map_or("", String::as_str);
        let values = scale.read(source).map_err(|cause| ModelError::io(file, "read", cause))?;
        let odd = values.iter().find(|value| !(**value > 0.0 && **value <= LARGEST));
        if let Some(odd) = odd {
            let reason = format!("holds {odd}; a scale is a number above 0, at most {LARGEST:e}");
            return Err(ModelError::tensor(file, &scale.name, reason));
        }
    }
    Ok(())
}

/// Leaves room for products with elements and with powers of two.
const LARGEST: f32 = 1e30;
