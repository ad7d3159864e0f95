//! libcuda: the functions that the engine uses, as cuda.h 13.0 declares them. Manual:
//! docs.nvidia.com/cuda/cuda-driver-api.

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) type CuResult = c_int;
pub(crate) type CuDevice = c_int;
pub(crate) type CuDevicePtr = u64;
pub(crate) type CuContext = *mut c_void;
pub(crate) type CuStream = *mut c_void;
pub(crate) type CuEvent = *mut c_void;
pub(crate) type CuLibrary = *mut c_void;
pub(crate) type CuKernel = *mut c_void;
pub(crate) type CuFunction = *mut c_void;
pub(crate) type CuGraph = *mut c_void;
pub(crate) type CuGraphExec = *mut c_void;
pub(crate) type CuMemHandle = u64;

pub(crate) const CUDA_SUCCESS: CuResult = 0;
pub(crate) const CUDA_ERROR_OUT_OF_MEMORY: CuResult = 2;
pub(crate) const CUDA_ERROR_NO_DEVICE: CuResult = 100;

pub(crate) const CTX_SCHED_BLOCKING_SYNC: c_uint = 4;
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const EVENT_BLOCKING_SYNC: c_uint = 1;
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(crate) const MEMHOSTALLOC_PORTABLE: c_uint = 1;
pub(crate) const STREAM_CAPTURE_MODE_THREAD_LOCAL: c_int = 1;
pub(crate) const LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: c_uint = 4;
pub(crate) const LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;
pub(crate) const FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: c_int = 0;
pub(crate) const FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;
pub(crate) const DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: c_int = 16;
pub(crate) const DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: c_int = 75;
pub(crate) const DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: c_int = 76;
pub(crate) const DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: c_int = 81;
pub(crate) const DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_int = 97;
pub(crate) const DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: c_int = 111;
pub(crate) const MEM_LOCATION_TYPE_DEVICE: c_uint = 1;
pub(crate) const MEM_ALLOCATION_TYPE_PINNED: c_uint = 1;
pub(crate) const MEM_ACCESS_FLAGS_PROT_READWRITE: c_uint = 3;

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemLocation {
    pub(crate) kind: c_uint,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemAllocationProp {
    pub(crate) kind: c_uint,
    pub(crate) requested_handle_types: c_uint,
    pub(crate) location: MemLocation,
    pub(crate) win32_handle_meta_data: *mut c_void,
    pub(crate) alloc_flags: [u8; 8],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemAccessDesc {
    pub(crate) location: MemLocation,
    pub(crate) flags: c_uint,
}

/// `CUlaunchAttribute`: an id and a union of 64 bytes (aligned to 8), of which three words are used.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: c_uint,
    pub(crate) pad: c_uint,
    pub(crate) value: [u32; 16],
}

/// `CUlaunchConfig`
#[repr(C)]
#[derive(Debug)]
pub(crate) struct LaunchConfigRaw {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_mem_bytes: c_uint,
    pub(crate) stream: CuStream,
    pub(crate) attrs: *mut LaunchAttribute,
    pub(crate) num_attrs: c_uint,
}

/// `CUtensorMap`: opaque, by value to kernels.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorMap {
    pub(crate) opaque: [u64; 16],
}

pub(crate) const TENSOR_MAP_DATA_TYPE_FLOAT16: c_uint = 6;
pub(crate) const TENSOR_MAP_DATA_TYPE_BFLOAT16: c_uint = 9;
pub(crate) const TENSOR_MAP_INTERLEAVE_NONE: c_uint = 0;
pub(crate) const TENSOR_MAP_SWIZZLE_128B: c_uint = 3;
pub(crate) const TENSOR_MAP_L2_PROMOTION_L2_128B: c_uint = 2;
pub(crate) const TENSOR_MAP_FLOAT_OOB_FILL_NONE: c_uint = 0;

