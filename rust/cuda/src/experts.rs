//! [5] The launches of a mixture of experts. Engine thread, or the capture thread while it records.

use ingle_model::MoeSpec;

use crate::CudaError;
use crate::device_slice::{Act, DeviceSlice};
use crate::four_bit_tile::expert_tiles;
use crate::four_bit_wgmma::expert_wgmma_tiles;
use crate::gemm::{GemmArgs, GemmInput, GemmResult};
use crate::launch::{ExpertInputs, ExpertJoin, ExpertPlaces, FourBitExperts, MoeGemm, Routing};
use crate::matrix::Matrix;
use crate::memory::fill;
use crate::model::Model;
use crate::stream::Stream;
use crate::weights::{ExpertNorms, ExpertWeights, LayerWeights, SharedWeights};

impl Model {
    /// Queues the experts of `rows` rows, whose norm `x` is in `buffers.normed`.
    pub(crate) fn experts(
        &self,
        stream: &Stream,
        rows: u32,
        x: GemmInput,
        experts: &ExpertWeights,
    ) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        if let Some(shared) = &experts.shared {
            self.shared_network(stream, rows, x, shared)?;
        } else if self.place.is_some() {
            // A partial sum begins with nothing, the residual stream has something.
            let width = u64::from(self.spec.hidden_size);
            fill(stream, self.branch().slice(0, u64::from(rows) * width), 0)?;
        }
        let places =
            self.chosen_experts(stream, rows, (buffers.normed, buffers.normed), experts)?;
        let launcher = self.launcher(stream);
        launcher.moe_combine(rows, &experts.spec, buffers.expert_out, &places, self.branch())
    }

    /// Queues experts beside the usual network, with norms of their own, from the residual stream and into it.
    pub(crate) fn experts_beside(
        &self,
        stream: &Stream,
        rows: u32,
        (layer, experts): (&LayerWeights, &ExpertWeights),
        norms: &ExpertNorms,
    ) -> Result<(), CudaError> {
        let (launcher, buffers) = (self.launcher(stream), &self.buffers);
        let missing = |what: &str| CudaError::Unsupported(format!("experts without {what}"));
        let norm = layer.feed_forward_norm.ok_or_else(|| missing("a norm before them"))?;
        let post_norm =
            layer.post_feed_forward_norm.ok_or_else(|| missing("a norm behind them"))?;
        let shared = experts.shared.as_ref().ok_or_else(|| missing("a network beside them"))?;
        let (residual, eps) = (buffers.residual, self.spec.norm.eps);
        let inputs = ExpertInputs {
            residual,
            weights: [norm, norms.router, norms.input],
            outs: [buffers.normed, buffers.router_normed, buffers.expert_normed],
            eps,
        };
        launcher.expert_inputs((rows, self.norm_block(rows)), &experts.spec, &inputs)?;
        self.shared_network(stream, rows, GemmInput::Act(buffers.normed), shared)?;
        let seen = (buffers.router_normed, buffers.expert_normed);
        let places = self.chosen_experts(stream, rows, seen, experts)?;
        let end = self.end_of(layer);
        let join = ExpertJoin {
            shared: self.branch(),
            expert_out: buffers.expert_out,
            places,
            shared_norm: norms.shared,
            expert_norm: norms.output,
            post_norm,
            residual,
            factor: end.factor,
            eps,
        };
        // A thread an element group, so that sums of experts are computed once: 1024 threads at most.
        let block = (self.spec.hidden_size / 4).next_multiple_of(32).clamp(32, 1024);
        launcher.expert_join((rows, block), &experts.spec, &join)?;
        match end.copy {
            Some(copy) => launcher.cast_rows((rows, self.norm_block(rows)), residual, copy),
            None => Ok(()),
        }
    }

    /// Queues the choice of experts and their products, with what router and experts see; the results are in
    /// `buffers.expert_out`.
    fn chosen_experts(
        &self,
        stream: &Stream,
        rows: u32,
        (routed, seen): (DeviceSlice<Act>, DeviceSlice<Act>),
        experts: &ExpertWeights,
    ) -> Result<ExpertPlaces, CudaError> {
        let (launcher, buffers) = (self.launcher(stream), &self.buffers);
        let spec = &experts.spec;
        let (x, w) = (GemmInput::Act(routed), Matrix::Plain(experts.router));
        let out = GemmResult::F32(buffers.router_logits);
        let shape = self.shapes().router(spec.num_experts);
        self.gemms.run(stream, rows, shape, GemmArgs { x, w, out })?;
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
            correction: experts.own_norms.map_or(experts.correction, |norms| Some(norms.scales)),
        };
        let entries = rows * spec.experts_per_token;
        let (hidden, inner) = (self.spec.hidden_size, spec.intermediate_size);
        // What experts get lies where later is what they give.
        let scaled = buffers.expert_out;
        let into = MoeGemm {
            n: 2 * inner,
            k: hidden,
            x: if spec.scales_input { scaled } else { seen },
            w: experts.gate_up,
            bias: experts.gate_up_bias,
            out: buffers.gate_up,
            gather: !spec.scales_input,
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
        if spec.scales_input {
            launcher.moe_scale_rows(rows, spec, seen, &places, scaled)?;
        }
        self.experts_product(stream, (entries, spec), &places, &into)?;
        self.gate(stream, entries, inner, None)?;
        self.experts_product(stream, (entries, spec), &places, &back)?;
        Ok(places)
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
        let size = (product.n, product.k);
        let tiles = expert_tiles(limits, form, size);
        let wgmma_tiles = expert_wgmma_tiles(limits, form, size);
        let experts = FourBitExperts { form, tiles: &tiles, wgmma_tiles: &wgmma_tiles, limits };
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
