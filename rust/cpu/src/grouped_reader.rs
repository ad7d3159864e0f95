//! Reads one matrix of 4-bit codes from the checkpoint into panels, with all workers. At load only.

use std::sync::OnceLock;

use ingle_model::{GroupView, TensorView};

use crate::CpuError;
use crate::grouped_layout::pack_panel;
use crate::matrix::PackedMatrix;
use crate::matrix_reader::File;
use crate::panel::PANEL;
use crate::pool::Pool;

/// Reads a matrix whose view has `groups`.
pub(crate) fn read_grouped_matrix(
    file: &File<'_>,
    view: &TensorView,
    groups: &GroupView,
    pool: &mut Pool,
) -> Result<PackedMatrix, CpuError> {
    let (rows, cols, group) = (view.rows as usize, view.cols as usize, groups.group as usize);
    let column_groups = match &groups.groups_of_columns {
        None => Vec::new(),
        Some(tensor) => groups
            .column_groups(file.source, view.cols)
            .map_err(|source| file.error(tensor.file, &tensor.name, source))?,
    };
    let mut matrix = PackedMatrix::zeroed_grouped(
        file.arena,
        view.weight_type,
        (rows, cols),
        group,
        column_groups,
    );
    let (panel_bytes, num_panels) = (matrix.panel_bytes(), matrix.num_panels());
    let panels = matrix.shared();
    let failure = OnceLock::new();
    pool.run(num_panels.div_ceil(TASK_PANELS), &|task, _| {
        let first = task * TASK_PANELS;
        let count = TASK_PANELS.min(num_panels - first);
        let num_rows = (count * PANEL).min(rows - first * PANEL);
        // SAFETY: a task's panels are its own.
        let target = unsafe { panels.part(first * panel_bytes, count * panel_bytes) };
        match view.read_grouped(file.source, first * PANEL, num_rows) {
            Ok(stored) => {
                for (panel, target) in target.chunks_mut(panel_bytes).enumerate() {
                    let start = panel * PANEL;
                    let own = start..num_rows.min(start + PANEL);
                    pack_panel((cols, group), &stored, own, target);
                }
            }
            Err(source) => {
                // Only the first failure is reported.
                let _ = failure.set(file.error(view.file, &view.name, source));
            }
        }
    });
    failure.into_inner().map_or(Ok(matrix), Err)
}

/// Panels that a task reads: where rows lie across each other in the file, a read of a column takes its part of
/// 1024 rows, 512 bytes or more.
const TASK_PANELS: usize = 32;

#[cfg(test)]
mod tests {
    use half::f16;
    use ingle_model::{GroupTensor, Order, Packing, ScaleType, WeightType, Zero};

    use super::*;
    use crate::aligned::Arena;
    use crate::scratch::Scratch;
    use crate::testing::{Memory, Random};
    use crate::unpack::unpack;
    use crate::vector_path::VectorPath;

    /// More than a task's rows, the last panel partial.
    const ROWS: usize = TASK_PANELS * PANEL + 40;
    const COLS: usize = 72;
    /// The last group is partial.
    const GROUP: usize = 32;
    const GROUPS: usize = 3;

