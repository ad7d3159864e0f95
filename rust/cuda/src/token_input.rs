//! [5] The launches of what layers get of the token itself (Gemma 4). Engine thread, or the capture thread while it
//! records.

use crate::CudaError;
use crate::forward::{Back, End};
use crate::gemm::{GemmArgs, GemmInput, GemmResult};
use crate::launch::{TokenGate, TokenInput};
use crate::matrix::Matrix;
use crate::model::Model;
use crate::shapes::activation_kind;
use crate::stream::Stream;
use crate::weights::LayerWeights;

impl Model {
    /// Queues what all layers get of the tokens of `rows` rows, whose embeddings are the residual stream.
    pub(crate) fn embed_token_input(&self, stream: &Stream, rows: u32) -> Result<(), CudaError> {
        let Some(weights) = self.weights.token_input else { return Ok(()) };
        let (buffers, launcher) = (&self.buffers, self.launcher(stream));
        launcher.cast_rows((rows, self.norm_block(rows)), buffers.residual, buffers.normed)?;
        let (x, w) = (GemmInput::Act(buffers.normed), Matrix::Plain(weights.projection));
        let shape = self.shapes().token_projection(weights.num_layers * weights.size);
        let out = GemmResult::Act(buffers.token_input);
        self.gemms.run(stream, rows, w.shape(shape), GemmArgs { x, w, out })?;
        let input = TokenInput {
            num_layers: weights.num_layers,
            size: weights.size,
            x: buffers.token_input,
            token_ids: buffers.token_ids,
            table: weights.embedding,
            norm: weights.norm,
            projected: 1.0 / (self.spec.hidden_size as f32).sqrt(),
            embedded: (weights.size as f32).sqrt(),
            eps: self.spec.norm.eps,
        };
        launcher.token_input_rows(rows, &input)
    }

    /// Queues a layer's sum with what it gets of the tokens, if it gets any; a copy of the residual stream is in
    /// `buffers.normed`.
    pub(crate) fn add_token_input(
        &self,
        stream: &Stream,
        rows: u32,
        (index, layer): (usize, &LayerWeights),
    ) -> Result<(), CudaError> {
        let Some(weights) = layer.token_gate else { return Ok(()) };
        let (buffers, shapes) = (&self.buffers, self.shapes());
        let (x, w) = (GemmInput::Act(buffers.normed), Matrix::Plain(weights.gate));
        let out = GemmResult::Act(buffers.gate_up);
        let shape = w.shape(shapes.token_gate(weights.size));
        self.gemms.run(stream, rows, shape, GemmArgs { x, w, out })?;
        let gate = TokenGate {
            num_layers: self.spec.layers.len() as u32,
            layer: index as u32,
            size: weights.size,
            gate: buffers.gate_up,
            x: buffers.token_input,
            out: buffers.gated,
            kind: activation_kind(&self.spec),
        };
        self.launcher(stream).token_gate_rows(rows, &gate)?;
        let back = Back {
            plain: shapes.down(weights.size),
            w: Matrix::Plain(weights.output),
            bias: None,
            post_norm: Some(weights.norm),
            end: End { factor: layer.scale, copy: None },
        };
        self.back(stream, rows, GemmInput::Act(buffers.gated), &back)?;
        Ok(())
    }
}
