//! Top-k and top-p without sorting the vocabulary.

use crate::elementwise::{maximum, sum_of_exp};
use crate::vector_path::VectorPath;

/// An id that may still be sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) x: f32,
    pub(crate) id: u32,
}

impl Candidate {
    /// Best first: x falling, id rising. No x is NaN here.
    pub(crate) fn order(&self, other: &Self) -> std::cmp::Ordering {
        other.x.total_cmp(&self.x).then(self.id.cmp(&other.id))
    }
}

/// Fills `out` with the k best ids that are not removed, best first.
pub(crate) fn top_k(path: VectorPath, k: usize, values: &[f32], out: &mut Vec<Candidate>) {
    // The k-th best of the chunks' maxima is a lower bound for the k-th best of all.
    let mut maxima: Vec<f32> = values.chunks(CHUNK).map(|chunk| maximum(path, chunk)).collect();
    let floor = if maxima.len() > k {
        *maxima.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
    } else {
        f32::NEG_INFINITY
    };
    collect(path, values, floor, out);
    if out.len() > k {
        out.select_nth_unstable_by(k - 1, Candidate::order);
        out.truncate(k);
    }
    out.sort_unstable_by(Candidate::order);
}

/// Keeps the shortest prefix that holds `top_p` of the probability. `out` is sorted if top-k has filled
/// it, else it is filled from `values`, whose maximum is 0.
pub(crate) fn top_p(
    path: VectorPath,
    top_p: f32,
    values: &[f32],
    filled: bool,
    out: &mut Vec<Candidate>,
) {
    let sum = |list: &[Candidate]| list.iter().map(|c| f64::from(c.x).exp()).sum::<f64>();
    let wanted;
    if filled {
        wanted = f64::from(top_p) * sum(out);
    } else {
        wanted = f64::from(top_p) * f64::from(sum_of_exp(path, values));
        // Most rows find their prefix among few ids: widen the net until it holds enough.
        for floor in [-4.0, -8.0, -16.0, -32.0, f32::NEG_INFINITY] {
            out.clear();
            collect(path, values, floor, out);
            if sum(out) >= wanted {
                break;
            }
        }
        out.sort_unstable_by(Candidate::order);
    }
    let mut reached = 0.0;
    let mut keep = 0;
    while keep < out.len() && (keep == 0 || reached < wanted) {
        reached += f64::from(out[keep].x).exp();
        keep += 1;
    }
    out.truncate(keep);
}

/// Appends every id that is not removed and has `x >= floor`.
fn collect(path: VectorPath, values: &[f32], floor: f32, out: &mut Vec<Candidate>) {
    for (start, chunk) in (0u32..).step_by(CHUNK).zip(values.chunks(CHUNK)) {
        if maximum(path, chunk) < floor {
            continue;
        }
        for (id, x) in (start..).zip(chunk) {
            if *x >= floor && *x > f32::NEG_INFINITY {
                out.push(Candidate { x: *x, id });
            }
        }
    }
}

const CHUNK: usize = 64;
