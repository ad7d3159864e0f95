//! Memory of the weights, in large pages where the system has them, and views of bytes as numbers. Any thread.

use std::cell::UnsafeCell;
use std::sync::{Arc, Mutex, PoisonError};

/// Gives out parts of large chunks, so that a model's matrices lie side by side and share the system's large pages: a
/// step reads all of them once, and with pages of 4 KiB the processor stops its prefetches at each page's end.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    last: Mutex<Option<Part>>,
}

impl Arena {
    /// Zeroed bytes at a multiple of `ALIGNMENT`; the system allocates pages when they are first touched.
    pub(crate) fn zeroed(&self, len: usize) -> AlignedBytes {
        let need = len.next_multiple_of(ALIGNMENT);
        // A panic cannot leave a part half-written.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let part = match last.take() {
            Some(part) if part.end - part.start >= need => part,
            _ => Part::of(Chunk::new(CHUNK_BYTES.max(need))),
        };
        let Part { chunk, start, end } = part;
        *last = Some(Part { chunk: Arc::clone(&chunk), start: start + need, end });
        AlignedBytes { chunk, start, len }
    }
}

/// What is left of a chunk.
#[derive(Debug)]
struct Part {
    chunk: Arc<Chunk>,
    start: usize,
    end: usize,
}

impl Part {
    fn of(chunk: Chunk) -> Self {
        let (start, end) = (chunk.start, chunk.data.len());
        Self { chunk: Arc::new(chunk), start, end }
    }
}

/// Memory that goes back to the system with the last matrix in it.
#[derive(Debug)]
struct Chunk {
    data: Box<[UnsafeCell<u8>]>,
    /// Where the first large page begins.
    start: usize,
}

// SAFETY: the bytes of a chunk are given out in parts that do not overlap (`Arena::zeroed`), and a part is
// written only through `&mut AlignedBytes`, its one owner.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(len: usize) -> Self {
        let data = vec![0u8; len + LARGE_PAGE].into_boxed_slice();
        // SAFETY: an `UnsafeCell<u8>` is laid out like a `u8`, and the box owns the bytes as before.
        let data = unsafe { Box::from_raw(Box::into_raw(data) as *mut [UnsafeCell<u8>]) };
        let start = data.as_ptr().cast::<u8>().align_offset(LARGE_PAGE);
        let len = (data.len() - start) / LARGE_PAGE * LARGE_PAGE;
        // SAFETY: the range lies in the box, and the advice changes how pages are backed, never what they hold. A
        // system without large pages refuses, which does no harm.
        let _ = unsafe {
            libc::madvise(
                data.as_ptr().wrapping_add(start).cast_mut().cast(),
                len,
                libc::MADV_HUGEPAGE,
            )
        };
        Self { data, start }
    }
}

/// Bytes that start at a multiple of `ALIGNMENT`.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    chunk: Arc<Chunk>,
    start: usize,
    len: usize,
}

const ALIGNMENT: usize = 64;
const LARGE_PAGE: usize = 2 << 20;
const CHUNK_BYTES: usize = 64 << 20;

impl AlignedBytes {
    pub(crate) fn bytes(&self) -> &[u8] {
        let part = &self.chunk.data[self.start..self.start + self.len];
        // SAFETY: the range was checked above. No other owner has these bytes (`Arena::zeroed`), and this one can
        // write them only while it is borrowed mutably.
        unsafe { std::slice::from_raw_parts(part.as_ptr().cast::<u8>(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let part = &self.chunk.data[self.start..self.start + self.len];
        // SAFETY: the range was checked above, and the cells may be written. No other owner has these bytes
        // (`Arena::zeroed`), and this one is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(part.as_ptr().cast::<u8>().cast_mut(), self.len) }
    }
}

/// Numbers for which every bit pattern is a value.
pub(crate) trait Number: Copy + private::Sealed {}
impl Number for u16 {}
impl Number for u32 {}
impl Number for u64 {}
impl Number for f32 {}

mod private {
    pub(crate) trait Sealed {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
    impl Sealed for f32 {}
}

/// The bytes as numbers in the machine's order.
///
/// # Panics
/// If the bytes are not aligned for the number or do not fill whole ones.
pub(crate) fn numbers<T: Number>(bytes: &[u8]) -> &[T] {
    // SAFETY: `Number` is sealed to types without padding for which every bit pattern is valid.
    let (head, middle, tail) = unsafe { bytes.align_to::<T>() };
    assert!(head.is_empty() && tail.is_empty(), "misaligned view of packed weights");
    middle
}

/// As `numbers`, to write.
pub(crate) fn numbers_mut<T: Number>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: `Number` is sealed to types without padding, so every bit pattern is a valid number and
    // every number written leaves valid bytes.
    let (head, middle, tail) = unsafe { bytes.align_to_mut::<T>() };
    assert!(head.is_empty() && tail.is_empty(), "misaligned view of packed weights");
    middle
}
