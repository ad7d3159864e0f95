//! [4] How long a step takes on a device, learnt from the steps that ran. Pure.
//!
//! A step costs something however few rows it has, because all weights are read, and something for each
//! row. Both are fitted to the last steps, older ones counting less and less.

use crate::Micros;

/// A line through the rows and durations of past steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepTime {
    count: f64,
    rows: f64,
    micros: f64,
    rows_squared: f64,
    rows_micros: f64,
    last: Option<(f64, f64)>,
}

impl StepTime {
    /// A step of so many rows took so long.
    pub(crate) fn observe(&mut self, num_rows: u32, took: Micros) {
        let (rows, micros) = (f64::from(num_rows), took.0 as f64);
        for (sum, new) in [
            (&mut self.count, 1.0),
            (&mut self.rows, rows),
            (&mut self.micros, micros),
            (&mut self.rows_squared, rows * rows),
            (&mut self.rows_micros, rows * micros),
        ] {
            *sum = *sum * KEPT + new;
        }
        self.last = Some((rows, micros));
    }

    /// Most rows of a step that ends within `limit`; nothing where no step is known yet.
    pub(crate) fn rows_within(&self, limit: Micros) -> Option<u32> {
        let (last_rows, last_micros) = self.last?;
        let limit = limit.0 as f64;
        let spread = self.count * self.rows_squared - self.rows * self.rows;
        let slope = (self.count * self.rows_micros - self.rows * self.micros) / spread;
        let rows = if spread > self.rows * self.rows * LEAST_SPREAD && slope > 0.0 {
            let fixed = ((self.micros - slope * self.rows) / self.count).max(0.0);
            (limit - fixed) / slope
        } else {
            // All steps were alike: feel the way from there.
            last_rows * (limit / last_micros.max(1.0)).min(2.0)
        };
        // The cast saturates.
        Some(rows.max(0.0) as u32)
    }
}

/// What an observation still counts after the next one.
const KEPT: f64 = 0.95;
/// Relative variance of the rows from which a line can be drawn.
const LEAST_SPREAD: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(steps: &[(u32, u64)]) -> Option<u32> {
        let mut time = StepTime::default();
        steps.iter().for_each(|&(rows, micros)| time.observe(rows, Micros(micros)));
        time.rows_within(Micros(15_000))
    }

    #[test]
    fn test_nothing_is_known_before_the_first_step() {
        assert_eq!(seen(&[]), None);
    }

    #[test]
    fn test_a_fixed_part_and_a_part_for_each_row_are_separated() {
        // 5 ms and 10 us a row: a step of one row must not make a row look like 5 ms.
        let steps: Vec<(u32, u64)> = (0..40)
            .map(|i| [1, 8, 500][i % 3])
            .map(|rows| (rows, 5000 + 10 * u64::from(rows)))
            .collect();
        let rows = seen(&steps).unwrap();
        assert!((990..=1010).contains(&rows), "{rows}");
    }

    #[test]
    fn test_steps_of_one_size_lead_to_the_limit_by_and_by() {
        assert_eq!(seen(&[(100, 60_000)]), Some(25));
        assert_eq!(seen(&[(100, 1000); 5]), Some(200), "at most twice the last one");
    }

    #[test]
    fn test_a_fixed_part_beyond_the_limit_leaves_no_rows() {
        let steps: Vec<(u32, u64)> = (1..30).map(|rows| (rows, 20_000 + u64::from(rows))).collect();
        assert_eq!(seen(&steps), Some(0));
    }

    #[test]
    fn test_old_steps_are_forgotten() {
        let mut time = StepTime::default();
        (0..200).for_each(|i| time.observe(1 + i % 50, Micros(100_000)));
        (0..200_u32).for_each(|i| {
            let rows = 1 + i % 50;
            time.observe(rows, Micros(1000 + 100 * u64::from(rows)));
        });
        let rows = time.rows_within(Micros(15_000)).unwrap();
        assert!((130..=150).contains(&rows), "{rows}");
    }
}
