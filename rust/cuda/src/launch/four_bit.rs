//! Launches of gemm_four_bit.cu, widen_four_bit.cu and moe_four_bit.cu, and of the first and last's kernels for many rows.

use ingle_model::MoeSpec;

use super::Launcher;
use super::experts::{ExpertPlaces, MoeGemm};
use crate::CudaError;
use crate::builds::four_bit_experts;
use crate::contract::{Dims, FB_THREADS, four_bit_wgmma_threads};
use crate::device_slice::{DeviceSlice, Weight};
use crate::four_bit::FourBitForm;
use crate::four_bit_tile::{FourBitBuild, FourBitLaunch, FourBitTile};
use crate::four_bit_wgmma::WgmmaTile;
use crate::gemm::GemmArgs;
use crate::limits::DeviceLimits;
use crate::matrix::Matrix;
use crate::module::{Kernel, Launch, args};
use crate::registry::Entry;
use crate::shapes::{FourBitShape, GemmOut};
use crate::stream::Stream;

/// One build of gemm_four_bit with everything that its launches have alike.
#[derive(Clone, Debug)]
pub(crate) struct GemmFourBit {
    pub(crate) kernel: Kernel,
    /// With the n and k of its product.
    pub(crate) dims: Dims,
    pub(crate) plan: FourBitLaunch,
    /// Rows of x.
    pub(crate) rows: u32,
    /// GATE_SILU or GATE_GELU_TANH.
    pub(crate) gate: u32,
}

impl GemmFourBit {
    /// Queues the product; `GemmArgs::check` has passed for its shape and rows.
    pub(crate) fn launch(&self, stream: &Stream, a: &GemmArgs) -> Result<(), CudaError> {
        let [x, y] = self.plan.grid;
        let launch = Launch::plane(x, y, FB_THREADS).shared(self.plan.shared_bytes);
        let arguments = args![
            &self.dims,
            a.x.as_bytes(),
            a.w.as_bytes(),
            a.out.as_bytes(),
            self.rows,
            self.gate,
            self.plan.x_columns,
        ];
        // SAFETY: these are the parameters of gemm_four_bit in its order; the caller's check holds for the n and k
        // that the kernel was built for, and `FourBitTile::launch` made the plan for these rows.
        unsafe { self.kernel.launch(stream, launch, arguments) }
    }
}

/// One build of gemm_four_bit_wgmma with everything that its launches have alike.
#[derive(Clone, Debug)]
pub(crate) struct GemmFourBitWgmma {
    pub(crate) kernel: Kernel,
    /// With the n and k of its product.
    pub(crate) dims: Dims,
    pub(crate) launch: Launch,
    /// Rows of x.
    pub(crate) rows: u32,
    /// GATE_SILU or GATE_GELU_TANH.
    pub(crate) gate: u32,
}

impl GemmFourBitWgmma {
    /// Queues the product; `GemmArgs::check` has passed for its shape and rows.
    pub(crate) fn launch(&self, stream: &Stream, a: &GemmArgs) -> Result<(), CudaError> {
        let arguments = args![
            &self.dims,
            a.x.as_bytes(),
            a.w.as_bytes(),
            a.out.as_bytes(),
            self.rows,
            self.gate,
        ];
        // SAFETY: these are the parameters of gemm_four_bit_wgmma in its order; the caller's check holds for the n and k
        // that the kernel was built for, and `WgmmaTile::launch` made the launch for these rows.
        unsafe { self.kernel.launch(stream, self.launch, arguments) }
    }
}

/// One build of widen_four_bit.
#[derive(Clone, Debug)]
pub(crate) struct WidenFourBit {
    pub(crate) kernel: Kernel,
    /// With the n and k of its matrix.
    pub(crate) dims: Dims,
    /// Records of the matrix.
    pub(crate) records: u32,
}

impl WidenFourBit {
    /// Queues the widening of a matrix.
    pub(crate) fn launch(
        &self,
        stream: &Stream,
        w: Matrix,
        out: DeviceSlice<Weight>,
    ) -> Result<(), CudaError> {
        holds!(out, w.len());
        let launch = Launch::linear(self.records.div_ceil(FB_THREADS / 32), FB_THREADS);
        // SAFETY: these are the parameters of widen_four_bit in its order; `w` is a matrix of this build's n, k and
        // form, which `GemmArgs::check` compared, and `out` was checked above.
        unsafe { self.kernel.launch(stream, launch, args![&self.dims, w.as_bytes(), out]) }
    }
}

/// Which builds of moe_four_bit there are for a product, and on what card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FourBitExperts<'a> {
    pub(crate) form: FourBitForm,
    /// Fewest rows first.
    pub(crate) tiles: &'a [FourBitTile],
    /// The same of those for many rows.
    pub(crate) wgmma_tiles: &'a [WgmmaTile],
    pub(crate) limits: &'a DeviceLimits,
}

impl Launcher<'_> {
    /// Queues one product of all experts with their entries, of which there are `entries`; `a.w` is a 4-bit matrix.
    pub(crate) fn moe_four_bit(
        &self,
        entries: u32,
        spec: &MoeSpec,
        places: &ExpertPlaces,
        a: &MoeGemm,
        experts: &FourBitExperts<'_>,
    ) -> Result<(), CudaError> {
        // So many rows of an expert, where all experts have equally many, fill half of a tile or less.
        let room = 2 * entries.div_ceil(spec.num_experts);
        let shape = FourBitShape { n: a.n, k: a.k, out: GemmOut::Device, form: experts.form };
        let num_sms = experts.limits.num_sms;
        let many = experts.wgmma_tiles.iter().find(|tile| tile.rows >= room);
        let many = many.or(experts.wgmma_tiles.last()).filter(|_| room >= LEAST_WGMMA_ROOM);
        let (entry, tile, grid, block) = if let Some(&tile) = many {
            let build = FourBitBuild::Wgmma(tile);
            (Entry::MoeFourBitWgmma, build, num_sms, four_bit_wgmma_threads(tile.groups))
        } else {
            let missing = || CudaError::Unsupported(format!("no kernel for 4-bit experts {a:?}"));
            let found = experts.tiles.iter().find(|tile| tile.rows >= room);
            let tile = *found.or(experts.tiles.last()).ok_or_else(missing)?;
            let blocks = tile.expert_blocks(experts.limits, experts.form, a.k);
            (Entry::MoeFourBit, FourBitBuild::Stream(tile), num_sms * blocks, FB_THREADS)
        };
        let variant = four_bit_experts(spec, shape, tile);
        let dims = variant.dims(*self.dims);
        let kernel = self.kernels.build(entry, variant)?;
        let launch = Launch::linear(grid, block).shared(tile.expert_bytes(experts.form, a.k));
        self.multiply_experts((kernel, launch), (entries, spec), &dims, places, a)
    }
}

/// Rows of a tile from which on the kernel for many rows is used: with fewer, the other one was quicker on an H200
/// (650 us to 822 at 8 rows an expert), and with 64 rows an expert a third as quick.
const LEAST_WGMMA_ROOM: u32 = 32;
