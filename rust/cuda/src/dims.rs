//! The sizes that kernels know, and the padded row counts to which steps are rounded up. Plain
//! data.

use ingle_model::ModelSpec;

use crate::contract::Dims;
use crate::rope::rotary_dim;

impl Dims {
    /// The sizes that all kernels of the model share; the launch fills in the rest. Ids from `sample_vocab` on
    /// are never sampled.
    pub(crate) fn of(spec: &ModelSpec, engine: &EngineDims, sample_vocab: u32) -> Self {
        Self {
            vocab_size: spec.vocab_size,
            sample_vocab: sample_vocab.min(spec.vocab_size),
            hidden_size: spec.hidden_size,
            num_heads: spec.num_attention_heads,
            num_kv_heads: spec.num_kv_heads,
            rotary_dim: spec.ropes.first().map_or(0, rotary_dim),
            block_size: engine.block_size,
            max_blocks: engine.max_blocks,
            num_slots: engine.num_slots,
            ..Self::default()
        }
    }

    /// The macros of an exact build.
    pub(crate) fn macros(&self) -> Vec<String> {
        let mut macros = vec!["-DCONST_DIMS".to_owned()];
        macros.extend(self.named().map(|(name, value)| format!("-DD_{name}={value}")));
        macros
    }

    /// The same for a matrix of `n` rows and `k` columns.
    pub(crate) fn gemm(self, n: u32, k: u32) -> Self {
        Self { gemm_n: n, gemm_k: k, ..self }
    }
}

/// Sizes that the configuration fixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineDims {
    /// Tokens a KV block.
    pub(crate) block_size: u32,
    /// Blocks of the longest sequence.
    pub(crate) max_blocks: u32,
    /// Slots.
    pub(crate) num_slots: u32,
    /// Most rows of a step.
    pub(crate) max_rows: u32,
    /// Most token rows of a step.
    pub(crate) max_tokens: u32,
    /// Positions the rotary table covers.
    pub(crate) max_model_len: u32,
    /// Ranks of the model's group.
    pub(crate) ranks: u32,
}

/// Rows of one lm_head slice for prompt log-probs.
pub(crate) const LIST_ROWS: u32 = 256;

/// Row counts that a step may be padded to: fine where a decode step lives (8 rows change the time of a
/// product by up to 6 %), coarser above, where tiles of products are 64 and 128 rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Buckets {
    sizes: Vec<u32>,
}

impl Buckets {
    /// Of the token rows of steps. Buffers are laid out for the largest.
    pub(crate) fn of_steps(engine: &EngineDims) -> Self {
        Self::up_to(engine.max_tokens)
    }

    /// Of the rows that the head takes at once: samples of a step, or a slice of prompt log-probs.
    pub(crate) fn of_head(engine: &EngineDims) -> Self {
        Self::up_to(engine.max_rows.max(LIST_ROWS))
    }

    /// All sizes up to one that holds `max_rows`.
    pub(crate) fn up_to(max_rows: u32) -> Self {
        let mut sizes = vec![1, 2, 4];
        let mut next = 8;
        while sizes.last().is_none_or(|&last| last < max_rows) {
            sizes.push(next);
            next += match next {
                0..256 => 8,
                256..1024 => 64,
                _ => 128,
            };
        }
        Self { sizes }
    }

    /// The smallest size that holds `rows`, or `None` if none does.
    pub(crate) fn fit(&self, rows: u32) -> Option<u32> {
        let index = self.sizes.partition_point(|&size| size < rows);
        self.sizes.get(index).copied()
    }

    /// Sample rows that a step of `tokens` padded rows is padded to: coarse, so that few graphs serve all
    /// steps; the head over padding costs less than 2 % of a step.
    pub(crate) fn fit_samples(&self, tokens: u32, samples: u32) -> Option<u32> {
        match samples {
            0 => Some(0),
            _ if tokens <= LIST_ROWS => Some(tokens),
            1..=LIST_ROWS => Some(samples.next_multiple_of(64)),
            _ => self.fit(samples),
        }
    }

    /// The sizes, rising.
    pub(crate) fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// The largest size.
    pub(crate) fn largest(&self) -> u32 {
        self.sizes.last().copied().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_count_fits_and_wastes_little() {
        let buckets = Buckets::up_to(2048);
        assert_eq!(buckets.largest(), 2048);
        for rows in 1..=2048u32 {
            let size = buckets.fit(rows).unwrap();
            let step = if rows > 256 { 128 } else { 8 };
            assert!(size >= rows && size - rows < step, "{rows} rows became {size}");
        }
        assert_eq!(buckets.fit(2049), None);
        assert!(Buckets::up_to(1).fit(1) == Some(1));
        assert!(Buckets::up_to(100).fit(100).is_some());
    }

    /// Buffers and products of the head are laid out for the sizes up to the most rows.
    #[test]
    fn padded_samples_fit_the_head() {
        for max_rows in [1, 8, 100, 256, 257, 300, 500, 512, 1000, 1024] {
            let head = Buckets::up_to(u32::max(max_rows, LIST_ROWS));
            let buckets = Buckets::up_to(2048);
            for tokens in buckets.sizes() {
                for samples in 0..=max_rows.min(*tokens) {
                    let padded = buckets.fit_samples(*tokens, samples).unwrap();
                    assert!(padded >= samples && padded <= *tokens);
                    assert!(padded == 0 || head.sizes().contains(&padded), "{max_rows} {padded}");
                }
            }
        }
    }

    /// The head takes slices of prompt log-probs with the row counts of steps, however small those are.
    #[test]
    fn every_slice_of_prompt_log_probs_fits_the_head() {
        for max_tokens in [1, 7, 8, 100, 255, 256, 257, 300, 500, 2048] {
            for max_rows in [1, 4, 100, 300, 1024].into_iter().filter(|&rows| rows <= max_tokens) {
                let engine = EngineDims {
                    block_size: 16,
                    max_blocks: 8,
                    num_slots: 2 * max_rows,
                    max_rows,
                    max_tokens,
                    max_model_len: 128,
                    ranks: 1,
                };
                let (steps, head) = (Buckets::of_steps(&engine), Buckets::of_head(&engine));
                for rows in 1..=max_tokens.min(LIST_ROWS) {
                    let padded = steps.fit(rows).unwrap();
                    assert!(head.sizes().contains(&padded), "{rows} of {engine:?}");
                }
            }
        }
    }

    #[test]
    fn every_dimension_is_a_macro() {
        let macros = Dims { gemm_k: 7, ..Dims::default() }.macros();
        assert_eq!(macros.len(), 17);
        assert!(macros.contains(&"-DD_gemm_k=7".to_owned()));
    }
}
