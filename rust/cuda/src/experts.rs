//! [5] The launches of a mixture of experts. Engine thread, or the capture thread while it records.

use ingle_model::MoeSpec;

use crate::CudaError;
use crate::four_bit_tile::expert_tiles;
use crate::gemm::{GemmArgs, GemmInput, GemmResult};
use crate::launch::{ExpertPlaces, FourBitExperts, MoeGemm, Routing};
use crate::matrix::Matrix;
use crate::memory::fill;
use crate::model::Model;
use crate::stream::Stream;
use crate::weights::{ExpertWeights, SharedWeights};

impl Model {
    /// Queues the experts of `rows` rows, whose norm `x` is in `buffers.normed`.
    pub(crate) fn experts(
        &self,
        stream: &Stream,
        rows: u32,
        x: GemmInput,
        experts: &ExpertWeights,
    ) -> Result<(), CudaError> {
        let (launcher, buffers) = (self.launcher(stream), &self.buffers);
        let shapes = self.shapes();
        let spec = &experts.spec;
        let w = Matrix::Plain(experts.router);
        let out = GemmResult::F32(buffers.router_logits);
        self.gemms.run(stream, rows, shapes.router(spec.num_experts), GemmArgs { x, w, out })?;
        if let Some(shared) = &experts.shared {
            self.shared_network(stream, rows, x, shared)?;
        } else if self.place.is_some() {
            // A partial sum begins with nothing, the residual stream has something.
            let width = u64::from(self.spec.hidden_size);
            fill(stream, self.branch().slice(0, u64::from(rows) * width), 0)?;
        }
        let places = ExpertPlaces {
            ids: buffers.expert_ids,
            weights: buffers.expert_weights,
            offsets: buffers.expert_offsets,
            sorted: buffers.expert_sorted,
            place: buffers.expert_place,
        };
        let routing = Routing {
            logits: buffers.router_logits,
            bias: experts.router_bias,
            correction: experts.correction,
        };
        let entries = rows * spec.experts_per_token;
        let (hidden, inner) = (self.spec.hidden_size, spec.intermediate_size);
        let into = MoeGemm {
            n: 2 * inner,
            k: hidden,
            x: buffers.normed,
            w: experts.gate_up,
            bias: experts.gate_up_bias,
            out: buffers.gate_up,
            gather: true,
        };
        let back = MoeGemm {
            n: hidden,
            k: inner,
            x: buffers.gated,
            w: experts.down,
            bias: experts.down_bias,
            out: buffers.expert_out,
            gather: false,
        };
        launcher.route(rows, spec, &routing, &places)?;
        self.experts_product(stream, (entries, spec), &places, &into)?;
        self.gate(stream, entries, inner, None)?;
        self.experts_product(stream, (entries, spec), &places, &back)?;
        launcher.moe_combine(rows, spec, buffers.expert_out, &places, self.branch())
    }

    /// Queues one product of all experts.
    fn experts_product(
        &self,
        stream: &Stream,
        (entries, spec): (u32, &MoeSpec),
        places: &ExpertPlaces,
        product: &MoeGemm,
    ) -> Result<(), CudaError> {
        let launcher = self.launcher(stream);
        let Some(form) = product.w.four_bit() else {
            return launcher.moe_gemm(entries, spec, places, product);
        };
        let limits = &self.context.info.limits;
        let tiles = expert_tiles(limits, form, (product.n, product.k));
        let experts = FourBitExperts { form, tiles: &tiles, limits };
        launcher.moe_four_bit(entries, spec, places, product, &experts)
    }

    /// Queues the network that all rows visit.
    fn shared_network(
        &self,
        stream: &Stream,
        rows: u32,
        x: GemmInput,
        shared: &SharedWeights,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let shapes = self.shapes();
        let size = shared.intermediate_size;
        let w = shared.gate_up;
        let gated = w.shape(shapes.gated(size));
        if self.gemms.has(rows, gated) {
            let out = GemmResult::Act(buffers.gated);
            self.gemms.run(stream, rows, gated, GemmArgs { x, w, out })?;
        } else {
            let out = GemmResult::Act(buffers.gate_up);
            let plain = w.shape(shapes.gate_up(size));
            self.gemms.run(stream, rows, plain, GemmArgs { x, w, out })?;
            self.gate(stream, rows, size, None)?;
        }
        if let Some(score) = shared.score {
            let launcher = self.launcher(stream);
            launcher.shared_score((rows, size), buffers.normed, score, buffers.gated)?;
        }
        let (x, w) = (GemmInput::Act(buffers.gated), shared.down);
        let out = GemmResult::F32(self.branch());
        self.gemms.run(stream, rows, w.shape(shapes.down(size)), GemmArgs { x, w, out })
    }
}
