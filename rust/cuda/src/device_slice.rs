//! Typed addresses of device memory. Only the device layer (`arena`, `memory`, `module`, `gemm`, `tensor_map`)
//! uses the raw address, which `tests/tidy` checks; all other code passes slices on, splits them and asks for their lengths.
//! Any thread; plain data.

use std::fmt;
use std::marker::PhantomData;

use crate::sys::driver::CuDevicePtr;

/// The address of a `T` in device memory.
#[repr(transparent)]
pub(crate) struct DevicePtr<T> {
    address: CuDevicePtr,
    kind: PhantomData<fn() -> T>,
}

/// `len` consecutive elements of type `T` in device memory.
///
/// It does not own its memory: the code that takes it from a `Region` keeps the region mapped while
/// it is in use (the `Model` owns regions and slices together). The model has no null slice
/// (empty, at address 0).
pub(crate) struct DeviceSlice<T> {
    start: DevicePtr<T>,
    len: u64,
}

/// One activation: bf16 or f16, as `ActDtype` says.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Act(#[allow(dead_code, reason = "only its size counts on the host")] u16);

/// One element of a weight matrix.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight(#[allow(dead_code, reason = "only its size counts on the host")] u16);

/// One element of a key or a value in the cache.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kv(#[allow(dead_code, reason = "only its size counts on the host")] u16);

impl<T> DevicePtr<T> {
    /// The element at an address of the driver.
    pub(crate) fn new(address: CuDevicePtr) -> Self {
        Self { address, kind: PhantomData }
    }

    /// The bare address, for the driver and for kernels.
    pub(crate) fn address(self) -> CuDevicePtr {
        self.address
    }

    /// The place `bytes` further on.
    pub(crate) fn skip_bytes(self, bytes: u64) -> Self {
        Self::new(self.address + bytes)
    }

    /// The same place as one of another type.
    pub(crate) fn cast<U>(self) -> DevicePtr<U> {
        DevicePtr::new(self.address)
    }
}

impl<T> DeviceSlice<T> {
    /// `len` elements from `start` on.
    pub(crate) fn new(start: DevicePtr<T>, len: u64) -> Self {
        Self { start, len }
    }

    /// The bare address, for the driver and for kernels.
    pub(crate) fn address(self) -> CuDevicePtr {
        self.start.address
    }

    /// Elements.
    pub(crate) fn len(self) -> u64 {
        self.len
    }

    /// Bytes of all elements.
    pub(crate) fn bytes(self) -> u64 {
        self.len * size_of::<T>() as u64
    }

    /// Elements `[start, start + len)`.
    pub(crate) fn slice(self, start: u64, len: u64) -> Self {
        assert!(start + len <= self.len, "[{start}, {start} + {len}) of {self:?}");
        let address = self.start.address + start * size_of::<T>() as u64;
        Self { start: DevicePtr::new(address), len }
    }

    /// Elements from `start` on.
    pub(crate) fn from(self, start: u64) -> Self {
        assert!(start <= self.len, "[{start}, ..) of {self:?}");
        self.slice(start, self.len - start)
    }

    /// Row `index` of rows of `width` elements.
    pub(crate) fn row(self, index: u64, width: u64) -> Self {
        self.slice(index * width, width)
    }

    /// The same memory as bytes.
    pub(crate) fn as_bytes(self) -> DeviceSlice<u8> {
        DeviceSlice { start: DevicePtr::new(self.start.address), len: self.bytes() }
    }
}

impl DeviceSlice<u8> {
    /// The same memory as whole elements of another type.
    pub(crate) fn of<T>(self) -> DeviceSlice<T> {
        let size = size_of::<T>() as u64;
        assert!(self.len.is_multiple_of(size), "part of an element: {self:?}");
        DeviceSlice { start: self.start.cast(), len: self.len / size }
    }
}

impl<T> Clone for DevicePtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DevicePtr<T> {}

impl<T> fmt::Debug for DevicePtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.address)
    }
}

impl<T> Clone for DeviceSlice<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceSlice<T> {}

impl<T> fmt::Debug for DeviceSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at {:?}", self.len, std::any::type_name::<T>(), self.start)
    }
}

impl<T> Default for DeviceSlice<T> {
    fn default() -> Self {
        Self { start: DevicePtr::new(0), len: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_where_their_elements_do() {
        let all = DeviceSlice::<f32>::new(DevicePtr::new(4096), 100);
        let row = all.row(3, 10);
        assert_eq!((row.address(), row.len(), row.bytes()), (4096 + 120, 10, 40));
        assert_eq!((all.from(99).address(), all.from(100).len()), (4096 + 396, 0));
        assert_eq!((row.as_bytes().len(), row.as_bytes().address()), (40, row.address()));
    }

    #[test]
    #[should_panic(expected = "[90, 90 + 11) of 100 f32 at 0x1000")]
    fn nothing_lies_beyond_the_end() {
        let _ = DeviceSlice::<f32>::new(DevicePtr::new(4096), 100).slice(90, 11);
    }
}
