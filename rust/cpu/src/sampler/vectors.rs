//! Results that this definition and its numpy copy share: tests/golden/sampler_vectors.json. The
//! kernels' sampler is tested against that copy (tests/gpu), so the three stay consistent.

use serde_json::Value;

use super::*;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/sampler_vectors.json");

/// As `logits_of` of tests/gpu/sampler_vectors.py makes them.
fn logits(case: &Value) -> Vec<f32> {
    let mut x = u32::try_from(case["logits_seed"].as_u64().unwrap()).unwrap();
    let scale = number(case, "logits_scale");
    let mut values: Vec<f32> = (0..size(case, "vocab"))
        .map(|_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((x >> 20) as f32 - 2048.0) / 2048.0 * scale
        })
        .collect();
    if let Some(place) = case["nan_at"].as_u64() {
        values[place as usize] = f32::NAN;
    }
    values
}

fn number(case: &Value, name: &str) -> f32 {
    case[name].as_f64().unwrap() as f32
}

fn size(case: &Value, name: &str) -> usize {
    case[name].as_u64().unwrap() as usize
}

fn ids(list: &Value) -> Vec<TokenId> {
    list.as_array().unwrap().iter().map(|id| TokenId(id.as_u64().unwrap() as u32)).collect()
}

fn params(case: &Value) -> SamplingParams {
    let bias = case["logit_bias"].as_array().unwrap().iter();
    let bias = bias
        .map(|pair| (TokenId(pair[0].as_u64().unwrap() as u32), pair[1].as_f64().unwrap() as f32));
    SamplingParams {
        temperature: number(case, "temperature"),
        top_k: size(case, "top_k") as u32,
        top_p: number(case, "top_p"),
        min_p: number(case, "min_p"),
        top_n_sigma: number(case, "top_n_sigma"),
        repetition_penalty: number(case, "repetition_penalty"),
        presence_penalty: number(case, "presence_penalty"),
        frequency_penalty: number(case, "frequency_penalty"),
        logit_bias: bias.collect(),
        allowed_token_ids: Some(&case["allowed_token_ids"]).filter(|l| !l.is_null()).map(ids),
        min_tokens: size(case, "min_tokens") as u32,
        min_tokens_banned: ids(&case["min_tokens_banned"]),
        seed: case["seed"].as_u64().unwrap(),
        choice_index: size(case, "choice_index") as u32,
        ..SamplingParams::default()
    }
}

fn mask(case: &Value) -> Option<Vec<u32>> {
    let allowed = Some(&case["mask"]).filter(|list| !list.is_null()).map(ids)?;
    let mut words = vec![0; size(case, "vocab").div_ceil(32)];
    for id in allowed {
        words[id.index() / 32] |= 1 << (id.0 % 32);
    }
    Some(words)
}

#[test]
fn test_the_answers_of_the_numpy_copy() {
    let text = std::fs::read_to_string(FILE).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let cases = document["cases"].as_array().unwrap();
    assert!(cases.len() >= 100, "{} cases", cases.len());
    for path in [crate::CpuPath::Auto, crate::CpuPath::Portable] {
        let path = VectorPath::resolve(path).unwrap();
        for case in cases {
            let (logits, params, mask) = (logits(case), params(case), mask(case));
            let history = History::new(&params, &ids(&case["prompt"]), &ids(&case["generated"]));
            let row = SampleRow {
                logits: &logits,
                params: &params,
                history: &history,
                mask: mask.as_deref(),
                num_valid: size(case, "valid"),
            };
            let token = sample(path, &row, &mut SamplerScratch::default());
            let name = &case["name"];
            assert_eq!(token.map(|id| u64::from(id.0)), case["token"].as_u64(), "{name}");
            if let Some(token) = token {
                let given = log_probs(path, &logits, row.num_valid, token, 0);
                assert_eq!(u64::from(given.rank), case["rank"].as_u64().unwrap(), "{name}");
                let off = f64::from(given.log_prob) - case["log_prob"].as_f64().unwrap();
                assert!(off.abs() < 1e-4, "{name}: log-prob off by {off}");
            }
        }
    }
}
