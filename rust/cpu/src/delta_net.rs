//! Gated delta nets: the convolution over the last tokens of each channel, then the state of each head.
//!
//! Tokens of a sequence follow each other one by one, each by the same chain of operations. So the result
//! does not depend on the other rows or on how the prompt was chunked. The state is f32.

use ingle_core::{SlotId, StateCopy};
use ingle_model::{DeltaNetSpec, ModelSpec};

use crate::attention::Span;
use crate::buffers::DeltaColumns;
use crate::elementwise::{add_lanes, exp, gate, rms_norm_in_place};
use crate::pool::Pool;
use crate::rows::{Rows, Shared};
use crate::vector_path::{Arithmetic, VectorPath, per_path};
use crate::weights::DeltaRule;

/// What the nets of all layers keep, `[slot, then snapshot][layer]`: the inputs `[conv_kernel - 1][channels]`, oldest first,
/// then the states `[value head][key_dim][value_dim]`.
#[derive(Debug)]
pub(crate) struct States {
    data: Vec<f32>,
    /// Numbers of a slot.
    slot_len: usize,
    num_slots: usize,
    /// Where each layer's part begins.
    starts: Vec<usize>,
}

impl States {
    pub(crate) fn new(spec: &ModelSpec, num_slots: u32, num_snapshots: u32) -> Self {
        let len = |net: &DeltaNetSpec| net.state_len() as usize;
        let mut slot_len = 0;
        let mut starts = Vec::with_capacity(spec.layers.len());
        for layer in &spec.layers {
            starts.push(slot_len);
            slot_len += layer.delta_net.as_ref().map_or(0, len);
        }
        let num_slots = num_slots as usize;
        let data = vec![0.0; slot_len * (num_slots + num_snapshots as usize)];
        Self { data, slot_len, num_slots, starts }
    }

    /// A sequence that has no tokens yet takes the slot.
    pub(crate) fn reset(&mut self, slot: SlotId) {
        self.data[slot.index() * self.slot_len..][..self.slot_len].fill(0.0);
    }

    /// The slot goes on from a snapshot.
    pub(crate) fn restore(&mut self, copy: &StateCopy) {
        let from = (self.num_slots + copy.snapshot.index()) * self.slot_len;
        self.data.copy_within(from..from + self.slot_len, copy.slot.index() * self.slot_len);
    }
}

/// One layer's net in one step.
pub(crate) struct DeltaNet<'a> {
    pub(crate) path: VectorPath,
    pub(crate) net: DeltaNetSpec,
    pub(crate) rule: &'a DeltaRule,
    pub(crate) columns: DeltaColumns,
    pub(crate) spans: &'a [Span<'a>],
    pub(crate) eps: f32,
}

