//! Compiles kernel sources to cubins: NVRTC on several threads, results cached on disk. At load
//! only.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::CudaError;
use crate::cache::{Cache, key};
use crate::sys::nvrtc::NvrtcApi;
use crate::sys::{LibraryPaths, open_nvrtc};

/// One program to build.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// File name, for messages.
    pub(crate) name: &'static str,
    /// CUDA C++ that includes our own headers alone.
    pub(crate) source: &'static str,
    /// `-DNAME=value` and the like; the target is added here.
    pub(crate) options: Vec<String>,
}

/// A cubin, or why there is none.
type Built = Result<Vec<u8>, CudaError>;

/// The opened compiler.
#[derive(Debug)]
pub(crate) struct Compiler {
    api: NvrtcApi,
    /// Of the library: major, minor.
    pub(crate) version: (i32, i32),
}

impl Compiler {
    /// Opens NVRTC.
    pub(crate) fn open(paths: &LibraryPaths) -> Result<Self, CudaError> {
        let api = NvrtcApi::new(open_nvrtc(paths)?);
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two ints.
        let code = unsafe { api.nvrtcVersion(&raw mut major, &raw mut minor)? };
        if code != 0 {
            return Err(compile_error("nvrtcVersion", format!("nvrtcResult {code}")));
        }
        Ok(Self { api, version: (major, minor) })
    }

    /// The file that was opened.
    pub(crate) fn path(&self) -> &str {
        self.api.path()
    }

