//! Norms, activations and the exponential: plain loops that the compiler vectorises for each path.
//! Sums use 16 lanes by index, so their order is the same everywhere.

use ingle_model::Activation;

use crate::vector_path::{Arithmetic, VectorPath, per_path};

/// `e^x` within 2 ulp for x in [-87, 88]; below it is 0, above it stays at e^88.
#[inline(always)]
pub(crate) fn exp<A: Arithmetic>(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts, so that x - n ln 2 keeps its low bits (Cody and Waite).
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and taking away 1.5 * 2^23 rounds to the nearest whole number.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.3, 88.3);
    let shifted = A::mul_add(clamped, LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = A::mul_add(n, -LN2_LOW, A::mul_add(n, -LN2_HIGH, clamped));
    // Cephes expf's polynomial.
    let mut p = 1.987_569_1e-4;
    p = A::mul_add(p, r, 1.398_199_9e-3);
    p = A::mul_add(p, r, 8.333_452e-3);
    p = A::mul_add(p, r, 4.166_579_6e-2);
    p = A::mul_add(p, r, 1.666_666_5e-1);
    p = A::mul_add(p, r, 5.0e-1);
    let y = A::mul_add(p, r * r, r + 1.0);
    // The whole number sits in the low bits of `shifted`: make it an exponent.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < -87.3 { 0.0 } else { y * power }
}

/// `tanh(x)` as `1 - 2 / (e^2x + 1)`; absolute error below 2e-7.
#[inline(always)]
fn tanh<A: Arithmetic>(x: f32) -> f32 {
    1.0 - 2.0 / (exp::<A>(2.0 * x) + 1.0)
}

/// Adds 16 lanes in a fixed tree.
#[inline(always)]
pub(crate) fn add_lanes(lanes: [f32; 16]) -> f32 {
    let mut sums = lanes;
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
    }
    sums[0]
}

/// Multiplies `product` by the activation of `gate`, element by element.
pub(crate) fn gate(path: VectorPath, activation: Activation, gate: &[f32], product: &mut [f32]) {
    match activation {
        Activation::Silu => gate_silu(path, gate, product),
        Activation::GeluTanh => gate_gelu(path, gate, product),
        Activation::ClampedSwiglu { limit } => gate_clamped(path, gate, limit, product),
    }
}

per_path! { fn gate_clamped(gate: &[f32], limit: f32, product: &mut [f32]) = gate_clamped_body }

#[inline(always)]
fn gate_clamped_body<A: Arithmetic>(gate: &[f32], limit: f32, product: &mut [f32]) {
    const ALPHA: f32 = 1.702;
    for (g, value) in gate.iter().zip(product) {
        // Not `min` and `clamp`, which would make a number of a NaN.
        let g = if *g > limit { limit } else { *g };
        let up = if *value > limit { limit } else { *value };
        let up = if up < -limit { -limit } else { up };
        *value = (up + 1.0) * g / (1.0 + exp::<A>(-ALPHA * g));
    }
}

per_path! { fn gate_silu(gate: &[f32], product: &mut [f32]) = gate_silu_body }

#[inline(always)]
fn gate_silu_body<A: Arithmetic>(gate: &[f32], product: &mut [f32]) {
    for (g, value) in gate.iter().zip(product) {
        *value *= g / (1.0 + exp::<A>(-g));
    }
}

per_path! { fn gate_gelu(gate: &[f32], product: &mut [f32]) = gate_gelu_body }

#[inline(always)]
fn gate_gelu_body<A: Arithmetic>(gate: &[f32], product: &mut [f32]) {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    for (g, value) in gate.iter().zip(product) {
        let inner = SQRT_2_OVER_PI * (g + 0.044_715 * g * g * g);
        *value *= 0.5 * g * (1.0 + tanh::<A>(inner));
    }
}

per_path! {
    /// `out = x / rms(x) * weight`, with 1 already added to the weight where the model requires it.
    pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rms_norm_body
}

