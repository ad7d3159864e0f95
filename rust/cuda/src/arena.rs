//! Device memory: address ranges that are reserved once and backed by physical pieces as needed.
//! Graphs and kernels keep addresses, so a region never moves: growing maps pieces at its end,
//! shrinking unmaps the last ones. Used at load, sleep and wake only; a step allocates nothing.

use std::sync::Arc;

use crate::CudaError;
use crate::context::Context;
use crate::device_slice::{DevicePtr, DeviceSlice};
use crate::sys::driver::*;

/// Smallest physical piece. 2 MiB pieces take 20 times as long to map (4 GiB: 109 to 131 ms against
/// 5.4 to 6.6 ms, measured on one H200).
pub(crate) const PIECE_BYTES: u64 = 32 << 20;
/// Piece used while this much or more is missing. Sizes that are multiples of it can always be gone back to.
pub(crate) const LARGE_PIECE_BYTES: u64 = 256 << 20;

/// One reserved range of device addresses.
///
/// ```text
/// [base, base + mapped)              backed by physical memory
/// [base + mapped, base + reserved)   addresses only; a touch is an error
/// ```
#[derive(Debug)]
pub(crate) struct Region {
    context: Arc<Context>,
    base: CuDevicePtr,
    reserved: u64,
    mapped: u64,
    pieces: Vec<(CuMemHandle, u64)>,
    /// The devices that can use the memory.
    devices: Vec<CuDevice>,
}

impl Region {
    /// Reserves addresses for up to `bytes` bytes, without memory.
    pub(crate) fn reserve(context: &Arc<Context>, bytes: u64) -> Result<Self, CudaError> {
        let reserved = bytes.max(1).next_multiple_of(PIECE_BYTES);
        let mut base = 0;
        // SAFETY: writes one address; freed in `Drop`.
        let code = unsafe {
            context.driver.api.cuMemAddressReserve(&raw mut base, reserved as usize, 0, 0, 0)?
        };
        context.check("cuMemAddressReserve", code)?;
        Ok(Self {
            context: Arc::clone(context),
            base,
            reserved,
            mapped: 0,
            pieces: Vec::new(),
            devices: vec![context.info.device],
        })
    }

    /// Reserves and backs a region of `bytes` bytes of one device that several can use.
    ///
    /// # Errors
    /// Also devices that cannot reach each other's memory.
    pub(crate) fn shared(
        context: &Arc<Context>,
        bytes: u64,
        devices: &[CuDevice],
    ) -> Result<Self, CudaError> {
        let mut region = Self::reserve(context, bytes)?;
        for device in devices {
            if !region.devices.contains(device) {
                region.devices.push(*device);
            }
        }
        region.grow_to(bytes)?;
        Ok(region)
    }

    /// Reserves and backs a region of `bytes` bytes.
    pub(crate) fn backed(context: &Arc<Context>, bytes: u64) -> Result<Self, CudaError> {
        let mut region = Self::reserve(context, bytes)?;
        region.grow_to(bytes)?;
        Ok(region)
    }

    /// First address.
    pub(crate) fn base(&self) -> DevicePtr<u8> {
        DevicePtr::new(self.base)
    }

    /// All bytes that are backed, a multiple of `PIECE_BYTES`.
    pub(crate) fn mapped(&self) -> DeviceSlice<u8> {
        DeviceSlice::new(self.base(), self.mapped)
    }

