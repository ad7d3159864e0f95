//! Finds and opens the NVIDIA libraries. Any thread, at load only.
//!
//! Order: the path given in the configuration, the `nvidia` packages that pip installed (the caller
//! names their site-packages folders), the CUDA toolkit, then the system's search by name.

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

use crate::CudaError;

/// Where to look for NVIDIA's libraries; empty means the toolkit and the system's search alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibraryPaths {
    /// Exactly this libnvrtc.so.13.
    pub nvrtc: Option<PathBuf>,
    /// Exactly this libcublasLt.so.13.
    pub cublaslt: Option<PathBuf>,
    /// Folders that hold pip's `nvidia/cu13/lib`.
    pub site_packages: Vec<PathBuf>,
}

/// A shared object that is never closed: its code may run until the process ends.
pub(crate) struct LoadedLibrary {
    path: String,
    library: ManuallyDrop<Library>,
}

impl std::fmt::Debug for LoadedLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path)
    }
}

impl LoadedLibrary {
    /// The address of a function, or `None` if the library lacks it.
    ///
    /// # Safety
    /// `F` must be the function's own type; `name` ends in a zero byte.
    pub(crate) unsafe fn symbol<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: the caller names the function's own type; the library is never closed.
        unsafe { self.library.get::<F>(name.as_bytes()).ok().map(|symbol| *symbol) }
    }

    /// The file that was opened.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// What this process has loaded already.
    #[cfg(test)]
    pub(crate) fn this_process() -> Self {
        Self { path: "this process".to_owned(), library: ManuallyDrop::new(Library::this()) }
    }
}

/// Opens libcuda: by its one name, since it belongs to the driver and to no package.
pub(crate) fn open_driver() -> Result<LoadedLibrary, CudaError> {
    open_first(&[PathBuf::from("libcuda.so.1")], RTLD_LOCAL)
}

/// Opens NVRTC, its builtins first: libnvrtc has no run path and finds them only if they are loaded.
pub(crate) fn open_nvrtc(paths: &LibraryPaths) -> Result<LoadedLibrary, CudaError> {
    let candidates = candidates(paths.nvrtc.as_deref(), paths, "libnvrtc.so.13");
    for candidate in &candidates {
        if let Some(folder) = candidate.parent().filter(|folder| folder.is_dir()) {
            for builtins in builtins_in(folder) {
                // Its absence shows when the first program is compiled, with NVRTC's own message.
                let _ = open(&builtins, RTLD_GLOBAL);
            }
        }
        if candidate.is_file() {
            return open(candidate, RTLD_LOCAL);
        }
    }
    open_first(&candidates, RTLD_LOCAL)
}

/// Opens cuBLASLt, which needs nothing else.
pub(crate) fn open_cublaslt(paths: &LibraryPaths) -> Result<LoadedLibrary, CudaError> {
    let candidates = candidates(paths.cublaslt.as_deref(), paths, "libcublasLt.so.13");
    open_first(&candidates, RTLD_LOCAL)
}

fn candidates(explicit: Option<&Path>, paths: &LibraryPaths, name: &str) -> Vec<PathBuf> {
    if let Some(path) = explicit {
        return vec![path.to_owned()];
    }
    let mut found: Vec<PathBuf> =
        paths.site_packages.iter().map(|site| site.join("nvidia/cu13/lib").join(name)).collect();
    found.push(Path::new("/usr/local/cuda/lib64").join(name));
    found.push(PathBuf::from(name));
    found
}

fn builtins_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("libnvrtc-builtins.so.13") && !name.contains(".alt.")
        })
        .collect()
}

fn open_first(candidates: &[PathBuf], scope: i32) -> Result<LoadedLibrary, CudaError> {
    let mut reasons = Vec::new();
    for candidate in candidates {
        if candidate.is_absolute() && !candidate.is_file() {
            reasons.push(format!("{}: no such file", candidate.display()));
            continue;
        }
        match open(candidate, scope) {
            Ok(library) => return Ok(library),
            Err(CudaError::LibraryNotFound { reasons: reason }) => reasons.push(reason),
            Err(error) => return Err(error),
        }
    }
    Err(CudaError::LibraryNotFound { reasons: reasons.join("; ") })
}

fn open(path: &Path, scope: i32) -> Result<LoadedLibrary, CudaError> {
    // SAFETY: opening runs the library's initialisers; only NVIDIA's own names are opened, from the
    // places that the operator chose, and the handle is never closed.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | scope) };
    match library {
        Ok(library) => Ok(LoadedLibrary {
            path: path.display().to_string(),
            library: ManuallyDrop::new(library),
        }),
        // libloading's message lacks the name; its source, the loader's message, says what is missing.
        Err(error) => {
            let cause =
                std::error::Error::source(&error).map_or(String::new(), |e| format!(": {e}"));
            let reasons = format!("{}: cannot be opened{cause}", path.display());
            Err(CudaError::LibraryNotFound { reasons })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_once() {
        let missing = [PathBuf::from("/nowhere/libx.so"), PathBuf::from("libingle-none.so.1")];
        let text = open_first(&missing, RTLD_LOCAL).unwrap_err().to_string();
        assert_eq!(text.matches("not found").count(), 1, "{text}");
        assert!(text.contains("/nowhere/libx.so: no such file"), "{text}");
        assert!(text.contains("libingle-none.so.1: cannot be opened: "), "{text}");
    }
}