#[inline(always)]
fn rms_norm_body<A: Arithmetic>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = inverse_rms::<A>(x, eps);
    for ((x, weight), out) in x.iter().zip(weight).zip(out) {
        *out = x * scale * weight;
    }
}

per_path! {
    /// `rms_norm` in place.
    pub(crate) fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32)
        = rms_norm_in_place_body
}

#[inline(always)]
fn rms_norm_in_place_body<A: Arithmetic>(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = inverse_rms::<A>(x, eps);
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

#[inline(always)]
fn inverse_rms<A: Arithmetic>(x: &[f32], eps: f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = A::mul_add(*x, *x, *lane);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = A::mul_add(*x, *x, *lane);
    }
    1.0 / (add_lanes(lanes) / x.len() as f32 + eps).sqrt()
}

per_path! { pub(crate) fn add_assign(x: &mut [f32], y: &[f32]) = add_assign_body }

#[inline(always)]
fn add_assign_body<A: Arithmetic>(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

per_path! {
    /// `x = cap * tanh(x / cap)`
    pub(crate) fn soft_cap(x: &mut [f32], cap: f32) = soft_cap_body
}

#[inline(always)]
fn soft_cap_body<A: Arithmetic>(x: &mut [f32], cap: f32) {
    for x in x {
        *x = cap * tanh::<A>(*x / cap);
    }
}

per_path! { pub(crate) fn maximum(x: &[f32]) -> f32 = maximum_body }

/// A NaN is passed over; callers look for it where it matters.
#[inline(always)]
fn maximum_body<A: Arithmetic>(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = if *x > *lane { *x } else { *lane };
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

per_path! {
    /// Replaces x by `e^(x - max)` and returns the sum.
    pub(crate) fn exp_and_sum(x: &mut [f32], max: f32) -> f32 = exp_and_sum_body
}

#[inline(always)]
fn exp_and_sum_body<A: Arithmetic>(x: &mut [f32], max: f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (chunks, rest) = x.as_chunks_mut::<16>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *x = exp::<A>(*x - max);
            *lane += *x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *x = exp::<A>(*x - max);
        *lane += *x;
    }
    add_lanes(lanes)
}

per_path! {
    /// Replaces x by `1 / (1 + e^-x)`.
    pub(crate) fn sigmoid(x: &mut [f32]) = sigmoid_body
}

#[inline(always)]
fn sigmoid_body<A: Arithmetic>(x: &mut [f32]) {
    for x in x {
        *x = 1.0 / (1.0 + exp::<A>(-*x));
    }
}

/// `sum of e^x`.
pub(crate) fn sum_of_exp(path: VectorPath, x: &[f32]) -> f32 {
    sum_of_exp_less(path, x, 0.0)
}

per_path! {
    /// `sum of e^(x - max)`.
    pub(crate) fn sum_of_exp_less(x: &[f32], max: f32) -> f32 = sum_of_exp_less_body
}

#[inline(always)]
fn sum_of_exp_less_body<A: Arithmetic>(x: &[f32], max: f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += exp::<A>(*x - max);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += exp::<A>(*x - max);
    }
    add_lanes(lanes)
}

per_path! {
    /// Whether no number is NaN or infinite.
    pub(crate) fn all_finite(x: &[f32]) -> bool = all_finite_body
}