    /// Bytes of addresses.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved
    }

    /// Backs the first `bytes` bytes.
    ///
    /// # Errors
    /// Out of memory, with numbers; what was mapped until then stays.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> Result<(), CudaError> {
        let wanted = bytes.next_multiple_of(PIECE_BYTES);
        assert!(wanted <= self.reserved, "{wanted} bytes of a region of {}", self.reserved);
        while self.mapped < wanted {
            let missing = wanted - self.mapped;
            let piece = if missing >= LARGE_PIECE_BYTES { LARGE_PIECE_BYTES } else { PIECE_BYTES };
            self.map_piece(piece)?;
        }
        Ok(())
    }

    /// Gives back every whole piece beyond the first `bytes` bytes. No step may be in flight.
    pub(crate) fn shrink_to(&mut self, bytes: u64) -> Result<(), CudaError> {
        while let Some(&(handle, size)) = self.pieces.last() {
            if self.mapped - size < bytes {
                break;
            }
            self.unmap_piece(handle, size)?;
        }
        Ok(())
    }

    fn map_piece(&mut self, size: u64) -> Result<(), CudaError> {
        let context = &self.context;
        let api = &context.driver.api;
        let location = MemLocation { kind: MEM_LOCATION_TYPE_DEVICE, id: context.info.device };
        let prop = MemAllocationProp {
            kind: MEM_ALLOCATION_TYPE_PINNED,
            requested_handle_types: 0,
            location,
            win32_handle_meta_data: std::ptr::null_mut(),
            alloc_flags: [0; 8],
        };
        let access: Vec<MemAccessDesc> = self
            .devices
            .iter()
            .map(|&id| MemAccessDesc {
                location: MemLocation { kind: MEM_LOCATION_TYPE_DEVICE, id },
                flags: MEM_ACCESS_FLAGS_PROT_READWRITE,
            })
            .collect();
        let address = self.base + self.mapped;
        let mut handle = 0;
        // SAFETY: `prop` and `access` are local and outlive the calls; the range lies in this region's
        // reservation (asserted in `grow_to`) and is not mapped yet; sizes are multiples of 32 MiB,
        // which every granularity divides.
        unsafe {
            let code = api.cuMemCreate(&raw mut handle, size as usize, &raw const prop, 0)?;
            if code == CUDA_ERROR_OUT_OF_MEMORY {
                let needed = format!("{} MiB more are needed", size >> 20);
                // A locked process may not ask how much is free.
                return Err(CudaError::OutOfMemory(match context.memory_info() {
                    Ok((free, _)) => format!("the device has {} MiB free, {needed}", free >> 20),
                    Err(_) => format!("the device's memory is full, {needed}"),
                }));
            }
            context.check("cuMemCreate", code)?;
            let code = api.cuMemMap(address, size as usize, 0, handle, 0)?;
            if let Err(error) = context.check("cuMemMap", code) {
                let _ = api.cuMemRelease(handle);
                return Err(error);
            }
            self.pieces.push((handle, size));
            self.mapped += size;
            let code = api.cuMemSetAccess(address, size as usize, access.as_ptr(), access.len())?;
            if let Err(error) = context.check("cuMemSetAccess", code) {
                // Mapped and not accessible: a touch would be a fault, so it does not count as backed.
                self.unmap_piece(handle, size)?;
                return Err(error);
            }
            Ok(())
        }
    }

    fn unmap_piece(&mut self, handle: CuMemHandle, size: u64) -> Result<(), CudaError> {
        let api = &self.context.driver.api;
        let address = self.base + self.mapped - size;
        // SAFETY: the last piece is mapped at exactly this range (`map_piece`), and no step is in
        // flight (the callers' promise); the handle is released once, since it leaves `pieces`.
        unsafe {
            let code = api.cuMemUnmap(address, size as usize)?;
            self.context.check("cuMemUnmap", code)?;
            self.pieces.pop();
            self.mapped -= size;
            let code = api.cuMemRelease(handle)?;
            self.context.check("cuMemRelease", code)
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        while let Some(&(handle, size)) = self.pieces.last() {
            if self.unmap_piece(handle, size).is_err() {
                break;
            }
        }
        // SAFETY: reserved in `reserve`, freed once. With pieces left (a lost device) the call fails
        // and the process is about to exit.
        let _ =
            unsafe { self.context.driver.api.cuMemAddressFree(self.base, self.reserved as usize) };
    }
}

/// Allocates slices one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayoutBuilder {
    base: CuDevicePtr,
    bytes: u64,
    /// Bytes that there are.
    limit: u64,
}

impl LayoutBuilder {
    /// Over the backed part of a region.
    pub(crate) fn over(region: &Region) -> Self {
        Self { base: region.base, bytes: FIRST, limit: region.mapped }
    }

    /// Without memory, to compute with `bytes` what a layout needs. Its slices must not be used.
    pub(crate) fn measuring() -> Self {
        Self { base: 0, bytes: FIRST, limit: u64::MAX }
    }

    /// Bytes without memory, to measure a layout of fixed offsets. They must not be used.
    pub(crate) fn measuring_bytes() -> DeviceSlice<u8> {
        DeviceSlice::new(DevicePtr::new(FIRST), u64::MAX / 2)
    }

    /// The next `len` elements, aligned to 256 bytes as cuBLASLt and 16-byte loads like it.
    pub(crate) fn take<T>(&mut self, len: u64) -> DeviceSlice<T> {
        let offset = self.bytes.next_multiple_of(256);
        self.bytes = offset + len * size_of::<T>() as u64;
        assert!(self.bytes <= self.limit, "{} bytes of a region of {}", self.bytes, self.limit);
        DeviceSlice::new(DevicePtr::new(self.base + offset), len)
    }

    /// Bytes allocated so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The first bytes of a region stay unused, so that no slice of a measured layout is at address 0.
const FIRST: u64 = 256;
