//! NVRTC, as nvrtc.h 13.0 declares it. Manual: docs.nvidia.com/cuda/nvrtc.

use std::ffi::{c_char, c_int, c_void};

pub(crate) type NvrtcResult = c_int;
pub(crate) type NvrtcProgram = *mut c_void;

super::c_api! {
    /// Functions of libnvrtc.
    NvrtcApi {
        fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> NvrtcResult;
        fn nvrtcGetErrorString(result: NvrtcResult) -> *const c_char;
        fn nvrtcCreateProgram(program: *mut NvrtcProgram, source: *const c_char, name: *const c_char, num_headers: c_int, headers: *const *const c_char, include_names: *const *const c_char) -> NvrtcResult;
        fn nvrtcDestroyProgram(program: *mut NvrtcProgram) -> NvrtcResult;
        fn nvrtcCompileProgram(program: NvrtcProgram, num_options: c_int, options: *const *const c_char) -> NvrtcResult;
        fn nvrtcGetCUBINSize(program: NvrtcProgram, size: *mut usize) -> NvrtcResult;
        fn nvrtcGetCUBIN(program: NvrtcProgram, cubin: *mut c_char) -> NvrtcResult;
        fn nvrtcGetPTXSize(program: NvrtcProgram, size: *mut usize) -> NvrtcResult;
        fn nvrtcGetPTX(program: NvrtcProgram, ptx: *mut c_char) -> NvrtcResult;
        fn nvrtcGetProgramLogSize(program: NvrtcProgram, size: *mut usize) -> NvrtcResult;
        fn nvrtcGetProgramLog(program: NvrtcProgram, log: *mut c_char) -> NvrtcResult;
    }
}
