//! Where devices find and keep files: NVIDIA's libraries, kernels. Plain data.

use std::path::PathBuf;

use ingle_cuda::LibraryPaths;
use serde::Deserialize;

/// Where the devices' files are; the same for an engine and for `ingle doctor`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Places {
    /// Where NVIDIA's libraries are (cuda).
    pub cuda_libraries: CudaLibraries,
    /// Folder of kernels built ahead, for machines without NVRTC (cuda).
    pub prebuilt_kernels: Option<PathBuf>,
    /// Where compiled kernels are kept (cuda).
    pub cache_dir: Option<PathBuf>,
}

/// Where to look for NVIDIA's libraries, before the usual places.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaLibraries {
    /// Exactly this libnvrtc.
    #[serde(default)]
    pub nvrtc: Option<PathBuf>,
    /// Exactly this libcublasLt.
    #[serde(default)]
    pub cublaslt: Option<PathBuf>,
    /// Folders where pip has put the `nvidia` packages.
    #[serde(default)]
    pub site_packages: Vec<PathBuf>,
}

/// Where NVIDIA's libraries may lie.
pub(crate) fn library_paths(libraries: &CudaLibraries) -> LibraryPaths {
    LibraryPaths {
        nvrtc: libraries.nvrtc.clone(),
        cublaslt: libraries.cublaslt.clone(),
        site_packages: libraries.site_packages.clone(),
    }
}
