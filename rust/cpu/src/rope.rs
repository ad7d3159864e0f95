//! Rotary positions: sines and cosines of a step's positions, and the rotation of heads.

use ingle_model::{RopeSpec, RopeStyle, RopeTables};

/// Cosines and sines of one rotation for the rows of a step.
#[derive(Debug)]
pub(crate) struct Rope {
    tables: RopeTables,
    style: RopeStyle,
    /// `[row][rotary_dim / 2]` cosine.
    cos: Vec<f32>,
    /// `[row][rotary_dim / 2]` sine.
    sin: Vec<f32>,
}

impl Rope {
    pub(crate) fn new(spec: &RopeSpec, max_model_len: u32) -> Self {
        let tables = spec.tables(max_model_len);
        Self { tables, style: spec.style, cos: Vec::new(), sin: Vec::new() }
    }

    /// Computes the angles of the step's rows.
    pub(crate) fn set_positions(&mut self, positions: impl Iterator<Item = usize>) {
        self.cos.clear();
        self.sin.clear();
        let factor = self.tables.attention_factor;
        for position in positions {
            for frequency in &self.tables.inv_freq {
                let (sin, cos) = (position as f32 * frequency).sin_cos();
                self.cos.push(cos * factor);
                self.sin.push(sin * factor);
            }
        }
    }

    /// Rotates one head of a row in place.
    pub(crate) fn rotate(&self, row: usize, head: &mut [f32]) {
        let half = self.tables.inv_freq.len();
        let (cos, sin) = (&self.cos[row * half..][..half], &self.sin[row * half..][..half]);
        match self.style {
            RopeStyle::HalfSplit => {
                let (first, second) = head[..2 * half].split_at_mut(half);
                for i in 0..half {
                    let (x, y) = (first[i], second[i]);
                    first[i] = x * cos[i] - y * sin[i];
                    second[i] = y * cos[i] + x * sin[i];
                }
            }
            RopeStyle::Interleaved => {
                for (i, pair) in head.as_chunks_mut::<2>().0[..half].iter_mut().enumerate() {
                    let (x, y) = (pair[0], pair[1]);
                    pair[0] = x * cos[i] - y * sin[i];
                    pair[1] = y * cos[i] + x * sin[i];
                }
            }
        }
    }
}
