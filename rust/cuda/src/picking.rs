//! Which products a model needs, for which row counts, and on which buffers they are measured.
//! `tune.rs` does the measuring. At load only.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use ingle_model::{FeedForwardSpec, LayerSpec};

use crate::CudaError;
use crate::buffers::BufferSizes;
use crate::dtypes::{ActDtype, ScaleMode};
use crate::four_bit_gemm::{FourBitProduct, Widening};
use crate::gemm::Blas;
use crate::kernels::Kernels;
use crate::memory::upload;
use crate::model_shapes::gemm_shapes;
use crate::operands::{Operands, operands_of};
use crate::product::{Product, Products};
use crate::row_costs::RowCosts;
use crate::setup::{Memory, Setup};
use crate::shapes::{GemmOut, GemmShape, activation_kind};
use crate::step_shapes::RecordedRows;
use crate::stream::Stream;
use crate::stream_gemm::OwnProduct;
use crate::stream_tile::{STREAM_ROWS, quantises};
use crate::tune::{Picked, Tuner};

/// What algorithms are picked with.
#[derive(Clone, Copy)]
pub(crate) struct Picking<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) memory: &'a Memory,
    pub(crate) blas: &'a Arc<Blas>,
    pub(crate) stream: &'a Stream,
    /// What the graphs that will be recorded run.
    pub(crate) recorded: &'a RecordedRows,
    /// With our own kernels: the products that have a choice. Without: all others, which need not wait until kernels
    /// are compiled.
    pub(crate) kernels: Option<&'a Kernels>,
}

