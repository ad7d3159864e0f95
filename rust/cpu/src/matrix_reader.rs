//! Reads one matrix from the checkpoint into panels, with all workers. At load only.

use std::sync::OnceLock;

use ingle_model::{Order, TensorView, WeightSource, WeightType, all_numbers, quantise_rows};

use crate::CpuError;
use crate::aligned::Arena;
use crate::fp8_layout;
use crate::matrix::{PackedMatrix, pack_panel};
use crate::panel::PANEL;
use crate::pool::Pool;

/// The source of bytes, shared by the workers.
pub(crate) struct File<'a> {
    pub(crate) names: &'a [String],
    pub(crate) source: &'a dyn WeightSource,
    /// Where matrices get their memory.
    pub(crate) arena: &'a Arena,
}

impl File<'_> {
    /// Fills `buffer` from element `start` of a tensor; see `TensorView::read`.
    pub(crate) fn read(
        &self,
        view: &TensorView,
        start: u64,
        buffer: &mut [u8],
    ) -> Result<(), CpuError> {
        view.read(self.source, start, buffer)
            .map_err(|source| self.error(view.file, &view.name, source))
    }

    pub(crate) fn error(&self, file: usize, name: &str, source: std::io::Error) -> CpuError {
        let file = self.names.get(file).cloned().unwrap_or_default();
        CpuError::Read { file, name: name.to_owned(), source }
    }
}

/// Reads a matrix without groups, and quantises it if its view requires it.
pub(crate) fn read_matrix(
    file: &File<'_>,
    view: &TensorView,
    pool: &mut Pool,
) -> Result<PackedMatrix, CpuError> {
    let (rows, cols) = (view.rows as usize, view.cols as usize);
    let row_bytes = cols / view.weight_type.block_elements() * view.weight_type.block_bytes();
    let format = Format::of(file, view)?;
    let mut matrix = match &format {
        Format::AsStored => PackedMatrix::zeroed(file.arena, view.weight_type, rows, cols),
        Format::Scaled(scales) => PackedMatrix::zeroed_fp8(file.arena, rows, cols, scales.group),
        Format::Quantised => PackedMatrix::zeroed_fp8(file.arena, rows, cols, cols),
    };
    let (panel_bytes, num_panels) = (matrix.panel_bytes(), matrix.num_panels());
    let per_task = match view.order {
        Order::Rows | Order::Bands { .. } | Order::Spaced { .. } => {
            (READ_BYTES / (PANEL * row_bytes)).max(1)
        }
        // A slice of the rows lies all over the file.
        Order::Columns { .. } => num_panels,
    };
    let panels = matrix.shared();
    let failure = OnceLock::new();
    pool.run(num_panels.div_ceil(per_task), &|task, scratch| {
        let first = task * per_task;
        let count = per_task.min(num_panels - first);
        let stored_rows = (count * PANEL).min(rows - first * PANEL);
        scratch.stored.resize(per_task * PANEL * row_bytes, 0);
        let stored = &mut scratch.stored[..stored_rows * row_bytes];
        // SAFETY: a task's panels are its own.
        let target = unsafe { panels.part(first * panel_bytes, count * panel_bytes) };
        let result = file.read(view, (first * PANEL * cols) as u64, stored).and_then(|()| {
            let sources = stored.chunks(PANEL * row_bytes);
            for (panel, (stored, target)) in sources.zip(target.chunks_mut(panel_bytes)).enumerate()
            {
                format.pack(view, (first + panel) * PANEL, stored, target)?;
            }
            Ok(())
        });
        if let Err(error) = result {
            // Only the first failure is reported.
            let _ = failure.set(error);
        }
    });
    failure.into_inner().map_or(Ok(matrix), Err)
}

/// How a matrix is kept.
enum Format {
    AsStored,
    /// fp8 with the checkpoint's scales.
    Scaled(Scales),
    /// fp8, made here, with a scale a row.
    Quantised,
}

/// The scales of a matrix, `[rows / block_rows, cols / group]`.
struct Scales {
    values: Vec<f32>,
    block_rows: usize,
    group: usize,
    groups: usize,
}

impl Format {
    fn of(file: &File<'_>, view: &TensorView) -> Result<Self, CpuError> {
        if view.quantise {
            return Ok(Self::Quantised);
        }
        if view.weight_type != WeightType::F8E4M3 {
            return Ok(Self::AsStored);
        }
        let scale = view
            .scale
            .as_ref()
            .ok_or_else(|| CpuError::MissingTensor(format!("the scale of tensor {}", view.name)))?;
        let values = scale
            .read(file.source)
            .map_err(|source| file.error(scale.file, &scale.name, source))?;
        Ok(Self::Scaled(Scales {
            values,
            block_rows: scale.block_rows as usize,
            group: scale.block_cols as usize,
            groups: scale.cols as usize,
        }))
    }

    /// Fills the panel that begins at row `first_row` from its rows as stored.
    fn pack(
        &self,
        view: &TensorView,
        first_row: usize,
        stored: &[u8],
        target: &mut [u8],
    ) -> Result<(), CpuError> {
        let cols = view.cols as usize;
        match self {
            Self::AsStored => pack_panel(view.weight_type, cols, stored, target),
            Self::Scaled(scales) => {
                if !all_numbers(stored) {
                    return Err(CpuError::NotFinite { name: view.name.clone() });
                }
                let rows = first_row..first_row + stored.len() / cols;
                let own: Vec<f32> = rows.flat_map(|row| scales.row(row)).copied().collect();
                fp8_layout::pack_panel(cols, scales.group, (stored, &own), target);
            }
            Self::Quantised => {
                let rows = stored.len() / (cols * view.weight_type.block_bytes());
                let (mut elements, mut scales) = (vec![0; rows * cols], vec![0.0; rows]);
                quantise_rows(view.weight_type, stored, cols, &mut elements, &mut scales)
                    .map_err(|_| CpuError::NotFinite { name: view.name.clone() })?;
                fp8_layout::pack_panel(cols, cols, (&elements, &scales), target);
            }
        }
        Ok(())
    }
}

