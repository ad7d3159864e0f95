//! cuBLASLt, as cublasLt.h 13.0 declares it. Manual: docs.nvidia.com/cuda/cublas, section cublasLt.

use std::ffi::{c_int, c_void};

use super::driver::CuStream;

pub(crate) type Status = c_int;
pub(crate) type Handle = *mut c_void;
pub(crate) type MatmulDesc = *mut c_void;
pub(crate) type MatrixLayout = *mut c_void;
pub(crate) type Preference = *mut c_void;

pub(crate) const COMPUTE_32F: c_int = 68;
pub(crate) const R_32F: c_int = 0;
pub(crate) const R_16F: c_int = 2;
pub(crate) const R_16BF: c_int = 14;
pub(crate) const R_8F_E4M3: c_int = 28;
pub(crate) const OP_T: c_int = 1;
pub(crate) const DESC_TRANSA: c_int = 3;
pub(crate) const ALGO_SPLITK_NUM: c_int = 2;
pub(crate) const ALGO_REDUCTION_SCHEME: c_int = 3;
pub(crate) const PREF_REDUCTION_SCHEME_MASK: c_int = 3;
pub(crate) const PREF_MAX_WORKSPACE_BYTES: c_int = 1;

/// `cublasLtMatmulAlgo_t`: opaque, valid for one library version and GPU, may be stored.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MatmulAlgo {
    pub(crate) data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeuristicResult {
    pub(crate) algo: MatmulAlgo,
    pub(crate) workspace_size: usize,
    pub(crate) state: Status,
    pub(crate) waves_count: f32,
    pub(crate) reserved: [c_int; 4],
}

super::c_api! {
    /// Functions of libcublasLt.
    CublasLtApi {
        fn cublasLtGetVersion() -> usize;
        fn cublasLtCreate(handle: *mut Handle) -> Status;
        fn cublasLtDestroy(handle: Handle) -> Status;
        fn cublasLtMatmulDescCreate(desc: *mut MatmulDesc, compute: c_int, scale: c_int) -> Status;
        fn cublasLtMatmulDescDestroy(desc: MatmulDesc) -> Status;
        fn cublasLtMatmulDescSetAttribute(desc: MatmulDesc, attribute: c_int, value: *const c_void, bytes: usize) -> Status;
        fn cublasLtMatrixLayoutCreate(layout: *mut MatrixLayout, kind: c_int, rows: u64, cols: u64, ld: i64) -> Status;
        fn cublasLtMatrixLayoutDestroy(layout: MatrixLayout) -> Status;
        fn cublasLtMatmulPreferenceCreate(preference: *mut Preference) -> Status;
        fn cublasLtMatmulPreferenceDestroy(preference: Preference) -> Status;
        fn cublasLtMatmulPreferenceSetAttribute(preference: Preference, attribute: c_int, value: *const c_void, bytes: usize) -> Status;
        fn cublasLtMatmulAlgoGetHeuristic(handle: Handle, desc: MatmulDesc, a: MatrixLayout, b: MatrixLayout, c: MatrixLayout, d: MatrixLayout, preference: Preference, requested: c_int, results: *mut HeuristicResult, returned: *mut c_int) -> Status;
        fn cublasLtMatmulAlgoCheck(handle: Handle, desc: MatmulDesc, a: MatrixLayout, b: MatrixLayout, c: MatrixLayout, d: MatrixLayout, algo: *const MatmulAlgo, result: *mut HeuristicResult) -> Status;
        fn cublasLtMatmulAlgoConfigGetAttribute(algo: *const MatmulAlgo, attribute: c_int, value: *mut c_void, bytes: usize, written: *mut usize) -> Status;
        fn cublasLtMatmul(handle: Handle, desc: MatmulDesc, alpha: *const c_void, a: *const c_void, a_layout: MatrixLayout, b: *const c_void, b_layout: MatrixLayout, beta: *const c_void, c: *const c_void, c_layout: MatrixLayout, d: *mut c_void, d_layout: MatrixLayout, algo: *const MatmulAlgo, workspace: *mut c_void, workspace_bytes: usize, stream: CuStream) -> Status;
    }
}
