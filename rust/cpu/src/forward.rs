//! [5] One forward pass, layer by layer. Driver thread, together with the pool. Allocates nothing
//! whose size depends on the model.

mod latent;

use ingle_core::TokenId;
use ingle_model::{ModelSpec, QueryScale};

use crate::attention::{Attention, Span};
use crate::buffers::Buffers;
use crate::delta_net::{DeltaNet, States};
use crate::elementwise::{add_assign, gate, rms_norm, rms_norm_in_place, sigmoid};
use crate::gemm::{Item, Product, multiply};
use crate::kv_cache::KvCache;
use crate::moe;
use crate::pool::{INLINE_ROWS, Pool};
use crate::rope::Rope;
use crate::vector_path::VectorPath;
use crate::weights::{AttentionWeights, DeltaWeights, FeedForward, LayerWeights, Mixer, Weights};

/// One pass over the rows of a step. The ranks of a group are computed one after the other: each adds its part of
/// what the residual stream gains, in rank order.
pub(crate) struct Pass<'a> {
    /// The model as a rank computes it.
    pub(crate) spec: &'a ModelSpec,
    pub(crate) weights: &'a Weights,
    pub(crate) ropes: &'a [Rope],
    /// By row; empty if queries are not scaled.
    pub(crate) query_factors: &'a [f32],
    /// Each rank's.
    pub(crate) kv: &'a mut [KvCache],
    pub(crate) states: &'a mut States,
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) pool: &'a mut Pool,
    pub(crate) path: VectorPath,
    pub(crate) spans: &'a [Span<'a>],
    pub(crate) num_rows: usize,
}

/// What happens to `projected` on its way into the residual stream.
struct Gain<'a> {
    bias: Option<&'a [f32]>,
    post_norm: Option<&'a [f32]>,
    /// Then the residual stream is multiplied by this.
    scale: f32,
    next: Next<'a>,
}

/// What becomes of a new residual stream.
#[derive(Clone, Copy)]
enum Next<'a> {
    /// Its norm goes to `normed`.
    Norm(&'a [f32]),
    /// It goes to `normed` as it is.
    Copy,
    /// Nothing: this was the last part.
    End,
}

impl<'a> Next<'a> {
    fn part(norm: Option<&'a Vec<f32>>) -> Self {
        norm.map_or(Self::Copy, |norm| Self::Norm(norm))
    }

    fn layer(layer: Option<&'a LayerWeights>) -> Self {
        layer.map_or(Self::End, |layer| Self::part(layer.input_norm.as_ref()))
    }

    /// Writes `out` from a row of the residual stream.
    fn write(self, path: VectorPath, x: &[f32], eps: f32, out: &mut [f32]) {
        match self {
            Self::Norm(norm) => rms_norm(path, x, norm, eps, out),
            Self::Copy => out.copy_from_slice(x),
            Self::End => {}
        }
    }
}

/// Each head's query is followed by its gate: queries move together, and gates go to `gates`.
fn part_gates(both: &mut [f32], gates: &mut [f32], head_dim: usize) {
    for (head, gate) in gates.chunks_exact_mut(head_dim).enumerate() {
        let at = 2 * head * head_dim;
        gate.copy_from_slice(&both[at + head_dim..][..head_dim]);
        both.copy_within(at..at + head_dim, head * head_dim);
    }
}

