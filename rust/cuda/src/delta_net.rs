//! [5] The launches of a gated delta net. Engine thread, or the capture thread while it records.

use ingle_model::DeltaNetSpec;

use crate::CudaError;
use crate::contract::DELTA_CHUNK;
use crate::forward::{Back, End, Pending};
use crate::gemm::{GemmArgs, GemmInput, GemmResult};
use crate::launch::{DeltaConv, DeltaNorm, DeltaStep};
use crate::matrix::Matrix;
use crate::model::{Model, StepShape};
use crate::stream::Stream;
use crate::variant::CHUNK_KEY_DIM;
use crate::weights::{DeltaWeights, LayerWeights};

impl Model {
    /// Queues a layer's delta net, with its norm before and what is pending before that; returns what is still to be
    /// added to the residual stream.
    pub(crate) fn delta_part(
        &self,
        stream: &Stream,
        shape: StepShape,
        (index, layer): (usize, &LayerWeights),
        (net, weights): (&DeltaNetSpec, &DeltaWeights),
        pending: Option<Pending>,
    ) -> Result<Option<Pending>, CudaError> {
        let (buffers, rows) = (&self.buffers, shape.tokens);
        let shapes = self.shapes();
        let missing = || CudaError::Unsupported("no memory for states".to_owned());
        let input = shapes.delta_input(net, weights.scores.is_some());
        let step = DeltaStep {
            net: *net,
            states: self.states.as_ref().ok_or_else(missing)?.layer(index),
            projected: buffers.projected,
            stride: input.n,
            mixed: buffers.mixed,
            factors: buffers.delta_factors,
            dots: buffers.delta_dots,
            read: buffers.delta_read,
            slot_of_token: buffers.slot_of_token,
            chunk_from: self.chunk_from(net),
        };
        // Neither matrix is e4m3, so that the rows are plain.
        let x = self.norm_into(stream, rows, (layer.input_norm, &weights.input), pending)?;
        let out = GemmResult::Act(buffers.projected);
        self.product(stream, rows, input, GemmArgs { x, w: weights.input, out })?;
        if let Some(scores) = weights.scores {
            let (w, out) = (Matrix::Plain(scores), GemmResult::F32(buffers.delta_scores));
            self.product(stream, rows, shapes.delta_scores(net), GemmArgs { x, w, out })?;
        }
        let launcher = self.launcher(stream);
        let conv = DeltaConv {
            scores: weights.scores.map(|_| buffers.delta_scores),
            conv: weights.conv,
            log_rate: weights.log_rate,
            decay_bias: weights.decay_bias,
            positions: buffers.positions,
        };
        launcher.delta_conv(rows, &step, &conv)?;
        let most_rows = rows.min(self.engine.max_rows);
        launcher.delta_rule((rows, most_rows), &step, buffers.meta)?;
        if step.chunk_from.is_some_and(|least| rows >= least) {
            launcher.delta_chunks((rows, most_rows), &step, buffers.meta)?;
        }
        let gated = buffers.attended;
        let norm = DeltaNorm { norm: weights.norm, gated, eps: self.spec.norm.eps };
        launcher.delta_norm(rows, &step, &norm)?;
        let back = Back {
            plain: shapes.delta_output(net),
            w: weights.output,
            bias: None,
            post_norm: layer.post_attention_norm,
            end: End::default(),
        };
        self.back(stream, rows, GemmInput::Act(gated), &back)
    }

    /// Tokens from which on a row goes in chunks. Not with `deterministic`: a row's bits would depend on where a prompt
    /// is cut.
    fn chunk_from(&self, net: &DeltaNetSpec) -> Option<u32> {
        (!self.deterministic && net.key_dim <= CHUNK_KEY_DIM).then_some(DELTA_CHUNK)
    }
}
