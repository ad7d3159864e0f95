//! Latent attention: all query heads read one key of each token, whose first numbers are its value.
//!
//! A task is up to 32 (token, query head) pairs. Keys are rows of the product, as they are stored, and queries its
//! columns, so that no key is moved. The chains of operations are those of plain attention.

use std::ops::Range;

use super::{Attention, Span, Task};
use crate::gemm::{Columns, add_product};
use crate::kv_cache::Stored;
use crate::panel::PANEL;
use crate::pool::Pool;
use crate::rows::{Rows, Shared};
use crate::scratch::Scratch;

/// Where queries are, and how wide results are.
#[derive(Clone, Copy)]
struct Places<'a> {
    /// Row `head * num_rows + row`.
    queries: &'a Rows,
    num_rows: usize,
    value_dim: usize,
}

impl Attention<'_> {
    /// Head h of row r has row `h * num_rows + r` of `queries` and of `out`, whose first `value_dim` columns are written.
    pub(crate) fn run_latent(
        &self,
        pool: &mut Pool,
        (queries, num_rows): (&Rows, usize),
        (out, value_dim): (&mut Rows, usize),
    ) {
        let places = Places { queries, num_rows, value_dim };
        let pairs = |span: &Span<'_>| span.num_tokens * self.group;
        let all: usize = self.spans.iter().map(pairs).sum();
        // Pairs together read the keys once, but every thread should have some.
        let mut size = PANEL;
        while size > LEAST_PAIRS && all.div_ceil(size) < pool.num_threads() {
            size /= 2;
        }
        let mut tasks: Vec<Task<'_>> = Vec::new();
        for span in self.spans {
            let pairs = pairs(span);
            let ranges = (0..pairs).step_by(size).map(|start| start..(start + size).min(pairs));
            tasks.extend(ranges.map(|pairs| (*span, pairs)));
        }
        let out = out.shared();
        pool.run(tasks.len(), &|task, scratch| {
            let (span, pairs) = &tasks[task];
            self.attend_latent(span, pairs.clone(), places, (&out, scratch));
        });
    }

    fn attend_latent(
        &self,
        span: &Span<'_>,
        pairs: Range<usize>,
        places: Places<'_>,
        (out, scratch): (&Shared<'_>, &mut Scratch),
    ) {
        let head_dim = self.sizes.head_dim;
        let row_of = |pair: usize| {
            (pair % self.group) * places.num_rows + span.first_row + pair / self.group
        };
        let panel = &mut scratch.query[..head_dim * PANEL];
        panel.fill(0.0);
        for (lane, pair) in pairs.clone().enumerate() {
            let query = places.queries.row(row_of(pair), head_dim);
            for (to, from) in panel[lane..].iter_mut().step_by(PANEL).zip(query) {
                *to = from * self.scale;
            }
        }
        let end = self.visible(span, pairs.end - 1).end;
        self.latent_scores(span, pairs.len(), end, scratch);
        let mut inverse = [0.0; PANEL];
        let stride = scratch.score_stride;
        for (index, pair) in pairs.clone().enumerate() {
            let row = &mut scratch.scores[index * stride..][..end];
            inverse[index] = self.weights(row, self.visible(span, pair), None);
        }
        for column in (0..places.value_dim).step_by(PANEL) {
            self.values(span, 0, (0..end, 0), (pairs.len(), column), scratch);
            let width = PANEL.min(places.value_dim - column);
            for (index, pair) in pairs.clone().enumerate() {
                // SAFETY: a task alone has this head of this row.
                let target = unsafe { out.row_part(row_of(pair), column, width) };
                for (to, from) in target.iter_mut().zip(&scratch.out[index * PANEL..]) {
                    *to = from * inverse[index];
                }
            }
        }
    }

    /// Scores of the first `pairs` columns of `scratch.query` against the keys before `end`.
    fn latent_scores(&self, span: &Span<'_>, pairs: usize, end: usize, scratch: &mut Scratch) {
        let sizes = self.sizes;
        let (block_size, head_dim) = (sizes.block_size, sizes.head_dim);
        let Scratch { query, keys, out, scores, score_stride, .. } = scratch;
        let mut position = 0;
        while position < end {
            let offset = position % block_size;
            let len = (block_size - offset).min(end - position).min(PANEL);
            let block = span.tables[self.place.group][position / block_size];
            let (_, stored) = self.kv.head(&sizes, self.place.index, block, 0);
            let rows = match stored {
                Stored::F32(stored) => (&stored[offset * sizes.value_stride..], sizes.value_stride),
                Stored::E4m3(..) => {
                    for (row, to) in keys.chunks_exact_mut(head_dim).take(len).enumerate() {
                        stored.copy((offset + row) * sizes.value_stride, to);
                    }
                    (&keys[..], head_dim)
                }
            };
            let out = &mut out[..len * PANEL];
            out.fill(0.0);
            add_product(self.path, rows, Columns::panel(query), head_dim, out);
            for (at, of_key) in out.as_chunks::<PANEL>().0.iter().enumerate() {
                let column = scores[position + at..].iter_mut().step_by(*score_stride);
                column.zip(&of_key[..pairs]).for_each(|(to, score)| *to = *score);
            }
            position += len;
        }
    }
}

/// Pairs of a task where there are more threads than work.
const LEAST_PAIRS: usize = 4;

#[cfg(test)]
mod tests;
