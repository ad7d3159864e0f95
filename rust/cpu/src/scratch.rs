//! Working memory of one worker. Sized at load.

use crate::panel::{K_BLOCK, PANEL, ROW_CHUNK, TILE_ROWS};
use crate::sampler::SamplerScratch;

/// Buffers of one worker.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// `[K_BLOCK][32]` weights in f32.
    pub(crate) weights: Vec<f32>,
    /// `[K_BLOCK / 4][32]` words of four codes, where activations are rounded to bytes.
    pub(crate) codes: Vec<u32>,
    /// `[K_BLOCK / 16][2][32]` scales and minimums of those weights, in block formats.
    pub(crate) groups: Vec<f32>,
    /// `[ROW_CHUNK][32]` results.
    pub(crate) out: Vec<f32>,
    /// `[ROW_CHUNK][32]` results of the gate.
    pub(crate) gate: Vec<f32>,
    /// `[TILE_ROWS][head_dim]` queries of an attention task, or of latent attention `[head_dim][32]`.
    pub(crate) query: Vec<f32>,
    /// `[TILE_ROWS][score_stride]` scores, then weights, of an attention task; of latent attention `[32][score_stride]`.
    pub(crate) scores: Vec<f32>,
    /// Numbers from row to row of `scores`.
    pub(crate) score_stride: usize,
    /// `[head_dim][32]` keys, or of latent attention `[32][head_dim]`, where blocks are too small to be read in place or hold no f32.
    pub(crate) keys: Vec<f32>,
    /// `[16][32]` values, where blocks hold no f32.
    pub(crate) values: Vec<f32>,
    pub(crate) sampler: SamplerScratch,
    /// Bytes of a file on their way into panels.
    pub(crate) stored: Vec<u8>,
}

impl Scratch {
    pub(crate) fn new(head_dim: usize, max_model_len: usize) -> Self {
        Self::with_pairs(head_dim, TILE_ROWS, max_model_len)
    }

    /// For latent attention, whose tasks are wider.
    pub(crate) fn latent(head_dim: usize, max_model_len: usize) -> Self {
        Self::with_pairs(head_dim, PANEL, max_model_len)
    }

    /// `pairs`: (token, query head) pairs of an attention task.
    fn with_pairs(head_dim: usize, pairs: usize, max_model_len: usize) -> Self {
        // One tile more for the alignment of the first key, and no multiple of 4 KiB (see `Rows`).
        let mut score_stride = max_model_len.next_multiple_of(PANEL) + PANEL;
        if score_stride.is_multiple_of(512) {
            score_stride += PANEL;
        }
        Self {
            weights: vec![0.0; K_BLOCK * PANEL],
            codes: vec![0; K_BLOCK / 4 * PANEL],
            groups: vec![0.0; K_BLOCK / 16 * 2 * PANEL],
            out: vec![0.0; ROW_CHUNK * PANEL],
            gate: vec![0.0; ROW_CHUNK * PANEL],
            query: vec![0.0; pairs * head_dim],
            scores: vec![0.0; pairs * score_stride],
            score_stride,
            keys: vec![0.0; head_dim * PANEL],
            values: vec![0.0; 16 * PANEL],
            sampler: SamplerScratch::default(),
            stored: Vec::new(),
        }
    }
}
