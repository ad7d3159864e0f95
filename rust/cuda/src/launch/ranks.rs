//! Launches of ranks.cu: what the ranks of a group exchange.

use super::Launcher;
use crate::CudaError;
use crate::contract::{EXCHANGE_GRID, EXCHANGE_ROWS, GATHER_COLUMNS};
use crate::device_slice::{Act, DeviceSlice};
use crate::module::{Launch, args};
use crate::registry::Entry;

/// A rank's end of its group's exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    /// `[ranks]` addresses of the exchange regions, which `exchange.rs` lays out.
    pub(crate) regions: DeviceSlice<u64>,
    /// The rank's control block.
    pub(crate) control: DeviceSlice<u32>,
    /// The group's fault block, in memory of the host.
    pub(crate) fault: DeviceSlice<u32>,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// Most blocks of a launch: all are resident at once, also beside what other ranks run on the same GPU.
    pub(crate) grid: u32,
}

/// Of ranks_reduce.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RanksReduce {
    /// `[rows, hidden_size]`
    pub(crate) partial: DeviceSlice<f32>,
    /// `[hidden_size]` each.
    pub(crate) bias: Option<DeviceSlice<f32>>,
    pub(crate) post_norm: Option<DeviceSlice<f32>>,
    /// `[rows, hidden_size]`
    pub(crate) residual: DeviceSlice<f32>,
    /// `[hidden_size]`, with `out` `[rows, hidden_size]`.
    pub(crate) norm: Option<DeviceSlice<f32>>,
    pub(crate) out: DeviceSlice<Act>,
    pub(crate) eps: f32,
}

/// Of ranks_gather.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RanksGather {
    /// `[rows, columns]`
    pub(crate) local: DeviceSlice<f32>,
    /// Bytes from the start of a region to its logits.
    pub(crate) logits_at: u64,
    /// The rank's columns of `vocab_size`.
    pub(crate) first: u32,
    pub(crate) columns: u32,
    /// The most that a rank has: grids must be equal.
    pub(crate) most_columns: u32,
}

impl Launcher<'_> {
    /// Queues the sum of all ranks' partial sums of `rows` rows, and what follows it. More rows than the exchange
    /// holds are several exchanges.
    pub(crate) fn ranks_reduce(
        &self,
        exchange: &Exchange,
        rows: u32,
        a: &RanksReduce,
    ) -> Result<(), CudaError> {
        holds!(a.partial, self.hidden(rows));
        holds!(a.residual, self.hidden(rows));
        holds!(a.out, if a.norm.is_some() { self.hidden(rows) } else { 0 });
        for weight in [a.bias, a.post_norm, a.norm].into_iter().flatten() {
            holds!(weight, self.hidden(1));
        }
        let kernel = self.kernels.only(Entry::RanksReduce)?;
        let block = (self.dims.hidden_size / 4).next_multiple_of(32).clamp(32, 1024);
        let width = self.hidden(1);
        for first in (0..rows).step_by(EXCHANGE_ROWS as usize) {
            let count = (rows - first).min(EXCHANGE_ROWS);
            let grid = count.min(exchange.grid).min(EXCHANGE_GRID);
            let start = u64::from(first) * width;
            let out = if a.norm.is_some() { a.out.from(start) } else { a.out };
            // SAFETY: these are the parameters of ranks_reduce in its order; the slices were checked above, and
            // `exchange.rs` laid the regions out for so many ranks and for `EXCHANGE_ROWS` rows.
            unsafe {
                kernel.launch(
                    self.stream,
                    Launch::linear(grid, block),
                    args![
                        self.dims,
                        exchange.regions,
                        exchange.control,
                        exchange.fault,
                        exchange.rank,
                        exchange.ranks,
                        count,
                        a.partial.from(start),
                        a.bias,
                        a.post_norm,
                        a.residual.from(start),
                        a.norm,
                        out,
                        a.eps
                    ],
                )?;
            }
        }
        Ok(())
    }

    /// Queues the gathering of all ranks' columns of `rows` rows in every rank's logits.
    pub(crate) fn ranks_gather(
        &self,
        exchange: &Exchange,
        rows: u32,
        a: &RanksGather,
    ) -> Result<(), CudaError> {
        holds!(a.local, u64::from(rows) * u64::from(a.columns));
        assert!(a.first + a.columns <= self.dims.vocab_size && a.columns <= a.most_columns);
        let kernel = self.kernels.only(Entry::RanksGather)?;
        let items = rows * a.most_columns.div_ceil(GATHER_COLUMNS);
        let grid = items.min(exchange.grid).min(EXCHANGE_GRID);
        // SAFETY: these are the parameters of ranks_gather in its order; the slice was checked above, and every
        // region holds as many rows of logits as the largest step has samples (`exchange.rs`).
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(grid, 512),
                args![
                    self.dims,
                    exchange.regions,
                    exchange.control,
                    exchange.fault,
                    exchange.rank,
                    exchange.ranks,
                    rows,
                    a.logits_at,
                    a.first,
                    a.columns,
                    a.local
                ],
            )
        }
    }
}
