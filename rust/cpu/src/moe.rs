//! Mixture of experts: routes each row, groups rows by expert, runs the products of all experts at
//! once, and adds the results in the order in which a row ranked its experts.

use ingle_model::{ExpertGroups, GroupScore, ModelSpec, RouterScores};

use crate::buffers::{Buffers, MoeBuffers};
use crate::elementwise::{add_assign, exp_and_sum, maximum, rms_norm, rms_norm_in_place, sigmoid};
use crate::gemm::{Item, Product, multiply};
use crate::pool::Pool;
use crate::rows::Rows;
use crate::vector_path::VectorPath;
use crate::weights::{Experts, Network};

/// The experts of one layer.
pub(crate) struct Mixture<'a> {
    pub(crate) experts: &'a Experts,
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
        let Experts { spec, experts, first: first_expert, shared, shared_score, own_norms, .. } =
            self.experts;
        let own = *first_expert..first_expert + experts.len();
        self.score(pool, path, rows, buffers);
        let Buffers { normed, projected, gated, moe, .. } = buffers;
        let moe = moe.as_mut().unwrap_or_else(|| unreachable!("buffers follow the spec"));
        let MoeBuffers { router, input, gated: hidden, output } = moe;
        let (width, eps) = (self.model.hidden_size as usize, self.model.norm.eps);
        let per_row = spec.experts_per_token as usize;
        let (mut visits, starts) = self.visits(path, rows, router);
        let is_own = |visit: &Visit| own.contains(&visit.expert);
        for (index, visit) in visits.iter_mut().enumerate().filter(|(_, visit)| is_own(visit)) {
            self.take_input(visit, normed.row(index / per_row, width), input);
        }
        let used = || {
            let ranges = starts.windows(2).map(|range| range[0]..range[1]);
            experts.iter().zip(ranges).filter(|(_, rows)| !rows.is_empty())
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
        if let Some(shared) = shared.as_ref().filter(|_| own_norms.is_none()) {
            self.run_shared(pool, path, (shared, rows), (normed, gated, projected));
        }
        if let Some(score) = shared_score {
            // Rows have been routed: their scores are not read again.
            let item = Item { rows: 0..rows, product: Product::Plain(score), out_col: 0 };
            multiply(pool, path, normed, &[item], router);
        }
        let (target, spare, router) = (projected.shared(), normed.shared(), &*router);
        pool.for_rows(rows, &|row| {
            // SAFETY: one call a row; the two buffers are different ones.
            let (target, spare) =
                unsafe { (target.row_part(row, 0, width), spare.row_part(row, 0, width)) };
            // With a norm of their own, experts have a sum of their own.
            let (sum, of_shared) = match own_norms {
                Some(_) => (spare, Some(target)),
                None => (target, None),
            };
            if shared.is_none() || own_norms.is_some() {
                sum.fill(0.0);
            }
            if shared_score.is_some() {
                let weight = 1.0 / (1.0 + (-router.row(row, 1)[0]).exp());
                sum.iter_mut().for_each(|s| *s *= weight);
            }
            for visit in visits[row * per_row..][..per_row].iter().filter(|visit| is_own(visit)) {
                let values = output.row(visit.place, width);
                match &experts[visit.expert - first_expert].down_bias {
                    None => sum.iter_mut().zip(values).for_each(|(s, v)| *s += visit.weight * v),
                    Some(bias) => {
                        for ((sum, value), bias) in sum.iter_mut().zip(values).zip(bias) {
                            *sum += visit.weight * (value + bias);
                        }
                    }
                }
            }
            if let (Some(norms), Some(of_shared)) = (own_norms, of_shared) {
                rms_norm_in_place(path, sum, &norms.output, eps);
                add_assign(path, of_shared, sum);
            }
        });
    }

    /// What a visit's expert gets of a row.
    fn take_input(&self, visit: &mut Visit, row: &[f32], input: &mut Rows) {
        let input = input.row_mut(visit.place, row.len());
        input.copy_from_slice(row);
        if self.experts.spec.scales_input {
            let weight = std::mem::replace(&mut visit.weight, 1.0);
            input.iter_mut().for_each(|x| *x *= weight);
        }
    }

    /// Each row's visits, and where each expert's rows start in the grouped buffers.
    fn visits(&self, path: VectorPath, rows: usize, router: &mut Rows) -> (Vec<Visit>, Vec<usize>) {
        let spec = &self.experts.spec;
        let mut visits = Vec::with_capacity(rows * spec.experts_per_token as usize);
        for row in 0..rows {
            self.route(path, router.row_mut(row, spec.num_experts as usize), &mut visits);
        }
        let starts = self.place(&mut visits);
        (visits, starts)
    }

    /// The router's logits of all rows. With norms of their own, experts find what they see in `normed`, and the
    /// shared network has run.
    fn score(&self, pool: &mut Pool, path: VectorPath, rows: usize, buffers: &mut Buffers) {
        let Experts { shared, own_norms, .. } = self.experts;
        let Buffers { residual, normed, projected, gated, moe, .. } = buffers;
        let moe = moe.as_mut().unwrap_or_else(|| unreachable!("buffers follow the spec"));
        let (width, eps) = (self.model.hidden_size as usize, self.model.norm.eps);
        if let (Some(shared), Some(norms)) = (shared, own_norms) {
            self.run_shared(pool, path, (shared, rows), (normed, gated, projected));
            let projected = projected.shared();
            pool.for_rows(rows, &|row| {
                // SAFETY: one call a row.
                let x = unsafe { projected.row_part(row, 0, width) };
                rms_norm_in_place(path, x, &norms.shared, eps);
            });
            renorm(pool, path, (residual, normed), (&norms.router, eps), (rows, width));
        }
        let item =
            Item { rows: 0..rows, product: Product::Plain(&self.experts.router), out_col: 0 };
        multiply(pool, path, normed, &[item], &mut moe.router);
        if let Some(norms) = own_norms {
            renorm(pool, path, (residual, normed), (&norms.input, eps), (rows, width));
        }
    }

    /// The network that all rows visit, from `normed` to `projected`.
    fn run_shared(
        &self,
        pool: &mut Pool,
        path: VectorPath,
        (network, rows): (&Network, usize),
        (normed, gated, projected): (&mut Rows, &mut Rows, &mut Rows),
    ) {
        let product = Product::Gated(network.gated(self.model.activation));
        multiply(pool, path, normed, &[Item { rows: 0..rows, product, out_col: 0 }], gated);
        let product = Product::Plain(&network.down);
        multiply(pool, path, gated, &[Item { rows: 0..rows, product, out_col: 0 }], projected);
    }

    /// Appends a row's experts, best first; equal scores by lowest expert.
    fn route(&self, path: VectorPath, scores: &mut [f32], visits: &mut Vec<Visit>) {
        let Experts { spec, router_bias, correction, own_norms, .. } = self.experts;
        if let Some(bias) = router_bias {
            add_assign(path, scores, bias);
        }
        let sum = match spec.router.scores {
            RouterScores::Softmax => {
                let max = maximum(path, scores);
                exp_and_sum(path, scores, max)
            }
            RouterScores::Sigmoid => {
                sigmoid(path, scores);
                1.0
            }
            // Large logits have the same sigmoid: they themselves decide.
            RouterScores::SigmoidOfChosen => 1.0,
        };
        let rank = |expert: usize, scores: &[f32]| {
            scores[expert] + correction.as_ref().map_or(0.0, |correction| correction[expert])
        };
        let first = visits.len();
        if let Some(groups) = spec.router.groups {
            leave_groups(groups, scores, rank);
        }
        for _ in 0..spec.experts_per_token {
            let (mut best, mut highest) = (0, rank(0, scores));
            for expert in 1..scores.len() {
                let rank = rank(expert, scores);
                // A NaN never wins, so a broken row takes the first experts; its logits show it.
                if rank > highest || highest.is_nan() {
                    (best, highest) = (expert, rank);
                }
            }
            let weight = match spec.router.scores {
                RouterScores::SigmoidOfChosen => 1.0 / (1.0 + (-scores[best]).exp()),
                RouterScores::Softmax | RouterScores::Sigmoid => scores[best] / sum,
            };
            visits.push(Visit { expert: best, weight, place: 0 });
            scores[best] = f32::NEG_INFINITY;
        }
        let visits = &mut visits[first..];
        if spec.router.normalise_top_k {
            let total: f32 = visits.iter().map(|visit| visit.weight).sum();
            visits.iter_mut().for_each(|visit| visit.weight /= total);
        }
        if spec.router.scale != 1.0 {
            visits.iter_mut().for_each(|visit| visit.weight *= spec.router.scale);
        }
        if let Some(norms) = own_norms {
            visits.iter_mut().for_each(|visit| visit.weight *= norms.scales[visit.expert]);
        }
    }

    /// Gives each visit of an own expert its row in the grouped buffers; returns where each expert's rows start.
    fn place(&self, visits: &mut [Visit]) -> Vec<usize> {
        let Experts { experts, first, .. } = self.experts;
        let own = |visit: &Visit| visit.expert.checked_sub(*first).filter(|at| *at < experts.len());
        let mut starts = vec![0; experts.len() + 1];
        for expert in visits.iter().filter_map(own) {
            starts[expert + 1] += 1;
        }
        for expert in 0..experts.len() {
            starts[expert + 1] += starts[expert];
        }
        let mut next = starts.clone();
        for visit in visits {
            if let Some(expert) = own(visit) {
                visit.place = next[expert];
                next[expert] += 1;
            }
        }
        starts
    }
}