impl Picking<'_> {
    /// The products; measured where no pick is stored.
    pub(crate) fn measured(&self) -> Result<Picked, CudaError> {
        let picked = self.products(true)?;
        picked.ok_or_else(|| CudaError::Unsupported("no algorithm was measured".to_owned()))
    }

    /// The products; `None` if one has no stored algorithm and none may be measured.
    pub(crate) fn products(&self, measure: bool) -> Result<Option<Picked>, CudaError> {
        let (setup, buffers) = (self.setup, &self.memory.buffers);
        let cache = setup.cache("products")?;
        let weights = &self.memory.weight_layout.weights;
        let operands = operands_of(&setup.spec, &setup.shapes(), weights, buffers);
        if measure {
            self.fill_with_noise(&operands)?;
        }
        let dims = setup.dims()?;
        let activation = activation_kind(&setup.spec);
        let limits = &setup.context.info.limits;
        let own = |rows, shape: GemmShape| -> Vec<Product> {
            let Some(kernels) = self.kernels else { return Vec::new() };
            let wanted = (rows, shape);
            if shape.four_bit().is_some() {
                let own = FourBitProduct::all(kernels, dims, limits, wanted, activation);
                return own.into_iter().map(Product::FourBit).collect();
            }
            let own = OwnProduct::all(kernels, dims, limits.num_sms, wanted, activation);
            own.into_iter().map(Product::Own).collect()
        };
        let widening = |shape| Widening::new(self.kernels?, dims, shape, buffers.widened);
        let wanted = self.wanted(&own);
        let head = setup.shapes().head;
        let tuner = Tuner {
            context: &setup.context,
            blas: self.blas,
            stream: self.stream,
            cache: cache.as_ref(),
            workspace: buffers.gemm_workspace,
            deterministic: setup.config.deterministic,
            operands,
            own: &own,
            widening: &widening,
            runs: Cell::new(0),
            is_recorded: &|rows, shape| self.recorded.has(rows, shape == head),
        };
        tuner.products(&wanted, measure)
    }

    /// Row counts and shapes, rising.
    fn wanted(&self, own: &impl Fn(u32, GemmShape) -> Vec<Product>) -> Vec<(u32, GemmShape)> {
        let setup = self.setup;
        let sizes = BufferSizes::new(&setup.spec, &setup.engine, &setup.attention);
        let weights = &self.memory.weight_layout.weights;
        let (layer_shapes, head) = gemm_shapes(&setup.spec, &setup.shapes(), weights);
        // With `deterministic` the library has one algorithm for all row counts.
        let deterministic = setup.config.deterministic;
        let has_choice = |rows| !deterministic && rows <= STREAM_ROWS;
        let buckets = setup.buckets();
        let mut wanted = Vec::new();
        for rows in buckets.sizes().iter().copied() {
            // Matrices of 4-bit codes need our own kernels for every row count.
            let is_turn = |shape: &GemmShape| {
                let needs_own = has_choice(rows) || shape.four_bit().is_some();
                needs_own == self.kernels.is_some()
            };
            // Only our own kernel has gated products, and not for every shape. They sort after the
            // plain ones.
            let is_there =
                |shape: GemmShape| shape.out != GemmOut::Gated || !own(rows, shape).is_empty();
            let is_raw = quantises(rows, deterministic);
            let exists = |shape: &&GemmShape| match shape.scale {
                ScaleMode::None => is_there(**shape),
                ScaleMode::Channel => !is_raw && is_there(**shape),
                ScaleMode::Raw => is_raw,
                ScaleMode::Group => is_there(**shape),
            };
            let of_turn = layer_shapes.iter().filter(|shape| is_turn(shape));
            wanted.extend(of_turn.filter(exists).map(|shape| (rows, *shape)));
            if u64::from(rows) <= sizes.samples && is_turn(&head) {
                wanted.push((rows, head));
            }
        }
        wanted
    }

    /// Fills what products read with numbers as varied as activations are: constants draw less power, and so flatter
    /// the clock.
    fn fill_with_noise(&self, operands: &HashMap<GemmShape, Operands>) -> Result<(), CudaError> {
        let setup = self.setup;
        let sizes = BufferSizes::new(&setup.spec, &setup.engine, &setup.attention);
        let head = setup.shapes().head;
        let (wide, e4m3) = (noise(Some(setup.dtypes.act())), noise(None));
        for (shape, operand) in operands {
            let is_raw = shape.scale == ScaleMode::Raw;
            let (noise, element) = if is_raw { (&e4m3, 1) } else { (&wide, 2) };
            let rows = if *shape == head { sizes.samples } else { sizes.tokens };
            let x = operand.x.as_bytes().slice(0, rows * u64::from(shape.k) * element);
            let bytes = x.len();
            for start in (0..bytes).step_by(noise.len()) {
                let part = &noise[..noise.len().min((bytes - start) as usize)];
                upload(self.stream, x.from(start), part)?;
            }
        }
        Ok(())
    }

    /// Puts together what was picked with and without our own kernels.
    pub(crate) fn finish(&self, mut picked: Picked, with_choice: Picked) -> PickedProducts {
        picked.products.extend(with_choice.products);
        picked.times.extend(with_choice.times);
        let buffers = &self.memory.buffers;
        PickedProducts {
            num_measured: picked.num_measured + with_choice.num_measured,
            row_costs: self.row_costs(&picked),
            products: Products::new(picked.products, buffers.gemm_workspace),
        }
    }

    /// What the products of all layers take together, by rows.
    fn row_costs(&self, picked: &Picked) -> Option<RowCosts> {
        let setup = self.setup;
        let is_dense =
            |layer: &LayerSpec| matches!(layer.feed_forward, FeedForwardSpec::Dense { .. });
        if !setup.spec.layers.iter().all(is_dense) {
            return None;
        }
        let (shapes, weights) = (setup.shapes(), &self.memory.weight_layout.weights);
        let operands = operands_of(&setup.spec, &shapes, weights, &self.memory.buffers);
        let (shapes, _) = gemm_shapes(&setup.spec, &shapes, weights);
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
}

/// 4 MiB of numbers between 1/8 and 2 with both signs, as activations have them; e4m3 without `act`.
fn noise(act: Option<ActDtype>) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(4 << 20);
    while bytes.len() < 4 << 20 {
        // xorshift64 (Marsaglia 2003)
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let (random, exponent) = ((state >> 32) as u16, (state & 3) as u16);
        let bits = match act {
            Some(ActDtype::F16) => random & 0x83ff | (12 + exponent) << 10,
            Some(ActDtype::Bf16) => random & 0x807f | (124 + exponent) << 7,
            None => random & 0x8787 | (4 + exponent) << 3 | (7 - exponent) << 11,
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