impl Scales {
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row / self.block_rows * self.groups..][..self.groups]
    }
}

/// Bytes that a task reads at once, if that is at least one panel.
const READ_BYTES: usize = 512 << 10;

#[cfg(test)]
mod tests {
    use half::bf16;
    use ingle_model::{ScaleView, dequantise};

    use super::*;
    use crate::scratch::Scratch;
    use crate::testing::{Memory, Random};
    use crate::unpack::unpack;
    use crate::vector_path::VectorPath;

    const ROWS: usize = 75;
    const COLS: usize = 40;

    fn view(weight_type: WeightType) -> TensorView {
        TensorView {
            name: "w".to_owned(),
            file: 0,
            offset: 0,
            byte_len: (ROWS * COLS * weight_type.block_bytes()) as u64,
            weight_type,
            rows: ROWS as u32,
            cols: COLS as u32,
            scale: None,
            groups: None,
            order: Order::Rows,
            quantise: false,
        }
    }

    /// The values of a matrix that is read from `bytes`.
    fn read(view: &TensorView, bytes: Vec<u8>) -> Result<Vec<f32>, String> {
        let source = Memory(bytes);
        let file = File { names: &["f".to_owned()], source: &source, arena: &Arena::default() };
        let mut pool = Pool::new(2, 0, || Scratch::new(64, 64)).expect("threads");
        let matrix = read_matrix(&file, view, &mut pool).map_err(|error| error.to_string())?;
        let mut values = vec![0.0; ROWS.next_multiple_of(PANEL) * COLS];
        for (panel, out) in values.chunks_mut(PANEL * COLS).enumerate() {
            let mut lanes = vec![0.0; PANEL * COLS];
            let path = VectorPath::all()[0];
            unpack(path, matrix.panel(panel), 0..COLS, &mut lanes);
            for (at, value) in out.iter_mut().enumerate() {
                *value = lanes[at % COLS * PANEL + at / COLS];
            }
        }
        values.truncate(ROWS * COLS);
        Ok(values)
    }

    fn elements() -> Vec<u8> {
        (0..ROWS * COLS).map(|at| (at % 127) as u8 | if at % 3 == 0 { 0x80 } else { 0 }).collect()
    }

    #[test]
    fn test_stored_scales_belong_to_their_rows_and_columns() {
        // Blocks of 16 x 24: five below each other, two beside each other, the last ones partial.
        let scales: Vec<f32> = (1..=10).map(|n| n as f32 / 8.0).collect();
        let mut bytes = elements();
        bytes.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
        let scale = ScaleView {
            name: "w_scale".to_owned(),
            file: 0,
            offset: (ROWS * COLS) as u64,
            byte_len: 40,
            weight_type: WeightType::F32,
            rows: 5,
            cols: 2,
            block_rows: 16,
            block_cols: 24,
            order: Order::Rows,
        };
        let view = TensorView { scale: Some(scale), ..view(WeightType::F8E4M3) };
        let mut want = vec![0.0; ROWS * COLS];
        dequantise(WeightType::F8E4M3, &elements(), &mut want);
        for (at, value) in want.iter_mut().enumerate() {
            *value *= scales[at / COLS / 16 * 2 + at % COLS / 24];
        }
        assert_eq!(read(&view, bytes.clone()).unwrap(), want);

        bytes[70 * COLS] = 0x7f;
        let error = read(&view, bytes).unwrap_err();
        assert_eq!(error, "tensor w: an element is not a finite number");
    }

    #[test]
    fn test_a_marked_matrix_is_quantised_row_by_row() {
        let mut random = Random(5);
        let mut bytes: Vec<u8> = random
            .floats(ROWS * COLS)
            .into_iter()
            .flat_map(|value| bf16::from_f32(value).to_le_bytes())
            .collect();
        let view = TensorView { quantise: true, ..view(WeightType::Bf16) };
        let (mut elements, mut scales) = (vec![0; ROWS * COLS], vec![0.0; ROWS]);
        quantise_rows(WeightType::Bf16, &bytes, COLS, &mut elements, &mut scales).unwrap();
        let mut want = vec![0.0; ROWS * COLS];
        dequantise(WeightType::F8E4M3, &elements, &mut want);
        want.iter_mut().enumerate().for_each(|(at, value)| *value *= scales[at / COLS]);
        assert_eq!(read(&view, bytes.clone()).unwrap(), want);

        bytes[74 * COLS * 2..][..2].copy_from_slice(&bf16::INFINITY.to_le_bytes());
        let error = read(&view, bytes).unwrap_err();
        assert_eq!(error, "tensor w: an element is not a finite number");
    }

    #[test]
    fn test_fp8_without_a_scale_is_refused() {
        let error = read(&view(WeightType::F8E4M3), elements()).unwrap_err();
        assert_eq!(error, "cpu executor: the checkpoint has no tensor for the scale of tensor w");
    }
}
