//! Attention against float64, over head sizes, groups, block sizes, windows and caps.

use ingle_model::{
    Activation, AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, NormSpec, RopeKind, RopeSpec,
    RopeStyle, WeightType,
};

use super::*;
use crate::kv_cache::write_token;
use crate::testing::Random;

const KV_HEADS: usize = 2;

/// One run: what to compute, and its numbers.
struct Setting {
    head_dim: usize,
    group: usize,
    block_size: usize,
    window: Option<usize>,
    soft_cap: Option<f32>,
}

fn spec(head_dim: usize, group: usize) -> ModelSpec {
    let feed_forward = FeedForwardSpec::Dense { intermediate_size: 1, bias: false };
    ModelSpec {
        architecture: "test".to_owned(),
        vocab_size: 1,
        hidden_size: 1,
        num_attention_heads: (KV_HEADS * group) as u32,
        num_kv_heads: KV_HEADS as u32,
        head_dim: head_dim as u32,
        max_position_embeddings: 1,
        norm: NormSpec { eps: 0.0, plus_one: false },
        rope: RopeSpec {
            style: RopeStyle::HalfSplit,
            rotary_dim: 2,
            theta: 1.0,
            kind: RopeKind::Default,
        },
        attention: AttentionSpec {
            scale: 1.0,
            logit_softcap: None,
            qk_norm: false,
            qkv_bias: false,
            o_bias: false,
        },
        activation: Activation::Silu,
        post_norms: false,
        embedding_scale: 1.0,
        final_logit_softcap: None,
        tie_word_embeddings: true,
        weight_type: WeightType::F32,
        layers: vec![LayerSpec { window: None, feed_forward }],
    }
}

/// The values of a head, or the exact result for one query.
fn exact(setting: &Setting, query: &[f32], keys: &[&[f32]], values: &[&[f32]]) -> Vec<f64> {
    let first = setting.window.map_or(0, |window| keys.len().saturating_sub(window));
    let scores: Vec<f64> = keys[first..]
        .iter()
        .map(|key| {
            let dot: f64 = query.iter().zip(*key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            let score = dot * SCALE;
            setting.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        })
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
    (0..setting.head_dim)
        .map(|d| {
            let weighted = scores.iter().zip(&values[first..]);
            weighted.map(|(score, v)| (score - max).exp() / sum * f64::from(v[d])).sum()
        })
        .collect()
}

const SCALE: f64 = 1.25;

#[test]
fn test_attention_matches_float64() {
    for (head_dim, group, block_size) in
        [(16, 1, 1), (20, 3, 3), (64, 4, 4), (80, 2, 16), (96, 13, 48), (128, 1, 32)]
    {
        for (window, soft_cap) in [(None, None), (Some(7), None), (Some(40), Some(2.0))] {
            run(&Setting { head_dim, group, block_size, window, soft_cap });
        }
    }
}

/// A prompt's second chunk beside a decoding sequence; what lies in unused places is NaN.
fn run(setting: &Setting) {
    let mut random = Random(6);
    let (head_dim, group, block_size) = (setting.head_dim, setting.group, setting.block_size);
    let lens = [75usize, 34];
    let new = [21usize, 1];
    let spec = spec(head_dim, group);
    let per_sequence = lens[0].div_ceil(block_size) as u32;
    let mut kv = KvCache::new(&spec, block_size as u32, 2 * per_sequence);
    let sizes = kv.sizes();
    let total = 2 * per_sequence as usize * KV_HEADS * sizes.head_len();
    let shared = kv.shared();
    // SAFETY: nothing else refers to the cache.
    unsafe { shared.part(0, total) }.fill(f32::NAN);
    let tables: Vec<Vec<BlockId>> = (0..2)
        .map(|s| (0..per_sequence).map(|i| BlockId(2 * per_sequence - 1 - (i * 2 + s))).collect())
        .collect();
    let width = KV_HEADS * head_dim;
    let keys: Vec<Vec<f32>> = lens.iter().map(|len| random.floats(len * width)).collect();
    let values: Vec<Vec<f32>> = lens.iter().map(|len| random.floats(len * width)).collect();
    for s in 0..2 {
        for position in 0..lens[s] {
            for head in 0..KV_HEADS {
                let start = sizes.head_start(0, tables[s][position / block_size], head);
                let shared = kv.shared();
                // SAFETY: one part at a time.
                let target = unsafe { shared.part(start, sizes.head_len()) };
                let at =
                    position * width + head * head_dim..position * width + (head + 1) * head_dim;
                let offset = position % block_size;
                write_token(&sizes, target, offset, &keys[s][at.clone()], &values[s][at]);
            }
        }
    }
    let q_len = KV_HEADS * group * head_dim;
    let mut queries = Rows::zeroed(new[0] + new[1], q_len);
    for row in 0..new[0] + new[1] {
        queries.row_mut(row, q_len).copy_from_slice(&random.floats(q_len));
    }
    let spans: Vec<Span<'_>> = (0..2)
        .map(|s| Span {
            first_row: s * new[0],
            num_tokens: new[s],
            start: lens[s] - new[s],
            blocks: &tables[s],
        })
        .collect();
    for path in VectorPath::all() {
        let attention = Attention {
            path,
            layer: 0,
            kv: &kv,
            spans: &spans,
            num_kv_heads: KV_HEADS,
            group,
            scale: SCALE as f32,
            soft_cap: setting.soft_cap,
            window: setting.window,
        };
        let mut out = Rows::zeroed(new[0] + new[1], q_len);
        let mut pool = Pool::new(2, || Scratch::new(head_dim, 128)).expect("threads");
        attention.run(&mut pool, &queries, &mut out);
        for (s, span) in spans.iter().enumerate() {
            for index in 0..span.num_tokens {
                let row = span.first_row + index;
                for head in 0..KV_HEADS * group {
                    let part = |all: &'static str, position: usize| {
                        let source = if all == "keys" { &keys[s] } else { &values[s] };
                        &source[position * width + head / group * head_dim..][..head_dim]
                    };
                    let seen = span.start + index + 1;
                    let k: Vec<&[f32]> = (0..seen).map(|p| part("keys", p)).collect();
                    let v: Vec<&[f32]> = (0..seen).map(|p| part("values", p)).collect();
                    let at = head * head_dim..(head + 1) * head_dim;
                    let want = exact(setting, &queries.row(row, q_len)[at.clone()], &k, &v);
                    for (ours, want) in out.row(row, q_len)[at].iter().zip(want) {
                        let error = (f64::from(*ours) - want).abs();
                        assert!(
                            error < 1e-5,
                            "{} head_dim {head_dim} group {group} block {block_size} window {:?} row \
                             {row}: {ours}, {want}",
                            path.name(),
                            setting.window
                        );
                    }
                }
            }
        }
    }
}
