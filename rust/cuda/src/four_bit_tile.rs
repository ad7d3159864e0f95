//! The builds of gemm_four_bit.cu and moe_four_bit.cu, and how a launch divides shared memory. Plain data; `tune.rs` measures
//! the builds against each other and against widening the matrix first.

use crate::contract::{four_bit_fixed_bytes, four_bit_kept_bytes, four_bit_x_stride};
use crate::four_bit::{FourBitForm, GroupScale};
use crate::four_bit_wgmma::WgmmaTile;
use crate::limits::DeviceLimits;
use crate::shapes::{FourBitShape, GemmOut};

/// One build: macros of four_bit_stream.cuh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FourBitTile {
    /// Most rows of x that a block takes: 8, 16, 32 or 64.
    pub(crate) rows: u32,
    /// Groups of 16 rows of the weight that a warp multiplies at once: 1 or 2.
    pub(crate) tiles: u32,
    /// Stages of the ring.
    pub(crate) stages: u32,
}

/// A build for few rows of x, or for many on Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FourBitBuild {
    /// Of gemm_four_bit.cu or moe_four_bit.cu.
    Stream(FourBitTile),
    /// Of gemm_four_bit_wgmma.cu or moe_four_bit_wgmma.cu.
    Wgmma(WgmmaTile),
}

impl FourBitBuild {
    /// The macros of a build.
    pub(crate) fn macros(self) -> [String; 3] {
        match self {
            Self::Stream(tile) => tile.macros(),
            Self::Wgmma(tile) => tile.macros(),
        }
    }

    /// Of the name of a build.
    pub(crate) fn suffix(self) -> String {
        match self {
            Self::Stream(FourBitTile { rows, tiles, stages }) => {
                format!("-{rows}-{tiles}x{stages}")
            }
            Self::Wgmma(tile) => tile.suffix(),
        }
    }

    /// Dynamic shared memory of a block for experts `[n, k]`.
    pub(crate) fn expert_bytes(self, form: FourBitForm, k: u32) -> u32 {
        match self {
            Self::Stream(tile) => tile.expert_bytes(form, k),
            Self::Wgmma(tile) => tile.shared_bytes(form),
        }
    }
}

/// How the blocks of a launch of gemm_four_bit.cu share the work, and what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FourBitLaunch {
    pub(crate) grid: [u32; 2],
    /// Columns of x in shared memory at once.
    pub(crate) x_columns: u32,
    pub(crate) shared_bytes: u32,
}

impl FourBitTile {
    /// The macros of a build.
    pub(crate) fn macros(self) -> [String; 3] {
        [
            format!("-DFB_ROWS={}", self.rows),
            format!("-DFB_TILES={}", self.tiles),
            format!("-DFB_STAGES={}", self.stages),
        ]
    }

    /// Blocks of an SM that the registers of a build allow.
    fn most_blocks(self) -> u32 {
        if self.rows / 8 * self.tiles <= 2 { 2 } else { 1 }
    }

    /// Shared memory beside x.
    fn fixed_bytes(self, form: FourBitForm) -> u32 {
        four_bit_fixed_bytes(self.stages, self.rows, self.tiles, form.record_bytes())
    }

    /// Whether the build can do a product.
    pub(crate) fn takes(self, shape: FourBitShape) -> bool {
        let form = shape.form;
        // More than 255 registers a thread.
        let overflows = self.rows == 64 && form.groups == 2 && form.scale != GroupScale::E8M0;
        let rows_at_once = 16 * if shape.out == GemmOut::Gated { 2 } else { self.tiles };
        (shape.out != GemmOut::Gated || self.tiles == 2)
            && !overflows
            && shape.n.is_multiple_of(rows_at_once)
    }

    /// A launch for `rows` rows with so many blocks on an SM; `None` if they do not fit.
    pub(crate) fn launch(
        self,
        limits: &DeviceLimits,
        shape: FourBitShape,
        rows: u32,
        blocks: u32,
    ) -> Option<FourBitLaunch> {
        let per_block = limits.shared_bytes_per_sm / blocks - limits.shared_bytes_reserved;
        let room = per_block.min(limits.shared_bytes_per_block);
        let items = shape.n / (16 * self.tiles);
        let y = rows.div_ceil(self.rows);
        let x = items.min(limits.num_sms * blocks);
        if blocks > self.most_blocks() || !self.takes(shape) {
            return None;
        }
        let (records, x_rows) = (shape.form.records(shape.k), rows.min(self.rows));
        (1..=MOST_PARTS).find_map(|parts| {
            let x_columns = records.div_ceil(parts) * shape.form.block;
            let kept = match parts {
                1 => 0,
                _ => items.div_ceil(x) * four_bit_kept_bytes(self.rows, self.tiles),
            };
            let x_bytes = x_rows * four_bit_x_stride(x_columns);
            let shared_bytes = self.fixed_bytes(shape.form) + x_bytes + kept;
            let launch = FourBitLaunch { grid: [x, y], x_columns, shared_bytes };
            (shared_bytes <= room).then_some(launch)
        })
    }

    /// Dynamic shared memory of moe_four_bit.cu for experts `[n, k]`.
    pub(crate) fn expert_bytes(self, form: FourBitForm, k: u32) -> u32 {
        let columns = form.records(k) * form.block;
        self.fixed_bytes(form) + self.rows * four_bit_x_stride(columns)
    }