impl DeltaNet<'_> {
    /// From the projections in `input` to the first `value_width` columns of `out`. The convolution replaces
    /// its inputs.
    pub(crate) fn run(
        &self,
        pool: &mut Pool,
        layer: usize,
        input: &mut Rows,
        out: &mut Rows,
        states: &mut States,
    ) {
        let inputs = (self.net.conv_kernel - 1) as usize * self.net.channels() as usize;
        let (start, slot_len) = (states.starts[layer], states.slot_len);
        let num_slots = states.num_slots;
        let kept = Kept { data: Shared::new(&mut states.data), slot_len, num_slots, start };
        let parts = self.conv_parts();
        {
            let input = input.shared();
            pool.run(self.spans.len() * parts.len(), &|task, _| {
                let (span, part) = (&self.spans[task / parts.len()], parts[task % parts.len()]);
                self.convolve(span, part, &input, &kept);
            });
        }
        let input = &*input;
        let out = out.shared();
        let heads = self.net.num_value_heads as usize;
        pool.run(self.spans.len() * heads, &|task, _| {
            let (span, head) = (&self.spans[task / heads], task % heads);
            self.head(span, head, input, (&out, &kept), inputs);
        });
    }

    /// Channels that a task takes: where they begin in a row, among the channels, and how many.
    fn conv_parts(&self) -> Vec<ConvPart> {
        let (key, value) = (self.net.key_width() as usize, self.net.value_width() as usize);
        let DeltaColumns { query: q, key: k, value: v, .. } = self.columns;
        let mut parts = Vec::new();
        for (column, channel, width) in [(q, 0, key), (k, key, key), (v, 2 * key, value)] {
            for at in (0..width).step_by(CONV_CHANNELS) {
                let len = CONV_CHANNELS.min(width - at);
                parts.push(ConvPart { column: column + at, channel: channel + at, len });
            }
        }
        parts
    }

    fn convolve(&self, span: &Span<'_>, part: ConvPart, input: &Shared<'_>, states: &Kept<'_>) {
        let (channels, kernel) = (self.net.channels() as usize, self.net.conv_kernel as usize);
        let mut seen = [[0.0; CONV_CHANNELS]; MOST_KERNEL];
        let place = |tap: usize| tap * channels + part.channel;
        for (tap, seen) in seen[..kernel - 1].iter_mut().enumerate() {
            // SAFETY: a task alone has these channels of this slot, and slots of a step differ.
            seen[..part.len].copy_from_slice(unsafe { states.slot(span, place(tap), part.len) });
        }
        for row in span.first_row..span.first_row + span.num_tokens {
            // SAFETY: a task alone has these columns of this row.
            let values = unsafe { input.row_part(row, part.column, part.len) };
            seen[kernel - 1][..part.len].copy_from_slice(values);
            let weights = (&self.rule.conv[part.channel..], channels);
            convolve_token(self.path, values, &seen[..kernel], weights);
            seen[..kernel].rotate_left(1);
            for copy in states.due(span, row) {
                for (tap, seen) in seen[..kernel - 1].iter().enumerate() {
                    // SAFETY: a task alone has these channels of a snapshot that its sequence saves to.
                    let saved = unsafe { states.snapshot(copy, place(tap), part.len) };
                    saved.copy_from_slice(&seen[..part.len]);
                }
            }
        }
        for (tap, seen) in seen[..kernel - 1].iter().enumerate() {
            // SAFETY: only this task writes these channels of this slot, and slots of a step differ.
            let kept = unsafe { states.slot(span, place(tap), part.len) };
            kept.copy_from_slice(&seen[..part.len]);
        }
    }

    fn head(
        &self,
        span: &Span<'_>,
        head: usize,
        input: &Rows,
        (out, states): (&Shared<'_>, &Kept<'_>),
        inputs: usize,
    ) {
        let (key_dim, value_dim) = (self.net.key_dim as usize, self.net.value_dim as usize);
        let per_key = (self.net.num_value_heads / self.net.num_key_heads) as usize;
        let columns = &self.columns;
        let (mut query, mut key) = ([0.0; MOST_HEAD_DIM], [0.0; MOST_HEAD_DIM]);
        let (query, key) = (&mut query[..key_dim], &mut key[..key_dim]);
        let (at_head, len) = (inputs + head * key_dim * value_dim, key_dim * value_dim);
        // SAFETY: a task alone has this head of this slot, and slots of a step differ.
        let state = unsafe { states.slot(span, at_head, len) };
        for row in span.first_row..span.first_row + span.num_tokens {
            let values = input.row(row, input.stride());
            let at = head / per_key * key_dim;
            unit(self.path, &values[columns.query + at..][..key_dim], query);
            unit(self.path, &values[columns.key + at..][..key_dim], key);
            let scale = 1.0 / (key_dim as f32).sqrt();
            query.iter_mut().for_each(|x| *x *= scale);
            let value = &values[columns.value + head * value_dim..][..value_dim];
            let beta = 1.0 / (1.0 + (-values[columns.beta + head]).exp());
            let rate = self.rule.rate[head];
            let decay = softplus(values[columns.decay + head] + self.rule.bias[head]);
            let factors = ((-rate * decay).exp(), beta);
            // SAFETY: a task alone has this head's columns of this row.
            let out = unsafe { out.row_part(row, head * value_dim, value_dim) };
            advance(self.path, state, (query, key, value), factors, out);
            for copy in states.due(span, row) {
                // SAFETY: a task alone has this head of a snapshot that its sequence saves to.
                unsafe { states.snapshot(copy, at_head, len) }.copy_from_slice(state);
            }
            rms_norm_in_place(self.path, out, &self.rule.norm, self.eps);
            let gates = &values[columns.gate + head * value_dim..][..value_dim];
            gate(self.path, ingle_model::Activation::Silu, gates, out);
        }
    }
}

/// One layer's part of all slots and snapshots, while tasks write it.
struct Kept<'a> {
    data: Shared<'a>,
    slot_len: usize,
    num_slots: usize,
    /// Where the layer's part begins.
    start: usize,
}

