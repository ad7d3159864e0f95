//! Compares attention with float64, over head sizes, groups, block sizes, windows and caps.

use ingle_model::{
    Activation, AttentionSpec, FeedForwardSpec, KvFormat, KvScales, LayerSpec, ModelSpec, NormSpec,
    QkNorm, WeightType, e4m3_from_f32, e4m3_to_f32,
};

use super::*;
use crate::kv_cache::SharedKv;
use crate::testing::Random;

const KV_HEADS: usize = 2;

/// What to compute.
#[derive(Debug)]
struct Setting {
    head_dim: usize,
    group: usize,
    block_size: usize,
    window: Option<usize>,
    chunks: bool,
    soft_cap: Option<f32>,
    causal: bool,
    sinks: bool,
    kv_format: KvFormat,
}

impl Setting {
    /// Of each query head: below, among and above the scores.
    fn sinks(&self) -> Option<Vec<f32>> {
        let of_head = |head: usize| [-30.0, 0.5, 2.0, 40.0][head % 4];
        self.sinks.then(|| (0..KV_HEADS * self.group).map(of_head).collect())
    }
}

pub(super) fn spec(head_dim: usize, group: usize) -> ModelSpec {
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
        ropes: Vec::new(),
        attention: AttentionSpec {
            causal: true,
            scale: 1.0,
            logit_softcap: None,
            qk_norm: QkNorm::None,
            chunks: false,
            query_scale: None,
            qkv_bias: false,
            o_bias: false,
            sinks: false,
            output_gate: false,
            latent: None,
            value_norm: false,
        },
        activation: Activation::Silu,
        pre_norms: true,
        post_norms: false,
        embedding_scale: 1.0,
        logit_scale: 1.0,
        final_logit_softcap: None,
        tie_word_embeddings: true,
        weight_type: WeightType::F32,
        kv_format: KvFormat::Device,
        token_input: None,
        scales_layers: false,
        embeds_only: None,
        layers: vec![LayerSpec::plain(feed_forward)],
    }
}

/// The result for one query that sees all keys of `keys`, as far as the window lets it.
fn exact(
    setting: &Setting,
    query: &[f32],
    (keys, values): (&[Vec<f32>], &[Vec<f32>]),
    sink: Option<f32>,
) -> Vec<f64> {
    let first = match setting.window {
        None => 0,
        Some(chunk) if setting.chunks => (keys.len() - 1) / chunk * chunk,
        Some(window) => keys.len().saturating_sub(window),
    };
    let scores: Vec<f64> = keys[first..]
        .iter()
        .map(|key| {
            let dot: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            let score = dot * SCALE;
            setting.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        })
        .collect();
    let all = || scores.iter().copied().chain(sink.map(f64::from));
    let max = all().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = all().map(|score| (score - max).exp()).sum();
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
        for kv_format in [KvFormat::Device, KvFormat::Fp8(vec![SCALES])] {
            let is_fp8 = kv_format != KvFormat::Device;
            let whole = Setting {
                head_dim,
                group,
                block_size,
                window: None,
                chunks: false,
                soft_cap: None,
                causal: false,
                sinks: false,
                kv_format,
            };
            run(&whole, LENS);
            for (window, soft_cap) in [(None, None), (Some(7), None), (Some(40), Some(2.0))] {
                let more = [(false, false), (true, false), (false, true)];
                // One format is enough for sinks and chunks, which choose keys and do not read them.
                for (sinks, chunks) in more.into_iter().take(if is_fp8 { 1 } else { 3 }) {
                    let kv_format = whole.kv_format.clone();
                    let causal = true;
                    let setting =
                        Setting { window, soft_cap, causal, sinks, chunks, kv_format, ..whole };
                    run(&setting, NEW);
                }
            }
        }
    }
}

/// Of the largest keys the elements have no place.
const SCALES: KvScales = KvScales { key: 0.001_7, value: 0.02 };

/// Two sequences of which some last tokens are computed now: a prompt's second chunk, a decode step.
const LENS: [usize; 2] = [75, 34];
const NEW: [usize; 2] = [21, 1];

/// Keys and values of both sequences, `[position][head][head_dim]`, in plain vectors and in blocks.
struct World {
    keys: [Vec<f32>; 2],
    values: [Vec<f32>; 2],
    kv: KvCache,
    tables: [Vec<BlockId>; 2],
    width: usize,
}

