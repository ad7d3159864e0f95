//! Copies weights from the source to the device: several threads read into pinned memory and copy
//! on their own streams (docs/decisions/0011-weight-load-streams.md). At load only. Nothing is
//! memory-mapped, so there are no page faults and the page cache is not pinned.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use half::{bf16, f16};
use ingle_model::{
    GroupedRows, Order, TensorView, WeightSource, WeightType, all_numbers, dequantise, e4m3_to_f32,
    quantise_rows,
};

use crate::CudaError;
use crate::context::Context;
use crate::dtypes::WeightDtype;
use crate::four_bit::rows_of_q4_0;
use crate::memory::{PinnedBuffer, copy_from_offset, copy_to_device};
use crate::stream::{Event, Stream};
use crate::weight_layout::{Change, Conversion, CopyJob};
use crate::weights::DEVICE_TYPE_BYTES;

/// Part of a job that one buffer holds.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    job: usize,
    /// First element.
    start: u64,
    /// Elements, a multiple of the storage's block.
    elements: u64,
}

/// Copies every job to its address; returns the bytes read. Blocking.
///
/// `dtype`: how matrices are kept on the device.
pub(crate) fn load_weights(
    context: &Arc<Context>,
    source: &dyn WeightSource,
    jobs: &[CopyJob],
    dtype: WeightDtype,
    num_threads: usize,
) -> Result<u64, CudaError> {
    let device_type = dtype.stored();
    let chunks = split(jobs);
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let work = || {
        let result = (|| {
            context.make_current()?;
            let mut lane = Lane::new(context)?;
            while !failed.load(Ordering::Relaxed) {
                let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                lane.copy(source, &jobs[chunk.job], *chunk, device_type)?;
            }
            lane.stream.synchronise()
        })();
        if let Err(error) = result {
            failed.store(true, Ordering::Relaxed);
            *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..num_threads.clamp(1, chunks.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(jobs.iter().map(|job| job.view.byte_len).sum()),
    }
}

/// Cuts jobs into chunks that fit a buffer before and after conversion, in file order, so that
/// read-ahead works.
fn split(jobs: &[CopyJob]) -> Vec<Chunk> {
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|&index| (jobs[index].view.file, jobs[index].view.offset));
    let mut chunks = Vec::new();
    for job in order {
        let view = &jobs[job].view;
        let total = u64::from(view.rows) * u64::from(view.cols);
        // Vectors are widened: an element takes twice the room of a matrix's.
        let most = match jobs[job].conversion {
            // Scales are made and applied by whole rows.
            _ if view.quantise || view.scale.is_some() => whole_rows(view.cols),
            Conversion::FourBit(_) => {
                whole_rows(view.cols).next_multiple_of(16 * u64::from(view.cols))
            }
            // Read by whole rows.
            _ if view.order != Order::Rows || view.groups.is_some() => whole_rows(view.cols),
            Conversion::Matrix | Conversion::E4m3 => CHUNK_ELEMENTS,
            Conversion::Vector(_) => CHUNK_ELEMENTS / 2,
        };
        let mut start = 0;
        while start < total {
            let elements = most.min(total - start);
            chunks.push(Chunk { job, start, elements });
            start += elements;
        }
    }
    chunks
}

/// Elements of a chunk of whole rows: at least one row.
fn whole_rows(cols: u32) -> u64 {
    let cols = u64::from(cols);
    (CHUNK_ELEMENTS / cols).max(1) * cols
}

/// One thread's stream and its two buffers, used alternately.
struct Lane {
    stream: Stream,
    buffers: [(PinnedBuffer, Event); 2],
    turn: usize,
    raw: Vec<u8>,
    values: Vec<f32>,
}

impl Lane {
    fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let buffer = || {
            let bytes = (CHUNK_ELEMENTS * DEVICE_TYPE_BYTES) as usize;
            Ok::<_, CudaError>((PinnedBuffer::new(context, bytes)?, Event::blocking(context)?))
        };
        Ok(Self {
            stream: Stream::new(context)?,
            buffers: [buffer()?, buffer()?],
            turn: 0,
            raw: Vec::new(),
            values: Vec::new(),
        })
    }

    fn copy(
        &mut self,
        source: &dyn WeightSource,
        job: &CopyJob,
        chunk: Chunk,
        device_type: WeightType,
    ) -> Result<(), CudaError> {
        let view = &job.view;
        let block = view.weight_type.block_elements() as u64;
        let block_bytes = view.weight_type.block_bytes() as u64;
        let file_bytes = (chunk.elements / block * block_bytes) as usize;
        let weight_error = |source| CudaError::Weight { tensor: view.name.clone(), source };

        let (buffer, copied) = &mut self.buffers[self.turn];
        self.turn = 1 - self.turn;
        // The copy that last read this buffer.
        copied.synchronise()?;
        if job.conversion == Conversion::Matrix && view.weight_type == device_type && !view.quantise
        {
            let room = &mut buffer.as_mut_slice()[..file_bytes];
            view.read(source, chunk.start, room).map_err(weight_error)?;
            let destination = job.destination.from(chunk.start * DEVICE_TYPE_BYTES);
            copy_to_device(&self.stream, destination, buffer, file_bytes)?;
            return copied.record(&self.stream);
        }
        if let Some(groups) = &view.groups {
            let (first, count) =
                (chunk.start / u64::from(view.cols), chunk.elements / u64::from(view.cols));
            let rows =
                view.read_grouped(source, first as usize, count as usize).map_err(weight_error)?;
            if matches!(job.conversion, Conversion::FourBit(_)) {
                let room = buffer.as_mut_slice();
                let (at, size) =
                    pack(job, chunk, &rows, groups.group, room).map_err(weight_error)?;
                copy_to_device(&self.stream, job.destination.from(at), buffer, size)?;
                return copied.record(&self.stream);
            }
            self.values.resize(chunk.elements as usize, 0.0);
            let column_groups = groups.column_groups(source, view.cols).map_err(weight_error)?;
            rows.widen(view.weight_type, &column_groups, &mut self.values);
            let (element_bytes, used) =
                convert(&self.values, job.vector(), device_type, buffer.as_mut_slice());
            let destination = job.destination.from(chunk.start * element_bytes);
            copy_to_device(&self.stream, destination, buffer, used)?;
            return copied.record(&self.stream);
        }
        self.raw.resize(file_bytes, 0);
        view.read(source, chunk.start, &mut self.raw).map_err(weight_error)?;
        if matches!(job.conversion, Conversion::FourBit(_)) {
            let (rows, room) = (rows_of_q4_0(&self.raw), buffer.as_mut_slice());
            let (at, size) = pack(job, chunk, &rows, Q4_0_GROUP, room).map_err(weight_error)?;
            copy_to_device(&self.stream, job.destination.from(at), buffer, size)?;
            return copied.record(&self.stream);
        }
        if job.conversion == Conversion::E4m3 {
            let rows = e4m3_rows(view, source, &self.raw, chunk).map_err(weight_error)?;
            let scale_bytes: Vec<u8> = rows.scales.iter().flat_map(|s| s.to_le_bytes()).collect();
            // Scales behind the elements, which fill half of the buffer at most.
            let (room, size) = (buffer.as_mut_slice(), rows.elements.len());
            let scales_at = size.next_multiple_of(16);
            room[..size].copy_from_slice(&rows.elements);
            room[scales_at..][..scale_bytes.len()].copy_from_slice(&scale_bytes);
            copy_to_device(&self.stream, job.destination.from(chunk.start), buffer, size)?;
            let scale = job.scale.from(chunk.start / u64::from(view.cols));
            copy_from_offset(&self.stream, scale, buffer, scales_at, scale_bytes.len())?;
            return copied.record(&self.stream);
        }
        self.values.resize(chunk.elements as usize, 0.0);
        if view.quantise || view.scale.is_some() {
            let rows = e4m3_rows(view, source, &self.raw, chunk).map_err(weight_error)?;
            rows.widen(view, chunk, &mut self.values);
        } else {
            dequantise(view.weight_type, &self.raw, &mut self.values);
        }
        let (element_bytes, used) =
            convert(&self.values, job.vector(), device_type, buffer.as_mut_slice());
        let destination = job.destination.from(chunk.start * element_bytes);
        copy_to_device(&self.stream, destination, buffer, used)?;
        copied.record(&self.stream)
    }
}