    /// Blocks of an SM for experts; 0 if none fits.
    pub(crate) fn expert_blocks(self, limits: &DeviceLimits, form: FourBitForm, k: u32) -> u32 {
        let bytes = self.expert_bytes(form, k) + EXPERT_STATIC_BYTES;
        let fits = limits.shared_bytes_per_sm / (bytes + limits.shared_bytes_reserved);
        if bytes > limits.shared_bytes_per_block { 0 } else { fits.min(self.most_blocks()) }
    }
}

/// The builds of gemm_four_bit.cu that are tried.
pub(crate) const FOUR_BIT_TILES: [FourBitTile; 7] = [
    FourBitTile { rows: 8, tiles: 1, stages: 5 },
    FourBitTile { rows: 8, tiles: 1, stages: 8 },
    FourBitTile { rows: 8, tiles: 2, stages: 4 },
    FourBitTile { rows: 16, tiles: 1, stages: 6 },
    FourBitTile { rows: 16, tiles: 2, stages: 4 },
    FourBitTile { rows: 32, tiles: 2, stages: 4 },
    FourBitTile { rows: 64, tiles: 2, stages: 3 },
];

/// The builds of moe_four_bit.cu: of those with equally many rows, the first that fits is used.
const EXPERT_TILES: [FourBitTile; 6] = [
    FourBitTile { rows: 8, tiles: 2, stages: 4 },
    FourBitTile { rows: 8, tiles: 1, stages: 4 },
    FourBitTile { rows: 16, tiles: 2, stages: 4 },
    FourBitTile { rows: 16, tiles: 1, stages: 4 },
    FourBitTile { rows: 32, tiles: 2, stages: 4 },
    FourBitTile { rows: 32, tiles: 1, stages: 4 },
];

/// The builds for experts `[n, k]` on a card, at most one for each number of rows, rising.
pub(crate) fn expert_tiles(
    limits: &DeviceLimits,
    form: FourBitForm,
    (n, k): (u32, u32),
) -> Vec<FourBitTile> {
    let fits = |tile: &&FourBitTile| {
        n.is_multiple_of(16 * tile.tiles) && tile.expert_blocks(limits, form, k) > 0
    };
    let mut tiles: Vec<FourBitTile> = EXPERT_TILES.iter().filter(fits).copied().collect();
    tiles.dedup_by_key(|tile| tile.rows);
    tiles
}

/// Parts into which the columns of x are cut at most.
const MOST_PARTS: u32 = 32;
/// Static shared memory of moe_four_bit.cu: the tiles of each expert.
const EXPERT_STATIC_BYTES: u32 = 2304;

#[cfg(test)]
mod tests {
    use super::*;

    const W4: FourBitForm =
        FourBitForm { scale: GroupScale::Bf16, zeros: false, block: 128, groups: 1 };
    const MX: FourBitForm =
        FourBitForm { scale: GroupScale::E8M0, zeros: false, block: 64, groups: 2 };
    const H200: DeviceLimits = DeviceLimits::assumed((9, 0), 132, 228);

    fn shape(n: u32, k: u32, out: GemmOut) -> FourBitShape {
        FourBitShape { n, k, out, form: W4 }
    }

    #[test]
    fn launches_of_an_8b_model_fit_for_every_number_of_rows() {
        let products = [
            shape(6144, 4096, GemmOut::Device),
            shape(28672, 4096, GemmOut::Gated),
            shape(4096, 14336, GemmOut::AddF32),
        ];
        for kib in [100, 164, 228] {
            let limits = DeviceLimits::assumed((8, 0), 108, kib);
            for product in products {
                for rows in [1, 2, 8, 16, 32, 64, 300] {
                    let launch = |tile: &FourBitTile| tile.launch(&limits, product, rows, 1);
                    let launches: Vec<_> = FOUR_BIT_TILES.iter().filter_map(launch).collect();
                    assert!(!launches.is_empty(), "{kib} {product:?} {rows}");
                    for launch in launches {
                        assert!(launch.shared_bytes <= limits.shared_bytes_per_block);
                        assert!(launch.x_columns.is_multiple_of(W4.block));
                    }
                }
            }
        }
        let few = FOUR_BIT_TILES[0].launch(&H200, products[2], 1, 2).unwrap();
        assert_eq!((few.grid, few.x_columns), ([256, 1], 14336));
        let many = FOUR_BIT_TILES[6].launch(&H200, products[2], 200, 1).unwrap();
        assert_eq!(many.grid, [128, 4]);
    }

    #[test]
    fn two_tiles_are_gate_and_up_or_neighbours() {
        let tile = FOUR_BIT_TILES[2];
        assert!(
            tile.takes(shape(96, 64, GemmOut::Gated)) && tile.takes(shape(96, 64, GemmOut::F32))
        );
        assert!(!tile.takes(shape(48, 64, GemmOut::F32)));
        assert!(!FOUR_BIT_TILES[0].takes(shape(96, 64, GemmOut::Gated)));
    }

    #[test]
    fn experts_as_wide_as_those_of_gpt_oss_have_three_builds() {
        let tiles = expert_tiles(&H200, MX, (5760, 2880));
        assert_eq!(
            tiles.iter().map(|tile| (tile.rows, tile.tiles)).collect::<Vec<_>>(),
            [(8, 2), (16, 2), (32, 1)]
        );
        assert_eq!(tiles[0].expert_blocks(&H200, MX, 2880), 2);
        let small = DeviceLimits::assumed((8, 9), 100, 100);
        assert_eq!(expert_tiles(&small, MX, (5760, 2880))[0].rows, 8);
    }
}