impl Pass<'_> {
    /// From token ids to the residual stream after the last layer.
    pub(crate) fn run(mut self, tokens: &[TokenId]) {
        self.embed(tokens);
        for layer in 0..self.spec.layers.len() {
            self.mix(layer);
            self.feed_forward(layer);
            self.add_token_input(layer);
        }
    }

    /// Sums what all ranks project, in rank order, in `projected`.
    fn sum_of_ranks(
        &mut self,
        mut project: impl FnMut(&mut Self, usize, &LayerWeights),
        layer: usize,
    ) {
        let weights = self.weights;
        for (rank, layers) in weights.ranks.iter().enumerate() {
            if rank == 0 {
                project(self, rank, &layers[layer]);
                continue;
            }
            std::mem::swap(&mut self.buffers.projected, &mut self.buffers.partial);
            project(self, rank, &layers[layer]);
            std::mem::swap(&mut self.buffers.projected, &mut self.buffers.partial);
            self.add_partial();
        }
    }

    fn add_partial(&mut self) {
        let (hidden, path) = (self.spec.hidden_size as usize, self.path);
        let (sum, partial) = (self.buffers.projected.shared(), &self.buffers.partial);
        self.pool.for_rows(self.num_rows, &|row| {
            // SAFETY: one call a row.
            let sum = unsafe { sum.row_part(row, 0, hidden) };
            add_assign(path, sum, partial.row(row, hidden));
        });
    }

    /// From `normed` to the residual stream and the feed-forward part's `normed`.
    fn mix(&mut self, index: usize) {
        let mix = |pass: &mut Self, rank: usize, layer: &LayerWeights| match &layer.mixer {
            Mixer::Attention(attention) => pass.attention((rank, index), attention),
            Mixer::DeltaNet(net) => pass.delta_net(index, net),
            Mixer::Latent(latent) => pass.latent((rank, index), latent),
        };
        self.sum_of_ranks(mix, index);
        // What follows the sum is the same on all ranks.
        let layer = &self.weights.ranks[0][index];
        let bias = match &layer.mixer {
            Mixer::Attention(attention) => attention.output_bias.as_deref(),
            Mixer::Latent(latent) => latent.output_bias.as_deref(),
            Mixer::DeltaNet(_) => None,
        };
        self.add_to_residual(&Gain {
            bias,
            post_norm: layer.post_attention_norm.as_deref(),
            scale: 1.0,
            next: Next::part(layer.feed_forward_norm.as_ref()),
        });
    }

    fn embed(&mut self, tokens: &[TokenId]) {
        let hidden = self.spec.hidden_size as usize;
        let (path, eps, scale) = (self.path, self.spec.norm.eps, self.spec.embedding_scale);
        let embedding = &self.weights.embedding;
        let next = Next::layer(self.weights.ranks[0].first());
        let (residual, normed) = (self.buffers.residual.shared(), self.buffers.normed.shared());
        self.pool.for_rows(tokens.len(), &|row| {
            // SAFETY: one call a row.
            let x = unsafe { residual.row_part(row, 0, hidden) };
            embedding.read_row(path, tokens[row].index(), x);
            if scale != 1.0 {
                x.iter_mut().for_each(|x| *x *= scale);
            }
            // SAFETY: one call a row.
            let out = unsafe { normed.row_part(row, 0, hidden) };
            next.write(path, x, eps, out);
        });
        self.embed_token_input(tokens);
    }

    /// What every layer gets of the tokens themselves.
    fn embed_token_input(&mut self, tokens: &[TokenId]) {
        let Buffers { residual, token_input, .. } = &mut *self.buffers;
        let (Some(weights), Some(buffers)) = (&self.weights.token_input, token_input) else {
            return;
        };
        let (path, eps) = (self.path, self.spec.norm.eps);
        let rows = 0..self.num_rows;
        let item = Item { rows, product: Product::Plain(&weights.projection), out_col: 0 };
        multiply(self.pool, path, residual, &[item], &mut buffers.input);
        let size = weights.norm.len();
        let all = size * self.spec.layers.len();
        let projected = 1.0 / (self.spec.hidden_size as f32).sqrt();
        let embedded = (size as f32).sqrt();
        let (input, own) = (buffers.input.shared(), buffers.embedded.shared());
        self.pool.for_rows(tokens.len(), &|row| {
            // SAFETY: one call a row; the two buffers are different ones.
            let (input, own) = unsafe { (input.row_part(row, 0, all), own.row_part(row, 0, all)) };
            weights.embedding.read_row(path, tokens[row].index(), own);
            input.iter_mut().for_each(|x| *x *= projected);
            for (x, own) in input.chunks_exact_mut(size).zip(own.chunks_exact(size)) {
                rms_norm_in_place(path, x, &weights.norm, eps);
                for (x, own) in x.iter_mut().zip(own) {
                    *x = (*x + own * embedded) * std::f32::consts::FRAC_1_SQRT_2;
                }
            }
        });
    }

    /// Adds to the residual stream, of which `normed` is a copy, what the layer gets of the token itself.
    fn add_token_input(&mut self, index: usize) {
        let layers = &self.weights.ranks[0];
        let layer = &layers[index];
        let Buffers { normed, gated, projected, token_input, .. } = &mut *self.buffers;
        let (Some(token), Some(buffers), Some(spec)) =
            (&layer.token_gate, token_input, self.spec.token_input)
        else {
            return;
        };
        let plain =
            |matrix| Item { rows: 0..self.num_rows, product: Product::Plain(matrix), out_col: 0 };
        multiply(self.pool, self.path, normed, &[plain(&token.gate)], gated);
        let (path, activation, size) = (self.path, self.spec.activation, spec.size as usize);
        let (gates, input) = (gated.shared(), buffers.input.shared());
        self.pool.for_rows(self.num_rows, &|row| {
            // SAFETY: one call a row; the two buffers are different ones.
            let (x, input) =
                unsafe { (gates.row_part(row, 0, size), input.row_part(row, index * size, size)) };
            gate(path, activation, x, input);
            x.copy_from_slice(input);
        });
        multiply(self.pool, self.path, gated, &[plain(&token.output)], projected);
        self.add_to_residual(&Gain {
            bias: None,
            post_norm: Some(&token.norm),
            scale: layer.scale,
            next: Next::layer(layers.get(index + 1)),
        });
    }

    /// From `normed` to `projected`.
    fn delta_net(&mut self, index: usize, weights: &DeltaWeights) {
        let Buffers { normed, attended, projected, delta, .. } = &mut *self.buffers;
        let (Some(net), Some(delta)) = (self.spec.layers[index].delta_net, delta) else { return };
        let rows = 0..self.num_rows;
        let plain = |(matrix, out_col)| Item {
            rows: rows.clone(),
            product: Product::Plain(matrix),
            out_col,
        };
        let columns = delta.columns;
        let items = [
            (&weights.query, columns.query),
            (&weights.key, columns.key),
            (&weights.value, columns.value),
            (&weights.gate, columns.gate),
            (&weights.beta, columns.beta),
            (&weights.decay, columns.decay),
        ];
        let items = items.map(plain);
        multiply(self.pool, self.path, normed, &items, &mut delta.input);
        let step = DeltaNet {
            path: self.path,
            net,
            rule: &weights.rule,
            columns,
            spans: self.spans,
            eps: self.spec.norm.eps,
        };
        step.run(self.pool, index, &mut delta.input, attended, self.states);
        multiply(self.pool, self.path, attended, &[plain((&weights.output, 0))], projected);
    }

    /// From `normed` to a rank's `projected`.
    fn attention(&mut self, (rank, index): (usize, usize), layer: &AttentionWeights) {
        let spec = self.spec;
        let columns = self.buffers.columns;
        let plain = |matrix, out_col| Item {
            rows: 0..self.num_rows,
            product: Product::Plain(matrix),
            out_col,
        };
        let mut items = vec![plain(&layer.query, 0)];
        if let Some(keys) = &layer.keys {
            items.push(plain(&keys.key, columns.key));
            items.extend(keys.value.as_ref().map(|value| plain(value, columns.value)));
        }
        let output = [plain(&layer.output, 0)];
        let Buffers { normed, qkv, .. } = self.buffers;
        multiply(self.pool, self.path, normed, &items, qkv);
        self.rotate(index, layer);
        if layer.keys.is_some() {
            self.store((rank, index));
        }
        let heads = spec.heads(&spec.layers[index]);
        let (place, sizes) = self.kv[rank].of_layer(index);
        let attention = Attention {
            path: self.path,
            place,
            sizes,
            kv: &self.kv[rank],
            spans: self.spans,
            num_kv_heads: heads.num_kv_heads as usize,
            group: (spec.num_attention_heads / heads.num_kv_heads) as usize,
            causal: spec.attention.causal,
            scale: spec.attention.scale,
            soft_cap: spec.attention.logit_softcap,
            window: spec.layers[index].window.map(|window| window as usize),
            chunks: spec.attention.chunks,
            sinks: layer.sinks.as_deref(),
        };
        let Buffers { qkv, attended, output_gates, projected, .. } = self.buffers;
        attention.run(self.pool, qkv, attended);
        if spec.attention.output_gate {
            let width = (spec.num_attention_heads * spec.head_dim) as usize;
            let (path, attended, gates) = (self.path, attended.shared(), output_gates.shared());
            self.pool.for_rows(self.num_rows, &|row| {
                // SAFETY: one call a row; the two buffers are different ones.
                let (out, gates) =
                    unsafe { (attended.row_part(row, 0, width), gates.row_part(row, 0, width)) };
                sigmoid(path, gates);
                out.iter_mut().zip(gates).for_each(|(x, gate)| *x *= *gate);
            });
        }
        multiply(self.pool, self.path, attended, &output, projected);
    }

    /// Biases, head norms and rotation of queries and keys, in place.
    fn rotate(&mut self, index: usize, layer: &AttentionWeights) {
        let (spec, path) = (self.spec, self.path);
        let rope = spec.layers[index].rope.map(|rope| &self.ropes[rope]);
        let is_scaled = |scale: QueryScale| !scale.without_rope || rope.is_none();
        let query_factors = match spec.attention.query_scale {
            Some(scale) if is_scaled(scale) => self.query_factors,
            _ => &[],
        };
        let heads = spec.heads(&spec.layers[index]);
        let head_dim = heads.head_dim as usize;
        let columns = self.buffers.columns;
        let q_len = spec.num_attention_heads as usize * head_dim;
        let kv_len = heads.kv_width() as usize;
        let parts = [(0, q_len), (columns.key, kv_len), (columns.value, kv_len)];
        let parts = if layer.keys.is_some() { &parts[..] } else { &parts[..1] };
        let qkv = self.buffers.qkv.shared();
        let gates = self.buffers.output_gates.shared();
        let values_are_keys = layer.keys.as_ref().is_some_and(|keys| keys.value.is_none());
        self.pool.for_rows(self.num_rows, &|row| {
            if values_are_keys {
                // SAFETY: one call a row; the parts of a row do not overlap.
                let (keys, values) = unsafe {
                    (
                        qkv.row_part(row, columns.key, kv_len),
                        qkv.row_part(row, columns.value, kv_len),
                    )
                };
                values.copy_from_slice(keys);
            }
            if spec.attention.output_gate {
                // SAFETY: one call a row; the two buffers are different ones.
                let (both, gates) =
                    unsafe { (qkv.row_part(row, 0, 2 * q_len), gates.row_part(row, 0, q_len)) };
                part_gates(both, gates, head_dim);
            }
            for (part, &(column, len)) in parts.iter().enumerate() {
                // SAFETY: one call a row; the parts of a row do not overlap.
                let values = unsafe { qkv.row_part(row, column, len) };
                if let Some(bias) = &layer.qkv_bias {
                    add_assign(path, values, &bias[part]);
                }
                if part == 2 {
                    if let Some(norm) = &layer.value_norm {
                        values
                            .chunks_exact_mut(head_dim)
                            .for_each(|head| rms_norm_in_place(path, head, norm, spec.norm.eps));
                    }
                    continue;
                }
                if let Some(norm) = &layer.qk_norm {
                    // Over a head, or over all of them.
                    for values in values.chunks_exact_mut(norm[part].len()) {
                        rms_norm_in_place(path, values, &norm[part], spec.norm.eps);
                    }
                }
                if let Some(rope) = rope {
                    values.chunks_exact_mut(head_dim).for_each(|head| rope.rotate(row, head));
                }
                if let Some(factor) = query_factors.get(row).filter(|_| part == 0) {
                    values.iter_mut().for_each(|x| *x *= factor);
                }
            }
        });
    }

    /// Copies keys and values of the step into the blocks.
    fn store(&mut self, (rank, layer): (usize, usize)) {
        let Buffers { qkv, columns, .. } = &*self.buffers;
        let kv = &mut self.kv[rank];
        let ((place, sizes), spans) = (kv.of_layer(layer), self.spans);
        let kv = kv.shared();
        let num_heads = self.spec.heads(&self.spec.layers[layer]).num_kv_heads as usize;
        let store_head = |head: usize| {
            let at = head * sizes.head_dim;
            for span in spans {
                for index in 0..span.num_tokens {
                    let row = qkv.row(span.first_row + index, qkv.stride());
                    let position = span.start + index;
                    let block = span.tables[place.group][position / sizes.block_size];
                    let start = sizes.head_start(place.index, block, head);
                    let key = &row[columns.key + at..][..sizes.head_dim];
                    let (key, value) = match sizes.key_dim {
                        0 => (&[][..], key),
                        _ => (key, &row[columns.value + at..][..sizes.head_dim]),
                    };
                    let place = (start, position % sizes.block_size);
                    // SAFETY: one call a head, and a head's part of a block is its own.
                    unsafe { kv.write(&sizes, place, (key, value)) };
                }
            }
        };
        if self.num_rows < INLINE_ROWS {
            (0..num_heads).for_each(store_head);
        } else {
            self.pool.run(num_heads, &|head, _| store_head(head));
        }
    }

    /// From `normed` to the residual stream and the next layer's `normed`.
    fn feed_forward(&mut self, index: usize) {
        self.sum_of_ranks(|pass, _, layer| pass.feed_forward_of_rank(layer), index);
        let layers = &self.weights.ranks[0];
        let layer = &layers[index];
        let bias = match &layer.feed_forward {
            FeedForward::Dense(network) => network.down_bias.as_deref(),
            // Part of the sums.
            FeedForward::Moe(_) => None,
        };
        self.add_to_residual(&Gain {
            bias,
            post_norm: layer.post_feed_forward_norm.as_deref(),
            // What the layer gets of the token itself comes before the scale.
            scale: if layer.token_gate.is_some() { 1.0 } else { layer.scale },
            next: match layer.token_gate {
                Some(_) => Next::Copy,
                None => Next::layer(layers.get(index + 1)),
            },
        });
    }

    /// From `normed` to a rank's `projected`.
    fn feed_forward_of_rank(&mut self, layer: &LayerWeights) {
        match &layer.feed_forward {
            FeedForward::Dense(network) => {
                let rows = 0..self.num_rows;
                let Buffers { normed, gated, projected, .. } = &mut *self.buffers;
                let product = Product::Gated(network.gated(self.spec.activation));
                let items = [Item { rows: rows.clone(), product, out_col: 0 }];
                multiply(self.pool, self.path, normed, &items, gated);
                let items = [Item { rows, product: Product::Plain(&network.down), out_col: 0 }];
                multiply(self.pool, self.path, gated, &items, projected);
            }
            FeedForward::Moe(experts) => {
                let mixture = moe::Mixture { experts, model: self.spec };
                mixture.run(self.pool, self.path, self.num_rows, self.buffers);
            }
        }
    }

    fn add_to_residual(&mut self, gain: &Gain<'_>) {
        let hidden = self.spec.hidden_size as usize;
        let (path, eps) = (self.path, self.spec.norm.eps);
        let projected = self.buffers.projected.shared();
        let (residual, normed) = (self.buffers.residual.shared(), self.buffers.normed.shared());
        self.pool.for_rows(self.num_rows, &|row| {
            // SAFETY: one call a row; the three buffers are different ones.
            let (x, y, out) = unsafe {
                (
                    residual.row_part(row, 0, hidden),
                    projected.row_part(row, 0, hidden),
                    normed.row_part(row, 0, hidden),
                )
            };
            if let Some(bias) = gain.bias {
                add_assign(path, y, bias);
            }
            if let Some(norm) = gain.post_norm {
                rms_norm_in_place(path, y, norm, eps);
            }
            add_assign(path, x, y);
            if gain.scale != 1.0 {
                x.iter_mut().for_each(|x| *x *= gain.scale);
            }
            gain.next.write(path, x, eps, out);
        });
    }
}