/// Writes the rows of a chunk as records of 4-bit codes; returns where they lie in the matrix, and their bytes.
fn pack(
    job: &CopyJob,
    chunk: Chunk,
    rows: &GroupedRows,
    group: u32,
    out: &mut [u8],
) -> std::io::Result<(u64, usize)> {
    let Conversion::FourBit(form) = job.conversion else {
        let text = "a packed matrix has no place as another type";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
    };
    let cols = job.view.cols;
    let bytes = |elements: u64| form.bytes((elements / u64::from(cols)) as u32, cols);
    let size = bytes(chunk.elements) as usize;
    form.pack(rows, cols, group, &mut out[..size])?;
    Ok((bytes(chunk.start), size))
}

/// Whole rows of e4m3 numbers with their scales.
struct E4m3Chunk {
    elements: Vec<u8>,
    /// One a row where the storage has that or less; else all blocks of the tensor.
    scales: Vec<f32>,
}

/// The rows of a chunk, quantised here or as they are stored.
fn e4m3_rows(
    view: &TensorView,
    source: &dyn WeightSource,
    stored: &[u8],
    chunk: Chunk,
) -> std::io::Result<E4m3Chunk> {
    let invalid = |text: String| std::io::Error::new(std::io::ErrorKind::InvalidData, text);
    let cols = view.cols as usize;
    let first = (chunk.start / cols as u64) as usize;
    let rows = chunk.elements as usize / cols;
    let Some(scale) = &view.scale else {
        let (mut elements, mut scales) = (vec![0; rows * cols], vec![0.0; rows]);
        quantise_rows(view.weight_type, stored, cols, &mut elements, &mut scales)
            .map_err(|odd| invalid(format!("row {} holds no finite number", first + odd.row)))?;
        return Ok(E4m3Chunk { elements, scales });
    };
    if !all_numbers(stored) {
        return Err(invalid("holds an element that is not a number".to_owned()));
    }
    let stored_scales = scale.read(source)?;
    let scales = if scale.cols == 1 {
        (first..first + rows).map(|row| stored_scales[row / scale.block_rows as usize]).collect()
    } else {
        stored_scales
    };
    Ok(E4m3Chunk { elements: stored.to_vec(), scales })
}

