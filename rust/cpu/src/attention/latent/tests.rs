//! Compares latent attention with float64, over head counts, block sizes and formats, and with itself in other steps.

use ingle_core::BlockId;
use ingle_model::{KvFormat, KvPlace, KvScales, LatentSpec, ModelSpec, e4m3_from_f32, e4m3_to_f32};

use super::*;
use crate::kv_cache::KvCache;
use crate::testing::Random;
use crate::vector_path::VectorPath;

const SCALE: f64 = 0.3;
/// Of the two sequences.
const LENS: [usize; 2] = [70, 9];
const KEY_SCALE: f32 = 0.03;

fn spec(heads: usize, rank: usize, rope_dim: usize, kv_format: &KvFormat) -> ModelSpec {
    let latent = LatentSpec {
        query_rank: None,
        rank: rank as u32,
        rope_dim: rope_dim as u32,
        plain_dim: 1,
        value_dim: 1,
        norm_eps: 0.0,
    };
    let mut spec = crate::attention::tests::spec(rank + rope_dim, heads);
    (spec.num_attention_heads, spec.num_kv_heads) = (heads as u32, 1);
    spec.attention.latent = Some(latent);
    spec.kv_format = kv_format.clone();
    spec
}

/// Two sequences whose keys lie in blocks that alternate.
struct World {
    kv: KvCache,
    tables: Vec<Vec<BlockId>>,
    /// As the cache gives them back, by sequence and position.
    keys: [Vec<Vec<f32>>; 2],
    /// By sequence, position and head.
    queries: [Vec<Vec<Vec<f32>>>; 2],
}

impl World {
    fn new(spec: &ModelSpec, block_size: usize) -> Self {
        let mut random = Random(11);
        let (width, heads) = (spec.head_dim as usize, spec.num_attention_heads as usize);
        let blocks = LENS.map(|len| len.div_ceil(block_size));
        let mut kv = KvCache::new(spec, block_size as u32, 2 * (blocks[0] + blocks[1]) as u32);
        let id = |s: usize, n: usize| BlockId((2 * n + s) as u32);
        let tables: Vec<Vec<_>> =
            (0..2).map(|s| (0..blocks[s]).map(|n| id(s, n)).collect()).collect();
        let sizes = kv.of_layer(0).1;
        let keys = [0, 1].map(|s: usize| {
            let of_token = |position: usize| {
                let key = random.floats(width);
                let block = tables[s][position / block_size];
                let place = (sizes.head_start(0, block, 0), position % block_size);
                // SAFETY: one token at a time.
                unsafe { kv.shared().write(&sizes, place, (&[], &key)) };
                match spec.kv_format {
                    KvFormat::Device => key,
                    KvFormat::Fp8(_) => key
                        .iter()
                        .map(|x| e4m3_to_f32(e4m3_from_f32(x / KEY_SCALE)) * KEY_SCALE)
                        .collect(),
                }
            };
            (0..LENS[s]).map(of_token).collect()
        });
        let mut query = |_| random.floats(width);
        let queries =
            LENS.map(|len| (0..len).map(|_| (0..heads).map(&mut query).collect()).collect());
        Self { kv, tables, keys, queries }
    }

    fn exact(&self, (s, position, head): (usize, usize, usize), rank: usize) -> Vec<f64> {
        let query = &self.queries[s][position][head];
        let seen = &self.keys[s][..=position];
        let product = |key: &Vec<f32>| -> f64 {
            query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() * SCALE
        };
        let scores: Vec<f64> = seen.iter().map(product).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
        let share = |score: &f64| (score - max).exp() / sum;
        let value = |column: usize| {
            scores.iter().zip(seen).map(|(s, key)| share(s) * f64::from(key[column])).sum()
        };
        (0..rank).map(value).collect()
    }

    /// Results of the last `new` tokens of both sequences, by sequence, position and head.
    fn run(
        &self,
        spec: &ModelSpec,
        (path, threads): (VectorPath, usize),
        new: [usize; 2],
    ) -> Vec<Vec<f32>> {
        let (width, heads) = (spec.head_dim as usize, spec.num_attention_heads as usize);
        let rank = spec.attention.latent.unwrap().rank as usize;
        let rows = new[0] + new[1];
        let spans = [0, 1].map(|s| Span {
            first_row: s * new[0],
            num_tokens: new[s],
            start: LENS[s] - new[s],
            tables: std::slice::from_ref(&self.tables[s]),
            slot: 0,
            saves: &[],
        });
        let mut queries = Rows::zeroed(rows * heads, width);
        for (s, span) in spans.iter().enumerate() {
            for token in 0..span.num_tokens {
                for (head, query) in self.queries[s][span.start + token].iter().enumerate() {
                    let row = head * rows + span.first_row + token;
                    queries.row_mut(row, width).copy_from_slice(query);
                }
            }
        }
        let attention = Attention {
            path,
            place: KvPlace { group: 0, index: 0 },
            sizes: self.kv.of_layer(0).1,
            kv: &self.kv,
            spans: &spans,
            num_kv_heads: 1,
            group: heads,
            causal: true,
            scale: SCALE as f32,
            soft_cap: None,
            window: None,
            chunks: false,
            sinks: None,
        };
        let mut out = Rows::zeroed(rows * heads, rank);
        let mut pool = Pool::new(threads, 0, || Scratch::latent(width, 128)).expect("threads");
        attention.run_latent(&mut pool, (&queries, rows), (&mut out, rank));
        let places = spans.iter().flat_map(|span| span.first_row..span.first_row + span.num_tokens);
        let all = places.flat_map(|row| (0..heads).map(move |head| head * rows + row));
        all.map(|row| out.row(row, rank).to_vec()).collect()
    }
}

#[test]
fn test_latent_attention_matches_float64_in_any_step() {
    let formats = [KvFormat::Device, KvFormat::Fp8(vec![KvScales { key: KEY_SCALE, value: 7.0 }])];
    for (heads, rank, rope_dim, block_size) in
        [(1, 16, 8, 1), (5, 40, 6, 3), (20, 64, 16, 16), (33, 96, 32, 48)]
    {
        for kv_format in &formats {
            let spec = spec(heads, rank, rope_dim, kv_format);
            let world = World::new(&spec, block_size);
            for path in VectorPath::all() {
                let case = format!("{heads} heads, blocks of {block_size}, {}", path.name());
                let whole = world.run(&spec, (path, 2), LENS);
                let pairs = (0..2).flat_map(|s| {
                    (0..LENS[s]).flat_map(move |p| (0..heads).map(move |head| (s, p, head)))
                });
                for (pair, ours) in pairs.clone().zip(&whole) {
                    for (ours, want) in ours.iter().zip(world.exact(pair, rank)) {
                        assert!((f64::from(*ours) - want).abs() < 2e-5, "{case}: {ours}, {want}");
                    }
                }
                // The last tokens alone, with so many threads that tasks are small.
                for new in [[1, 1], [13, 2]] {
                    let is_new = |(s, p, _): &(usize, usize, usize)| *p >= LENS[*s] - new[*s];
                    let of_whole = pairs.clone().zip(&whole).filter(|(pair, _)| is_new(pair));
                    let want: Vec<_> = of_whole.map(|(_, row)| row.clone()).collect();
                    assert_eq!(world.run(&spec, (path, 30), new), want, "{case}");
                }
            }
        }
    }
}
