//! The time of a step's products by padded token rows, and the step sizes derived from it. At load
//! only; plain data.

/// Milliseconds of all layers' products for each padded row count, rising.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RowCosts(Vec<(u32, f32)>);

impl RowCosts {
    /// From (rows, milliseconds), rising in rows.
    pub(crate) fn new(costs: Vec<(u32, f32)>) -> Self {
        debug_assert!(costs.is_sorted_by(|a, b| a.0 < b.0));
        Self(costs)
    }

    /// The fewest token rows, a multiple of `tile`, at which a row costs hardly more than at any number: fewer
    /// waste the reading of the weights, more only make the step longer.
    pub(crate) fn steady_rows(&self, tile: u32) -> Option<u32> {
        let per_row = |(rows, time): (u32, f32)| time / rows as f32;
        let tiles = || self.0.iter().copied().filter(|(rows, _)| rows % tile == 0);
        let least = tiles().map(per_row).fold(f32::INFINITY, f32::min);
        tiles().find(|&cost| per_row(cost) <= least * HARDLY_MORE).map(|(rows, _)| rows)
    }

    /// The most rows whose products take at most `milliseconds`.
    pub(crate) fn rows_within(&self, milliseconds: f32) -> Option<u32> {
        self.0.iter().rev().find(|(_, time)| *time <= milliseconds).map(|(rows, _)| *rows)
    }
}

/// Of the least cost a row.
const HARDLY_MORE: f32 = 1.12;

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama-3.1-8B in bf16 on one H200, 2026-11-30: microseconds a layer.
    const H200: [(u32, f32); 13] = [
        (1, 110.0),
        (64, 126.0),
        (128, 138.0),
        (200, 160.0),
        (256, 179.0),
        (320, 214.0),
        (384, 236.0),
        (448, 294.0),
        (512, 299.0),
        (640, 377.0),
        (1024, 571.0),
        (1408, 790.0),
        (2048, 1190.0),
    ];

    fn h200() -> RowCosts {
        RowCosts::new(H200.map(|(rows, us)| (rows, us * 32e-3)).to_vec())
    }

    #[test]
    fn steady_rows_pay_for_the_weights_and_no_more() {
        assert_eq!(h200().steady_rows(128), Some(384));
        assert_eq!(h200().steady_rows(256), Some(512));
        assert_eq!(h200().steady_rows(4096), None);
    }

    #[test]
    fn the_longest_step_is_bounded_by_time() {
        assert_eq!(h200().rows_within(30.0), Some(1408));
        assert_eq!(h200().rows_within(1000.0), Some(2048));
        assert_eq!(h200().rows_within(1.0), None);
    }
}