    /// Builds every unit for `arch` (`sm_90a`: cubin, `compute_80`: PTX), taking what the cache holds;
    /// results in the order of `units`.
    ///
    /// Blocking; uses up to `threads` threads. Returns how many had to be compiled, too.
    pub(crate) fn build(
        &self,
        units: &[Unit],
        headers: &[(&str, &str)],
        arch: &str,
        cache: Option<&Cache>,
        threads: usize,
    ) -> Result<(Vec<Vec<u8>>, usize), CudaError> {
        let next = AtomicUsize::new(0);
        let compiled = AtomicUsize::new(0);
        let results: Mutex<Vec<Option<Built>>> = Mutex::new(units.iter().map(|_| None).collect());
        let work = || {
            while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                let index = units.iter().position(|other| std::ptr::eq(other, unit));
                let result = self.build_one(unit, headers, arch, cache, &compiled);
                let mut slots = results.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(slot) = index.and_then(|index| slots.get_mut(index)) {
                    *slot = Some(result);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.min(units.len()) {
                scope.spawn(work);
            }
            work();
        });
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        let cubins = results
            .into_iter()
            .zip(units)
            .map(|(result, unit)| {
                result.unwrap_or_else(|| Err(compile_error(unit.name, "not built".to_owned())))
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok((cubins, compiled.into_inner()))
    }

    fn build_one(
        &self,
        unit: &Unit,
        headers: &[(&str, &str)],
        arch: &str,
        cache: Option<&Cache>,
        compiled: &AtomicUsize,
    ) -> Result<Vec<u8>, CudaError> {
        let mut options = vec![
            "-std=c++17".to_owned(),
            "-default-device".to_owned(),
            format!("--gpu-architecture={arch}"),
        ];
        options.extend(unit.options.iter().cloned());
        let joined = options.join("\n");
        let version = format!("{}.{}", self.version.0, self.version.1);
        let mut parts = vec![unit.source.as_bytes(), joined.as_bytes(), version.as_bytes()];
        parts.extend(headers.iter().map(|(_, text)| text.as_bytes()));
        let name = key("cubin", &parts);
        if let Some(cubin) = cache.and_then(|cache| cache.read(&name)) {
            return Ok(cubin);
        }
        compiled.fetch_add(1, Ordering::Relaxed);
        let cubin = self.compile(unit, headers, &options)?;
        if let Some(cache) = cache {
            cache.write(&name, &cubin);
        }
        Ok(cubin)
    }

    fn compile(
        &self,
        unit: &Unit,
        headers: &[(&str, &str)],
        options: &[String],
    ) -> Result<Vec<u8>, CudaError> {
        let c_string = |text: &str| {
            CString::new(text).map_err(|_| compile_error(unit.name, "has a zero byte".to_owned()))
        };
        let source = c_string(unit.source)?;
        let name = c_string(unit.name)?;
        let options = options.iter().map(|o| c_string(o)).collect::<Result<Vec<_>, _>>()?;
        let mut texts = Vec::with_capacity(headers.len());
        let mut names = Vec::with_capacity(headers.len());
        for (name, text) in headers {
            names.push(c_string(name)?);
            texts.push(c_string(text)?);
        }
        let pointers = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (text_pointers, name_pointers) = (pointers(&texts), pointers(&names));
        let option_pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let as_ptx = options
            .iter()
            .any(|option| option.to_bytes().starts_with(b"--gpu-architecture=compute_"));
        let mut program = std::ptr::null_mut();
        // SAFETY: every string is zero-terminated and lives to the end of this function; the program
        // is destroyed below on every path, since no call between can return early.
        unsafe {
            let code = self.api.nvrtcCreateProgram(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as i32,
                text_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )?;
            if code != 0 {
                return Err(compile_error(unit.name, self.error_text(code)));
            }
            let result = self.compile_program(program, unit, &option_pointers, as_ptx);
            let _ = self.api.nvrtcDestroyProgram(&raw mut program);
            result
        }
    }

    /// # Safety
    /// `program` is live and `options` are zero-terminated strings that outlive the call.
    unsafe fn compile_program(
        &self,
        program: crate::sys::nvrtc::NvrtcProgram,
        unit: &Unit,
        options: &[*const std::ffi::c_char],
        as_ptx: bool,
    ) -> Result<Vec<u8>, CudaError> {
        let api = &self.api;
        // SAFETY: the caller promises a live program and zero-terminated options; the log and the code are written
        // to buffers of the sizes that NVRTC just returned.
        unsafe {
            let code = api.nvrtcCompileProgram(program, options.len() as i32, options.as_ptr())?;
            if code != 0 {
                let mut size = 0;
                let _ = api.nvrtcGetProgramLogSize(program, &raw mut size);
                let mut log = vec![0u8; size.max(1)];
                let _ = api.nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
                let text = String::from_utf8_lossy(&log);
                let lines: Vec<_> = text.trim_end_matches('\0').lines().take(12).collect();
                let log = format!("{}: {}", self.error_text(code), lines.join(" | "));
                return Err(compile_error(unit.name, log));
            }
            let mut size = 0;
            let code = if as_ptx {
                api.nvrtcGetPTXSize(program, &raw mut size)?
            } else {
                api.nvrtcGetCUBINSize(program, &raw mut size)?
            };
            if code != 0 || size == 0 {
                return Err(compile_error(unit.name, "gave no code".to_owned()));
            }
            let mut cubin = vec![0u8; size];
            let code = if as_ptx {
                api.nvrtcGetPTX(program, cubin.as_mut_ptr().cast())?
            } else {
                api.nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast())?
            };
            if code != 0 {
                return Err(compile_error(unit.name, self.error_text(code)));
            }
            Ok(cubin)
        }
    }

    fn error_text(&self, code: i32) -> String {
        // SAFETY: returns a static zero-terminated string for any code.
        match unsafe { self.api.nvrtcGetErrorString(code) } {
            Ok(text) if !text.is_null() => {
                // SAFETY: NVRTC returned a static zero-terminated string, and it is not null.
                unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
            }
            _ => format!("nvrtcResult {code}"),
        }
    }
}

fn compile_error(kernel: &str, log: String) -> CudaError {
    CudaError::Compile { kernel: kernel.to_owned(), log }
}
