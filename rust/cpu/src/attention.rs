//! Attention of a step's queries to the keys in the blocks, for prefill and decode.
//!
//! A task is up to `TILE_ROWS` (token, query head) pairs that share a KV head. A score is one chain
//! of operations over the head's elements. Weights are summed in 16 lanes by absolute position,
//! values in one chain by rising position. So the result does not depend on the other rows, on how
//! the prompt was chunked, or on the block size. Keys that a row must not see get weight zero, or
//! are not read.

mod latent;

use std::ops::Range;

use ingle_core::{BlockId, StateCopy};
use ingle_model::KvPlace;

use crate::elementwise::{exp_and_sum, maximum, soft_cap, sum_of_exp_less};
use crate::gemm::{Columns, add_product};
use crate::kv_cache::{KvCache, KvSizes, Stored};
use crate::panel::{PANEL, TILE_ROWS};
use crate::pool::Pool;
use crate::rows::{Rows, Shared};
use crate::scratch::Scratch;
use crate::vector_path::VectorPath;

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    /// First row of the step.
    pub(crate) first_row: usize,
    /// Rows.
    pub(crate) num_tokens: usize,
    /// Position of the first.
    pub(crate) start: usize,
    /// Block tables of the sequence, one a KV group. What a window has passed must only exist.
    pub(crate) tables: &'a [Vec<BlockId>],
    /// Number of the slot that the layers' states are kept in.
    pub(crate) slot: usize,
    /// Copies to be made of them.
    pub(crate) saves: &'a [StateCopy],
}

/// What one layer's attention needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention<'a> {
    pub(crate) path: VectorPath,
    /// The layer's KV group and its place in it.
    pub(crate) place: KvPlace,
    pub(crate) sizes: KvSizes,
    pub(crate) kv: &'a KvCache,
    pub(crate) spans: &'a [Span<'a>],
    pub(crate) num_kv_heads: usize,
    /// Query heads of a KV head.
    pub(crate) group: usize,
    /// Whether a token sees only what comes before it; if not, a span is a whole sequence.
    pub(crate) causal: bool,
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) window: Option<usize>,
    /// Windows do not move: they begin at multiples of their length.
    pub(crate) chunks: bool,
    /// A logit each query head, without a value.
    pub(crate) sinks: Option<&'a [f32]>,
}

/// A span and some of its (token, head of the group) pairs, token-major.
type Task<'a> = (Span<'a>, Range<usize>);