impl World {
    /// Places in the blocks that no token fills hold NaN.
    fn new(random: &mut Random, setting: &Setting) -> Self {
        let block_size = setting.block_size;
        let width = KV_HEADS * setting.head_dim;
        let per_sequence = LENS[0].div_ceil(block_size) as u32;
        let spec = spec(setting.head_dim, setting.group);
        let spec = ModelSpec { kv_format: setting.kv_format.clone(), ..spec };
        let mut kv = KvCache::new(&spec, block_size as u32, 2 * per_sequence);
        let (_, sizes) = kv.of_layer(0);
        let tables = [0, 1].map(|s| {
            (0..per_sequence).map(|i| BlockId(2 * per_sequence - 1 - (i * 2 + s))).collect()
        });
        let keys = LENS.map(|len| random.floats(len * width));
        let values = LENS.map(|len| random.floats(len * width));
        let shared = kv.shared();
        let total = 2 * per_sequence as usize * KV_HEADS * sizes.head_len();
        match &shared {
            // SAFETY: nothing else refers to the cache.
            SharedKv::F32(all) => unsafe { all.part(0, total) }.fill(f32::NAN),
            // SAFETY: nothing else refers to the cache.
            SharedKv::E4m3(all) => unsafe { all.part(0, total) }.fill(0x7f),
        }
        for s in 0..2 {
            let table: &Vec<BlockId> = &tables[s];
            for (position, head) in (0..LENS[s]).flat_map(|p| (0..KV_HEADS).map(move |h| (p, h))) {
                let start = sizes.head_start(0, table[position / block_size], head);
                let at = position * width + head * setting.head_dim..;
                let (key, value) = (&keys[s][at.clone()], &values[s][at]);
                let head_dim = setting.head_dim;
                let token = (&key[..head_dim], &value[..head_dim]);
                // SAFETY: one part at a time.
                unsafe { shared.write(&sizes, (start, position % block_size), token) };
            }
        }
        // What the cache holds is what attention reads.
        let scales = setting.kv_format.scales(0);
        let kept = |numbers: [Vec<f32>; 2], scale: Option<f32>| match scale {
            Some(scale) => numbers.map(|numbers| {
                numbers.iter().map(|x| e4m3_to_f32(e4m3_from_f32(x / scale)) * scale).collect()
            }),
            None => numbers,
        };
        let keys = kept(keys, scales.map(|scales| scales.key));
        let values = kept(values, scales.map(|scales| scales.value));
        Self { keys, values, kv, tables, width }
    }

    /// The exact result of head `head` for a query at `position` of sequence `s`.
    fn exact(
        &self,
        setting: &Setting,
        s: usize,
        position: usize,
        head: usize,
        query: &[f32],
    ) -> Vec<f64> {
        let at = |p: usize| p * self.width + head / setting.group * setting.head_dim;
        let seen = if setting.causal { position + 1 } else { LENS[s] };
        let part = |all: &'_ [f32]| -> Vec<Vec<f32>> {
            (0..seen).map(|p| all[at(p)..][..setting.head_dim].to_vec()).collect()
        };
        let sink = setting.sinks().map(|sinks| sinks[head]);
        exact(setting, query, (&part(&self.keys[s]), &part(&self.values[s])), sink)
    }
}

/// Computes the last `new` tokens of both sequences.
fn run(setting: &Setting, new: [usize; 2]) {
    let mut random = Random(6);
    let world = World::new(&mut random, setting);
    let q_len = KV_HEADS * setting.group * setting.head_dim;
    let rows = new[0] + new[1];
    let mut queries = Rows::zeroed(rows, q_len);
    for row in 0..rows {
        queries.row_mut(row, q_len).copy_from_slice(&random.floats(q_len));
    }
    let spans = [0, 1].map(|s| Span {
        first_row: s * new[0],
        num_tokens: new[s],
        start: LENS[s] - new[s],
        tables: std::slice::from_ref(&world.tables[s]),
        slot: 0,
        saves: &[],
    });
    let sinks = setting.sinks();
    for path in VectorPath::all() {
        let attention = Attention {
            path,
            place: KvPlace { group: 0, index: 0 },
            sizes: world.kv.of_layer(0).1,
            kv: &world.kv,
            spans: &spans,
            num_kv_heads: KV_HEADS,
            group: setting.group,
            causal: setting.causal,
            scale: SCALE as f32,
            soft_cap: setting.soft_cap,
            window: setting.window,
            chunks: setting.chunks,
            sinks: sinks.as_deref(),
        };
        let mut out = Rows::zeroed(rows, q_len);
        let run = |threads: usize, out: &mut Rows| {
            let scratch = || Scratch::new(setting.head_dim, 128);
            let mut pool = Pool::new(threads, 0, scratch).expect("threads");
            attention.run(&mut pool, &queries, out);
        };
        run(2, &mut out);
        // With so many threads each pair is a task of its own.
        let mut single = Rows::zeroed(rows, q_len);
        run(30, &mut single);
        assert_eq!(out.data(), single.data(), "{} {setting:?}", path.name());
        for row in 0..rows {
            let s = usize::from(row >= new[0]);
            let position = spans[s].start + row - spans[s].first_row;
            for head in 0..KV_HEADS * setting.group {
                let at = head * setting.head_dim..(head + 1) * setting.head_dim;
                let query = &queries.row(row, q_len)[at.clone()];
                let want = world.exact(setting, s, position, head, query);
                for (ours, want) in out.row(row, q_len)[at].iter().zip(want) {
                    let close = (f64::from(*ours) - want).abs() < 1e-5;
                    assert!(close, "{} {setting:?} row {row}: {ours}, {want}", path.name());
                }
            }
        }
    }
}
