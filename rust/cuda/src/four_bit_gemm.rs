//! Products with 4-bit matrices: by gemm_four_bit.cu or gemm_four_bit_wgmma.cu, or by cuBLASLt after widen_four_bit.cu has widened the matrix. The engine
//! thread queues them, the capture thread records them. `four_bit_tile.rs` and
//! `four_bit_wgmma.rs` list the builds.

use crate::CudaError;
use crate::contract::Dims;
use crate::device_slice::{DeviceSlice, Weight};
use crate::four_bit_tile::FourBitBuild;
use crate::four_bit_wgmma::CLUSTERS;
use crate::gemm::{GemmArgs, Problem};
use crate::kernels::Kernels;
use crate::launch::{GemmFourBit, GemmFourBitWgmma, WidenFourBit};
use crate::limits::DeviceLimits;
use crate::matrix::Matrix;
use crate::module::Kernel;
use crate::registry::Entry;
use crate::shapes::{FourBitShape, GemmShape};
use crate::stream::Stream;
use crate::sys::cublaslt::MatmulAlgo;
use crate::variant::Variant;

/// A product by gemm_four_bit.cu or gemm_four_bit_wgmma.cu.
#[derive(Clone, Debug)]
pub(crate) struct FourBitProduct {
    shape: GemmShape,
    rows: u32,
    launch: FourBitKernel,
}

#[derive(Clone, Debug)]
enum FourBitKernel {
    Stream(GemmFourBit),
    Wgmma(GemmFourBitWgmma),
}

impl FourBitProduct {
    /// The builds for `rows` rows in a fixed order: those that take the fewest rows at once, but not less than there are; else
    /// those that take most. Those for few rows come with one and with two blocks an SM, those for many with clusters of
    /// several sizes.
    pub(crate) fn all(
        kernels: &Kernels,
        dims: Dims,
        limits: &DeviceLimits,
        (rows, shape): (u32, GemmShape),
        gate: u32,
    ) -> Vec<Self> {
        let Some(of) = shape.four_bit() else { return Vec::new() };
        let dims = dims.gemm(shape.n, shape.k);
        let product = |launch| Self { shape, rows, launch };
        let many = builds_for(kernels, Entry::GemmFourBitWgmma, (of, rows), |build| match build {
            FourBitBuild::Wgmma(tile) => Some((tile, tile.rows)),
            FourBitBuild::Stream(_) => None,
        });
        let many = many.into_iter().flat_map(|(tile, kernel)| {
            let launches = CLUSTERS
                .into_iter()
                .filter_map(move |blocks| tile.launch(limits, of, rows, blocks));
            launches.map(|launch| {
                let kernel = kernel.clone();
                FourBitKernel::Wgmma(GemmFourBitWgmma { kernel, dims, launch, rows, gate })
            })
        });
        let many: Vec<_> = many.map(product).collect();
        if rows > MOST_STREAMED && !many.is_empty() {
            return many;
        }
        let few = builds_for(kernels, Entry::GemmFourBit, (of, rows), |build| match build {
            FourBitBuild::Stream(tile) => Some((tile, tile.rows)),
            FourBitBuild::Wgmma(_) => None,
        });
        let few = few.into_iter().flat_map(|(tile, kernel)| {
            let plans =
                [1, 2].into_iter().filter_map(move |blocks| tile.launch(limits, of, rows, blocks));
            plans.map(|plan| {
                let kernel = kernel.clone();
                FourBitKernel::Stream(GemmFourBit { kernel, dims, plan, rows, gate })
            })
        });
        few.map(product).chain(many).collect()
    }

    /// Queues the product.
    pub(crate) fn run(&self, stream: &Stream, args: &GemmArgs) -> Result<(), CudaError> {
        args.check(self.rows, self.shape);
        match &self.launch {
            FourBitKernel::Stream(launch) => launch.launch(stream, args),
            FourBitKernel::Wgmma(launch) => launch.launch(stream, args),
        }
    }
}

/// The builds of an entry for a shape that take the fewest rows at once, but not less than there are; else those that take most.
/// `tile_of`: the build and its rows.
fn builds_for<Tile: Copy>(
    kernels: &Kernels,
    entry: Entry,
    (of, rows): (FourBitShape, u32),
    tile_of: impl Fn(FourBitBuild) -> Option<(Tile, u32)>,
) -> Vec<(Tile, &Kernel)> {
    let built: Vec<_> = kernels
        .builds(entry)
        .filter_map(|(variant, kernel)| match variant {
            Variant::FourBit { shape, tile, .. } if shape == of => Some((tile_of(tile)?, kernel)),
            _ => None,
        })
        .collect();
    let sizes = || built.iter().map(|((_, most), _)| *most);
    let at_once = sizes().filter(|most| *most >= rows).min().or(sizes().max());
    let chosen = built.into_iter().filter(|((_, most), _)| Some(*most) == at_once);
    chosen.map(|((tile, _), kernel)| (tile, kernel)).collect()
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

/// Most rows for which builds of gemm_four_bit.cu are tried where there are others.
const MOST_STREAMED: u32 = 64;