impl Attention<'_> {
    /// Queries are in the first columns of `queries`, head by head; results are in `out` in the
    /// same layout.
    pub(crate) fn run(&self, pool: &mut Pool, queries: &Rows, out: &mut Rows) {
        let mut tasks: Vec<Task<'_>> = Vec::new();
        // Pairs together read the keys once; where there would be work for half of the threads at most,
        // each pair is a task of its own.
        let few = |span: &Span<'_>| (span.num_tokens * self.group).div_ceil(TILE_ROWS);
        let num_tasks = self.spans.iter().map(few).sum::<usize>() * self.num_kv_heads;
        let size = if 2 * num_tasks <= pool.num_threads() { 1 } else { TILE_ROWS };
        for span in self.spans {
            let pairs = span.num_tokens * self.group;
            for start in (0..pairs).step_by(size) {
                tasks.push((*span, start..(start + size).min(pairs)));
            }
        }
        let out = out.shared();
        pool.run(tasks.len() * self.num_kv_heads, &|task, scratch| {
            let (span, pairs) = &tasks[task / self.num_kv_heads];
            self.attend(span, pairs.clone(), task % self.num_kv_heads, queries, (&out, scratch));
        });
    }

    /// Positions that a pair sees.
    fn visible(&self, span: &Span<'_>, pair: usize) -> Range<usize> {
        let end = match self.causal {
            true => span.start + pair / self.group + 1,
            false => span.start + span.num_tokens,
        };
        let start = match self.window {
            None => 0,
            Some(chunk) if self.chunks => (end - 1) / chunk * chunk,
            Some(window) => end.saturating_sub(window),
        };
        start..end
    }

    /// The query head of a pair.
    fn head(&self, pair: usize, kv_head: usize) -> usize {
        kv_head * self.group + pair % self.group
    }

    fn column(&self, pair: usize, kv_head: usize) -> usize {
        self.head(pair, kv_head) * self.sizes.head_dim
    }

    fn attend(
        &self,
        span: &Span<'_>,
        pairs: Range<usize>,
        kv_head: usize,
        queries: &Rows,
        (out, scratch): (&Shared<'_>, &mut Scratch),
    ) {
        let head_dim = self.sizes.head_dim;
        for (pair, query) in pairs.clone().zip(scratch.query.chunks_mut(head_dim)) {
            let row = queries.data()[(span.first_row + pair / self.group) * queries.stride()..]
                [self.column(pair, kv_head)..]
                .iter();
            for (to, from) in query.iter_mut().zip(row) {
                *to = from * self.scale;
            }
        }
        let keys = self.visible(span, pairs.start).start..self.visible(span, pairs.end - 1).end;
        let base = keys.start / PANEL * PANEL;
        self.scores(span, kv_head, pairs.len(), base..keys.end, scratch);
        let mut inverse = [0.0; TILE_ROWS];
        let stride = scratch.score_stride;
        for (index, pair) in pairs.clone().enumerate() {
            let row = &mut scratch.scores[index * stride..][..keys.end - base];
            let visible = self.visible(span, pair);
            let sink = self.sinks.map(|sinks| sinks[self.head(pair, kv_head)]);
            inverse[index] = self.weights(row, visible.start - base..visible.end - base, sink);
        }
        for column in (0..head_dim).step_by(PANEL) {
            self.values(span, kv_head, (keys.clone(), base), (pairs.len(), column), scratch);
            let width = PANEL.min(head_dim - column);
            for (index, pair) in pairs.clone().enumerate() {
                let row = span.first_row + pair / self.group;
                // SAFETY: a task alone has this head of this row, and a head's columns are its own.
                let target =
                    unsafe { out.row_part(row, self.column(pair, kv_head) + column, width) };
                for (to, from) in target.iter_mut().zip(&scratch.out[index * PANEL..]) {
                    *to = from * inverse[index];
                }
            }
        }
    }

    /// Scores of all rows against `keys`, whose start is a multiple of 32.
    fn scores(
        &self,
        span: &Span<'_>,
        kv_head: usize,
        rows: usize,
        keys: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let sizes = self.sizes;
        let (block_size, head_dim) = (sizes.block_size, sizes.head_dim);
        let head = |position: usize| {
            let block = span.tables[self.place.group][position / block_size];
            self.kv.head(&sizes, self.place.index, block, kv_head).0
        };
        for tile in keys.clone().step_by(PANEL) {
            let columns = match head(tile) {
                Stored::F32(stored) if block_size.is_multiple_of(16) => {
                    let first = &stored[tile % block_size..];
                    let next = tile + 16;
                    let second = match (next < keys.end).then(|| head(next)) {
                        Some(Stored::F32(stored)) => &stored[next % block_size..],
                        _ => first,
                    };
                    Columns { first, second, stride: block_size }
                }
                _ => {
                    let mut position = tile;
                    let end = (tile + PANEL).min(keys.end);
                    while position < end {
                        let (at, offset) = (position - tile, position % block_size);
                        let len = (block_size - offset).min(end - position);
                        let stored = head(position);
                        let rows = scratch.keys.chunks_exact_mut(PANEL).take(head_dim);
                        for (element, row) in rows.enumerate() {
                            stored.copy(element * block_size + offset, &mut row[at..][..len]);
                        }
                        position += len;
                    }
                    Columns::panel(&scratch.keys)
                }
            };
            let out = &mut scratch.out[..rows * PANEL];
            out.fill(0.0);
            add_product(self.path, (&scratch.query, head_dim), columns, head_dim, out);
            for (row, values) in out.as_chunks::<PANEL>().0.iter().enumerate() {
                let at = row * scratch.score_stride + tile - keys.start;
                if let Some(target) = scratch.scores[at..].first_chunk_mut::<PANEL>() {
                    *target = *values;
                }
            }
        }
    }

    /// Turns a row's scores into weights, zero outside `visible`; returns one over their sum, to which the
    /// sink adds its weight.
    fn weights(&self, row: &mut [f32], visible: Range<usize>, sink: Option<f32>) -> f32 {
        if let Some(cap) = self.soft_cap {
            soft_cap(self.path, &mut row[visible.clone()], cap);
        }
        let mut max = maximum(self.path, &row[visible.clone()]);
        if let Some(sink) = sink.filter(|sink| *sink > max) {
            max = sink;
        }
        row[..visible.start].fill(f32::NEG_INFINITY);
        let sum = exp_and_sum(self.path, &mut row[..visible.end], max);
        row[visible.end..].fill(0.0);
        let sink = sink.map_or(0.0, |sink| sum_of_exp_less(self.path, &[sink], max));
        1.0 / (sum + sink)
    }

    /// `scratch.out[rows][32]` = weights times 32 columns of the values at `keys`; the first weight of
    /// a row belongs to position `base`.
    fn values(
        &self,
        span: &Span<'_>,
        kv_head: usize,
        (keys, base): (Range<usize>, usize),
        (rows, column): (usize, usize),
        scratch: &mut Scratch,
    ) {
        let sizes = self.sizes;
        let out = &mut scratch.out[..rows * PANEL];
        out.fill(0.0);
        let mut position = keys.start;
        while position < keys.end {
            let at = position / sizes.block_size;
            let mut end = ((at + 1) * sizes.block_size).min(keys.end);
            let block = span.tables[self.place.group][at];
            let (_, values) = self.kv.head(&sizes, self.place.index, block, kv_head);
            let first_row = position % sizes.block_size;
            let columns = match values {
                Stored::F32(values) => {
                    let first = &values[first_row * sizes.value_stride + column..];
                    Columns { first, second: &first[16..], stride: sizes.value_stride }
                }
                Stored::E4m3(..) => {
                    end = end.min(position + scratch.values.len() / PANEL);
                    let rows = scratch.values.chunks_exact_mut(PANEL).take(end - position);
                    for (row, to) in (first_row..).zip(rows) {
                        values.copy(row * sizes.value_stride + column, to);
                    }
                    Columns::panel(&scratch.values)
                }
            };
            let weights = (&scratch.scores[position - base..], scratch.score_stride);
            add_product(self.path, weights, columns, end - position, out);
            position = end;
        }
    }
}

#[cfg(test)]
mod tests;
