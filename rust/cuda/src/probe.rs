//! What this machine can do, for `ingle doctor`: opens what there is and says what is missing. Loads no
//! model; makes a context only to read the free memory.

use crate::compile::Compiler;
use crate::context::{Context, Driver};
use crate::gemm::Blas;
use crate::sys::LibraryPaths;

/// What was found. A missing part is an error text that says what to do without it.
#[derive(Clone, Debug)]
pub struct DeviceProbe {
    /// CUDA version of the driver, 13000 for 13.0.
    pub driver_version: Result<i32, String>,
    /// Devices of this machine.
    pub device_count: u32,
    /// Name of the device asked for.
    pub name: Option<String>,
    /// Its compute capability.
    pub compute_capability: Option<(u32, u32)>,
    /// Free bytes of its memory.
    pub free_bytes: Option<u64>,
    /// All bytes of its memory.
    pub total_bytes: Option<u64>,
    /// Version and file of NVRTC.
    pub nvrtc: Result<String, String>,
    /// Version and file of cuBLASLt.
    pub cublaslt: Result<String, String>,
}

/// Looks at device `device`. Never panics, also without a driver. Blocking, up to a second.
#[must_use]
pub fn probe(device: u32, libraries: &LibraryPaths) -> DeviceProbe {
    let mut found = DeviceProbe {
        driver_version: Err("not opened".to_owned()),
        device_count: 0,
        name: None,
        compute_capability: None,
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
            found.driver_version = Err(error.to_string());
            return found;
        }
    };
    found.driver_version = driver.version().map_err(|error| error.to_string());
    found.device_count = driver.device_count().unwrap_or(0).max(0).cast_unsigned();
    let Ok(info) = driver.describe(device) else { return found };
    found.name = Some(info.name);
    found.compute_capability = Some(info.compute_capability);
    found.total_bytes = Some(info.total_bytes);
    let context = match Context::retain(driver, device) {
        Ok(context) => context,
        Err(error) => {
            found.cublaslt = Err(error.to_string());
            return found;
        }
    };
    found.free_bytes = context.memory_info().ok().map(|(free, _)| free);
    found.cublaslt = Blas::open(&context, libraries, false)
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
        assert!(found.nvrtc.unwrap_err().contains("/nonexistent/libnvrtc.so.13"));
        assert!(found.cublaslt.is_err());
        if found.device_count == 0 {
            assert!(found.name.is_none());
        }
    }
}