#[inline(always)]
fn all_finite_body<A: Arithmetic>(x: &[f32]) -> bool {
    let mut broken = 0u32;
    for x in x {
        broken |= u32::from(x.to_bits() & 0x7f80_0000 == 0x7f80_0000);
    }
    broken == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn test_exponentials_match_float64() {
        for path in VectorPath::all() {
            // 0 is added as the maximum, so that each x is its own.
            let mut xs: Vec<f32> = (-20_000..2_000).map(|i| i as f32 * 0.00437).collect();
            let want: Vec<f64> = xs.iter().map(|x| f64::from(*x).exp()).collect();
            let sum = exp_and_sum(path, &mut xs, 0.0);
            for (ours, want) in xs.iter().zip(&want) {
                let error = (f64::from(*ours) - want).abs();
                assert!(error <= 3e-7 * want + 2e-38, "{}: {ours}, {want}", path.name());
            }
            let total: f64 = want.iter().sum();
            assert!((f64::from(sum) / total - 1.0).abs() < 1e-6, "{}", path.name());
            let mut far = [-100.0, f32::NEG_INFINITY, f32::NAN];
            exp_and_sum(path, &mut far, 0.0);
            assert!(far[0] == 0.0 && far[1] == 0.0 && far[2].is_nan(), "{}: {far:?}", path.name());
        }
    }

    #[test]
    fn test_norms_match_float64_at_all_lengths() {
        let mut random = Random(5);
        for path in VectorPath::all() {
            for len in [1, 15, 16, 17, 64, 129] {
                let (x, weight) = (random.floats(len), random.floats(len));
                let mut out = vec![0.0; len];
                rms_norm(path, &x, &weight, 1e-5, &mut out);
                let square: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
                let scale = 1.0 / (square / len as f64 + 1e-5).sqrt();
                for i in 0..len {
                    let want = f64::from(x[i]) * scale * f64::from(weight[i]);
                    let error = (f64::from(out[i]) - want).abs();
                    assert!(error < 1e-6, "{} {len}: {} {want}", path.name(), out[i]);
                }
                let mut same = x.clone();
                rms_norm_in_place(path, &mut same, &weight, 1e-5);
                assert_eq!(same, out);
            }
        }
    }

    #[test]
    fn test_maximum_and_finiteness_see_every_place() {
        for path in VectorPath::all() {
            for len in [1, 16, 33] {
                for at in 0..len {
                    let mut x = vec![-1.0; len];
                    x[at] = 3.0;
                    assert_eq!(maximum(path, &x), 3.0);
                    assert!(all_finite(path, &x));
                    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                        x[at] = bad;
                        assert!(!all_finite(path, &x), "{} {len} {at} {bad}", path.name());
                    }
                }
            }
        }
    }

    #[test]
    fn test_clamped_gates_match_float64() {
        for path in VectorPath::all() {
            let gates: Vec<f32> = (-300..300).map(|i| i as f32 * 0.1).collect();
            for up in [-20.0_f32, -7.0, -1.5, 0.0, 3.0, 7.5] {
                let mut product = vec![up; gates.len()];
                let activation = Activation::ClampedSwiglu { limit: 7.0 };
                gate(path, activation, &gates, &mut product);
                for (g, ours) in gates.iter().zip(&product) {
                    let g = f64::from(*g).min(7.0);
                    let want =
                        (f64::from(up).clamp(-7.0, 7.0) + 1.0) * g / (1.0 + (-1.702 * g).exp());
                    assert!(
                        (f64::from(*ours) - want).abs() < 1e-5,
                        "{}: {ours} {want}",
                        path.name()
                    );
                }
            }
            let mut product = [1.0, f32::NAN];
            gate(path, Activation::ClampedSwiglu { limit: 7.0 }, &[f32::NAN, 1.0], &mut product);
            assert!(product.iter().all(|x| x.is_nan()), "{}: {product:?}", path.name());
        }
    }

    #[test]
    fn test_soft_caps_match_float64() {
        for path in VectorPath::all() {
            let mut x: Vec<f32> = (-500..500).map(|i| i as f32 * 0.5).collect();
            let want: Vec<f64> = x.iter().map(|x| 30.0 * (f64::from(*x) / 30.0).tanh()).collect();
            soft_cap(path, &mut x, 30.0);
            for (ours, want) in x.iter().zip(want) {
                assert!((f64::from(*ours) - want).abs() < 1e-5, "{}: {ours} {want}", path.name());
            }
        }
    }
}
