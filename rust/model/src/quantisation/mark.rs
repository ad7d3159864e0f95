//! `--quantization fp8`: which matrices of a plain checkpoint executors make fp8 while they read them.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::error::{ModelError, shown};
use crate::{CopyPlan, LayerWeight, TensorView, WeightRole, WeightType};

impl CopyPlan {
    /// Marks the layers' linear matrices, experts included, as `TensorView::quantise`. Embedding, head,
    /// router and vectors stay as they are. A plan with fp8 matrices stays as it is: whoever made them
    /// left the others out on purpose. Returns whether matrices were marked.
    ///
    /// # Errors
    /// A matrix in a block format, by name; then nothing is marked.
    pub fn quantise_fp8(&mut self) -> Result<bool, ModelError> {
        if self.tensors.values().any(|view| view.weight_type == WeightType::F8E4M3) {
            return Ok(false);
        }
        let is_block = |view: &&TensorView| view.weight_type.block_elements() > 1;
        let linear = self.tensors.iter().filter(|(role, _)| is_linear(**role));
        if let Some(view) = linear.map(|(_, view)| view).find(is_block) {
            let file = self.files.get(view.file).map_or("", String::as_str);
            let field = format!("quantization fp8 of tensor {}", shown(&view.name));
            let stored = format!("{:?}", view.weight_type);
            return Err(ModelError::unsupported(file, &field, stored, "F32, F16, BF16, F8_E4M3"));
        }
        for (role, view) in &mut self.tensors {
            view.quantise = is_linear(*role);
        }
        Ok(true)
    }
}

fn is_linear(role: WeightRole) -> bool {
    use LayerWeight::{
        Down, ExpertDown, ExpertGate, ExpertUp, Gate, Key, LatentDown, Output, Query, QueryDown,
        SharedDown, SharedGate, SharedUp, Up, Value,
    };
    let WeightRole::Layer(_, part) = role else { return false };
    matches!(
        part,
        Query
            | Key
            | Value
            // Executors take `LatentUp` apart into small matrices, which stay as they are.
            | QueryDown
            | LatentDown
            | Output
            | Gate
            | Up
            | Down
            | ExpertGate(_)
            | ExpertUp(_)
            | ExpertDown(_)
            | SharedGate
            | SharedUp
            | SharedDown
    )
}

#[cfg(test)]
mod tests;
