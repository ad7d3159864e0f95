//! What this machine can do, for `ingle doctor`: opens libraries and devices and reports what is
//! missing. Loads no model, and creates a context only to read the free memory.

use crate::CudaError;
use crate::compile::Compiler;
use crate::context::{Context, Driver};
use crate::dtypes::ActDtype;
use crate::gemm::Blas;
use crate::sys::LibraryPaths;

/// The result. A missing part is an error text that says what to do about it.
#[derive(Clone, Debug)]
pub struct DeviceProbe {
    /// Nothing to use and nothing amiss: no driver is installed, or it sees no device.
    pub is_absent: bool,
    /// CUDA version of the driver, 13000 for 13.0.
    pub driver_version: Result<i32, String>,
    /// Devices of this machine.
    pub device_count: u32,
    /// Name of the device asked for.
    pub name: Option<String>,
    /// Its compute capability.
    pub compute_capability: Option<(u32, u32)>,
    /// Whether a model can run on a card like this one, its libraries apart.
    pub supported: Result<(), String>,
    /// Free bytes of its memory.
    pub free_bytes: Option<u64>,
    /// All bytes of its memory.
    pub total_bytes: Option<u64>,
    /// Version and file of NVRTC.
    pub nvrtc: Result<String, String>,
    /// Version and file of cuBLASLt.
    pub cublaslt: Result<String, String>,
}

impl DeviceProbe {
    /// Why no model can run on the device, in one line; `None` if one can. `has_prebuilt_kernels`: there
    /// are kernels for a machine without NVRTC.
    #[must_use]
    pub fn lack(&self, has_prebuilt_kernels: bool) -> Option<&str> {
        let kernels = if has_prebuilt_kernels { None } else { self.nvrtc.as_ref().err() };
        let driver = self.driver_version.as_ref().err();
        let lack = driver.or(self.supported.as_ref().err()).or(self.cublaslt.as_ref().err());
        lack.or(kernels).map(String::as_str)
    }
}

/// How many devices this process can use, as `CUDA_VISIBLE_DEVICES` has it. Makes no context.
///
/// # Errors
/// The driver cannot be opened, or sees no device.
pub fn device_count() -> Result<u32, CudaError> {
    Driver::open()?.device_count().map(|count| count.max(0).cast_unsigned())
}

/// Looks at device `device`. Never panics, also without a driver. Blocking, up to a second.
#[must_use]
pub fn probe(device: u32, libraries: &LibraryPaths) -> DeviceProbe {
    let mut found = DeviceProbe {
        is_absent: false,
        driver_version: Err("not opened".to_owned()),
        device_count: 0,
        name: None,
        compute_capability: None,
        supported: Err("no device".to_owned()),
        free_bytes: None,
        total_bytes: None,
        nvrtc: Compiler::open(libraries)
            .map(|nvrtc| format!("{}.{} {}", nvrtc.version.0, nvrtc.version.1, nvrtc.path()))
            .map_err(|error| error.to_string()),
        cublaslt: Err("needs a device".to_owned()),
    };
    let driver = match Driver::open() {
        Ok(driver) => driver,
        Err(error) => {
            found.is_absent =
                matches!(error, CudaError::LibraryNotFound { .. } | CudaError::NoDevice(_));
            found.driver_version = Err(error.to_string());
            return found;
        }
    };
    found.driver_version = driver.version().map_err(|error| error.to_string());
    found.device_count = driver.device_count().unwrap_or(0).max(0).cast_unsigned();
    let info = match driver.describe(device) {
        Ok(info) => info,
        Err(error) => {
            found.is_absent = found.device_count == 0;
            found.supported = Err(error.to_string());
            return found;
        }
    };
    found.supported = info.check_capability().map_err(|error| error.to_string());
    found.name = Some(info.name);
    found.compute_capability = Some(info.limits.compute_capability);
    found.total_bytes = Some(info.total_bytes);
    let context = match Context::retain(driver, device) {
        Ok(context) => context,
        Err(error) => {
            found.cublaslt = Err(error.to_string());
            return found;
        }
    };
    found.free_bytes = context.memory_info().ok().map(|(free, _)| free);
    found.cublaslt = Blas::open(&context, libraries, ActDtype::Bf16)
        .and_then(|blas| Ok(format!("{} {}", blas.version()?, blas.path())))
        .map_err(|error| error.to_string());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The machine that runs this has no driver, or has one: neither may panic, and what is missing
    /// must be said.
    #[test]
    fn a_missing_library_is_a_text() {
        let nowhere = LibraryPaths {
            nvrtc: Some("/nonexistent/libnvrtc.so.13".into()),
            cublaslt: Some("/nonexistent/libcublasLt.so.13".into()),
            site_packages: Vec::new(),
        };
        let found = probe(0, &nowhere);
        assert!(found.cublaslt.is_err());
        assert!(found.lack(true).is_some());
        assert!(found.nvrtc.unwrap_err().contains("/nonexistent/libnvrtc.so.13"));
        if found.device_count == 0 {
            assert!(found.name.is_none());
        }
    }

    fn complete() -> DeviceProbe {
        DeviceProbe {
            is_absent: false,
            driver_version: Ok(13000),
            device_count: 1,
            name: Some("Tesla T4".to_owned()),
            compute_capability: Some((7, 5)),
            supported: Ok(()),
            free_bytes: Some(1),
            total_bytes: Some(2),
            nvrtc: Ok("13.0".to_owned()),
            cublaslt: Ok("13.0".to_owned()),
        }
    }

    /// Everything that keeps a model from starting is reported, and nothing else.
    #[test]
    fn every_missing_requirement_is_reported() {
        assert_eq!(complete().lack(false), None);
        let old = DeviceProbe { supported: Err("too old".to_owned()), ..complete() };
        assert_eq!(old.lack(true), Some("too old"));
        let bare = DeviceProbe { driver_version: Err("no driver".to_owned()), ..old };
        assert_eq!(bare.lack(true), Some("no driver"));
        let no_blas = DeviceProbe { cublaslt: Err("no cuBLASLt".to_owned()), ..complete() };
        assert_eq!(no_blas.lack(true), Some("no cuBLASLt"));
        let no_compiler = DeviceProbe { nvrtc: Err("no NVRTC".to_owned()), ..complete() };
        assert_eq!(no_compiler.lack(true), None);
        assert_eq!(no_compiler.lack(false), Some("no NVRTC"));
    }
}
