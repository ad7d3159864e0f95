//! Reads the scales of fp8 matrices. Load only.

use crate::{ScaleView, WeightSource, dequantise};

impl ScaleView {
    /// Reads the scales, `[rows, cols]`, as f32. `open` has checked that all are finite and positive.
    ///
    /// # Errors
    /// What `source` says; the caller adds the tensor's name.
    pub fn read(&self, source: &dyn WeightSource) -> std::io::Result<Vec<f32>> {
        let mut stored =
            vec![0; self.rows as usize * self.cols as usize * self.weight_type.block_bytes()];
        source.read_at(self.file, self.offset, &mut stored)?;
        let mut values = vec![0.0; self.rows as usize * self.cols as usize];
        dequantise(self.weight_type, &stored, &mut values);
        Ok(values)
    }
}