super::c_api! {
    /// Functions of libcuda.
    DriverApi {
        fn cuInit(flags: c_uint) -> CuResult;
        fn cuDriverGetVersion(version: *mut c_int) -> CuResult;
        fn cuGetErrorName(error: CuResult, text: *mut *const c_char) -> CuResult;
        fn cuGetErrorString(error: CuResult, text: *mut *const c_char) -> CuResult;
        fn cuDeviceGetCount(count: *mut c_int) -> CuResult;
        fn cuDeviceGet(device: *mut CuDevice, ordinal: c_int) -> CuResult;
        fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CuDevice) -> CuResult;
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CuDevice) -> CuResult;
        fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CuDevice) -> CuResult;
        fn cuDevicePrimaryCtxSetFlags_v2(device: CuDevice, flags: c_uint) -> CuResult;
        fn cuDevicePrimaryCtxRetain(context: *mut CuContext, device: CuDevice) -> CuResult;
        fn cuDevicePrimaryCtxRelease_v2(device: CuDevice) -> CuResult;
        fn cuCtxSetCurrent(context: CuContext) -> CuResult;
        fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CuResult;
        fn cuMemAddressReserve(ptr: *mut CuDevicePtr, size: usize, alignment: usize, addr: CuDevicePtr, flags: u64) -> CuResult;
        fn cuMemAddressFree(ptr: CuDevicePtr, size: usize) -> CuResult;
        fn cuMemCreate(handle: *mut CuMemHandle, size: usize, prop: *const MemAllocationProp, flags: u64) -> CuResult;
        fn cuMemMap(ptr: CuDevicePtr, size: usize, offset: usize, handle: CuMemHandle, flags: u64) -> CuResult;
        fn cuMemSetAccess(ptr: CuDevicePtr, size: usize, desc: *const MemAccessDesc, count: usize) -> CuResult;
        fn cuMemUnmap(ptr: CuDevicePtr, size: usize) -> CuResult;
        fn cuMemRelease(handle: CuMemHandle) -> CuResult;
        fn cuMemHostAlloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint) -> CuResult;
        fn cuMemFreeHost(ptr: *mut c_void) -> CuResult;
        fn cuMemcpyHtoDAsync_v2(dst: CuDevicePtr, src: *const c_void, bytes: usize, stream: CuStream) -> CuResult;
        fn cuMemcpyDtoDAsync_v2(dst: CuDevicePtr, src: CuDevicePtr, bytes: usize, stream: CuStream) -> CuResult;
        fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CuDevicePtr, bytes: usize, stream: CuStream) -> CuResult;
        fn cuMemsetD8Async(dst: CuDevicePtr, value: u8, count: usize, stream: CuStream) -> CuResult;
        fn cuStreamCreate(stream: *mut CuStream, flags: c_uint) -> CuResult;
        fn cuStreamDestroy_v2(stream: CuStream) -> CuResult;
        fn cuStreamSynchronize(stream: CuStream) -> CuResult;
        fn cuStreamBeginCapture_v2(stream: CuStream, mode: c_int) -> CuResult;
        fn cuStreamEndCapture(stream: CuStream, graph: *mut CuGraph) -> CuResult;
        fn cuEventCreate(event: *mut CuEvent, flags: c_uint) -> CuResult;
        fn cuEventDestroy_v2(event: CuEvent) -> CuResult;
        fn cuEventRecord(event: CuEvent, stream: CuStream) -> CuResult;
        fn cuEventSynchronize(event: CuEvent) -> CuResult;
        fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CuEvent, end: CuEvent) -> CuResult;
        fn cuLibraryLoadData(library: *mut CuLibrary, code: *const c_void, jit_options: *mut c_int, jit_values: *mut *mut c_void, num_jit: c_uint, options: *mut c_int, values: *mut *mut c_void, num_options: c_uint) -> CuResult;
        fn cuLibraryUnload(library: CuLibrary) -> CuResult;
        fn cuLibraryGetKernel(kernel: *mut CuKernel, library: CuLibrary, name: *const c_char) -> CuResult;
        fn cuKernelGetFunction(function: *mut CuFunction, kernel: CuKernel) -> CuResult;
        fn cuFuncSetAttribute(function: CuFunction, attribute: c_int, value: c_int) -> CuResult;
        fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CuFunction) -> CuResult;
        fn cuLaunchKernelEx(config: *const LaunchConfigRaw, function: CuFunction, params: *mut *mut c_void, extra: *mut *mut c_void) -> CuResult;
        fn cuTensorMapEncodeTiled(map: *mut TensorMap, data_type: c_uint, rank: c_uint, address: CuDevicePtr, dims: *const u64, strides: *const u64, box_dims: *const u32, element_strides: *const u32, interleave: c_uint, swizzle: c_uint, l2_promotion: c_uint, oob_fill: c_uint) -> CuResult;
        fn cuGraphDestroy(graph: CuGraph) -> CuResult;
        fn cuGraphGetNodes(graph: CuGraph, nodes: *mut *mut c_void, count: *mut usize) -> CuResult;
        fn cuGraphInstantiateWithFlags(exec: *mut CuGraphExec, graph: CuGraph, flags: u64) -> CuResult;
        fn cuGraphExecDestroy(exec: CuGraphExec) -> CuResult;
        fn cuGraphUpload(exec: CuGraphExec, stream: CuStream) -> CuResult;
        fn cuGraphLaunch(exec: CuGraphExec, stream: CuStream) -> CuResult;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes and offsets as a C compiler gives them for cuda.h 13.0.
    #[test]
    fn layouts_are_the_headers() {
        assert_eq!(size_of::<MemAllocationProp>(), 32);
        assert_eq!(size_of::<MemAccessDesc>(), 12);
        assert_eq!(size_of::<LaunchAttribute>(), 72);
        assert_eq!(std::mem::offset_of!(LaunchAttribute, value), 8);
        assert_eq!((size_of::<TensorMap>(), align_of::<TensorMap>()), (128, 64));
        assert_eq!(size_of::<LaunchConfigRaw>(), 56);
        assert_eq!(std::mem::offset_of!(LaunchConfigRaw, stream), 32);
    }
}
