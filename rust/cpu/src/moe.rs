//! Mixture of experts: routes each row, groups rows by expert, runs the products of all experts at
//! once, and adds the results in the order in which a row ranked its experts.

use ingle_model::{ModelSpec, MoeSpec};

use crate::buffers::{Buffers, MoeBuffers};
use crate::elementwise::{exp_and_sum, maximum};
use crate::gemm::{Item, Product, multiply};
use crate::matrix::PackedMatrix;
use crate::pool::Pool;
use crate::vector_path::VectorPath;
use crate::weights::Network;

/// The experts of one layer.
pub(crate) struct Mixture<'a> {
    pub(crate) spec: &'a MoeSpec,
    pub(crate) router: &'a PackedMatrix,
    pub(crate) experts: &'a [Network],
    pub(crate) model: &'a ModelSpec,
}

/// One row's visit to one expert.
#[derive(Clone, Copy, Debug, Default)]
struct Visit {
    expert: usize,
    weight: f32,
    /// Row of the grouped buffers.
    place: usize,
}

impl Mixture<'_> {
    /// From `normed` to `projected`.
    pub(crate) fn run(
        &self,
        pool: &mut Pool,
        path: VectorPath,
        rows: usize,
        buffers: &mut Buffers,
    ) {
        let Buffers { normed, projected, moe, .. } = buffers;
        let moe = moe.as_mut().unwrap_or_else(|| unreachable!("buffers follow the spec"));
        let MoeBuffers { router, input, gated: hidden, output } = moe;
        let item = Item { rows: 0..rows, product: Product::Plain(self.router), out_col: 0 };
        multiply(pool, path, normed, &[item], router);
        let mut visits = Vec::with_capacity(rows * self.spec.experts_per_token as usize);
        for row in 0..rows {
            self.route(path, router.row_mut(row, self.experts.len()), &mut visits);
        }
        let starts = self.place(&mut visits);
        let width = self.model.hidden_size as usize;
        let per_row = self.spec.experts_per_token as usize;
        for (index, visit) in visits.iter().enumerate() {
            input.row_mut(visit.place, width).copy_from_slice(normed.row(index / per_row, width));
        }
        let used = || {
            let ranges = starts.windows(2).map(|range| range[0]..range[1]);
            self.experts.iter().zip(ranges).filter(|(_, rows)| !rows.is_empty())
        };
        let first: Vec<Item<'_>> = used()
            .map(|(expert, rows)| Item {
                rows,
                product: Product::Gated(expert.gated(self.model.activation)),
                out_col: 0,
            })
            .collect();
        multiply(pool, path, input, &first, hidden);
        let second: Vec<Item<'_>> = used()
            .map(|(expert, rows)| Item { rows, product: Product::Plain(&expert.down), out_col: 0 })
            .collect();
        multiply(pool, path, hidden, &second, output);
        let target = projected.shared();
        pool.for_rows(rows, &|row| {
            // SAFETY: one call a row.
            let sum = unsafe { target.row_part(row, 0, width) };
            sum.fill(0.0);
            for visit in &visits[row * per_row..][..per_row] {
                for (sum, value) in sum.iter_mut().zip(output.row(visit.place, width)) {
                    *sum += visit.weight * value;
                }
            }
        });
    }

    /// Appends a row's experts, best first; equal scores by lowest expert.
    fn route(&self, path: VectorPath, scores: &mut [f32], visits: &mut Vec<Visit>) {
        let max = maximum(path, scores);
        let sum = exp_and_sum(path, scores, max);
        let first = visits.len();
        for _ in 0..self.spec.experts_per_token {
            let mut best = 0;
            for (expert, score) in scores.iter().enumerate() {
                // A NaN never wins, so a broken row takes the first experts; its logits show it.
                if *score > scores[best] || scores[best].is_nan() {
                    best = expert;
                }
            }
            visits.push(Visit { expert: best, weight: scores[best] / sum, place: 0 });
            scores[best] = -1.0;
        }
        if self.spec.normalise_top_k {
            let total: f32 = visits[first..].iter().map(|visit| visit.weight).sum();
            visits[first..].iter_mut().for_each(|visit| visit.weight /= total);
        }
    }

    /// Gives each visit its row in the grouped buffers; returns where each expert's rows start.
    fn place(&self, visits: &mut [Visit]) -> Vec<usize> {
        let mut starts = vec![0; self.experts.len() + 1];
        for visit in &*visits {
            starts[visit.expert + 1] += 1;
        }
        for expert in 0..self.experts.len() {
            starts[expert + 1] += starts[expert];
        }
        let mut next = starts.clone();
        for visit in visits {
            visit.place = next[visit.expert];
            next[visit.expert] += 1;
        }
        starts
    }
}
