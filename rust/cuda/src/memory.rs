//! Pinned host memory, and copies between host and device. Sizes in bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::CudaError;
use crate::context::Context;
use crate::device_slice::{DevicePtr, DeviceSlice};
use crate::stream::Stream;
use crate::sys::driver::*;

/// Page-locked host memory that the device can copy to and from asynchronously.
#[derive(Debug)]
pub(crate) struct PinnedBuffer {
    context: Arc<Context>,
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory with one owner; access goes through `&self` and `&mut self`.
unsafe impl Send for PinnedBuffer {}
// SAFETY: through a shared reference the memory is only read.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Zeroed memory that the host reads and writes.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        let buffer = Self::allocate(context, bytes)?;
        // SAFETY: `pointer` has `bytes` bytes, just allocated and used by nobody else.
        unsafe { std::ptr::write_bytes(buffer.pointer, 0, bytes) };
        Ok(buffer)
    }

    /// Memory that a copy from the device fills before the host reads it.
    pub(crate) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: writes one pointer, freed in `Drop`.
        let code = unsafe {
            context.driver.api.cuMemHostAlloc(
                &raw mut pointer,
                bytes.max(1),
                MEMHOSTALLOC_PORTABLE,
            )?
        };
        context.check("cuMemHostAlloc", code)?;
        Ok(Self { context: Arc::clone(context), pointer: pointer.cast(), bytes })
    }

    /// The bytes, to write.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `pointer` has `bytes` bytes until `Drop`; `&mut self` excludes other host access, and
        // the executor writes only after the event of the last copy that reads it.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }

    /// The bytes as words, to write.
    pub(crate) fn as_mut_words(&mut self) -> &mut [u32] {
        // SAFETY: `pointer` has `bytes` bytes until `Drop`, aligned to a page, and bytes / 4 words fit; `&mut self`
        // excludes other host access, and the executor writes only after the event of the last copy that reads it.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.cast(), self.bytes / 4) }
    }

    /// The bytes as words.
    pub(crate) fn as_words(&self) -> &[u32] {
        // SAFETY: `pointer` has `bytes` bytes until `Drop`, aligned to a page. The device writes only where
        // the executor asked it to, and the executor reads only after that copy's event.
        unsafe { std::slice::from_raw_parts(self.pointer.cast(), self.bytes / 4) }
    }
}

impl PinnedBuffer {
    /// The words as kernels of every device see them: pinned memory has one address for all (CUDA programming guide,
    /// "Unified Virtual Addressing").
    pub(crate) fn on_device(&self) -> DeviceSlice<u32> {
        let address = self.pointer.expose_provenance() as CuDevicePtr;
        DeviceSlice::new(DevicePtr::new(address), (self.bytes / 4) as u64)
    }

    /// Writes a word that running kernels read.
    pub(crate) fn write_shared(&self, index: usize, value: u32) {
        self.shared_word(index).store(value, Ordering::SeqCst);
    }

    /// Reads a word that running kernels write.
    pub(crate) fn read_shared(&self, index: usize) -> u32 {
        self.shared_word(index).load(Ordering::SeqCst)
    }

    fn shared_word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.bytes / 4, "word {index} of {} bytes", self.bytes);
        // SAFETY: the word lies in memory that lives until `Drop` (asserted), aligned, since allocations begin at a page;
        // host and kernels only use it whole, and nobody takes a slice of a buffer of shared words.
        unsafe { AtomicU32::from_ptr(self.pointer.cast::<u32>().add(index)) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `allocate`, freed once; cuMemFreeHost waits for copies that use it.
        let _ = unsafe { self.context.driver.api.cuMemFreeHost(self.pointer.cast()) };
    }
}

/// Queues a copy of the first `bytes` bytes of `source` to the device.
///
/// The caller keeps `source` unchanged until the stream has passed the copy.
pub(crate) fn copy_to_device<T>(
    stream: &Stream,
    destination: DeviceSlice<T>,
    source: &PinnedBuffer,
    bytes: usize,
) -> Result<(), CudaError> {
    copy_from_offset(stream, destination, source, 0, bytes)
}

/// Queues a copy of `bytes` bytes from the device to `destination`.
///
/// The caller reads `destination` only after the stream has passed the copy.
pub(crate) fn copy_to_host<T>(
    stream: &Stream,
    destination: &PinnedBuffer,
    source: DeviceSlice<T>,
    bytes: usize,
) -> Result<(), CudaError> {
    copy_to_offset(stream, destination, 0, source, bytes)
}

/// Copies ordinary host memory to the device and waits. For load only.
pub(crate) fn upload<T>(
    stream: &Stream,
    destination: DeviceSlice<T>,
    source: &[u8],
) -> Result<(), CudaError> {
    if source.is_empty() {
        return Ok(());
    }
    check_room("upload", destination, source.len());
    let api = &stream.context.driver.api;
    // SAFETY: `source` outlives the copy, since the stream is synchronised before returning; the destination has
    // room for it (checked) in a region that its owner keeps mapped.
    let code = unsafe {
        let (address, pointer) = (destination.address(), source.as_ptr().cast());
        api.cuMemcpyHtoDAsync_v2(address, pointer, source.len(), stream.handle)?
    };
    stream.context.check("cuMemcpyHtoDAsync", code)?;
    stream.synchronise()
}

