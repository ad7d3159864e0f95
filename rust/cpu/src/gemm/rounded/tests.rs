//! Compares products with rounded activations with their definition and with float64, over all formats they exist for.

use super::super::{Item, Product, multiply};
use super::*;
use crate::CpuPrecision;
use crate::matrix::PackedMatrix;
use crate::pool::Pool;
use crate::rows::Rows;
use crate::scratch::Scratch;
use crate::testing::{ALL_TYPES, Random, random_matrix};

/// `None` where the processor has no fast path; refusing it there is tested in vector_path.rs.
fn fast_path() -> Option<VectorPath> {
    VectorPath::all()[0].with(CpuPrecision::Fast).ok()
}

fn formats() -> impl Iterator<Item = WeightType> {
    ALL_TYPES.into_iter().filter(|t| *t == WeightType::Bf16 || is_block_format(*t))
}

#[test]
fn test_codes_of_four_inputs_stand_for_the_reference_values_on_every_path() {
    let mut random = Random(21);
    for weight_type in formats().filter(|t| is_block_format(*t)) {
        let (outputs, depth) = (PANEL, 2 * weight_type.block_elements().max(32));
        let (matrix, values) = random_matrix(&mut random, weight_type, outputs, depth);
        let group = layout(weight_type).group;
        for path in VectorPath::all() {
            let mut words = vec![0; depth / 4 * PANEL];
            let mut groups = vec![0.0; depth / 16 * 2 * PANEL];
            unpack_quads(path, matrix.panel(0), 0..depth, &mut words, &mut groups);
            for output in 0..outputs {
                for k in 0..depth {
                    let code = words[k / 4 * PANEL + output].to_le_bytes()[k % 4];
                    let at = k / group * 2 * PANEL + output;
                    let (scale, min) = (f64::from(groups[at]), f64::from(groups[at + PANEL]));
                    let ours = scale * f64::from(i32::from(code) - quad_offset(weight_type)) + min;
                    let want = f64::from(values[output * depth + k]);
                    let context = format!("{weight_type:?} {} {output} {k}", path.name());
                    assert!((ours - want).abs() <= 1e-6 * want.abs() + 1e-7, "{context}: {ours}");
                }
            }
        }
    }
}

#[test]
fn test_rounded_products_do_not_depend_on_the_batch_and_match_float64() {
    let Some(path) = fast_path() else { return };
    let mut random = Random(22);
    let mut pool = Pool::new(2, 0, || Scratch::new(64, 64)).expect("threads");
    for weight_type in formats() {
        let block = weight_type.block_elements();
        let depths = if block == 1 { [1, 333, 1700] } else { [block, 2 * block, 2048] };
        for (outputs, depth) in [33, 70, 35].into_iter().zip(depths) {
            let (matrix, weights) = random_matrix(&mut random, weight_type, outputs, depth);
            for rows in [1, 3, 12, 13, 29] {
                let context = format!("{weight_type:?} {depth} -> {outputs}, {rows} rows");
                let mut x = Rows::zeroed(rows, depth);
                for row in 0..rows {
                    x.row_mut(row, depth).copy_from_slice(&random.floats(depth));
                }
                let out =
                    check_batch(&mut pool, path, (&matrix, outputs), (&mut x, rows), &context);
                for row in 0..rows {
                    let rounded = rounded_inputs(&x, row, depth, weight_type);
                    for n in 0..outputs {
                        let (want, size) = exact(&rounded, &weights[n * depth..][..depth]);
                        let error = (f64::from(out.row(row, outputs)[n]) - want).abs();
                        assert!(
                            error <= 2e-6 * size + 1e-12,
                            "{context}: off by {error} of {size}"
                        );
                    }
                }
            }
        }
    }
}

/// The product of all rows, which must be that of each row alone.
fn check_batch(
    pool: &mut Pool,
    path: VectorPath,
    (matrix, outputs): (&PackedMatrix, usize),
    (x, rows): (&mut Rows, usize),
    context: &str,
) -> Rows {
    let plain = |rows| Item { rows, product: Product::Plain(matrix), out_col: 0 };
    let (mut out, mut alone) = (Rows::zeroed(rows, outputs), Rows::zeroed(rows, outputs));
    for row in 0..rows {
        multiply(pool, path, x, &[plain(row..row + 1)], &mut alone);
    }
    multiply(pool, path, x, &[plain(0..rows)], &mut out);
    assert_eq!(out.data(), alone.data(), "{context}");
    out
}

/// What the last product made of a row.
fn rounded_inputs(x: &Rows, row: usize, depth: usize, weight_type: WeightType) -> Vec<f64> {
    let rounded = x.rounded(row..row + 1);
    let number = |k: usize| match weight_type {
        WeightType::Bf16 => f64::from(f32::from_bits(u32::from(rounded.halves[k]) << 16)),
        _ => f64::from(rounded.bytes[k]) * f64::from(rounded.steps[k / 32]),
    };
    (0..depth).map(number).collect()
}

/// Product and the sum of its terms' sizes.
fn exact(x: &[f64], w: &[f32]) -> (f64, f64) {
    x.iter().zip(w).fold((0.0, 0.0), |(sum, size), (x, w)| {
        let term = x * f64::from(*w);
        (sum + term, size + term.abs())
    })
}

#[test]
fn test_rounded_products_of_what_is_not_finite_are_not_finite() {
    let Some(path) = fast_path() else { return };
    let mut random = Random(23);
    let mut pool = Pool::new(1, 0, || Scratch::new(64, 64)).expect("threads");
    for weight_type in formats() {
        let depth = weight_type.block_elements().max(64);
        let (matrix, _) = random_matrix(&mut random, weight_type, 32, depth);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = Rows::zeroed(1, depth);
            x.row_mut(0, depth).copy_from_slice(&random.floats(depth));
            x.row_mut(0, depth)[depth / 2] = bad;
            let mut out = Rows::zeroed(1, 32);
            let item = Item { rows: 0..1, product: Product::Plain(&matrix), out_col: 0 };
            multiply(&mut pool, path, &mut x, &[item], &mut out);
            assert!(out.row(0, 32).iter().all(|x| !x.is_finite()), "{weight_type:?} {bad}");
        }
    }
}
