//! Pinned host memory, and copies between it and the device. Sizes in bytes.

use std::sync::Arc;

use crate::CudaError;
use crate::context::Context;
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
// SAFETY: as above.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Zeroed memory that the host reads and writes.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        let buffer = Self::allocate(context, bytes)?;
        // SAFETY: `pointer` has `bytes` bytes, just allocated and used by nobody else.
        unsafe { std::ptr::write_bytes(buffer.pointer, 0, bytes) };
        Ok(buffer)
    }

    fn allocate(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
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
        // SAFETY: as `as_mut_slice`; the driver aligns to a page, and bytes / 4 words fit.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.cast(), self.bytes / 4) }
    }

    /// The bytes as words.
    pub(crate) fn as_words(&self) -> &[u32] {
        // SAFETY: `pointer` has `bytes` bytes until `Drop`, aligned to a page. The device writes only where
        // the executor asked it to, and the executor reads only after that copy's event.
        unsafe { std::slice::from_raw_parts(self.pointer.cast(), self.bytes / 4) }
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
pub(crate) fn copy_to_device(
    stream: &Stream,
    destination: CuDevicePtr,
    source: &PinnedBuffer,
    bytes: usize,
) -> Result<(), CudaError> {
    assert!(bytes <= source.bytes, "copy of {bytes} bytes from {} pinned ones", source.bytes);
    let api = &stream.context.driver.api;
    // SAFETY: `source` has that many bytes (asserted) and lives as the caller promises; `destination`
    // comes from a region whose size the layouts were computed from.
    let code = unsafe {
        api.cuMemcpyHtoDAsync_v2(destination, source.pointer.cast(), bytes, stream.handle)?
    };
    stream.context.check("cuMemcpyHtoDAsync", code)
}

/// Queues a copy of `bytes` bytes from the device to `offset` of `destination`.
///
/// The caller reads `destination` only after the stream has passed the copy.
pub(crate) fn copy_to_host(
    stream: &Stream,
    destination: &PinnedBuffer,
    source: CuDevicePtr,
    bytes: usize,
) -> Result<(), CudaError> {
    assert!(bytes <= destination.bytes, "copy of {bytes} bytes to {} ones", destination.bytes);
    let api = &stream.context.driver.api;
    // SAFETY: as `copy_to_device`, the other way.
    let code = unsafe {
        api.cuMemcpyDtoHAsync_v2(destination.pointer.cast(), source, bytes, stream.handle)?
    };
    stream.context.check("cuMemcpyDtoHAsync", code)
}

/// Copies ordinary host memory to the device and waits. For load only.
pub(crate) fn upload(
    stream: &Stream,
    destination: CuDevicePtr,
    source: &[u8],
) -> Result<(), CudaError> {
    if source.is_empty() {
        return Ok(());
    }
    let api = &stream.context.driver.api;
    // SAFETY: `source` outlives the copy, since the stream is synchronised before returning.
    let code = unsafe {
        api.cuMemcpyHtoDAsync_v2(destination, source.as_ptr().cast(), source.len(), stream.handle)?
    };
    stream.context.check("cuMemcpyHtoDAsync", code)?;
    stream.synchronise()
}

/// Queues a fill of `bytes` bytes.
pub(crate) fn fill(
    stream: &Stream,
    destination: CuDevicePtr,
    value: u8,
    bytes: usize,
) -> Result<(), CudaError> {
    if bytes == 0 {
        return Ok(());
    }
    let api = &stream.context.driver.api;
    // SAFETY: the range lies in a region of the arena, as the layouts computed it.
    let code = unsafe { api.cuMemsetD8Async(destination, value, bytes, stream.handle)? };
    stream.context.check("cuMemsetD8Async", code)
}

/// As `copy_to_device`, from `offset` of `source`.
pub(crate) fn copy_from_offset(
    stream: &Stream,
    destination: CuDevicePtr,
    source: &PinnedBuffer,
    offset: usize,
    bytes: usize,
) -> Result<(), CudaError> {
    assert!(offset + bytes <= source.bytes, "copy of {offset} + {bytes} of {}", source.bytes);
    let api = &stream.context.driver.api;
    // SAFETY: as `copy_to_device`; the offset stays inside the buffer (asserted).
    let code = unsafe {
        let pointer = source.pointer.add(offset).cast();
        api.cuMemcpyHtoDAsync_v2(destination, pointer, bytes, stream.handle)?
    };
    stream.context.check("cuMemcpyHtoDAsync", code)
}

/// As `copy_to_host`, to `offset` of `destination`.
pub(crate) fn copy_to_offset(
    stream: &Stream,
    destination: &PinnedBuffer,
    offset: usize,
    source: CuDevicePtr,
    bytes: usize,
) -> Result<(), CudaError> {
    assert!(offset + bytes <= destination.bytes, "{offset} + {bytes} of {}", destination.bytes);
    let api = &stream.context.driver.api;
    // SAFETY: as `copy_to_host`; the offset stays inside the buffer (asserted).
    let code = unsafe {
        let pointer = destination.pointer.add(offset).cast();
        api.cuMemcpyDtoHAsync_v2(pointer, source, bytes, stream.handle)?
    };
    stream.context.check("cuMemcpyDtoHAsync", code)
}

/// Copies ordinary host memory: the driver takes its own copy before the call returns, waiting for the
/// stream first. Too slow for every step.
pub(crate) fn copy_pageable(
    stream: &Stream,
    destination: CuDevicePtr,
    words: &[u32],
) -> Result<(), CudaError> {
    let api = &stream.context.driver.api;
    let bytes = size_of_val(words);
    // SAFETY: pageable memory is staged before the call returns (driver API, "API synchronization
    // behavior"), so `words` need not outlive it; the destination is a buffer laid out for it.
    let code = unsafe {
        api.cuMemcpyHtoDAsync_v2(destination, words.as_ptr().cast(), bytes, stream.handle)?
    };
    stream.context.check("cuMemcpyHtoDAsync", code)
}