impl Kept<'_> {
    /// `len` numbers from `at` of the layer's part of a sequence's slot.
    ///
    /// # Safety
    /// No other reference to any of them may live at the same time, on any thread.
    #[allow(clippy::mut_from_ref, reason = "disjoint parts are the point; the caller promises it")]
    unsafe fn slot(&self, span: &Span<'_>, at: usize, len: usize) -> &mut [f32] {
        // SAFETY: the caller has no other reference to these numbers of the slot; `part` checks the range.
        unsafe { self.data.part(span.slot * self.slot_len + self.start + at, len) }
    }

    /// The same of a snapshot.
    ///
    /// # Safety
    /// No other reference to any of them may live at the same time, on any thread: no two sequences of a step
    /// save to one snapshot.
    #[allow(clippy::mut_from_ref, reason = "disjoint parts are the point; the caller promises it")]
    unsafe fn snapshot(&self, copy: &StateCopy, at: usize, len: usize) -> &mut [f32] {
        let place = self.num_slots + copy.snapshot.index();
        // SAFETY: the caller has no other reference to these numbers of the snapshot; `part` checks the range.
        unsafe { self.data.part(place * self.slot_len + self.start + at, len) }
    }

    /// Copies to be made once this row of the step has been computed.
    fn due<'a>(&self, span: &Span<'a>, row: usize) -> impl Iterator<Item = &'a StateCopy> {
        let seen = span.start + (row - span.first_row) + 1;
        span.saves.iter().filter(move |copy| copy.end as usize == seen)
    }
}

/// Some channels of the convolution.
#[derive(Clone, Copy, Debug)]
struct ConvPart {
    column: usize,
    channel: usize,
    len: usize,
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

per_path! {
    /// `values = silu(sum over taps of weight * seen)`; weights of a tap begin `weights.1` after the one before.
    fn convolve_token(values: &mut [f32], seen: &[[f32; CONV_CHANNELS]], weights: (&[f32], usize)) = convolve_body
}

#[inline(always)]
fn convolve_body<A: Arithmetic>(
    values: &mut [f32],
    seen: &[[f32; CONV_CHANNELS]],
    (weights, stride): (&[f32], usize),
) {
    values.fill(0.0);
    for (tap, seen) in seen.iter().enumerate() {
        let weights = &weights[tap * stride..];
        for ((value, seen), weight) in values.iter_mut().zip(seen).zip(weights) {
            *value = A::mul_add(*seen, *weight, *value);
        }
    }
    for value in values {
        *value /= 1.0 + exp::<A>(-*value);
    }
}

per_path! {
    /// `out = x / sqrt(sum of squares + 1e-6)`
    fn unit(x: &[f32], out: &mut [f32]) = unit_body
}

#[inline(always)]
fn unit_body<A: Arithmetic>(x: &[f32], out: &mut [f32]) {
    let mut lanes = [0.0f32; 16];
    for chunk in x.chunks(16) {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = A::mul_add(*x, *x, *lane);
        }
    }
    let scale = 1.0 / (add_lanes(lanes) + 1e-6).sqrt();
    for (out, x) in out.iter_mut().zip(x) {
        *out = x * scale;
    }
}

per_path! {
    /// One token: the state `[key_dim][value_dim]` fades by the first factor, the key's value is replaced as far as
    /// the second says, and the query reads.
    fn advance(
        state: &mut [f32],
        qkv: (&[f32], &[f32], &[f32]),
        factors: (f32, f32),
        out: &mut [f32],
    ) = advance_body
}

#[inline(always)]
fn advance_body<A: Arithmetic>(
    state: &mut [f32],
    (query, key, value): (&[f32], &[f32], &[f32]),
    (decay, beta): (f32, f32),
    out: &mut [f32],
) {
    let width = value.len();
    let mut known = [0.0; MOST_HEAD_DIM];
    let known = &mut known[..width];
    for (row, k) in state.chunks_exact_mut(width).zip(key) {
        for (s, known) in row.iter_mut().zip(&mut *known) {
            *s *= decay;
            *known = A::mul_add(*s, *k, *known);
        }
    }
    for (known, value) in known.iter_mut().zip(value) {
        *known = (value - *known) * beta;
    }
    out.fill(0.0);
    for ((row, k), q) in state.chunks_exact_mut(width).zip(key).zip(query) {
        for ((s, change), out) in row.iter_mut().zip(&*known).zip(&mut *out) {
            *s = A::mul_add(*k, *change, *s);
            *out = A::mul_add(*s, *q, *out);
        }
    }
}

/// Channels of a task of the convolution.
const CONV_CHANNELS: usize = 256;
/// Longest convolution and widest head that a spec may have.
const MOST_KERNEL: usize = 16;
const MOST_HEAD_DIM: usize = 256;

#[cfg(test)]
mod tests;
