//! Loaded device code and its launch. A `Kernel` keeps its library loaded.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use crate::CudaError;
use crate::context::Context;
use crate::contract::Dims;
use crate::device_slice::{DevicePtr, DeviceSlice};
use crate::stream::Stream;
use crate::sys::driver::*;

/// Device code of one cubin.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<Context>,
    handle: CuLibrary,
    name: String,
}

// SAFETY: library handles may be used from any thread (driver API, "Library Management").
unsafe impl Send for Module {}
// SAFETY: the driver's calls on a library may run on several threads at once (driver API, "Library
// Management"), and a shared reference only passes the handle to them.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a cubin; `name` is for messages.
    pub(crate) fn load(
        context: &Arc<Context>,
        name: &str,
        cubin: &[u8],
    ) -> Result<Arc<Self>, CudaError> {
        let mut handle = std::ptr::null_mut();
        let null = std::ptr::null_mut();
        // SAFETY: `cubin` outlives the call and is a whole ELF image (its hash was checked, or NVRTC
        // just made it); no options are given.
        let code = unsafe {
            context.driver.api.cuLibraryLoadData(
                &raw mut handle,
                cubin.as_ptr().cast(),
                null,
                null.cast(),
                0,
                null,
                null.cast(),
                0,
            )?
        };
        context.check("cuLibraryLoadData", code)?;
        Ok(Arc::new(Self { context: Arc::clone(context), handle, name: name.to_owned() }))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded in `load`, unloaded once; kernels and graphs hold an Arc of it.
        let _ = unsafe { self.context.driver.api.cuLibraryUnload(self.handle) };
    }
}

/// One entry point, ready to launch.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    module: Arc<Module>,
    function: CuFunction,
    name: String,
    max_block: u32,
}

// SAFETY: function handles may be used from any thread while their module is loaded, which the Arc
// guarantees.
unsafe impl Send for Kernel {}
// SAFETY: a launch only reads the function handle, and several threads may launch it at once while its module is
// loaded, which the Arc guarantees.
unsafe impl Sync for Kernel {}

/// Grid, block and shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) grid: [u32; 3],
    pub(crate) block: u32,
    pub(crate) shared_bytes: u32,
    /// May start before the kernel ahead has ended; the kernel itself waits (griddepcontrol).
    pub(crate) overlap: bool,
    /// Blocks of a cluster, side by side in x; the grid is a multiple of it.
    pub(crate) cluster: u32,
}

impl Launch {
    /// A one-dimensional grid without dynamic shared memory. All our kernels wait for the one ahead
    /// themselves, so they may be launched early.
    pub(crate) fn linear(grid: u32, block: u32) -> Self {
        Self { grid: [grid, 1, 1], block, shared_bytes: 0, overlap: true, cluster: 1 }
    }

    /// A two-dimensional grid without dynamic shared memory.
    pub(crate) fn plane(grid_x: u32, grid_y: u32, block: u32) -> Self {
        Self { grid: [grid_x, grid_y, 1], ..Self::linear(1, block) }
    }

    /// The same with dynamic shared memory.
    pub(crate) fn shared(self, bytes: u32) -> Self {
        Self { shared_bytes: bytes, ..self }
    }

    /// The same in clusters of so many blocks.
    pub(crate) fn cluster(self, blocks: u32) -> Self {
        Self { cluster: blocks, ..self }
    }
}