/// Queues a copy within the device; both slices have the same length.
pub(crate) fn copy_on_device<T>(
    stream: &Stream,
    destination: DeviceSlice<T>,
    source: DeviceSlice<T>,
) -> Result<(), CudaError> {
    assert_eq!(destination.len(), source.len(), "a copy from {source:?} to {destination:?}");
    let api = &stream.context.driver.api;
    // SAFETY: takes no host pointer; both slices lie in regions that their owner keeps mapped, and are equally long
    // (asserted).
    let code = unsafe {
        let bytes = source.bytes() as usize;
        api.cuMemcpyDtoDAsync_v2(destination.address(), source.address(), bytes, stream.handle)?
    };
    stream.context.check("cuMemcpyDtoDAsync", code)
}

/// Tells the device where slices begin; waits. For load only.
pub(crate) fn upload_starts<T>(
    stream: &Stream,
    destination: DeviceSlice<u64>,
    slices: &[DeviceSlice<T>],
) -> Result<(), CudaError> {
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.address().to_le_bytes()).collect();
    upload(stream, destination, &bytes)
}

/// Queues a fill of every byte.
pub(crate) fn fill<T>(
    stream: &Stream,
    destination: DeviceSlice<T>,
    value: u8,
) -> Result<(), CudaError> {
    let bytes = destination.bytes() as usize;
    if bytes == 0 {
        return Ok(());
    }
    let api = &stream.context.driver.api;
    // SAFETY: takes no host pointer; the slice lies in a region that its owner keeps mapped.
    let code = unsafe { api.cuMemsetD8Async(destination.address(), value, bytes, stream.handle)? };
    stream.context.check("cuMemsetD8Async", code)
}

/// As `copy_to_device`, from `offset` of `source`.
pub(crate) fn copy_from_offset<T>(
    stream: &Stream,
    destination: DeviceSlice<T>,
    source: &PinnedBuffer,
    offset: usize,
    bytes: usize,
) -> Result<(), CudaError> {
    assert!(offset + bytes <= source.bytes, "copy of {offset} + {bytes} of {}", source.bytes);
    check_room("copy", destination, bytes);
    let api = &stream.context.driver.api;
    // SAFETY: `source` has that many bytes behind the offset (asserted) and lives as the caller promises; the
    // destination has room for them (checked) in a region that its owner keeps mapped.
    let code = unsafe {
        let pointer = source.pointer.add(offset).cast();
        api.cuMemcpyHtoDAsync_v2(destination.address(), pointer, bytes, stream.handle)?
    };
    stream.context.check("cuMemcpyHtoDAsync", code)
}

/// As `copy_to_host`, to `offset` of `destination`.
pub(crate) fn copy_to_offset<T>(
    stream: &Stream,
    destination: &PinnedBuffer,
    offset: usize,
    source: DeviceSlice<T>,
    bytes: usize,
) -> Result<(), CudaError> {
    assert!(offset + bytes <= destination.bytes, "{offset} + {bytes} of {}", destination.bytes);
    check_room("copy", source, bytes);
    let api = &stream.context.driver.api;
    // SAFETY: the destination has that many bytes behind the offset (asserted), and nobody reads them before the
    // stream has passed the copy (the caller's promise, kept by the step's event); the source holds as many
    // (checked).
    let code = unsafe {
        let pointer = destination.pointer.add(offset).cast();
        api.cuMemcpyDtoHAsync_v2(pointer, source.address(), bytes, stream.handle)?
    };
    stream.context.check("cuMemcpyDtoHAsync", code)
}

/// Copies ordinary host memory: the driver takes its own copy before the call returns, waiting for the
/// stream first. Too slow for every step.
pub(crate) fn copy_pageable<T>(
    stream: &Stream,
    destination: DeviceSlice<T>,
    words: &[u32],
) -> Result<(), CudaError> {
    let api = &stream.context.driver.api;
    let bytes = size_of_val(words);
    check_room("copy", destination, bytes);
    // SAFETY: pageable memory is staged before the call returns (driver API, "API synchronization
    // behavior"), so `words` need not outlive it; the destination has room for it (checked).
    let code = unsafe {
        let (address, pointer) = (destination.address(), words.as_ptr().cast());
        api.cuMemcpyHtoDAsync_v2(address, pointer, bytes, stream.handle)?
    };
    stream.context.check("cuMemcpyHtoDAsync", code)
}

fn check_room<T>(what: &str, slice: DeviceSlice<T>, bytes: usize) {
    assert!(bytes as u64 <= slice.bytes(), "{what} of {bytes} bytes, device side {slice:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_slice::DevicePtr;
    use crate::fake;

    #[test]
    #[should_panic(expected = "copy of 44 bytes, device side 10 u32 at 0x1000")]
    fn a_copy_stays_in_its_slice() {
        let context = fake::context();
        let stream = Stream::new(&context).unwrap();
        let buffer = PinnedBuffer::new(&context, 100).unwrap();
        let slice = DeviceSlice::<u32>::new(DevicePtr::new(4096), 10);
        copy_to_device(&stream, slice, &buffer, 40).unwrap();
        assert_eq!(fake::calls("cuMemcpyHtoDAsync"), [("cuMemcpyHtoDAsync", 4096, 40)]);
        let _ = copy_to_device(&stream, slice, &buffer, 44);
    }
}
