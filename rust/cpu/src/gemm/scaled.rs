//! Products with codes whose scale and minimum belong to a group of 16 or 32 inputs: block formats, for any number of rows.
//!
//! For each group, `s` is one chain `s = x[k] * code[k] + s` in rising k from zero; then
//! `out = scale * s + out` and, where there is a minimum, `out = min * sum(x) + out`. This order is the definition:
//! neither the number of rows nor the way a caller splits the inputs changes a bit of it. Scaling a sum, not every
//! weight, saves an operation for each weight and lets groups be computed side by side.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};

#[cfg(target_arch = "x86_64")]
use super::vector::Vector;
use crate::panel::{PANEL, TILE_ROWS};
use crate::rows::Prepared;
use crate::vector_path::{Kind, VectorPath};

/// 32 columns of codes, and what belongs to their groups.
#[derive(Clone, Copy)]
pub(super) struct Codes<'a> {
    /// `[inputs][32]`
    pub(super) codes: &'a [f32],
    /// `[inputs / group][scale, minimum][32]`
    pub(super) groups: &'a [f32],
    /// Inputs of a group: 16 or 32.
    pub(super) group: usize,
    /// Whether minimums count; where not, they are not read.
    pub(super) has_min: bool,
}

/// Adds the product of `x` and `codes` to `out[rows][32]`.
///
/// # Panics
/// If a slice is too short.
pub(super) fn add_scaled_product(
    path: VectorPath,
    x: Prepared<'_>,
    codes: Codes<'_>,
    out: &mut [f32],
) {
    let depth = codes.codes.len() / PANEL;
    assert!(depth.is_multiple_of(codes.group) && matches!(codes.group, 16 | 32));
    assert!(codes.groups.len() >= depth / codes.group * 2 * PANEL, "groups too short");
    assert!(out.len().is_multiple_of(PANEL));
    for (tile, out) in out.chunks_mut(TILE_ROWS * PANEL).enumerate() {
        let x = x.skip_rows(tile * TILE_ROWS);
        x.assert_holds(out.len() / PANEL, depth);
        match path.kind() {
            // SAFETY: the features were detected (`VectorPath::resolve`); the asserts above show that `x`, both
            // parts of `codes` and `out` hold what 1 to 12 rows and `depth` read and write.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { tile_avx512(x, codes, out) },
            // SAFETY: AVX2, FMA and F16C were detected (`VectorPath::resolve`); the asserts show that `x`, both parts of
            // `codes` and `out` hold what 1 to 12 rows and `depth` read and write.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { tile_avx2(x, codes, out) },
            Kind::Portable => tile_portable(x, codes, out),
        }
    }
}

fn tile_portable(x: Prepared<'_>, codes: Codes<'_>, out: &mut [f32]) {
    for (row, out) in out.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
        let lines = codes.codes.as_chunks::<PANEL>().0.chunks_exact(codes.group);
        let groups = codes.groups.as_chunks::<PANEL>().0.as_chunks::<2>().0;
        for (index, (lines, [scale, min])) in lines.zip(groups).enumerate() {
            let mut sums = [0.0; PANEL];
            for (k, line) in lines.iter().enumerate() {
                let x = x.plain[row * x.stride + index * codes.group + k];
                for lane in 0..PANEL {
                    sums[lane] += x * line[lane];
                }
            }
            let at = row * x.sums_stride + index * codes.group / 16;
            let sum_of_inputs =
                if codes.group == 32 { x.sums[at] + x.sums[at + 1] } else { x.sums[at] };
            for lane in 0..PANEL {
                out[lane] += scale[lane] * sums[lane];
                if codes.has_min {
                    out[lane] += min[lane] * sum_of_inputs;
                }
            }
        }
    }
}

/// # Safety
/// AVX-512 F, BW, DQ and VL exist. `x` has 1 to 12 rows as `out` does, with the inputs of `codes` and their sums;
/// `codes` has whole groups, and as many scales and minimums.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn tile_avx512(x: Prepared<'_>, codes: Codes<'_>, out: &mut [f32]) {
    macro_rules! instance {
        ($($count:literal)*) => {
            match out.len() / PANEL {
                $($count => rows::<__m512, $count, 2>(x, codes, out.as_mut_ptr()),)*
                _ => unreachable!("rows of a tile"),
            }
        };
    }
    // SAFETY: the caller promises the features and the lengths; the row count selects the instance.
    unsafe { instance!(1 2 3 4 5 6 7 8 9 10 11 12) }
}

