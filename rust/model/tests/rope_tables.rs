//! `RopeSpec::tables` against numbers that numpy computed in float64 from the published formulas:
//! with `b(theta, dim) = theta ** -(arange(0, dim, 2) / dim)`, n the length served, L that of training,
//! - linear: b / factor
//! - dynamic: b(theta * (factor * max(n, L) / L - (factor - 1)) ** (dim / (dim - 2)))
//! - llama3: by wavelength w = 2 pi / b: b if w < L / high, b / factor if w > L / low, else
//!   (1 - s) b / factor + s b with s = (L / w - low) / (high - low)
//! - yarn: d(r) = dim ln(L / (2 pi r)) / (2 ln theta), lo = max(floor d(fast), 0), hi = min(ceil d(slow),
//!   dim - 1), r = clip((arange(dim / 2) - lo) / (hi - lo), 0, 1), b / factor r + b (1 - r)
//! - longrope: b / long if n > L else b / short

use ingle_model::{RopeKind, RopeSpec, RopeStyle};

fn check(theta: f32, rotary_dim: u32, kind: RopeKind, max_model_len: u32, wanted: &[f64]) -> f32 {
    let spec = RopeSpec { style: RopeStyle::HalfSplit, rotary_dim, theta, kind };
    let tables = spec.tables(max_model_len);
    assert_eq!(tables.inv_freq.len(), wanted.len());
    for (index, (found, wanted)) in tables.inv_freq.iter().zip(wanted).enumerate() {
        let error = (f64::from(*found) / wanted - 1.0).abs();
        assert!(error < 1e-7, "{:?} {index}: {found} {wanted}", spec.kind);
    }
    tables.attention_factor
}

#[test]
fn test_default_and_linear() {
    assert_eq!(check(1e4, 16, RopeKind::Default, 4096, &DEFAULT), 1.0);
    assert_eq!(check(1e4, 16, RopeKind::Linear { factor: 2.5 }, 4096, &LINEAR), 1.0);
}

#[test]
fn test_dynamic_follows_the_served_length() {
    let kind = RopeKind::Dynamic { factor: 2.0, original_max_position_embeddings: 2048 };
    check(1e4, 16, kind.clone(), 1024, &DYNAMIC_SHORT);
    assert_eq!(DYNAMIC_SHORT, DEFAULT);
    check(1e4, 16, kind, 8192, &DYNAMIC_LONG);
}

#[test]
fn test_llama3_keeps_blends_and_stretches() {
    let kind = RopeKind::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    check(5e5, 32, kind, 131_072, &LLAMA3);
}

#[test]
fn test_yarn_with_and_without_whole_edges() {
    let kind = |truncate| RopeKind::Yarn {
        factor: 8.0,
        original_max_position_embeddings: 1024,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.25,
        truncate,
    };
    assert_eq!(check(1e4, 32, kind(true), 8192, &YARN), 1.25);
    check(1e4, 32, kind(false), 8192, &YARN_UNCUT);
    assert_ne!(YARN, YARN_UNCUT);
}

#[test]
fn test_longrope_changes_when_the_served_length_exceeds_training() {
    let kind = RopeKind::LongRope {
        short_factor: vec![1.0, 1.5, 2.0, 2.5],
        long_factor: vec![4.0, 8.0, 16.0, 32.0],
        original_max_position_embeddings: 4096,
        attention_factor: 1.5,
    };
    assert_eq!(check(1e4, 8, kind.clone(), 4096, &LONG_SHORT), 1.5);
    assert_eq!(check(1e4, 8, kind, 4097, &LONG_LONG), 1.5);
}

#[test]
fn test_factors_of_a_file_divide() {
    let kind = RopeKind::Factors { divisors: vec![4.0, 8.0, 16.0, 32.0] };
    assert_eq!(check(1e4, 8, kind, 100, &LONG_LONG), 1.0);
}

const DEFAULT: [f64; 8] = [
    1.000000000000e+00,
    3.162277660168e-01,
    1.000000000000e-01,
    3.162277660168e-02,
    1.000000000000e-02,
    3.162277660168e-03,
    1.000000000000e-03,
    3.162277660168e-04,
];
const LINEAR: [f64; 8] = [
    4.000000000000e-01,
    1.264911064067e-01,
    4.000000000000e-02,
    1.264911064067e-02,
    4.000000000000e-03,
    1.264911064067e-03,
    4.000000000000e-04,
    1.264911064067e-04,
];
const DYNAMIC_SHORT: [f64; 8] = [
    1.000000000000e+00,
    3.162277660168e-01,
    1.000000000000e-01,
    3.162277660168e-02,
    1.000000000000e-02,
    3.162277660168e-03,
    1.000000000000e-03,
    3.162277660168e-04,
];
const DYNAMIC_LONG: [f64; 8] = [
    1.000000000000e+00,
    2.394813560060e-01,
    5.735131987446e-02,
    1.373457185227e-02,
    3.289173891343e-03,
    7.876958236383e-04,
    1.886384639652e-04,
    4.517539514526e-05,
];
const LLAMA3: [f64; 16] = [
    1.000000000000e+00,
    4.403666026718e-01,
    1.939227447487e-01,
    8.539710028577e-02,
    3.760603093086e-02,
    1.656044008099e-02,
    7.292664737217e-03,
    3.211445994753e-03,
    5.248461609930e-04,
    7.784655273932e-05,
    3.428102195953e-05,
    1.509621717643e-05,
    6.647869871181e-06,
    2.927499870176e-06,
    1.289173172152e-06,
    5.677088100760e-07,
];
const YARN: [f64; 16] = [
    1.000000000000e+00,
    5.623413251903e-01,
    3.162277660168e-01,
    1.555994483784e-01,
    7.500000000000e-02,
    3.514633282440e-02,
    1.581138830084e-02,
    6.668547787646e-03,
    2.500000000000e-03,
    7.029266564879e-04,
    3.952847075210e-04,
    2.222849262549e-04,
    1.250000000000e-04,
    7.029266564879e-05,
    3.952847075210e-05,
    2.222849262549e-05,
];
const YARN_UNCUT: [f64; 16] = [
    1.000000000000e+00,
    5.623413251903e-01,
    3.162277660168e-01,
    1.733795954900e-01,
    8.296507607371e-02,
    3.848193949289e-02,
    1.704410903645e-02,
    7.000155966660e-03,
    2.483133441318e-03,
    7.029266564879e-04,
    3.952847075210e-04,
    2.222849262549e-04,
    1.250000000000e-04,
    7.029266564879e-05,
    3.952847075210e-05,
    2.222849262549e-05,
];
const LONG_SHORT: [f64; 4] =
    [1.000000000000e+00, 6.666666666667e-02, 5.000000000000e-03, 4.000000000000e-04];
const LONG_LONG: [f64; 4] =
    [2.500000000000e-01, 1.250000000000e-02, 6.250000000000e-04, 3.125000000000e-05];
