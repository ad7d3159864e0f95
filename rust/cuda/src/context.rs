//! The driver and one device's primary context. The context is made current on each thread that
//! calls the driver; holding an `Arc<Context>` keeps it alive.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use crate::CudaError;
use crate::limits::DeviceLimits;
use crate::sys::driver::*;
use crate::sys::open_driver;

/// The opened and initialised driver.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) api: DriverApi,
}

impl Driver {
    /// Opens libcuda and initialises it; about 0.1 s.
    pub(crate) fn open() -> Result<Self, CudaError> {
        let driver = Self { api: DriverApi::new(open_driver()?) };
        // SAFETY: cuInit takes no pointers; flags must be 0.
        let code = unsafe { driver.api.cuInit(0)? };
        if code == CUDA_ERROR_NO_DEVICE {
            return Err(CudaError::NoDevice("the driver sees none".to_owned()));
        }
        driver.check("cuInit", code)?;
        Ok(driver)
    }

    /// Turns a result code into an error that names the call.
    pub(crate) fn check(&self, call: &str, code: CuResult) -> Result<(), CudaError> {
        if code == CUDA_SUCCESS {
            return Ok(());
        }
        let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
        // SAFETY: both calls write one pointer to a static string, or null for an unknown code.
        unsafe {
            let _ = self.api.cuGetErrorName(code, &raw mut name);
            let _ = self.api.cuGetErrorString(code, &raw mut text);
        }
        Err(CudaError::Driver {
            call: call.to_owned(),
            code,
            name: static_text(name),
            text: static_text(text),
        })
    }

