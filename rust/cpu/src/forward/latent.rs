//! [5] A layer of latent attention, from `normed` to a rank's `projected`. See `LatentSpec`.

use ingle_model::LatentSpec;

use super::Pass;
use crate::attention::Attention;
use crate::buffers::{Buffers, LatentBuffers};
use crate::elementwise::{add_assign, rms_norm_in_place};
use crate::gemm::{Item, Product, multiply};
use crate::matrix::PackedMatrix;
use crate::weights::LatentWeights;

impl Pass<'_> {
    pub(super) fn latent(&mut self, (rank, index): (usize, usize), weights: &LatentWeights) {
        let Some(latent) = self.spec.attention.latent else { return };
        self.project_latent(&latent, weights);
        self.rotate_latent(&latent, (index, weights));
        self.store((rank, index));
        let heads = self.spec.num_attention_heads as usize;
        let num_rows = self.num_rows;
        let (place, sizes) = self.kv[rank].of_layer(index);
        let attention = Attention {
            path: self.path,
            place,
            sizes,
            kv: &self.kv[rank],
            spans: self.spans,
            num_kv_heads: 1,
            group: heads,
            causal: self.spec.attention.causal,
            scale: self.spec.attention.scale,
            soft_cap: None,
            window: None,
            chunks: false,
            sinks: None,
        };
        let Buffers { attended, projected, latent: Some(buffers), .. } = &mut *self.buffers else {
            return;
        };
        let LatentBuffers { parts, queries, sums, .. } = buffers;
        attention.run_latent(self.pool, (queries, num_rows), (sums, latent.rank as usize));
        multiply(self.pool, self.path, sums, &by_head(&weights.value_up, num_rows), parts);
        let (parts, width) = (&*parts, latent.value_dim as usize);
        let out = attended.shared();
        self.pool.for_rows(num_rows, &|row| {
            for head in 0..heads {
                // SAFETY: one call a row; the parts of a row do not overlap.
                let out = unsafe { out.row_part(row, head * width, width) };
                out.copy_from_slice(parts.row(head * num_rows + row, width));
            }
        });
        let product = Product::Plain(&weights.output);
        let items = [Item { rows: 0..num_rows, product, out_col: 0 }];
        multiply(self.pool, self.path, attended, &items, projected);
    }

    /// Queries, the latent and the key that rotates, as their projections give them.
    fn project_latent(&mut self, latent: &LatentSpec, weights: &LatentWeights) {
        let (num_rows, path) = (self.num_rows, self.path);
        let Buffers { normed, qkv, columns, latent: Some(buffers), .. } = &mut *self.buffers else {
            return;
        };
        let plain =
            |matrix, out_col| Item { rows: 0..num_rows, product: Product::Plain(matrix), out_col };
        let key = plain(&weights.down, columns.key);
        let Some(down) = &weights.query_down else {
            return multiply(self.pool, path, normed, &[plain(&weights.query, 0), key], qkv);
        };
        multiply(self.pool, path, normed, &[key], qkv);
        let input = &mut buffers.query_input;
        multiply(self.pool, path, normed, &[plain(&down.matrix, 0)], input);
        let shared = input.shared();
        self.pool.for_rows(num_rows, &|row| {
            // SAFETY: one call a row.
            let x = unsafe { shared.row_part(row, 0, down.norm.len()) };
            if let Some(bias) = &down.bias {
                add_assign(path, x, bias);
            }
            rms_norm_in_place(path, x, &down.norm, latent.norm_eps);
        });
        multiply(self.pool, path, input, &[plain(&weights.query, 0)], qkv);
    }

    /// The norm of the latent, the rotations, and what of each query is compared with latents.
    fn rotate_latent(&mut self, latent: &LatentSpec, (index, weights): (usize, &LatentWeights)) {
        let (num_rows, path, spec) = (self.num_rows, self.path, self.spec);
        let rope = spec.layers[index].rope.map(|rope| &self.ropes[rope]);
        let factors = self.query_factors;
        let heads = spec.num_attention_heads as usize;
        let (rank, kept) = (latent.rank as usize, latent.kept_dim() as usize);
        let (plain_dim, query_dim) = (latent.plain_dim as usize, latent.query_dim() as usize);
        let Buffers { qkv, columns, latent: Some(buffers), .. } = &mut *self.buffers else {
            return;
        };
        let LatentBuffers { parts, queries, .. } = buffers;
        let (shared, plain, key_column) = (qkv.shared(), parts.shared(), columns.key);
        self.pool.for_rows(num_rows, &|row| {
            // SAFETY: one call a row; the two parts of a row do not overlap.
            let (key, all) = unsafe {
                (shared.row_part(row, key_column, kept), shared.row_part(row, 0, heads * query_dim))
            };
            if let Some(bias) = &weights.down_bias {
                add_assign(path, key, bias);
            }
            rms_norm_in_place(path, &mut key[..rank], &weights.norm, latent.norm_eps);
            if let Some(rope) = rope {
                rope.rotate(row, &mut key[rank..]);
            }
            for (head, query) in all.chunks_exact_mut(query_dim).enumerate() {
                if let Some(factor) = factors.get(row) {
                    query.iter_mut().for_each(|x| *x *= factor);
                }
                if let Some(rope) = rope {
                    rope.rotate(row, &mut query[plain_dim..]);
                }
                // SAFETY: one call a row, and each head of a row has a row of its own here.
                let to = unsafe { plain.row_part(head * num_rows + row, 0, plain_dim) };
                to.copy_from_slice(&query[..plain_dim]);
            }
        });
        multiply(self.pool, path, parts, &by_head(&weights.key_up, num_rows), queries);
        // Last, since products write whole panels.
        let (qkv, to) = (&*qkv, queries.shared());
        self.pool.for_rows(num_rows, &|row| {
            let all = qkv.row(row, heads * query_dim).chunks_exact(query_dim);
            for (head, query) in all.enumerate() {
                // SAFETY: one call a row, and each head of a row has a row of its own here.
                let to = unsafe { to.row_part(head * num_rows + row, rank, kept - rank) };
                to.copy_from_slice(&query[plain_dim..]);
            }
        });
    }
}

/// A product for each head, whose rows lie together.
fn by_head(matrices: &[PackedMatrix], num_rows: usize) -> Vec<Item<'_>> {
    let item = |(head, matrix): (usize, _)| Item {
        rows: head * num_rows..(head + 1) * num_rows,
        product: Product::Plain(matrix),
        out_col: 0,
    };
    matrices.iter().enumerate().map(item).collect()
}
