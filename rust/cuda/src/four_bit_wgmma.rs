//! The builds of gemm_four_bit_wgmma.cu and moe_four_bit_wgmma.cu, and how their launches share the work. Plain data; `tune.rs`
//! measures those of dense products.

use crate::contract::{
    four_bit_wgmma_bytes, four_bit_wgmma_stage_bytes, four_bit_wgmma_stages, four_bit_wgmma_threads,
};
use crate::four_bit::FourBitForm;
use crate::limits::DeviceLimits;
use crate::module::Launch;
use crate::shapes::{FourBitShape, GemmOut};

/// One build: macros of four_bit_wgmma.cuh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WgmmaTile {
    /// Rows of x that a block takes at once.
    pub(crate) rows: u32,
    /// Tiles of 64 rows of the weight that a warp group takes: 1 or 2.
    pub(crate) tiles: u32,
    /// Warp groups that multiply: 2 or 4.
    pub(crate) groups: u32,
}

impl WgmmaTile {
    /// The macros of a build.
    pub(crate) fn macros(self) -> [String; 3] {
        [
            format!("-DFW_ROWS={}", self.rows),
            format!("-DFW_TILES={}", self.tiles),
            format!("-DFW_GROUPS={}", self.groups),
        ]
    }

    /// Of the name of a build.
    pub(crate) fn suffix(self) -> String {
        format!("-{}-{}x{}", self.rows, self.tiles, self.groups)
    }

    /// Rows of the weight that a block takes at once.
    fn height(self) -> u32 {
        64 * self.tiles * self.groups
    }

    fn stage_bytes(self, form: FourBitForm) -> u32 {
        let record = form.record_bytes();
        four_bit_wgmma_stage_bytes(self.rows, self.tiles, self.groups, form.block, record)
    }

    /// Dynamic shared memory of a block.
    pub(crate) fn shared_bytes(self, form: FourBitForm) -> u32 {
        four_bit_wgmma_bytes(self.groups, self.stage_bytes(form))
    }

    /// Whether a card has the instructions and the build can do a product.
    pub(crate) fn takes(self, limits: &DeviceLimits, shape: FourBitShape) -> bool {
        let is_gated = shape.out == GemmOut::Gated;
        limits.compute_capability == (9, 0)
            && four_bit_wgmma_stages(self.groups, self.stage_bytes(shape.form)) >= LEAST_STAGES
            && (!is_gated || self.tiles == 2)
            && shape.n.is_multiple_of(if is_gated { 32 } else { 16 })
    }

    /// A launch for `rows` rows with so many blocks sharing K; `None` if that helps nothing.
    pub(crate) fn launch(
        self,
        limits: &DeviceLimits,
        shape: FourBitShape,
        rows: u32,
        cluster: u32,
    ) -> Option<Launch> {
        let tiles = shape.n.div_ceil(self.height()) * rows.div_ceil(self.rows);
        let records = shape.form.records(shape.k) / cluster;
        let fits = cluster == 1 || (tiles * cluster <= MOST_ROUNDS * limits.num_sms && records > 1);
        let grid = if cluster == 1 { tiles.min(limits.num_sms) } else { tiles * cluster };
        let launch = Launch::linear(grid, four_bit_wgmma_threads(self.groups));
        fits.then(|| launch.shared(self.shared_bytes(shape.form)).cluster(cluster))
    }
}

/// The builds of moe_four_bit_wgmma.cu for a card, with rising rows.
pub(crate) fn expert_wgmma_tiles(
    limits: &DeviceLimits,
    form: FourBitForm,
    (n, k): (u32, u32),
) -> Vec<WgmmaTile> {
    let shape = FourBitShape { n, k, out: GemmOut::Device, form };
    EXPERT_WGMMA_TILES.into_iter().filter(|tile| tile.takes(limits, shape)).collect()
}

/// The builds of gemm_four_bit_wgmma.cu that are tried.
pub(crate) const WGMMA_TILES: [WgmmaTile; 12] = [
    WgmmaTile { rows: 8, tiles: 1, groups: 4 },
    WgmmaTile { rows: 8, tiles: 2, groups: 4 },
    WgmmaTile { rows: 16, tiles: 1, groups: 4 },
    WgmmaTile { rows: 16, tiles: 2, groups: 4 },
    WgmmaTile { rows: 16, tiles: 2, groups: 2 },
    WgmmaTile { rows: 32, tiles: 1, groups: 4 },
    WgmmaTile { rows: 32, tiles: 2, groups: 4 },
    WgmmaTile { rows: 32, tiles: 2, groups: 2 },
    WgmmaTile { rows: 64, tiles: 1, groups: 4 },
    WgmmaTile { rows: 64, tiles: 2, groups: 2 },
    WgmmaTile { rows: 128, tiles: 1, groups: 2 },
    WgmmaTile { rows: 128, tiles: 2, groups: 2 },
];

/// The builds of moe_four_bit_wgmma.cu.
const EXPERT_WGMMA_TILES: [WgmmaTile; 5] = [
    WgmmaTile { rows: 8, tiles: 1, groups: 4 },
    WgmmaTile { rows: 16, tiles: 1, groups: 4 },
    WgmmaTile { rows: 32, tiles: 1, groups: 4 },
    WgmmaTile { rows: 64, tiles: 2, groups: 2 },
    WgmmaTile { rows: 128, tiles: 2, groups: 2 },
];

/// Blocks of a cluster that are tried.
pub(crate) const CLUSTERS: [u32; 4] = [1, 2, 4, 8];
/// A cluster takes one tile: of more rounds of blocks than these, each with its own start, one block a cluster is better.
const MOST_ROUNDS: u32 = 4;
/// With fewer nothing would be on its way.
const LEAST_STAGES: u32 = 3;