/// Takes the experts of all but the best groups out of the choice. A NaN never makes a group better.
fn leave_groups(groups: ExpertGroups, scores: &mut [f32], rank: impl Fn(usize, &[f32]) -> f32) {
    let size = scores.len() / groups.num_groups as usize;
    let of_group = |group: usize| {
        let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for rank in (group * size..(group + 1) * size).map(|expert| rank(expert, scores)) {
            if rank > best {
                (best, second) = (rank, best);
            } else if rank > second {
                second = rank;
            }
        }
        match groups.score {
            GroupScore::Best => best,
            GroupScore::BestTwo => best + second,
        }
    };
    let ranks: Vec<f32> = (0..groups.num_groups as usize).map(of_group).collect();
    for group in 0..ranks.len() {
        let better = |other: &usize| {
            ranks[*other] > ranks[group] || ranks[*other] == ranks[group] && *other < group
        };
        if (0..ranks.len()).filter(better).count() >= groups.chosen as usize {
            scores[group * size..][..size].fill(f32::NEG_INFINITY);
        }
    }
}

/// Another norm of the residual stream.
fn renorm(
    pool: &mut Pool,
    path: VectorPath,
    (residual, normed): (&Rows, &mut Rows),
    (norm, eps): (&[f32], f32),
    (rows, width): (usize, usize),
) {
    let normed = normed.shared();
    pool.for_rows(rows, &|row| {
        // SAFETY: one call a row.
        let out = unsafe { normed.row_part(row, 0, width) };
        rms_norm(path, residual.row(row, width), norm, eps, out);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Experts that are left in the choice.
    fn left(groups: ExpertGroups, scores: &[f32]) -> Vec<usize> {
        let mut scores = scores.to_vec();
        leave_groups(groups, &mut scores, |expert, scores| scores[expert]);
        (0..scores.len()).filter(|expert| scores[*expert] != f32::NEG_INFINITY).collect()
    }

    #[test]
    fn test_groups_are_judged_by_their_best_experts_and_ties_go_to_the_lowest() {
        let best = ExpertGroups { num_groups: 3, chosen: 1, score: GroupScore::Best };
        let two = ExpertGroups { score: GroupScore::BestTwo, ..best };
        let scores = [0.9, 0.0, 0.1, 0.6, 0.5, 0.4, 0.2, 0.7, 0.7];
        assert_eq!(left(best, &scores), [0, 1, 2]);
        assert_eq!(left(two, &scores), [6, 7, 8]);
        assert_eq!(left(ExpertGroups { chosen: 2, ..two }, &scores), [3, 4, 5, 6, 7, 8]);
        let even = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5];
        assert_eq!(left(ExpertGroups { chosen: 2, ..two }, &even), [0, 1, 2, 3, 4, 5]);
        // A correction may be far below 0.
        let low = [-5.0, -9.0, -9.0, -6.0, -6.0, -9.0, -7.0, -7.0, -7.0];
        assert_eq!(left(best, &low), [0, 1, 2]);
        assert_eq!(left(two, &low), [3, 4, 5]);
    }

    #[test]
    fn test_a_broken_row_still_has_a_choice() {
        let groups = ExpertGroups { num_groups: 2, chosen: 1, score: GroupScore::BestTwo };
        assert_eq!(left(groups, &[f32::NAN; 4]), [0, 1]);
    }
}
