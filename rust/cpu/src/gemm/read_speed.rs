//! Long test: a product of one row is bound by reading the weights, so it may take a small multiple of what a plain
//! read of the same bytes takes, side by side in one run. A ratio, not a time: it holds on slow machines too.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::*;
use crate::vector_path::Kind;

const INPUTS: usize = 1536;
/// More than a last-level cache holds for long, in every format.
const OUTPUTS: usize = 1 << 16;
const ROUNDS: usize = 15;
/// The most reads that a product may take, by format. Measured on Zen 4 with AVX-512 and AVX2, beside other work:
/// bf16 1.3 to 1.7, Q8_0 1.3 and 2.5, Q4_1 1.5 and 2.8, Q5_0, whose fifth bits are put together first, 2.0 to 6.6.
const MOST: [(WeightType, f64); 4] = [
    (WeightType::Bf16, 3.0),
    (WeightType::Q8_0, 4.0),
    (WeightType::Q4_1, 4.5),
    (WeightType::Q5_0, 10.0),
];

#[test]
#[ignore = "measures time"]
fn test_one_row_takes_little_longer_than_reading_its_weights() {
    let threads = crate::threads::physical_cores().min(2);
    let mut pool = Pool::new(threads, 0, || Scratch::new(64, 64)).expect("threads");
    for (weight_type, most) in MOST {
        let matrix = filled(weight_type);
        let mut x = Rows::zeroed(1, INPUTS);
        x.row_mut(0, INPUTS).fill(0.5);
        let mut out = Rows::zeroed(1, OUTPUTS);
        for path in VectorPath::all().into_iter().filter(|path| path.kind() != Kind::Portable) {
            // Alternating, and the median of ratios: other work on the machine hits both.
            let mut ratios: Vec<f64> = (0..ROUNDS)
                .map(|_| {
                    let read = time(|| read(&mut pool, &matrix));
                    let item = Item { rows: 0..1, product: Product::Plain(&matrix), out_col: 0 };
                    let product = time(|| multiply(&mut pool, path, &mut x, &[item], &mut out));
                    product.as_secs_f64() / read.as_secs_f64()
                })
                .collect();
            ratios.sort_by(f64::total_cmp);
            let ratio = ratios[ROUNDS / 2];
            assert!(ratio < most, "{weight_type:?} on {}: {ratio:.2} reads", path.name());
        }
    }
}

/// A matrix whose bytes are all 0x11: a number in every format, and no page is the zero page.
fn filled(weight_type: WeightType) -> PackedMatrix {
    let mut matrix =
        PackedMatrix::zeroed(&crate::aligned::Arena::default(), weight_type, OUTPUTS, INPUTS);
    let bytes = matrix.byte_len();
    let panels = matrix.shared();
    // SAFETY: the only part.
    unsafe { panels.part(0, bytes) }.fill(0x11);
    matrix
}

/// Every thread reads its panels from beginning to end.
fn read(pool: &mut Pool, matrix: &PackedMatrix) {
    pool.run(matrix.num_panels(), &|panel, _| {
        let mut sums = [0u64; 32];
        for line in numbers::<u64>(matrix.panel(panel).bytes).as_chunks::<32>().0 {
            for (sum, word) in sums.iter_mut().zip(line) {
                *sum ^= word;
            }
        }
        black_box(sums);
    });
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}
