//! The smallest fleet that meets an objective.

use super::requests::{Outcome, Served};

/// A service level objective.
#[derive(Clone, Debug)]
pub(super) struct Slo {
    pub(super) ttft_us: Option<f64>,
    pub(super) tpot_us: Option<f64>,
    /// The share of requests that must be within both.
    pub(super) attainment: f64,
}

impl Slo {
    /// The share of requests within the objective.
    pub(super) fn attained(&self, outcome: &Outcome) -> f64 {
        let is_within = |each: &&Served| {
            self.ttft_us.is_none_or(|most| each.ttft_us <= most)
                && self.tpot_us.is_none_or(|most| each.tpot_us <= most)
        };
        let num_within = outcome.served.iter().filter(is_within).count();
        num_within as f64 / outcome.served.len().max(1) as f64
    }
}

/// The fewest workers whose outcome meets the objective: doubles, then halves the gap. More workers are
/// taken to be no worse. `None` if even as many workers as requests fail it.
pub(super) fn fewest(slo: &Slo, run: impl Fn(usize) -> Outcome) -> Option<(usize, Outcome)> {
    let is_met = |outcome: &Outcome| slo.attained(outcome) >= slo.attainment;
    let (mut below, mut size) = (0, 1);
    let mut found = loop {
        let outcome = run(size);
        if is_met(&outcome) {
            break outcome;
        }
        if size >= outcome.served.len() {
            return None;
        }
        below = size;
        size *= 2;
    };
    while size - below > 1 {
        let middle = usize::midpoint(below, size);
        let outcome = run(middle);
        if is_met(&outcome) {
            (size, found) = (middle, outcome);
        } else {
            below = middle;
        }
    }
    Some((size, found))
}
