//! Products with 4-bit matrices: by gemm_four_bit.cu, or by cuBLASLt after widen_four_bit.cu has widened the matrix. The engine
//! thread queues them, the capture thread records them. `four_bit_tile.rs` lists the builds.

use crate::CudaError;
use crate::contract::Dims;
use crate::device_slice::{DeviceSlice, Weight};
use crate::gemm::{GemmArgs, Problem};
use crate::kernels::Kernels;
use crate::launch::{GemmFourBit, WidenFourBit};
use crate::limits::DeviceLimits;
use crate::matrix::Matrix;
use crate::registry::Entry;
use crate::shapes::GemmShape;
use crate::stream::Stream;
use crate::sys::cublaslt::MatmulAlgo;
use crate::variant::Variant;

/// A product by gemm_four_bit.cu.
#[derive(Clone, Debug)]
pub(crate) struct FourBitProduct {
    shape: GemmShape,
    launch: GemmFourBit,
}

impl FourBitProduct {
    /// The builds for `rows` rows, each with one and with two blocks an SM, in a fixed order: those that take the
    /// fewest rows at once, but not less than there are; else those that take most.
    pub(crate) fn all(
        kernels: &Kernels,
        dims: Dims,
        limits: &DeviceLimits,
        (rows, shape): (u32, GemmShape),
        gate: u32,
    ) -> Vec<Self> {
        let Some(of) = shape.four_bit() else { return Vec::new() };
        let built = || {
            kernels.builds(Entry::GemmFourBit).filter_map(move |(variant, kernel)| match variant {
                Variant::FourBit { shape, tile, .. } if shape == of => Some((tile, kernel)),
                _ => None,
            })
        };
        let enough = built().map(|(tile, _)| tile.rows).filter(|most| *most >= rows).min();
        let Some(at_once) = enough.or(built().map(|(tile, _)| tile.rows).max()) else {
            return Vec::new();
        };
        let mut products = Vec::new();
        for (tile, kernel) in built().filter(|(tile, _)| tile.rows == at_once) {
            for blocks in [1, 2] {
                let Some(plan) = tile.launch(limits, of, rows, blocks) else { continue };
                let dims = dims.gemm(shape.n, shape.k);
                let launch = GemmFourBit { kernel: kernel.clone(), dims, plan, rows, gate };
                products.push(Self { shape, launch });
            }
        }
        products
    }

    /// Queues the product.
    pub(crate) fn run(&self, stream: &Stream, args: &GemmArgs) -> Result<(), CudaError> {
        args.check(self.launch.rows, self.shape);
        self.launch.launch(stream, args)
    }
}

/// A product by cuBLASLt with the widened matrix.
#[derive(Debug)]
pub(crate) struct WidenedProduct {
    /// With the plain matrix's descriptors.
    pub(crate) problem: Problem,
    pub(crate) algo: MatmulAlgo,
    pub(crate) widening: Widening,
}

/// What widens the matrices of one shape.
#[derive(Clone, Debug)]
pub(crate) struct Widening {
    launch: WidenFourBit,
    /// Holds the widened matrix until the product has read it.
    scratch: DeviceSlice<Weight>,
}

impl Widening {
    /// For a shape; `None` if it is not of 4-bit weights.
    pub(crate) fn new(
        kernels: &Kernels,
        dims: Dims,
        shape: GemmShape,
        scratch: DeviceSlice<Weight>,
    ) -> Option<Self> {
        let of = shape.four_bit()?;
        let variant = Variant::Widen { n: of.n, k: of.k, form: of.form };
        let kernel = kernels.build(Entry::WidenFourBit, variant).ok()?.clone();
        let dims = dims.gemm(shape.n, shape.k);
        let launch = WidenFourBit { kernel, dims, records: of.n / 16 * of.form.records(of.k) };
        Some(Self { launch, scratch: scratch.slice(0, u64::from(of.n) * u64::from(of.k)) })
    }
}

impl WidenedProduct {
    /// Queues both.
    pub(crate) fn run(
        &self,
        stream: &Stream,
        args: &GemmArgs,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        let Widening { launch, scratch } = &self.widening;
        launch.launch(stream, args.w, *scratch)?;
        let args = GemmArgs { w: Matrix::Plain(*scratch), ..*args };
        self.problem.run(stream, &self.algo, &args, workspace)
    }
}
