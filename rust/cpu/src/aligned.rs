//! Zeroed memory aligned to a cache line, and views of its bytes as numbers. Any thread.

/// Bytes that start at a multiple of `ALIGNMENT`.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    data: Vec<u8>,
    start: usize,
    len: usize,
}

const ALIGNMENT: usize = 64;

impl AlignedBytes {
    /// Zeroed; the system allocates the pages when they are first touched.
    pub(crate) fn zeroed(len: usize) -> Self {
        let data = vec![0u8; len + ALIGNMENT];
        let start = data.as_ptr().align_offset(ALIGNMENT);
        Self { data, start, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data[self.start..self.start + self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.data[self.start..self.start + self.len]
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
