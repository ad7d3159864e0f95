//! A weight matrix in the layout that the kernels read: panels of 32 outputs, with every number as
//! the checkpoint stores it. Written once at load, then read by all workers.
//!
//! Matrix `[out, in]`; outputs beyond `out` are zero. Within a panel, by storage:
//! ```text
//! f32, f16   [in][32 outputs]
//! fp8        scales, then [in][32 outputs]   see fp8_layout.rs
//! 4 bits     scales, zeros, then words of 8 inputs   see grouped_layout.rs
//! bf16       [in / 2][2 halves][16 outputs][2 inputs]   so that a 512-bit load holds 16 outputs twice
//! blocks     [in / 32 or in / 256][fields, each for 32 outputs]   see block_layout.rs
//! ```

use ingle_model::WeightType;

use crate::aligned::{AlignedBytes, Arena, numbers, numbers_mut};
use crate::block_layout;
use crate::fp8_layout;
use crate::grouped_layout;
use crate::panel::{PANEL, Panel};
use crate::rows::Shared;
use crate::unpack;
use crate::vector_path::VectorPath;

/// One matrix in panels.
#[derive(Debug)]
pub(crate) struct PackedMatrix {
    weight_type: WeightType,
    rows: usize,
    cols: usize,
    group: usize,
    column_groups: Vec<u32>,
    panel_bytes: usize,
    data: AlignedBytes,
}

impl PackedMatrix {
    /// Room for `[rows, cols]`, all zero.
    ///
    /// # Panics
    /// If the type has scales beside its elements: see `zeroed_fp8` and `zeroed_grouped`.
    pub(crate) fn zeroed(arena: &Arena, weight_type: WeightType, rows: usize, cols: usize) -> Self {
        let panel_bytes = match weight_type {
            WeightType::F32 => cols * PANEL * 4,
            WeightType::F16 => cols * PANEL * 2,
            WeightType::Bf16 => cols.next_multiple_of(2) * PANEL * 2,
            _ => {
                let layout = block_layout::layout(weight_type);
                cols / layout.elements * layout.bytes
            }
        };
        let data = arena.zeroed(panel_bytes * rows.div_ceil(PANEL));
        Self { weight_type, rows, cols, group: 0, column_groups: Vec::new(), panel_bytes, data }
    }

    /// Room for `[rows, cols]` of fp8 where each `group` inputs of an output have a scale, all zero.
    pub(crate) fn zeroed_fp8(arena: &Arena, rows: usize, cols: usize, group: usize) -> Self {
        let panel_bytes = fp8_layout::panel_bytes(cols, group);
        let data = arena.zeroed(panel_bytes * rows.div_ceil(PANEL));
        let (weight_type, column_groups) = (WeightType::F8E4M3, Vec::new());
        Self { weight_type, rows, cols, group, column_groups, panel_bytes, data }
    }

    /// Room for `[rows, cols]` of 4-bit codes where each `group` inputs of an output have a scale, all zero.
    ///
    /// `column_groups`: the group of each input, empty if they lie side by side.
    pub(crate) fn zeroed_grouped(
        arena: &Arena,
        weight_type: WeightType,
        (rows, cols): (usize, usize),
        group: usize,
        column_groups: Vec<u32>,
    ) -> Self {
        let panel_bytes = grouped_layout::panel_bytes(cols, group);
        let data = arena.zeroed(panel_bytes * rows.div_ceil(PANEL));
        Self { weight_type, rows, cols, group, column_groups, panel_bytes, data }
    }

    pub(crate) fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    /// Inputs.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn num_panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// Bytes held.
    pub(crate) fn byte_len(&self) -> usize {
        self.panel_bytes * self.num_panels()
    }

    pub(crate) fn panel(&self, panel: usize) -> Panel<'_> {
        Panel {
            weight_type: self.weight_type,
            cols: self.cols,
            group: self.group,
            column_groups: &self.column_groups,
            bytes: &self.data.bytes()[panel * self.panel_bytes..][..self.panel_bytes],
        }
    }

    /// Bytes of a panel.
    pub(crate) fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// All panels, to be filled by `pack_panel`.
    pub(crate) fn shared(&mut self) -> Shared<'_, u8> {
        Shared::new(self.data.bytes_mut())
    }

    /// One row in f32, for embeddings.
    pub(crate) fn read_row(&self, path: VectorPath, row: usize, out: &mut [f32]) {
        let (whole, lane) = (self.panel(row / PANEL), row % PANEL);
        let panel = whole.bytes;
        match self.weight_type {
            WeightType::F32 => {
                let panel = numbers::<f32>(panel);
                for (k, value) in out.iter_mut().enumerate() {
                    *value = panel[k * PANEL + lane];
                }
            }
            WeightType::F16 => {
                let panel = numbers::<u16>(panel);
                for (k, value) in out.iter_mut().enumerate() {
                    *value = unpack::f16_to_f32(panel[k * PANEL + lane]);
                }
            }
            WeightType::Bf16 => {
                let panel = numbers::<u16>(panel);
                for (k, value) in out.iter_mut().enumerate() {
                    *value = f32::from_bits(u32::from(panel[bf16_index(k, lane)]) << 16);
                }
            }
            _ => {
                let mut block = [0.0; PANEL * 32];
                for (start, values) in (0..).step_by(32).zip(out.chunks_mut(32)) {
                    unpack::unpack(path, whole, start..start + values.len(), &mut block);
                    for (k, value) in values.iter_mut().enumerate() {
                        *value = block[k * PANEL + lane];
                    }
                }
            }
        }
    }
}

/// Fills one panel from rows of `cols` elements as the checkpoint stores them, little-endian and
/// contiguous. fp8, which has scales beside its elements, has a function of its own in fp8_layout.rs.
pub(crate) fn pack_panel(weight_type: WeightType, cols: usize, stored: &[u8], target: &mut [u8]) {
    let row_bytes = cols / weight_type.block_elements() * weight_type.block_bytes();
    let rows = stored.chunks_exact(row_bytes);
    match weight_type {
        WeightType::F32 => transpose(rows, numbers_mut::<u32>(target), u32::from_le_bytes),
        WeightType::F16 => transpose(rows, numbers_mut::<u16>(target), u16::from_le_bytes),
        WeightType::Bf16 if cols.is_multiple_of(2) => {
            // A pair of inputs moves as one word.
            transpose(rows, numbers_mut::<u32>(target), u32::from_le_bytes);
        }
        WeightType::Bf16 => {
            let target = numbers_mut::<u16>(target);
            for (lane, row) in rows.enumerate() {
                for (k, bytes) in row.as_chunks::<2>().0.iter().enumerate() {
                    target[bf16_index(k, lane)] = u16::from_le_bytes(*bytes);
                }
            }
        }
        _ => block_layout::pack_panel(weight_type, row_bytes, stored, target),
    }
}

/// Writes element k of every row to `target[k][row]`.
fn transpose<'a, const BYTES: usize, T: Copy>(
    rows: impl Iterator<Item = &'a [u8]>,
    target: &mut [T],
    number: impl Fn([u8; BYTES]) -> T,
) {
    let rows: Vec<&[[u8; BYTES]]> = rows.map(|row| row.as_chunks::<BYTES>().0).collect();
    for (k, target) in target.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
        for (target, row) in target.iter_mut().zip(&rows) {
            *target = number(row[k]);
        }
    }
}

/// The index of bf16 input `k` of output `lane` in its panel.
fn bf16_index(k: usize, lane: usize) -> usize {
    (k / 2) * 2 * PANEL + (lane / 16) * 32 + (lane % 16) * 2 + k % 2
}