/// # Safety
/// AVX2, FMA and F16C exist, and the lengths are as for `tile_avx512`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile_avx2(x: Prepared<'_>, codes: Codes<'_>, out: &mut [f32]) {
    for (index, out) in out.chunks_mut(6 * PANEL).enumerate() {
        let x = x.skip_rows(index * 6);
        // SAFETY: the caller promises the features and the lengths; the row count selects the instance.
        unsafe {
            match out.len() / PANEL {
                1 => rows::<__m256, 1, 2>(x, codes, out.as_mut_ptr()),
                2 => rows::<__m256, 2, 2>(x, codes, out.as_mut_ptr()),
                3 => rows::<__m256, 3, 2>(x, codes, out.as_mut_ptr()),
                4 => rows::<__m256, 4, 2>(x, codes, out.as_mut_ptr()),
                5 => rows::<__m256, 5, 2>(x, codes, out.as_mut_ptr()),
                _ => rows::<__m256, 6, 2>(x, codes, out.as_mut_ptr()),
            }
        }
    }
}

/// # Safety
/// `V`'s instructions exist; the lengths are as for `tile_avx512` with `ROWS` rows, and `out` holds `[ROWS][32]`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn rows<V: Vector, const ROWS: usize, const REGS: usize>(
    x: Prepared<'_>,
    codes: Codes<'_>,
    out: *mut f32,
) {
    let Codes { codes, groups, group, has_min } = codes;
    for index in 0..codes.len() / PANEL / group {
        for column in (0..PANEL).step_by(REGS * V::LEN) {
            // SAFETY: row r and input k of `x` lie at r * stride + k, code k at 32 k, a group's scales at 64 times
            // its number and the minimums 32 behind them: the caller promises all of them. A column stays below 32.
            unsafe {
                let mut sums = [[V::zero(); REGS]; ROWS];
                let a = x.plain.as_ptr().add(index * group);
                let b = codes.as_ptr().add(index * group * PANEL + column);
                for k in 0..group {
                    let mut line = [V::zero(); REGS];
                    for (reg, line) in line.iter_mut().enumerate() {
                        *line = V::load(b.add(k * PANEL + reg * V::LEN));
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let a = V::splat(*a.add(row * x.stride + k));
                        for reg in 0..REGS {
                            sums[reg] = a.mul_add(line[reg], sums[reg]);
                        }
                    }
                }
                let groups = groups.as_ptr().add(index * 2 * PANEL + column);
                let (scale, min) = ([V::zero(); REGS], [V::zero(); REGS]);
                let mut affine = Affine { scale, min, has_min };
                for reg in 0..REGS {
                    affine.scale[reg] = V::load(groups.add(reg * V::LEN));
                    affine.min[reg] = V::load(groups.add(PANEL + reg * V::LEN));
                }
                let inputs = GroupSums {
                    first: x.sums.as_ptr().add(index * group / 16),
                    stride: x.sums_stride,
                    halves: group / 16,
                };
                fold(&affine, inputs, &sums, out.add(column));
            }
        }
    }
}

/// Scale and minimum of `REGS` registers of outputs in a group.
#[cfg(target_arch = "x86_64")]
pub(super) struct Affine<V, const REGS: usize> {
    pub(super) scale: [V; REGS],
    pub(super) min: [V; REGS],
    /// Whether the minimum counts.
    pub(super) has_min: bool,
}

/// The sums of a group's inputs, row by row: of one stretch of 16 inputs or of two.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct GroupSums {
    pub(super) first: *const f32,
    pub(super) stride: usize,
    pub(super) halves: usize,
}

/// Adds what a group makes of its sums to `out[ROWS][32]`.
///
/// # Safety
/// `V`'s instructions exist; every row of `out` has `REGS` registers from where it points to, `inputs` has `halves`
/// numbers for every row.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn fold<V: Vector, const ROWS: usize, const REGS: usize>(
    affine: &Affine<V, REGS>,
    inputs: GroupSums,
    sums: &[[V; REGS]; ROWS],
    out: *mut f32,
) {
    for (row, sums) in sums.iter().enumerate() {
        for (reg, sum) in sums.iter().enumerate() {
            // SAFETY: the caller promises the row of `out` and its sums of inputs.
            unsafe {
                let out = out.add(row * PANEL + reg * V::LEN);
                let mut value = affine.scale[reg].mul_add(*sum, V::load(out));
                if affine.has_min {
                    let at = inputs.first.add(row * inputs.stride);
                    let inputs = if inputs.halves == 2 { *at + *at.add(1) } else { *at };
                    value = affine.min[reg].mul_add(V::splat(inputs), value);
                }
                value.store(out);
            }
        }
    }
}
