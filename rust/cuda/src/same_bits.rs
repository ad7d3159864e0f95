//! Tests whether an algorithm gives a row the same bits at every position and for every number of
//! rows. At load only, under `--deterministic`: the library does not guarantee it, so each pick is
//! tested.

use crate::CudaError;
use crate::device_slice::DeviceSlice;
use crate::dtypes::ScaleMode;
use crate::gemm::GemmArgs;
use crate::memory::{PinnedBuffer, copy_to_offset, fill, upload};
use crate::operands::Operands;
use crate::product::Product;
use crate::shapes::{GemmOut, GemmShape};
use crate::stream::Stream;

/// One shape to be checked.
pub(crate) struct RowBits<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) operands: &'a Operands,
    pub(crate) shape: GemmShape,
    /// Of `WORKSPACE_BYTES`.
    pub(crate) workspace: DeviceSlice<u8>,
}

impl RowBits<'_> {
    /// Whether all of these products of one algorithm, by row count, agree on every row.
    ///
    /// The input repeats `PERIOD` rows, so that each is at many positions of the library's tiles.
    pub(crate) fn agree(&self, products: &[(u32, Product)]) -> Result<bool, CudaError> {
        let (n, k) = (self.shape.n as usize, self.shape.k as usize);
        let element = match self.shape.out {
            GemmOut::Device | GemmOut::Gated => 2,
            GemmOut::F32 | GemmOut::AddF32 => 4,
        };
        let row_bytes = n * element;
        let most = products.iter().map(|(m, _)| *m as usize).max().unwrap_or(0);
        let (x, bytes) = (self.operands.x.as_bytes(), input(k, self.shape.scale));
        let size = most * bytes.len() / PERIOD;
        upload(self.stream, x, &bytes.into_iter().cycle().take(size).collect::<Vec<u8>>())?;
        let mut seen: Vec<Option<Vec<u8>>> = vec![None; PERIOD];
        let mut host = PinnedBuffer::new(&self.stream.context, 2 * SHOWN * row_bytes)?;
        for (m, product) in products {
            let (m, out) = (*m as usize, self.operands.out);
            let result = out.as_bytes();
            fill(self.stream, result.slice(0, (m * row_bytes) as u64), 0)?;
            let args = GemmArgs { x: self.operands.x, w: self.operands.weights[0], out };
            product.run(self.stream, &args, self.workspace)?;
            let rows = shown(m);
            for (place, row) in rows.iter().enumerate() {
                let source = result.row(*row as u64, row_bytes as u64);
                copy_to_offset(self.stream, &host, place * row_bytes, source, row_bytes)?;
            }
            self.stream.synchronise()?;
            for (found, row) in host.as_mut_slice().chunks(row_bytes).zip(rows) {
                match &mut seen[row % PERIOD] {
                    Some(before) if before != found => return Ok(false),
                    Some(_) => {}
                    first => *first = Some(found.to_vec()),
                }
            }
        }
        Ok(true)
    }
}

/// `PERIOD` rows of numbers that are finite, of both signs and of many sizes: 16-bit ones, as either device type, or
/// e4m3 where the product is raw.
fn input(k: usize, scale: ScaleMode) -> Vec<u8> {
    let mut state = 0x9e37_79b9u32;
    let mut next = || {
        // xorshift32 (Marsaglia 2003)
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        0x3c00 | (state >> 8) as u16 & 0x83ff
    };
    match scale {
        // Without the exponents from 0x40 on.
        ScaleMode::Raw => (0..PERIOD * k).map(|_| next().to_le_bytes()[0] & 0xbf).collect(),
        _ => (0..PERIOD * k).flat_map(|_| next().to_le_bytes()).collect(),
    }
}

/// The rows of `m` that are looked at: the first and the last ones.
fn shown(m: usize) -> Vec<usize> {
    (0..m).filter(|row| *row < SHOWN || row + SHOWN >= m).collect()
}

/// A prime, so that a row's places differ by no power of two.
const PERIOD: usize = 61;
/// Rows that are compared from each end.
const SHOWN: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_shown_once() {
        assert_eq!(shown(3), [0, 1, 2]);
        let rows = shown(1000);
        assert_eq!((rows.len(), rows[0], rows[127], rows[128], rows[255]), (256, 0, 127, 872, 999));
    }

    #[test]
    fn the_input_is_finite_and_varied() {
        let words: Vec<u16> = input(64, ScaleMode::None)
            .as_chunks::<2>()
            .0
            .iter()
            .map(|pair| u16::from_le_bytes(*pair))
            .collect();
        assert_eq!(words.len(), PERIOD * 64);
        // Exponents below 0x3c00 and from 0x4000 on are absent: 1 to 2 as float16, 0.008 to 2 as bfloat16.
        assert!(words.iter().all(|word| word & 0x7c00 == 0x3c00));
        let distinct: std::collections::HashSet<_> = words.iter().collect();
        assert!(distinct.len() > 1000, "{} numbers", distinct.len());
    }
}
