//! Compares products with float64, over edge cases of shapes, all formats and all paths.

use super::*;
use crate::testing::{ALL_TYPES, Random, random_fp8_matrix, random_matrix};

fn input(random: &mut Random, rows: usize, cols: usize) -> Rows {
    let mut x = Rows::zeroed(rows, cols);
    for row in 0..rows {
        x.row_mut(row, cols).copy_from_slice(&random.floats(cols));
    }
    x
}

fn plain<'a>(matrix: &'a PackedMatrix, rows: Range<usize>) -> Item<'a> {
    Item { rows, product: Product::Plain(matrix), out_col: 0 }
}

fn pool(threads: usize) -> Pool {
    Pool::new(threads, 0, || Scratch::new(64, 64)).expect("threads")
}

/// Product and the sum of its terms' sizes, in f64.
fn exact(x: &[f32], w: &[f32]) -> (f64, f64) {
    x.iter().zip(w).fold((0.0, 0.0), |(sum, size), (x, w)| {
        let term = f64::from(*x) * f64::from(*w);
        (sum + term, size + term.abs())
    })
}

#[test]
fn test_products_match_float64_and_do_not_depend_on_the_batch() {
    let mut random = Random(2);
    let mut pool = pool(3);
    for weight_type in ALL_TYPES {
        let block = weight_type.block_elements();
        let depths = if block == 1 { [1, 30, 333] } else { [block, 2 * block, 4 * block] };
        for (outputs, depth) in [1, 33, 95].into_iter().zip(depths) {
            let (matrix, weights) = random_matrix(&mut random, weight_type, outputs, depth);
            let context = format!("{weight_type:?} {depth} -> {outputs}");
            check_products(&mut random, &mut pool, (&matrix, &weights), &context);
        }
    }
    for (outputs, depth) in [(1, 1), (33, 300), (95, 600)] {
        for block in [(outputs, depth), (1, depth), (128, 128), (24, 40)] {
            let (matrix, weights) = random_fp8_matrix(&mut random, (outputs, depth), block);
            let context = format!("fp8 in blocks of {block:?} {depth} -> {outputs}");
            check_products(&mut random, &mut pool, (&matrix, &weights), &context);
        }
    }
}

fn check_products(
    random: &mut Random,
    pool: &mut Pool,
    (matrix, weights): (&PackedMatrix, &[f32]),
    context: &str,
) {
    let depth = matrix.cols();
    let outputs = weights.len() / depth;
    for rows in [1, 2, 7, 8, 9, 12, 13, 16, 17, 25] {
        let mut x = input(random, rows, depth);
        for path in VectorPath::all() {
            let context = format!("{context}, {rows} rows, {}", path.name());
            let mut out = Rows::zeroed(rows, outputs);
            multiply(pool, path, &mut x, &[plain(matrix, 0..rows)], &mut out);
            let mut alone = Rows::zeroed(rows, outputs);
            for row in 0..rows {
                let item = plain(matrix, row..row + 1);
                multiply(pool, path, &mut x, &[item], &mut alone);
                let (ours, single) = (out.row(row, outputs), alone.row(row, outputs));
                for (n, ours) in ours.iter().enumerate() {
                    let (want, size) = exact(x.row(row, depth), &weights[n * depth..][..depth]);
                    let error = (f64::from(*ours) - want).abs();
                    assert!(error <= 1e-5 * size + 1e-12, "{context}: {ours}, {want}");
                    assert_eq!(ours.to_bits(), single[n].to_bits(), "{context}: alone");
                }
            }
        }
    }
}

#[test]
fn test_long_batches_are_cut_into_chunks_without_a_trace() {
    let mut random = Random(3);
    let mut pool = pool(2);
    let (rows, depth, outputs) = (2 * ROW_CHUNK + 5, 40, 33);
    let mut x = input(&mut random, rows, depth);
    let (matrix, _) = random_matrix(&mut random, WeightType::Bf16, outputs, depth);
    for path in VectorPath::all() {
        let (mut whole, mut parts) = (Rows::zeroed(rows, outputs), Rows::zeroed(rows, outputs));
        multiply(&mut pool, path, &mut x, &[plain(&matrix, 0..rows)], &mut whole);
        let items: Vec<Item<'_>> =
            (0..rows).step_by(97).map(|r| plain(&matrix, r..(r + 97).min(rows))).collect();
        multiply(&mut pool, path, &mut x, &items, &mut parts);
        assert_eq!(whole.data(), parts.data(), "{}", path.name());
    }
}

#[test]
fn test_gated_products_match_float64() {
    let mut random = Random(4);
    let mut pool = pool(2);
    let (rows, depth, outputs) = (13, 64, 70);
    let mut x = input(&mut random, rows, depth);
    let (gate, gate_values) = random_matrix(&mut random, WeightType::F16, outputs, depth);
    let (up, up_values) = random_matrix(&mut random, WeightType::Q8_0, outputs, depth);
    let (gate_bias, up_bias) = (random.floats(outputs), random.floats(outputs));
    for activation in [Activation::Silu, Activation::GeluTanh] {
        for path in VectorPath::all() {
            let gated = Gated {
                gate: &gate,
                up: &up,
                gate_bias: Some(&gate_bias),
                up_bias: Some(&up_bias),
                activation,
            };
            let item = Item { rows: 0..rows, product: Product::Gated(gated), out_col: 0 };
            let mut out = Rows::zeroed(rows, outputs);
            multiply(&mut pool, path, &mut x, &[item], &mut out);
            for row in 0..rows {
                for n in 0..outputs {
                    let at = n * depth..(n + 1) * depth;
                    let g = exact(x.row(row, depth), &gate_values[at.clone()]).0;
                    let u = exact(x.row(row, depth), &up_values[at]).0 + f64::from(up_bias[n]);
                    let g = g + f64::from(gate_bias[n]);
                    let activated = match activation {
                        Activation::Silu => g / (1.0 + (-g).exp()),
                        Activation::GeluTanh => {
                            let inner =
                                (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
                            0.5 * g * (1.0 + inner.tanh())
                        }
                        Activation::ClampedSwiglu { .. } => unreachable!("elementwise.rs tests it"),
                    };
                    let (ours, want) = (f64::from(out.row(row, outputs)[n]), activated * u);
                    let error = (ours - want).abs();
                    assert!(error < 2e-4, "{activation:?} {}: {ours}, {want}", path.name());
                }
            }
        }
    }
}
