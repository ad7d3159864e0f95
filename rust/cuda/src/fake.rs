//! A driver for tests without a GPU. Each call returns what the test has set, or success, and is
//! recorded. Settings and records belong to the calling thread, and so to one test.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use crate::context::{Context, DeviceInfo};
use crate::limits::DeviceLimits;
use crate::sys::driver::*;

/// A call that was made: its name, then the address and the size in bytes that it was about, if any.
pub(crate) type Call = (&'static str, u64, u64);

/// Name of a copy from ordinary memory.
pub(crate) const PAGEABLE: &str = "cuMemcpyHtoDAsync from pageable memory";

#[derive(Default)]
struct Script {
    calls: Vec<Call>,
    /// All calls in order, each with the device whose context was current.
    log: Vec<(i32, &'static str)>,
    current: i32,
    /// Result of the n-th call of a name, counted from 0.
    results: HashMap<(&'static str, usize), CuResult>,
    host_memory: HashMap<usize, Layout>,
    /// Values of attributes that a test has set.
    attributes: HashMap<c_int, c_int>,
    /// Names of kernels by the number of their handle.
    kernels: Vec<String>,
    /// Kernels that were launched, and with how many arguments.
    launches: Vec<(String, usize)>,
}

thread_local! {
    static SCRIPT: RefCell<Script> = RefCell::default();
}

/// A context of the scripted driver, on a card of compute capability 9.0.
pub(crate) fn context() -> Arc<Context> {
    context_of(0)
}

/// The same on one of several cards.
pub(crate) fn context_of(number: i32) -> Arc<Context> {
    let mut api = DriverApi::empty();
    api.cuDeviceGetCount = Some(device_count);
    api.cuDeviceGet = Some(device_get);
    api.cuDeviceGetName = Some(device_name);
    api.cuDeviceTotalMem_v2 = Some(total_memory);
    api.cuDeviceGetAttribute = Some(attribute);
    api.cuCtxSetCurrent = Some(set_current);
    api.cuMemGetInfo_v2 = Some(memory_info);
    api.cuMemAddressReserve = Some(address_reserve);
    api.cuMemAddressFree = Some(address_free);
    api.cuMemCreate = Some(create);
    api.cuMemMap = Some(map);
    api.cuMemSetAccess = Some(set_access);
    api.cuMemUnmap = Some(unmap);
    api.cuMemRelease = Some(release);
    api.cuMemHostAlloc = Some(host_alloc);
    api.cuMemFreeHost = Some(free_host);
    api.cuMemcpyHtoDAsync_v2 = Some(copy_to_device);
    api.cuMemcpyDtoHAsync_v2 = Some(copy_to_host);
    api.cuMemsetD8Async = Some(fill);
    api.cuStreamCreate = Some(stream_create);
    api.cuStreamDestroy_v2 = Some(stream_destroy);
    api.cuStreamSynchronize = Some(stream_synchronize);
    api.cuStreamBeginCapture_v2 = Some(begin_capture);
    api.cuStreamEndCapture = Some(end_capture);
    api.cuGraphGetNodes = Some(get_nodes);
    api.cuGraphInstantiateWithFlags = Some(instantiate);
    api.cuGraphDestroy = Some(graph_destroy);
    api.cuGraphExecDestroy = Some(exec_destroy);
    api.cuGraphUpload = Some(graph_upload);
    api.cuLibraryLoadData = Some(library_load);
    api.cuLibraryUnload = Some(library_unload);
    api.cuLibraryGetKernel = Some(get_kernel);
    api.cuKernelGetFunction = Some(get_function);
    api.cuFuncSetAttribute = Some(set_function_attribute);
    api.cuFuncGetAttribute = Some(function_attribute);
    api.cuLaunchKernelEx = Some(launch);
    api.cuGraphLaunch = Some(graph_launch);
    api.cuTensorMapEncodeTiled = Some(encode_tiled);
    let info = DeviceInfo { device: number, ..device((9, 0)) };
    Context::scripted(api, info, handle(number as usize + 1))
}

/// A card of this compute capability.
pub(crate) fn device(compute_capability: (u32, u32)) -> DeviceInfo {
    let name = "Scripted GPU".to_owned();
    let limits = DeviceLimits::assumed(compute_capability, 132, 228);
    DeviceInfo { device: 0, name, limits, total_bytes: 1 << 37 }
}

/// The scripted card has this value of the attribute from now on.
pub(crate) fn set_attribute(attribute: c_int, value: c_int) {
    SCRIPT.with_borrow_mut(|script| script.attributes.insert(attribute, value));
}

/// The `index`-th call of `name` from now on, counted from 0, ends with `code`.
pub(crate) fn fail(name: &'static str, index: usize, code: CuResult) {
    let made = calls(name).len();
    SCRIPT.with_borrow_mut(|script| script.results.insert((name, made + index), code));
}

/// The calls of `name` until now.
pub(crate) fn calls(name: &str) -> Vec<Call> {
    SCRIPT.with_borrow(|script| script.calls.iter().filter(|c| c.0 == name).copied().collect())
}

/// All calls from now on, in order, each with the device whose context was current.
pub(crate) fn log_of(body: impl FnOnce()) -> Vec<(i32, &'static str)> {
    SCRIPT.with_borrow_mut(|script| script.log.clear());
    body();
    SCRIPT.with_borrow(|script| script.log.clone())
}

/// The kernels that were launched until now, and with how many arguments.
pub(crate) fn launches() -> Vec<(String, usize)> {
    SCRIPT.with_borrow(|script| script.launches.clone())
}

fn called(name: &'static str, address: u64, bytes: u64) -> CuResult {
    SCRIPT.with_borrow_mut(|script| {
        let index = script.calls.iter().filter(|call| call.0 == name).count();
        script.calls.push((name, address, bytes));
        script.log.push((script.current, name));
        script.results.get(&(name, index)).copied().unwrap_or(CUDA_SUCCESS)
    })
}

/// Writes the result of a call that returns something, if it succeeded.
fn give<T>(place: *mut T, value: T, code: CuResult) -> CuResult {
    if code == CUDA_SUCCESS {
        // SAFETY: callers pass the address of a local of this type, as the header asks.
        unsafe { place.write(value) };
    }
    code
}

fn handle(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

extern "C" fn device_count(count: *mut c_int) -> CuResult {
    give(count, 1, called("cuDeviceGetCount", 0, 0))
}

extern "C" fn device_get(device: *mut CuDevice, _: c_int) -> CuResult {
    give(device, 0, called("cuDeviceGet", 0, 0))
}

extern "C" fn device_name(name: *mut c_char, _: c_int, _: CuDevice) -> CuResult {
    // The caller's buffer is longer than these bytes and their zero.
    give(name.cast(), *b"Scripted GPU\0", called("cuDeviceGetName", 0, 0))
}

extern "C" fn total_memory(bytes: *mut usize, _: CuDevice) -> CuResult {
    give(bytes, 1 << 37, called("cuDeviceTotalMem", 0, 0))
}

extern "C" fn attribute(value: *mut c_int, attribute: c_int, _: CuDevice) -> CuResult {
    let limits = device((9, 0)).limits;
    let usual = match attribute {
        DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => limits.compute_capability.0,
        DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => limits.compute_capability.1,
        DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => limits.num_sms,
        DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => limits.shared_bytes_per_sm,
        DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => limits.shared_bytes_per_block,
        DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK => limits.shared_bytes_reserved,
        _ => 0,
    };
    let set = SCRIPT.with_borrow(|script| script.attributes.get(&attribute).copied());
    let code = called("cuDeviceGetAttribute", 0, 0);
    give(value, set.unwrap_or(usual.cast_signed()), code)
}

extern "C" fn set_current(context: CuContext) -> CuResult {
    SCRIPT.with_borrow_mut(|script| script.current = context.addr() as i32 - 1);
    called("cuCtxSetCurrent", 0, 0)
}

extern "C" fn memory_info(free: *mut usize, total: *mut usize) -> CuResult {
    let code = called("cuMemGetInfo", 0, 0);
    give(total, 1 << 37, code);
    give(free, 1 << 36, code)
}

extern "C" fn address_reserve(
    base: *mut CuDevicePtr,
    bytes: usize,
    _: usize,
    _: CuDevicePtr,
    _: u64,
) -> CuResult {
    give(base, 1 << 40, called("cuMemAddressReserve", 1 << 40, bytes as u64))
}

extern "C" fn address_free(base: CuDevicePtr, bytes: usize) -> CuResult {
    called("cuMemAddressFree", base, bytes as u64)
}

extern "C" fn create(
    handle: *mut CuMemHandle,
    bytes: usize,
    _: *const MemAllocationProp,
    _: u64,
) -> CuResult {
    give(handle, 7, called("cuMemCreate", 0, bytes as u64))
}

extern "C" fn map(
    address: CuDevicePtr,
    bytes: usize,
    _: usize,
    _: CuMemHandle,
    _: u64,
) -> CuResult {
    called("cuMemMap", address, bytes as u64)
}

extern "C" fn set_access(
    address: CuDevicePtr,
    bytes: usize,
    _: *const MemAccessDesc,
    _: usize,
) -> CuResult {
    called("cuMemSetAccess", address, bytes as u64)
}

extern "C" fn unmap(address: CuDevicePtr, bytes: usize) -> CuResult {
    called("cuMemUnmap", address, bytes as u64)
}

extern "C" fn release(_: CuMemHandle) -> CuResult {
    called("cuMemRelease", 0, 0)
}

extern "C" fn host_alloc(pointer: *mut *mut c_void, bytes: usize, _: c_uint) -> CuResult {
    let code = called("cuMemHostAlloc", 0, bytes as u64);
    let Ok(layout) = Layout::from_size_align(bytes.max(1), 4096) else { return 1 };
    // SAFETY: the layout is not empty; `free_host` gives the memory back.
    let memory = unsafe { alloc_zeroed(layout) };
    SCRIPT.with_borrow_mut(|script| script.host_memory.insert(memory.addr(), layout));
    give(pointer, memory.cast(), code)
}

extern "C" fn free_host(pointer: *mut c_void) -> CuResult {
    let layout = SCRIPT.with_borrow_mut(|script| script.host_memory.remove(&pointer.addr()));
    if let Some(layout) = layout {
        // SAFETY: `host_alloc` got it with this layout, and the table has forgotten it.
        unsafe { dealloc(pointer.cast(), layout) };
    }
    called("cuMemFreeHost", 0, 0)
}

/// Recorded as `PAGEABLE` if the source is not in memory of `cuMemHostAlloc`.
extern "C" fn copy_to_device(
    destination: CuDevicePtr,
    source: *const c_void,
    bytes: usize,
    _: CuStream,
) -> CuResult {
    let is_pinned = SCRIPT.with_borrow(|script| {
        let at = source.addr();
        let holds = |(start, layout): (&usize, &Layout)| {
            (*start..=start + layout.size()).contains(&at) && at + bytes <= start + layout.size()
        };
        script.host_memory.iter().any(holds)
    });
    called(if is_pinned { "cuMemcpyHtoDAsync" } else { PAGEABLE }, destination, bytes as u64)
}

extern "C" fn copy_to_host(
    _: *mut c_void,
    source: CuDevicePtr,
    bytes: usize,
    _: CuStream,
) -> CuResult {
    called("cuMemcpyDtoHAsync", source, bytes as u64)
}

extern "C" fn fill(destination: CuDevicePtr, _: u8, bytes: usize, _: CuStream) -> CuResult {
    called("cuMemsetD8Async", destination, bytes as u64)
}

extern "C" fn stream_create(stream: *mut CuStream, _: c_uint) -> CuResult {
    give(stream, handle(1), called("cuStreamCreate", 0, 0))
}

extern "C" fn stream_destroy(_: CuStream) -> CuResult {
    called("cuStreamDestroy", 0, 0)
}

extern "C" fn stream_synchronize(_: CuStream) -> CuResult {
    called("cuStreamSynchronize", 0, 0)
}

extern "C" fn begin_capture(_: CuStream, _: c_int) -> CuResult {
    called("cuStreamBeginCapture", 0, 0)
}

extern "C" fn end_capture(_: CuStream, graph: *mut CuGraph) -> CuResult {
    give(graph, handle(2), called("cuStreamEndCapture", 0, 0))
}

extern "C" fn get_nodes(_: CuGraph, _: *mut *mut c_void, count: *mut usize) -> CuResult {
    give(count, 3, called("cuGraphGetNodes", 0, 0))
}

extern "C" fn instantiate(exec: *mut CuGraphExec, _: CuGraph, _: u64) -> CuResult {
    give(exec, handle(4), called("cuGraphInstantiate", 0, 0))
}

extern "C" fn graph_destroy(_: CuGraph) -> CuResult {
    called("cuGraphDestroy", 0, 0)
}

extern "C" fn exec_destroy(_: CuGraphExec) -> CuResult {
    called("cuGraphExecDestroy", 0, 0)
}

extern "C" fn graph_upload(_: CuGraphExec, _: CuStream) -> CuResult {
    called("cuGraphUpload", 0, 0)
}

extern "C" fn graph_launch(_: CuGraphExec, _: CuStream) -> CuResult {
    called("cuGraphLaunch", 0, 0)
}

extern "C" fn library_load(
    library: *mut CuLibrary,
    _: *const c_void,
    _: *mut c_int,
    _: *mut *mut c_void,
    _: c_uint,
    _: *mut c_int,
    _: *mut *mut c_void,
    _: c_uint,
) -> CuResult {
    give(library, handle(5), called("cuLibraryLoadData", 0, 0))
}

extern "C" fn library_unload(_: CuLibrary) -> CuResult {
    called("cuLibraryUnload", 0, 0)
}

extern "C" fn get_kernel(kernel: *mut CuKernel, _: CuLibrary, name: *const c_char) -> CuResult {
    // SAFETY: the caller's name is zero-terminated, as the header asks.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let number = SCRIPT.with_borrow_mut(|script| {
        script.kernels.push(name);
        script.kernels.len()
    });
    give(kernel, handle(number), called("cuLibraryGetKernel", 0, 0))
}

extern "C" fn get_function(function: *mut CuFunction, kernel: CuKernel) -> CuResult {
    give(function, kernel, called("cuKernelGetFunction", 0, 0))
}

extern "C" fn set_function_attribute(_: CuFunction, _: c_int, _: c_int) -> CuResult {
    called("cuFuncSetAttribute", 0, 0)
}

extern "C" fn function_attribute(value: *mut c_int, _: c_int, _: CuFunction) -> CuResult {
    give(value, 512, called("cuFuncGetAttribute", 0, 0))
}

/// As the driver, refuses strides that are not multiples of 16 bytes and boxes of more than 256 elements a side.
extern "C" fn encode_tiled(
    map: *mut TensorMap,
    _: c_uint,
    rank: c_uint,
    address: CuDevicePtr,
    _: *const u64,
    strides: *const u64,
    box_dims: *const u32,
    _: *const u32,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
) -> CuResult {
    let rank = rank as usize;
    // SAFETY: the arrays have the rank's length, strides one less, as the header asks.
    let (strides, sides) = unsafe {
        (std::slice::from_raw_parts(strides, rank - 1), std::slice::from_raw_parts(box_dims, rank))
    };
    let fits = strides.iter().all(|stride| stride.is_multiple_of(16))
        && sides.iter().all(|side| (1..=256).contains(side))
        && address.is_multiple_of(16);
    let code = called("cuTensorMapEncodeTiled", address, 0);
    give(map, TensorMap { opaque: [0; 16] }, if fits { code } else { 1 })
}

/// Counts the arguments: `Kernel::launch` leaves the rest of its array null.
extern "C" fn launch(
    _: *const LaunchConfigRaw,
    function: CuFunction,
    arguments: *mut *mut c_void,
    _: *mut *mut c_void,
) -> CuResult {
    let count = (0..).take_while(|&index| {
        // SAFETY: the array ends in nulls, at the first of which this stops.
        !unsafe { *arguments.add(index) }.is_null()
    });
    let count = count.count();
    SCRIPT.with_borrow_mut(|script| {
        let name = script.kernels[function.addr() - 1].clone();
        script.launches.push((name, count));
    });
    called("cuLaunchKernelEx", 0, 0)
}