impl E4m3Chunk {
    /// The numbers that the elements stand for.
    fn widen(&self, view: &TensorView, chunk: Chunk, values: &mut [f32]) {
        let cols = view.cols as usize;
        let first = (chunk.start / cols as u64) as usize;
        let rows = self.elements.chunks_exact(cols).zip(values.chunks_exact_mut(cols));
        for (row, (elements, values)) in rows.enumerate() {
            let blocks = view.scale.as_ref().filter(|scale| scale.cols > 1);
            let (scales, width) = match blocks {
                Some(scale) => {
                    let start = (first + row) / scale.block_rows as usize * scale.cols as usize;
                    (&self.scales[start..][..scale.cols as usize], scale.block_cols as usize)
                }
                None => (&self.scales[row..=row], cols),
            };
            let parts = elements.chunks(width).zip(values.chunks_mut(width)).zip(scales);
            for ((elements, values), scale) in parts {
                for (value, element) in values.iter_mut().zip(elements) {
                    *value = e4m3_to_f32(*element) * scale;
                }
            }
        }
    }
}

/// Writes the values in the device's number format; returns the bytes per element and the total.
///
/// `vector`: to f32, each element changed.
fn convert(
    values: &[f32],
    vector: Option<Change>,
    device_type: WeightType,
    out: &mut [u8],
) -> (u64, usize) {
    match vector {
        Some(Change { add, factor }) => {
            for (bytes, value) in out.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&((value + add) * factor).to_le_bytes());
            }
            (4, values.len() * 4)
        }
        None => {
            let pairs = out.chunks_exact_mut(2).zip(values);
            if device_type == WeightType::F16 {
                pairs.for_each(|(b, v)| b.copy_from_slice(&f16::from_f32(*v).to_le_bytes()));
            } else {
                pairs.for_each(|(b, v)| b.copy_from_slice(&bf16::from_f32(*v).to_le_bytes()));
            }
            (DEVICE_TYPE_BYTES, values.len() * 2)
        }
    }
}

