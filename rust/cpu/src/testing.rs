//! Helpers of unit tests: seeded random numbers, weights in every format, files in memory.

use half::{bf16, f16};
use ingle_model::{WeightSource, WeightType, dequantise, e4m3_to_f32};

use crate::aligned::Arena;
use crate::fp8_layout;
use crate::matrix::{PackedMatrix, pack_panel};
use crate::panel::PANEL;

pub(crate) const ALL_TYPES: [WeightType; 11] = [
    WeightType::F32,
    WeightType::F16,
    WeightType::Bf16,
    WeightType::Q8_0,
    WeightType::Q4_0,
    WeightType::Q4_1,
    WeightType::Q5_0,
    WeightType::Q5_1,
    WeightType::Q4K,
    WeightType::Q5K,
    WeightType::Q6K,
];

/// A file in memory.
pub(crate) struct Memory(pub(crate) Vec<u8>);

impl WeightSource for Memory {
    fn read_at(&self, _: usize, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        buffer.copy_from_slice(&self.0[offset as usize..][..buffer.len()]);
        Ok(())
    }
}

/// SplitMix64 (Steele et al. 2014).
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [-1, 1).
    pub(crate) fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    pub(crate) fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }
}

/// A random matrix: packed, and its values row by row as the reference reads them.
pub(crate) fn random_matrix(
    random: &mut Random,
    weight_type: WeightType,
    rows: usize,
    cols: usize,
) -> (PackedMatrix, Vec<f32>) {
    let stored = random_bytes(random, weight_type, rows * cols);
    let mut values = vec![0.0; rows * cols];
    dequantise(weight_type, &stored, &mut values);
    let mut matrix = PackedMatrix::zeroed(&Arena::default(), weight_type, rows, cols);
    let row_bytes = stored.len() / rows;
    let panel_bytes = matrix.panel_bytes();
    let panels = matrix.shared();
    for (panel, stored) in stored.chunks(PANEL * row_bytes).enumerate() {
        // SAFETY: one part at a time.
        let target = unsafe { panels.part(panel * panel_bytes, panel_bytes) };
        pack_panel(weight_type, cols, stored, target);
    }
    (matrix, values)
}

/// A random fp8 matrix with one scale for each `block` of rows and columns.
pub(crate) fn random_fp8_matrix(
    random: &mut Random,
    (rows, cols): (usize, usize),
    block: (usize, usize),
) -> (PackedMatrix, Vec<f32>) {
    let elements: Vec<u8> = (0..rows * cols)
        .map(|_| random.bits() as u8)
        .map(|element| if element & 0x7f == 0x7f { element - 1 } else { element })
        .collect();
    let groups = cols.div_ceil(block.1);
    let scales: Vec<f32> =
        (0..rows.div_ceil(block.0) * groups).map(|_| random.float().abs() / 448.0).collect();
    let scale = |row: usize, col: usize| scales[row / block.0 * groups + col / block.1];
    let value = |at: usize| e4m3_to_f32(elements[at]) * scale(at / cols, at % cols);
    let values = (0..rows * cols).map(value).collect();
    let mut matrix = PackedMatrix::zeroed_fp8(&Arena::default(), rows, cols, block.1);
    let panel_bytes = matrix.panel_bytes();
    let panels = matrix.shared();
    for (panel, elements) in elements.chunks(PANEL * cols).enumerate() {
        let rows = (panel * PANEL..).take(elements.len() / cols);
        let own: Vec<f32> =
            rows.flat_map(|row| &scales[row / block.0 * groups..][..groups]).copied().collect();
        // SAFETY: one part at a time.
        let target = unsafe { panels.part(panel * panel_bytes, panel_bytes) };
        fp8_layout::pack_panel(cols, block.1, (elements, &own), target);
    }
    (matrix, values)
}

fn random_bytes(random: &mut Random, weight_type: WeightType, elements: usize) -> Vec<u8> {
    let blocks = elements / weight_type.block_elements();
    let mut stored = Vec::new();
    for _ in 0..blocks {
        let value = random.float();
        match weight_type {
            WeightType::F32 => stored.extend(value.to_le_bytes()),
            WeightType::F16 => stored.extend(f16::from_f32(value).to_le_bytes()),
            WeightType::Bf16 => stored.extend(bf16::from_f32(value).to_le_bytes()),
            _ => {
                let mut block: Vec<u8> =
                    (0..weight_type.block_bytes()).map(|_| random.bits() as u8).collect();
                // Random codes and small scales; the halves must be finite.
                let (d, m) = if weight_type == WeightType::Q6K { (208, 208) } else { (0, 2) };
                let has_min = matches!(
                    weight_type,
                    WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4K | WeightType::Q5K
                );
                if has_min {
                    let min = f16::from_f32(random.float() / 16.0).to_le_bytes();
                    block[m..m + 2].copy_from_slice(&min);
                }
                block[d..d + 2].copy_from_slice(&f16::from_f32(value / 16.0).to_le_bytes());
                stored.extend(block);
            }
        }
    }
    stored
}
