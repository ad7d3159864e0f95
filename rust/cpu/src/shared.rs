//! A handle through which workers write disjoint parts of one memory.

use std::marker::PhantomData;

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

    /// Of rows that begin `stride` elements apart.
    pub(crate) fn rows(data: &'a mut [T], stride: usize) -> Self {
        Self { stride, ..Self::new(data) }
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