    /// The driver's CUDA version: 13000 for 13.0.
    pub(crate) fn version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        // SAFETY: writes one int.
        let code = unsafe { self.api.cuDriverGetVersion(&raw mut version)? };
        self.check("cuDriverGetVersion", code)?;
        Ok(version)
    }

    /// Number of devices.
    pub(crate) fn device_count(&self) -> Result<i32, CudaError> {
        let mut count = 0;
        // SAFETY: writes one int.
        let code = unsafe { self.api.cuDeviceGetCount(&raw mut count)? };
        self.check("cuDeviceGetCount", code)?;
        Ok(count)
    }

    /// Name, compute capability and sizes of a device; makes no context.
    pub(crate) fn describe(&self, ordinal: u32) -> Result<DeviceInfo, CudaError> {
        let count = self.device_count()?;
        if i64::from(ordinal) >= i64::from(count) {
            return Err(CudaError::NoDevice(format!("cuda:{ordinal} asked for, {count} present")));
        }
        let mut device = 0;
        let mut name = [0 as c_char; 128];
        let mut total = 0usize;
        // SAFETY: each call writes within the local it is given; the name buffer has the 128 bytes that are passed.
        unsafe {
            let code = self.api.cuDeviceGet(&raw mut device, ordinal.cast_signed())?;
            self.check("cuDeviceGet", code)?;
            let code = self.api.cuDeviceGetName(name.as_mut_ptr(), 128, device)?;
            self.check("cuDeviceGetName", code)?;
            let code = self.api.cuDeviceTotalMem_v2(&raw mut total, device)?;
            self.check("cuDeviceTotalMem", code)?;
        }
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: writes one int.
            let code = unsafe { self.api.cuDeviceGetAttribute(&raw mut value, which, device)? };
            self.check("cuDeviceGetAttribute", code)?;
            Ok::<u32, CudaError>(value.cast_unsigned())
        };
        Ok(DeviceInfo {
            device,
            name: static_text(name.as_ptr()),
            limits: DeviceLimits {
                compute_capability: (
                    attribute(DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                    attribute(DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
                ),
                num_sms: attribute(DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
                shared_bytes_per_sm: attribute(
                    DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
                )?,
                shared_bytes_per_block: attribute(
                    DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                )?,
                shared_bytes_reserved: attribute(
                    DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK,
                )?,
            },
            total_bytes: total as u64,
        })
    }
}

fn static_text(text: *const c_char) -> String {
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: not null; the driver hands out zero-terminated strings (static ones, or the name buffer
    // of `describe`, which outlives this call and is zero-terminated by cuDeviceGetName).
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// What a device is.
#[derive(Clone, Debug)]
pub(crate) struct DeviceInfo {
    pub(crate) device: CuDevice,
    pub(crate) name: String,
    pub(crate) limits: DeviceLimits,
    pub(crate) total_bytes: u64,
}

impl DeviceInfo {
    /// Checks that the kernels can be built for the card: they copy asynchronously and multiply bf16
    /// matrices, which cards have had since 8.0.
    ///
    /// # Errors
    /// `Unsupported`, with the card's capability and the least.
    pub(crate) fn check_capability(&self) -> Result<(), CudaError> {
        if self.limits.compute_capability >= LEAST_CAPABILITY {
            return Ok(());
        }
        let (major, minor) = self.limits.compute_capability;
        let (least_major, least_minor) = LEAST_CAPABILITY;
        Err(CudaError::Unsupported(format!(
            "{} has compute capability {major}.{minor}, at least {least_major}.{least_minor} is needed",
            self.name
        )))
    }

    /// NVRTC's name of the target: `sm_90a` on Hopper, whose own instructions need the `a`.
    pub(crate) fn arch(&self) -> String {
        let (major, minor) = self.limits.compute_capability;
        let suffix = if major == 9 { "a" } else { "" };
        format!("sm_{major}{minor}{suffix}")
    }
}

/// The oldest cards that kernels are compiled for.
const LEAST_CAPABILITY: (u32, u32) = (8, 0);

/// The primary context of one device, waiting by blocking rather than by spinning.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) driver: Driver,
    pub(crate) info: DeviceInfo,
    handle: CuContext,
}

// SAFETY: a primary context may be current on several threads at once and driver calls are thread-safe
// (CUDA C++ Programming Guide, "Context"; driver API, section "Difference between driver and runtime").
unsafe impl Send for Context {}
// SAFETY: driver calls are thread-safe, and a shared reference only passes the handle to them; nothing here
// dereferences it.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the device's primary context and makes it current on this thread.
    pub(crate) fn retain(driver: Driver, ordinal: u32) -> Result<Arc<Self>, CudaError> {
        let info = driver.describe(ordinal)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the flag is one of cuda.h; the retain writes one handle, which `Drop` releases.
        unsafe {
            let code =
                driver.api.cuDevicePrimaryCtxSetFlags_v2(info.device, CTX_SCHED_BLOCKING_SYNC)?;
            driver.check("cuDevicePrimaryCtxSetFlags", code)?;
            let code = driver.api.cuDevicePrimaryCtxRetain(&raw mut handle, info.device)?;
            driver.check("cuDevicePrimaryCtxRetain", code)?;
        }
        let context = Arc::new(Self { driver, info, handle });
        context.make_current()?;
        Ok(context)
    }

    /// A context of a driver whose functions a test wrote.
    #[cfg(test)]
    pub(crate) fn scripted(api: DriverApi, info: DeviceInfo, handle: CuContext) -> Arc<Self> {
        Arc::new(Self { driver: Driver { api }, info, handle })
    }

    /// Makes the context current on the calling thread; cheap when it already is.
    pub(crate) fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the handle was retained in `retain` and lives until `Drop`.
        let code = unsafe { self.driver.api.cuCtxSetCurrent(self.handle)? };
        self.check("cuCtxSetCurrent", code)
    }

    /// As `Driver::check`.
    #[inline]
    pub(crate) fn check(&self, call: &str, code: CuResult) -> Result<(), CudaError> {
        self.driver.check(call, code)
    }

    /// Free and total bytes of the device, all processes counted.
    pub(crate) fn memory_info(&self) -> Result<(u64, u64), CudaError> {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: writes two sizes; the context is current on threads that hold executor parts.
        let code = unsafe { self.driver.api.cuMemGetInfo_v2(&raw mut free, &raw mut total)? };
        self.check("cuMemGetInfo", code)?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `retain`; everything that uses it holds an Arc and is gone. An
        // error here (a lost device) has no one to go to.
        let _ = unsafe { self.driver.api.cuDevicePrimaryCtxRelease_v2(self.info.device) };
    }
}

#[cfg(test)]
mod tests {
    use crate::fake;
    use crate::sys::driver::DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;

    #[test]
    fn cards_below_8_0_are_refused_by_name() {
        for capability in [(8, 0), (8, 9), (9, 0), (12, 1)] {
            fake::device(capability).check_capability().unwrap();
        }
        let error = fake::device((7, 5)).check_capability().unwrap_err().to_string();
        assert_eq!(error, "Scripted GPU has compute capability 7.5, at least 8.0 is needed");
    }

    /// The sizes of kernels come from this card's attributes, not from its generation.
    #[test]
    fn limits_are_asked_of_the_driver() {
        let context = fake::context();
        let limits = context.driver.describe(0).unwrap().limits;
        assert_eq!(limits, fake::device((9, 0)).limits);
        fake::set_attribute(DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 77_777);
        let limits = context.driver.describe(0).unwrap().limits;
        assert_eq!((limits.shared_bytes_per_block, limits.num_sms), (77_777, 132));
        assert!(context.driver.describe(1).unwrap_err().to_string().contains("cuda:1 asked for"));
    }
}