impl Kernel {
    /// Looks the entry up and allows it `shared_bytes` of dynamic shared memory.
    pub(crate) fn new(
        module: &Arc<Module>,
        name: &str,
        shared_bytes: u32,
    ) -> Result<Self, CudaError> {
        let context = &module.context;
        let api = &context.driver.api;
        let (mut kernel, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut max_block = 0;
        let symbol = CString::new(name)
            .map_err(|_| CudaError::Unsupported(format!("kernel name {name} has a zero byte")))?;
        // SAFETY: the library is loaded; the name is zero-terminated; both calls write one handle,
        // which is valid while the library is loaded.
        unsafe {
            let code = api.cuLibraryGetKernel(&raw mut kernel, module.handle, symbol.as_ptr())?;
            context.check("cuLibraryGetKernel", code).map_err(|error| CudaError::Compile {
                kernel: format!("{name} in {}", module.name),
                log: error.to_string(),
            })?;
            let code = api.cuKernelGetFunction(&raw mut function, kernel)?;
            context.check("cuKernelGetFunction", code)?;
            // A block has 48 KiB without this, what the kernel declares itself included.
            if shared_bytes > 0 {
                let code = api.cuFuncSetAttribute(
                    function,
                    FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    shared_bytes.cast_signed(),
                )?;
                context.check("cuFuncSetAttribute", code)?;
            }
            let code = api.cuFuncGetAttribute(
                &raw mut max_block,
                FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                function,
            )?;
            context.check("cuFuncGetAttribute", code)?;
        }
        let max_block = max_block.cast_unsigned();
        Ok(Self { module: Arc::clone(module), function, name: name.to_owned(), max_block })
    }

    /// Threads a block that the kernel was built for (its launch bounds).
    pub(crate) fn max_block(&self) -> u32 {
        self.max_block
    }

    /// Queues a launch.
    ///
    /// # Safety
    /// `args` are the kernel's parameters in order and size, and every address among them is valid for
    /// what the kernel's contract (the top of its .cu file) says it reads and writes.
    pub(crate) unsafe fn launch(
        &self,
        stream: &Stream,
        launch: Launch,
        args: &[Arg<'_>],
    ) -> Result<(), CudaError> {
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        assert!(args.len() <= MAX_ARGS, "{} has {} arguments", self.name, args.len());
        for (pointer, arg) in pointers.iter_mut().zip(args) {
            *pointer = match arg {
                Arg::Bits(bits) => std::ptr::from_ref(bits).cast_mut().cast(),
                Arg::Dims(dims) => std::ptr::from_ref(*dims).cast_mut().cast(),
                Arg::Map(map) => std::ptr::from_ref(*map).cast_mut().cast(),
            };
        }
        let attribute = |id, first: [u32; 3]| {
            let mut value = [0; 16];
            value[..3].copy_from_slice(&first);
            LaunchAttribute { id, pad: 0, value }
        };
        let overlap = attribute(LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, [1, 0, 0]);
        let cluster = attribute(LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, [launch.cluster, 1, 1]);
        let (mut attributes, num_attrs) = match (launch.overlap, launch.cluster > 1) {
            (true, true) => ([overlap, cluster], 2),
            (true, false) => ([overlap; 2], 1),
            (false, true) => ([cluster; 2], 1),
            (false, false) => ([overlap; 2], 0),
        };
        let config = LaunchConfigRaw {
            grid: launch.grid,
            block: [launch.block, 1, 1],
            shared_mem_bytes: launch.shared_bytes,
            stream: stream.handle,
            attrs: attributes.as_mut_ptr(),
            num_attrs,
        };
        let context = &self.module.context;
        // SAFETY: config, attributes, args and pointers are local and outlive the call, which copies
        // them; the function is valid while the module is loaded; the caller vouches for `args`.
        let code = unsafe {
            context.driver.api.cuLaunchKernelEx(
                &raw const config,
                self.function,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )?
        };
        context.check(&self.name, code)
    }
}

/// Most parameters of a kernel.
const MAX_ARGS: usize = 40;

/// One kernel parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg<'a> {
    /// A scalar or an address: its bits, in the low bytes on a little-endian host.
    Bits(u64),
    /// The `Dims` structure, by value.
    Dims(&'a Dims),
    /// A tensor map, by value.
    Map(&'a TensorMap),
}

impl<T> From<DevicePtr<T>> for Arg<'_> {
    fn from(pointer: DevicePtr<T>) -> Self {
        Self::Bits(pointer.address())
    }
}

impl<T> From<DeviceSlice<T>> for Arg<'_> {
    fn from(slice: DeviceSlice<T>) -> Self {
        Self::Bits(slice.address())
    }
}

/// `None` is a null pointer.
impl<T> From<Option<DeviceSlice<T>>> for Arg<'_> {
    fn from(slice: Option<DeviceSlice<T>>) -> Self {
        Self::Bits(slice.map_or(0, DeviceSlice::address))
    }
}

impl From<u64> for Arg<'_> {
    fn from(value: u64) -> Self {
        Self::Bits(value)
    }
}

impl From<u32> for Arg<'_> {
    fn from(value: u32) -> Self {
        Self::Bits(u64::from(value))
    }
}

impl From<f32> for Arg<'_> {
    fn from(value: f32) -> Self {
        Self::Bits(u64::from(value.to_bits()))
    }
}

impl<'a> From<&'a TensorMap> for Arg<'a> {
    fn from(value: &'a TensorMap) -> Self {
        Self::Map(value)
    }
}

impl<'a> From<&'a Dims> for Arg<'a> {
    fn from(value: &'a Dims) -> Self {
        Self::Dims(value)
    }
}

/// Builds the argument list of a launch.
macro_rules! args {
    ($($value:expr),* $(,)?) => { &[$($crate::module::Arg::from($value)),*] };
}
pub(crate) use args;
