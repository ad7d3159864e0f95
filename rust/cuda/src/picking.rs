//! Which products a model needs, for which row counts, and on which buffers they are measured.
//! `tune.rs` does the measuring. At load only.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use ingle_model::{FeedForwardSpec, LayerSpec};

use crate::CudaError;
use crate::buffers::BufferSizes;
use crate::contract::Dims;
use crate::dtypes::ActDtype;
use crate::gemm::Blas;
use crate::kernels::Kernels;
use crate::memory::upload;
use crate::operands::{Operands, operands_of};
use crate::product::Products;
use crate::row_costs::RowCosts;
use crate::setup::{Memory, Setup};
use crate::shapes::{GemmOut, GemmShape, activation_kind, gemm_shapes};
use crate::stream::Stream;
use crate::stream_gemm::OwnProduct;
use crate::tune::{Picked, Tuner};

/// What algorithms are picked with.
pub(crate) struct Picking<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) memory: &'a Memory,
    pub(crate) blas: &'a Arc<Blas>,
    pub(crate) kernels: &'a Kernels,
    pub(crate) stream: &'a Stream,
}

impl Picking<'_> {
    /// All products, measured where no pick is stored.
    pub(crate) fn measured(&self) -> Result<PickedProducts, CudaError> {
        let picked = self.products(true)?;
        picked.ok_or_else(|| CudaError::Unsupported("no algorithm was measured".to_owned()))
    }

    /// All products; `None` if one has no stored algorithm and none may be measured.
    pub(crate) fn products(&self, measure: bool) -> Result<Option<PickedProducts>, CudaError> {
        let (setup, buffers) = (self.setup, &self.memory.buffers);
        let cache = setup.cache("products")?;
        let sizes = BufferSizes::new(&setup.spec, &setup.engine, &setup.attention);
        let weight = setup.dtypes.weight();
        let (layer_shapes, head) = gemm_shapes(&setup.spec, weight);
        let operands =
            operands_of(&setup.spec, weight, &self.memory.weight_layout.weights, buffers);
        if measure {
            // As varied as activations are: constants draw less power, and so flatter the clock.
            let noise = noise(setup.dtypes.act());
            for (shape, operand) in &operands {
                let rows = if *shape == head { sizes.samples } else { sizes.tokens };
                let x = operand.x.slice(0, rows * u64::from(shape.k)).as_bytes();
                let bytes = x.len();
                for start in (0..bytes).step_by(noise.len()) {
                    let part = &noise[..noise.len().min((bytes - start) as usize)];
                    upload(self.stream, x.from(start), part)?;
                }
            }
        }
        let dims = Dims::of(&setup.spec, &setup.engine);
        let (num_sms, activation) =
            (setup.context.info.limits.num_sms, activation_kind(&setup.spec));
        let own = |rows, shape| {
            if setup.config.deterministic {
                return Vec::new();
            }
            OwnProduct::all(self.kernels, dims, num_sms, (rows, shape), activation)
        };
        let mut wanted = Vec::new();
        for &rows in setup.buckets().sizes() {
            // Only our own kernel has gated products, and not for every shape. They sort after the
            // plain ones.
            let exists =
                |shape: &&GemmShape| shape.out != GemmOut::Gated || !own(rows, **shape).is_empty();
            wanted.extend(layer_shapes.iter().filter(exists).map(|shape| (rows, *shape)));
            if u64::from(rows) <= sizes.samples {
                wanted.push((rows, head));
            }
        }
        let tuner = Tuner {
            context: &setup.context,
            blas: self.blas,
            stream: self.stream,
            cache: cache.as_ref(),
            workspace: buffers.gemm_workspace,
            deterministic: setup.config.deterministic,
            operands,
            own: &own,
            runs: Cell::new(0),
        };
        let Some(picked) = tuner.products(&wanted, measure)? else { return Ok(None) };
        let row_costs = row_costs(setup, &tuner.operands, &picked);
        Ok(Some(PickedProducts {
            products: Products::new(picked.products, buffers.gemm_workspace),
            num_measured: picked.num_measured,
            row_costs,
        }))
    }
}

/// 4 MiB of numbers between 1/8 and 2 with both signs, as activations have them.
fn noise(act: ActDtype) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(4 << 20);
    while bytes.len() < 4 << 20 {
        // xorshift64 (Marsaglia 2003)
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let (random, exponent) = ((state >> 32) as u16, (state & 3) as u16);
        let bits = match act {
            ActDtype::F16 => random & 0x83ff | (12 + exponent) << 10,
            ActDtype::Bf16 => random & 0x807f | (124 + exponent) << 7,
        };
        bytes.extend_from_slice(&bits.to_le_bytes());
    }
    bytes
}

/// All products of a model.
pub(crate) struct PickedProducts {
    pub(crate) products: Products,
    /// How many had to be measured.
    pub(crate) num_measured: usize,
    /// `None` where products are not most of a step: experts have kernels of their own.
    pub(crate) row_costs: Option<RowCosts>,
}

/// What the products of all layers take together, by rows.
fn row_costs(
    setup: &Setup,
    operands: &HashMap<GemmShape, Operands>,
    picked: &Picked,
) -> Option<RowCosts> {
    let is_dense = |layer: &LayerSpec| matches!(layer.feed_forward, FeedForwardSpec::Dense { .. });
    if !setup.spec.layers.iter().all(is_dense) {
        return None;
    }
    let (shapes, _) = gemm_shapes(&setup.spec, setup.dtypes.weight());
    let buckets = setup.buckets();
    let costs = buckets.sizes().iter().map(|&rows| {
        let time = |&shape: &GemmShape| {
            let gated = GemmShape { out: GemmOut::Gated, ..shape };
            // Where the gated product was picked, its plain one does not run.
            let runs = if picked.products.contains_key(&(rows, gated)) { gated } else { shape };
            let layers = operands.get(&shape).map_or(0, |operands| operands.weights.len());
            picked.times.get(&(rows, runs)).copied().unwrap_or(0.0) * layers as f32
        };
        (rows, shapes.iter().filter(|shape| shape.out != GemmOut::Gated).map(time).sum())
    });
    Some(RowCosts::new(costs.collect()))
}