/// Columns of a block of GGUF's Q4_0.
const Q4_0_GROUP: u32 = 32;

/// Elements a chunk: 4 MiB as the device type, and a multiple of every storage block (256).
const CHUNK_ELEMENTS: u64 = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_slice::DeviceSlice;
    use ingle_model::TensorView;

    fn job(rows: u32, cols: u32, offset: u64, conversion: Conversion) -> CopyJob {
        let view = TensorView {
            name: "t".to_owned(),
            file: 0,
            offset,
            byte_len: 0,
            weight_type: WeightType::Q6K,
            rows,
            cols,
            scale: None,
            groups: None,
            order: Order::Rows,
            quantise: false,
        };
        CopyJob {
            view,
            conversion,
            destination: DeviceSlice::default(),
            scale: DeviceSlice::default(),
        }
    }

    #[test]
    fn chunks_cover_every_element_once_in_file_order() {
        let jobs = [
            job(3000, 4096, 900, Conversion::Matrix),
            job(1, 256, 100, Conversion::Vector(Change::NONE)),
            job(1, 5 << 20, 500, Conversion::Vector(Change::NONE)),
        ];
        let chunks = split(&jobs);
        let order: Vec<usize> = chunks.iter().map(|chunk| chunk.job).collect();
        assert!(order.is_sorted_by_key(|job| [2, 0, 1][*job]));
        for (index, job) in jobs.iter().enumerate() {
            let mut next = 0;
            for chunk in chunks.iter().filter(|chunk| chunk.job == index) {
                assert_eq!(chunk.start, next);
                assert_eq!(chunk.start % 256, 0);
                let bytes = if job.conversion == Conversion::Matrix { 2 } else { 4 };
                assert!(chunk.elements * bytes <= CHUNK_ELEMENTS * DEVICE_TYPE_BYTES);
                next += chunk.elements;
            }
            assert_eq!(next, u64::from(job.view.rows) * u64::from(job.view.cols));
        }
    }

    #[test]
    fn conversions_round_and_add() {
        let values = [1.0, -0.5, 3.0078125];
        let mut out = [0u8; 16];
        let add = Some(Change { add: 1.0, factor: 1.0 });
        assert_eq!(convert(&values, add, WeightType::Bf16, &mut out), (4, 12));
        assert_eq!(out[..8], [2.0f32.to_le_bytes(), 0.5f32.to_le_bytes()].concat());
        let change = Some(Change { add: 1.0, factor: 0.5 });
        assert_eq!(convert(&values, change, WeightType::Bf16, &mut out), (4, 12));
        assert_eq!(out[..8], [1.0f32.to_le_bytes(), 0.25f32.to_le_bytes()].concat());
        assert_eq!(convert(&values, None, WeightType::Bf16, &mut out), (2, 6));
        // 3.0078125 is half-way between two bf16 numbers; the even one is 3.
        assert_eq!(out[..6], [0x80, 0x3f, 0x00, 0xbf, 0x40, 0x40]);
        assert_eq!(convert(&values, None, WeightType::F16, &mut out), (2, 6));
        assert_eq!(out[..4], [0x00, 0x3c, 0x00, 0xb8]);
    }
}
