//! A Prometheus histogram of whole numbers: one writer, any number of readers, no lock.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts observations by upper bound. Only one thread may observe; reading is safe from all.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [u64],
    /// Exposed value = observed value times this.
    scale: f64,
    /// One per bound and one for what is larger; not cumulative.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// Observes microseconds, shows seconds.
    pub(crate) fn seconds(bounds_us: &'static [u64]) -> Self {
        Self::new(bounds_us, 1e-6)
    }

    /// Observes and shows plain numbers.
    pub(crate) fn numbers(bounds: &'static [u64]) -> Self {
        Self::new(bounds, 1.0)
    }

    fn new(bounds: &'static [u64], scale: f64) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, scale, counts, sum: AtomicU64::new(0) }
    }

    /// Counts one value. A plain load and store: there is one writer.
    pub(crate) fn observe(&self, value: u64) {
        let at = self.bounds.iter().position(|&bound| value <= bound).unwrap_or(self.bounds.len());
        add(&self.counts[at], 1);
        add(&self.sum, value);
    }

    /// Appends the lines of this histogram.
    pub(crate) fn render(&self, out: &mut String, name: &str, labels: &str) {
        let mut total = 0;
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            total += count.load(Ordering::Relaxed);
            // Rounded, so that a bound reads 0.1 and not 0.09999999999999999.
            let le = (*bound as f64 * self.scale * 1e9).round() / 1e9;
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{le:?}\"}} {total}");
        }
        total += self.counts[self.bounds.len()].load(Ordering::Relaxed);
        let sum = self.sum.load(Ordering::Relaxed) as f64 * self.scale;
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {total}");
        let _ = writeln!(out, "{name}_sum{{{labels}}} {sum:?}");
        let _ = writeln!(out, "{name}_count{{{labels}}} {total}");
    }
}

/// Adds to a counter that this thread alone writes.
pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_buckets_are_cumulative_and_bounds_belong_to_their_bucket() {
        let histogram = Histogram::seconds(&[1_000, 5_000, 2_500_000]);
        for value in [0, 1_000, 1_001, 2_500_000, 9_000_000] {
            histogram.observe(value);
        }
        let mut out = String::new();
        histogram.render(&mut out, "x", "a=\"b\"");
        assert_eq!(
            out,
            "x_bucket{a=\"b\",le=\"0.001\"} 2\nx_bucket{a=\"b\",le=\"0.005\"} 3\n\
             x_bucket{a=\"b\",le=\"2.5\"} 4\nx_bucket{a=\"b\",le=\"+Inf\"} 5\n\
             x_sum{a=\"b\"} 11.502001\nx_count{a=\"b\"} 5\n"
        );
    }
}
