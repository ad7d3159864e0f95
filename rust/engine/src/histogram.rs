//! A Prometheus histogram of whole numbers: one writer, any number of readers, no lock.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::exemplar::Exemplar;
use crate::trace::TraceId;

/// Counts observations by upper bound. Only one thread may observe; reading is safe from all.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [u64],
    /// Exposed value = observed value times this.
    scale: f64,
    /// One per bound and one for what is larger; not cumulative.
    counts: Box<[AtomicU64]>,
    /// As `counts`.
    exemplars: Box<[Exemplar]>,
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
        let exemplars = (0..=bounds.len()).map(|_| Exemplar::default()).collect();
        Self { bounds, scale, counts, exemplars, sum: AtomicU64::new(0) }
    }

    /// Counts one value. A plain load and store: there is one writer.
    pub(crate) fn observe(&self, value: u64) {
        self.observe_of(value, None);
    }

    /// The same for a value of a request, which may belong to a trace.
    pub(crate) fn observe_of(&self, value: u64, trace: Option<TraceId>) {
        let at = self.bounds.iter().position(|&bound| value <= bound).unwrap_or(self.bounds.len());
        add(&self.counts[at], 1);
        add(&self.sum, value);
        if let Some(trace) = trace {
            self.exemplars[at].set(value, trace);
        }
    }

    /// Appends the lines of this histogram. `exemplars`: only OpenMetrics has them.
    pub(crate) fn render(&self, out: &mut String, name: &str, labels: &str, exemplars: bool) {
        let bucket = |out: &mut String, at: usize, le: &str, total: u64| {
            let _ = write!(out, "{name}_bucket{{{labels},le=\"{le}\"}} {total}");
            if exemplars {
                self.exemplars[at].render(out, self.scale);
            }
            out.push('\n');
        };
        let mut total = 0;
        for (at, (bound, count)) in self.bounds.iter().zip(&self.counts).enumerate() {
            total += count.load(Ordering::Relaxed);
            // Rounded, so that a bound reads 0.1 and not 0.09999999999999999.
            let le = (*bound as f64 * self.scale * 1e9).round() / 1e9;
            bucket(out, at, &format!("{le:?}"), total);
        }
        total += self.counts[self.bounds.len()].load(Ordering::Relaxed);
        let sum = self.sum.load(Ordering::Relaxed) as f64 * self.scale;
        bucket(out, self.bounds.len(), "+Inf", total);
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
        histogram.render(&mut out, "x", "a=\"b\"", false);
        assert_eq!(
            out,
            "x_bucket{a=\"b\",le=\"0.001\"} 2\nx_bucket{a=\"b\",le=\"0.005\"} 3\n\
             x_bucket{a=\"b\",le=\"2.5\"} 4\nx_bucket{a=\"b\",le=\"+Inf\"} 5\n\
             x_sum{a=\"b\"} 11.502001\nx_count{a=\"b\"} 5\n"
        );
    }

    #[test]
    fn test_each_bucket_shows_its_latest_trace_where_exemplars_are_wanted() {
        let histogram = Histogram::seconds(&[1_000, 5_000]);
        for (value, trace) in [(500, Some(1)), (700, Some(2)), (800, None), (9_000, Some(3))] {
            histogram.observe_of(value, trace.map(TraceId));
        }
        let (mut plain, mut with) = (String::new(), String::new());
        histogram.render(&mut plain, "x", "a=\"b\"", false);
        histogram.render(&mut with, "x", "a=\"b\"", true);
        let lines: Vec<&str> = with.lines().collect();
        let of = |trace: u128, value: &str| format!(" # {{trace_id=\"{trace:032x}\"}} {value} ");
        assert!(
            lines[0].starts_with(&format!("x_bucket{{a=\"b\",le=\"0.001\"}} 3{}", of(2, "0.0007")))
        );
        assert_eq!(lines[1], "x_bucket{a=\"b\",le=\"0.005\"} 3");
        assert!(lines[2].contains(&of(3, "0.009")), "{with}");
        let without: Vec<&str> =
            lines.iter().map(|line| line.split(" # ").next().unwrap()).collect();
        assert_eq!(without, plain.lines().collect::<Vec<_>>());
    }
}
