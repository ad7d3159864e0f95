//! Row-major matrices of activations, and a handle through which workers write disjoint parts.

use std::marker::PhantomData;

use crate::panel::PANEL;

/// `[capacity, stride]` f32, of which each row's first `cols` are used.
///
/// The stride is a multiple of `PANEL`, so whole panels can be stored, and never a multiple of 4 KiB,
/// so that the twelve rows of a tile do not fall into one set of the first-level cache.
#[derive(Debug)]
pub(crate) struct Rows {
    data: Vec<f32>,
    stride: usize,
}

impl Rows {
    pub(crate) fn zeroed(rows: usize, cols: usize) -> Self {
        let mut stride = cols.next_multiple_of(PANEL);
        if stride.is_multiple_of(512) {
            stride += PANEL;
        }
        Self { data: vec![0.0; rows * stride], stride }
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    pub(crate) fn data(&self) -> &[f32] {
        &self.data
    }

    /// The first `cols` of a row.
    pub(crate) fn row(&self, row: usize, cols: usize) -> &[f32] {
        &self.data[row * self.stride..][..cols]
    }

    pub(crate) fn row_mut(&mut self, row: usize, cols: usize) -> &mut [f32] {
        &mut self.data[row * self.stride..][..cols]
    }

    pub(crate) fn shared(&mut self) -> Shared<'_> {
        Shared { stride: self.stride, ..Shared::new(&mut self.data) }
    }
}

/// Memory that several workers write at once, each its own part.
pub(crate) struct Shared<'a, T = f32> {
    data: *mut T,
    len: usize,
    stride: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer comes from a `&mut [T]` borrowed for 'a, and a T that is Send may be written from
// any thread; that parts do not overlap is the duty of the callers of `part`.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: the pointer comes from a `&mut [T]` borrowed for 'a, which may move to another thread if T is
// Send.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(data: &'a mut [T]) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), stride: 0, borrow: PhantomData }
    }

    /// `len` numbers from `start`.
    ///
    /// # Safety
    /// No other reference to any of them may live at the same time, on any thread.
    #[allow(clippy::mut_from_ref, reason = "disjoint parts are the point; the caller promises it")]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len), "part out of range");
        // SAFETY: the range lies in the borrowed slice (assert above), and the caller promises that no other
        // reference to it lives.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), len) }
    }

    /// `len` numbers from column `col` of a row of `Rows`.
    ///
    /// # Safety
    /// As `part`.
    #[allow(clippy::mut_from_ref, reason = "as part")]
    pub(crate) unsafe fn row_part(&self, row: usize, col: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller promises that no other reference to these columns of the row lives.
        unsafe { self.part(row * self.stride + col, len) }
    }
}
