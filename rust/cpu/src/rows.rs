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
    /// `[capacity][stride]`, `[capacity][stride / 16]`: see `Prepared`. No page is touched unless a product needs it.
    scaled: Vec<f32>,
    sums: Vec<f32>,
}

/// Rows as products with block formats read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared<'a> {
    /// From the first row on; each row begins `stride` numbers behind the last one.
    pub(crate) plain: &'a [f32],
    /// The same with input `k` divided by `2^(8 (k % 4))`.
    pub(crate) scaled: &'a [f32],
    pub(crate) stride: usize,
    /// The sum of every 16 inputs; a row has `sums_stride` of them.
    pub(crate) sums: &'a [f32],
    pub(crate) sums_stride: usize,
}

impl Prepared<'_> {
    /// Without the rows before `row`.
    pub(crate) fn skip_rows(self, row: usize) -> Self {
        let skip = row * self.stride;
        Self {
            plain: &self.plain[skip..],
            scaled: &self.scaled[skip..],
            sums: &self.sums[row * self.sums_stride..],
            ..self
        }
    }

    /// Without the inputs before `input`, a multiple of 32.
    pub(crate) fn skip_inputs(self, input: usize) -> Self {
        Self {
            plain: &self.plain[input..],
            scaled: &self.scaled[input..],
            sums: &self.sums[input / 16..],
            ..self
        }
    }

    /// # Panics
    /// If there are fewer than `rows` rows of `depth` inputs.
    pub(crate) fn assert_holds(self, rows: usize, depth: usize) {
        let need = (rows - 1) * self.stride + depth;
        assert!(self.plain.len() >= need && self.scaled.len() >= need, "activations too short");
        let sums = (rows - 1) * self.sums_stride + depth / 16;
        assert!(self.sums.len() >= sums, "sums of activations too short");
    }
}

impl Rows {
    pub(crate) fn zeroed(rows: usize, cols: usize) -> Self {
        let mut stride = cols.next_multiple_of(PANEL);
        if stride.is_multiple_of(512) {
            stride += PANEL;
        }
        let len = rows * stride;
        Self { data: vec![0.0; len], stride, scaled: vec![0.0; len], sums: vec![0.0; len / 16] }
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

    /// What `Prepared` shows, to be written by prepare.rs: the rows, their scaled form and their sums.
    pub(crate) fn parts(&mut self) -> [Shared<'_>; 3] {
        let stride = self.stride;
        [
            Shared { stride, ..Shared::new(&mut self.data) },
            Shared { stride, ..Shared::new(&mut self.scaled) },
            Shared { stride: stride / 16, ..Shared::new(&mut self.sums) },
        ]
    }

    /// All rows from `first` on, of which those that the caller reads must have been prepared.
    pub(crate) fn prepared(&self, first: usize) -> Prepared<'_> {
        Prepared {
            plain: &self.data,
            scaled: &self.scaled,
            stride: self.stride,
            sums: &self.sums,
            sums_stride: self.stride / 16,
        }
        .skip_rows(first)
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