    /// A file of random codes, scales, zeros and groups of columns, and its view.
    fn random(weight_type: WeightType, packing: Packing, is_ordered: bool) -> (Memory, TensorView) {
        let mut random = Random(3);
        let mut bytes: Vec<u8> = (0..ROWS * COLS / 2).map(|_| random.bits() as u8).collect();
        let mut append = |name: &str, stored: Vec<u8>| {
            let (offset, byte_len) = (bytes.len() as u64, stored.len() as u64);
            bytes.extend(stored);
            GroupTensor { name: name.to_owned(), file: 0, offset, byte_len }
        };
        let halves = (0..ROWS * GROUPS).flat_map(|_| f16::from_f32(random.float()).to_le_bytes());
        let halves = halves.collect();
        let exponents = (0..ROWS * GROUPS).map(|_| 120 + (random.bits() % 9) as u8).collect();
        let zeros = (0..ROWS * GROUPS / 2).map(|_| random.bits() as u8).collect();
        let order = (0..COLS).flat_map(|_| ((random.bits() % GROUPS as u64) as i32).to_le_bytes());
        let order = order.collect();
        let is_float = weight_type == WeightType::F4E2M1;
        let groups = GroupView {
            packing,
            first_row: 0,
            row_step: 1,
            tensor_rows: ROWS as u32,
            first_col: 0,
            tensor_cols: COLS as u32,
            first_group: 0,
            tensor_groups: COLS.div_ceil(GROUP) as u32,
            group: GROUP as u32,
            scale: append("scales", if is_float { exponents } else { halves }),
            scale_type: if is_float { ScaleType::E8M0 } else { ScaleType::Number(WeightType::F16) },
            zero: if is_float {
                Zero::None
            } else {
                Zero::Stored { tensor: append("zeros", zeros), add: 1 }
            },
            groups_of_columns: is_ordered.then(|| append("order", order)),
        };
        let view = TensorView {
            name: "codes".to_owned(),
            file: 0,
            offset: 0,
            byte_len: (ROWS * COLS / 2) as u64,
            order: Order::Rows,
            weight_type,
            rows: ROWS as u32,
            cols: COLS as u32,
            scale: None,
            groups: Some(groups),
            quantise: false,
        };
        (Memory(bytes), view)
    }

    #[test]
    fn test_every_packing_gives_the_reference_s_values_on_every_path() {
        for (weight_type, packing, is_ordered) in [
            (WeightType::Int4, Packing::Rows, false),
            (WeightType::Int4, Packing::Rows, true),
            (WeightType::Int4, Packing::Awq, false),
            (WeightType::Int4, Packing::Gptq, false),
            (WeightType::Int4, Packing::Gptq, true),
            (WeightType::F4E2M1, Packing::Rows, false),
        ] {
            let (source, view) = random(weight_type, packing, is_ordered);
            let groups = view.groups.as_ref().expect("groups");
            let column_groups = groups.column_groups(&source, view.cols).expect("groups");
            let mut want = vec![0.0; ROWS * COLS];
            let rows = view.read_grouped(&source, 0, ROWS).expect("rows");
            rows.widen(weight_type, &column_groups, &mut want);
            let file = File { names: &["f".to_owned()], source: &source, arena: &Arena::default() };
            let mut pool = Pool::new(2, 0, || Scratch::new(64, 64)).expect("threads");
            let matrix = read_grouped_matrix(&file, &view, groups, &mut pool).expect("matrix");
            for path in VectorPath::all() {
                let context = format!("{weight_type:?} {packing:?} {is_ordered} {}", path.name());
                for (panel, want) in want.chunks(PANEL * COLS).enumerate() {
                    // In pieces that begin anywhere.
                    for inputs in [0..COLS, 0..13, 13..50, 50..COLS] {
                        let mut out = vec![0.0; inputs.len() * PANEL];
                        unpack(path, matrix.panel(panel), inputs.clone(), &mut out);
                        for (row, want) in want.chunks(COLS).enumerate() {
                            for (k, want) in want[inputs.clone()].iter().enumerate() {
                                let found = out[k * PANEL + row];
                                assert!(found == *want, "{context}: {found} at {row}, {k}: {want}");
                            }
                        }
                    }
                }
                let mut row = vec![0.0; COLS];
                matrix.read_row(path, ROWS - 1, &mut row);
                assert_eq!(row, want[(ROWS - 1) * COLS..], "{context}");
            }
        }
    }

    #[test]
    fn test_a_scale_that_is_no_number_names_its_tensor() {
        let (mut source, view) = random(WeightType::Int4, Packing::Gptq, false);
        let groups = view.groups.as_ref().expect("groups");
        let last = groups.scale.offset as usize + groups.scale.byte_len as usize - 2;
        source.0[last..last + 2].copy_from_slice(&f16::INFINITY.to_le_bytes());
        let file = File { names: &["f".to_owned()], source: &source, arena: &Arena::default() };
        let mut pool = Pool::new(2, 0, || Scratch::new(64, 64)).expect("threads");
        let error = read_grouped_matrix(&file, &view, groups, &mut pool).expect_err("refused");
        let error = error.to_string();
        assert!(error.contains("codes") && error.contains("scales holds inf"), "{error}");
    }
}
