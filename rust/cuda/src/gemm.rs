//! Matrix products through cuBLASLt: `out[m, n] = x[m, k] * w[n, k]^T`, f32 accumulation. This file
//! only wraps the library; `product.rs` chooses between it and our own kernel.

use std::ffi::c_void;
use std::sync::Arc;

use crate::CudaError;
use crate::context::Context;
use crate::device_slice::{Act, DeviceSlice};
use crate::dtypes::{ActDtype, ScaleMode, WeightDtype};
use crate::matrix::Matrix;
use crate::shapes::{GemmOut, GemmShape};
use crate::stream::Stream;
use crate::sys::cublaslt::*;
use crate::sys::{LibraryPaths, open_cublaslt};

/// What one product of `m` rows reads and writes. All 16-byte aligned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GemmArgs {
    /// `[m, k]`
    pub(crate) x: GemmInput,
    /// `[n, k]`
    pub(crate) w: Matrix,
    pub(crate) out: GemmResult,
}

/// The rows of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GemmInput {
    Act(DeviceSlice<Act>),
    /// Of a raw product; their scales are left to whatever reads it.
    E4m3(DeviceSlice<u8>),
}

/// Where a product goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GemmResult {
    /// `[m, n]`, or `[m, n / 2]` if gated.
    Act(DeviceSlice<Act>),
    /// `[m, n]`
    F32(DeviceSlice<f32>),
}

impl GemmArgs {
    /// Asserts that the slices hold a product of `m` rows and this shape: a product that overruns one would write
    /// to another's memory.
    pub(crate) fn check(&self, m: u32, shape: GemmShape) {
        let (m, n, k) = (u64::from(m), u64::from(shape.n), u64::from(shape.k));
        let x_len = match self.x {
            GemmInput::Act(x) if shape.scale != ScaleMode::Raw => x.len(),
            GemmInput::E4m3(x) if shape.scale == ScaleMode::Raw => x.len(),
            _ => 0,
        };
        assert!(x_len >= m * k, "{m} rows of {shape:?}: x is {:?}", self.x);
        let is_form = match shape.weight {
            WeightDtype::Bf16 | WeightDtype::F16 => matches!(self.w, Matrix::Plain(_)),
            WeightDtype::E4m3 => self.w.is_e4m3(),
            WeightDtype::FourBit(form) => self.w.four_bit() == Some(form),
        };
        assert!(is_form && self.w.len() >= n * k, "{shape:?}: w is {:?}", self.w);
        let room = match (shape.out, self.out) {
            (GemmOut::Device, GemmResult::Act(out)) => out.len() >= m * n,
            (GemmOut::Gated, GemmResult::Act(out)) => out.len() >= m * n / 2,
            (GemmOut::F32 | GemmOut::AddF32, GemmResult::F32(out)) => out.len() >= m * n,
            _ => false,
        };
        assert!(room, "{m} rows of {shape:?}: out is {:?}", self.out);
    }
}

impl GemmInput {
    /// The bytes of it.
    pub(crate) fn as_bytes(self) -> DeviceSlice<u8> {
        match self {
            Self::Act(x) => x.as_bytes(),
            Self::E4m3(x) => x,
        }
    }
}

impl GemmResult {
    /// The bytes of it.
    pub(crate) fn as_bytes(self) -> DeviceSlice<u8> {
        match self {
            Self::Act(out) => out.as_bytes(),
            Self::F32(out) => out.as_bytes(),
        }
    }
}

/// The opened library with its handle.
#[derive(Debug)]
pub(crate) struct Blas {
    /// The handle belongs to it.
    _context: Arc<Context>,
    api: CublasLtApi,
    handle: Handle,
    act: ActDtype,
}

// SAFETY: a cublasLt handle may be used by several threads at once (cuBLAS manual, "Thread Safety").
unsafe impl Send for Blas {}
// SAFETY: a cublasLt handle may be used by several threads at once (cuBLAS manual, "Thread Safety"), and a
// shared reference only passes it to the library.
unsafe impl Sync for Blas {}

impl Blas {
    /// Opens the library and makes a handle; the context must be current.
    pub(crate) fn open(
        context: &Arc<Context>,
        paths: &LibraryPaths,
        act: ActDtype,
    ) -> Result<Self, CudaError> {
        let api = CublasLtApi::new(open_cublaslt(paths)?);
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle, destroyed in `Drop`.
        let code = unsafe { api.cublasLtCreate(&raw mut handle)? };
        check("cublasLtCreate", code, || "the context".to_owned())?;
        Ok(Self { _context: Arc::clone(context), api, handle, act })
    }

    /// The library's version: 130002 for 13.0.2.
    pub(crate) fn version(&self) -> Result<usize, CudaError> {
        // SAFETY: takes nothing.
        unsafe { self.api.cublasLtGetVersion() }
    }

    /// The file that was opened.
    pub(crate) fn path(&self) -> &str {
        self.api.path()
    }

    /// Activations as cuBLAS names their format.
    pub(crate) fn act_element(&self) -> i32 {
        match self.act {
            ActDtype::Bf16 => R_16BF,
            ActDtype::F16 => R_16F,
        }
    }

    /// Descriptors of a product of `m` rows, without an algorithm yet.
    pub(crate) fn problem(
        self: &Arc<Self>,
        m: u32,
        shape: GemmShape,
    ) -> Result<Problem, CudaError> {
        let mut problem = Problem {
            blas: Arc::clone(self),
            m,
            shape,
            desc: std::ptr::null_mut(),
            layouts: [std::ptr::null_mut(); 3],
        };
        let out = match shape.out {
            GemmOut::Device | GemmOut::Gated => self.act_element(),
            GemmOut::F32 | GemmOut::AddF32 => R_32F,
        };
        let weight = match shape.weight {
            WeightDtype::Bf16 => R_16BF,
            WeightDtype::F16 => R_16F,
            WeightDtype::E4m3 => R_8F_E4M3,
            WeightDtype::FourBit(_) => {
                let text = format!("cuBLASLt has no products of {shape:?}");
                return Err(CudaError::Unsupported(text));
            }
        };
        let x = if shape.scale == ScaleMode::Raw { R_8F_E4M3 } else { self.act_element() };
        let (m, n, k) = (u64::from(m), u64::from(shape.n), u64::from(shape.k));
        let transposed = OP_T;
        // Column-major as the library sees it: out^T [n, m] = (w^T [k, n])^T * x^T [k, m].
        // SAFETY: each call writes one descriptor, destroyed in `Problem::drop` also when a later call
        // fails; the attribute is one int as its header says.
        unsafe {
            let api = &self.api;
            let code = api.cublasLtMatmulDescCreate(&raw mut problem.desc, COMPUTE_32F, R_32F)?;
            check("cublasLtMatmulDescCreate", code, || problem.label())?;
            let code = api.cublasLtMatmulDescSetAttribute(
                problem.desc,
                DESC_TRANSA,
                (&raw const transposed).cast(),
                size_of::<i32>(),
            )?;
            check("cublasLtMatmulDescSetAttribute", code, || problem.label())?;
            let kinds = [(weight, k, n), (x, k, m), (out, n, m)];
            for (index, (kind, rows, cols)) in kinds.into_iter().enumerate() {
                let layout = &raw mut problem.layouts[index];
                let code = api.cublasLtMatrixLayoutCreate(layout, kind, rows, cols, rows as i64)?;
                check("cublasLtMatrixLayoutCreate", code, || problem.label())?;
            }
        }
        Ok(problem)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: created in `open`, destroyed once; every problem holds an Arc of this.
        let _ = unsafe { self.api.cublasLtDestroy(self.handle) };
    }
}

/// Descriptors of one product with a fixed row count.
#[derive(Debug)]
pub(crate) struct Problem {
    blas: Arc<Blas>,
    m: u32,
    shape: GemmShape,
    desc: MatmulDesc,
    /// Of w, x and the result.
    layouts: [MatrixLayout; 3],
}

// SAFETY: descriptors are plain host structures; cublasLtMatmul only reads them.
unsafe impl Send for Problem {}
// SAFETY: nothing changes the descriptors after `Blas::problem` has made them; cublasLtMatmul only reads them.
unsafe impl Sync for Problem {}

impl Problem {
    fn label(&self) -> String {
        format!("m {} {:?}", self.m, self.shape)
    }

    /// The library's proposals, best first by its own guess, at most `most`; with `in_one_piece` only
    /// such as `adds_in_one_piece` accepts.
    pub(crate) fn candidates(
        &self,
        most: usize,
        in_one_piece: bool,
    ) -> Result<Vec<MatmulAlgo>, CudaError> {
        let api = &self.blas.api;
        let mut results = vec![HeuristicResult::default(); most];
        let mut found = 0;
        let workspace_bytes = WORKSPACE_BYTES as usize;
        let mut preference = std::ptr::null_mut();
        let [w, x, out] = self.layouts;
        // SAFETY: descriptors are live; `results` has `most` entries; the preference is destroyed
        // below, since nothing returns in between.
        let code = unsafe {
            let code = api.cublasLtMatmulPreferenceCreate(&raw mut preference)?;
            check("cublasLtMatmulPreferenceCreate", code, || self.label())?;
            let _ = api.cublasLtMatmulPreferenceSetAttribute(
                preference,
                PREF_MAX_WORKSPACE_BYTES,
                (&raw const workspace_bytes).cast(),
                size_of::<usize>(),
            );
            if in_one_piece {
                let no_reduction = 0u32;
                let _ = api.cublasLtMatmulPreferenceSetAttribute(
                    preference,
                    PREF_REDUCTION_SCHEME_MASK,
                    (&raw const no_reduction).cast(),
                    size_of::<u32>(),
                );
            }
            let code = api.cublasLtMatmulAlgoGetHeuristic(
                self.blas.handle,
                self.desc,
                w,
                x,
                out,
                out,
                preference,
                most as i32,
                results.as_mut_ptr(),
                &raw mut found,
            );
            let _ = api.cublasLtMatmulPreferenceDestroy(preference);
            code?
        };
        check("cublasLtMatmulAlgoGetHeuristic", code, || self.label())?;
        results.truncate(found.max(0) as usize);
        let usable = results.into_iter().filter(|result| result.state == 0).map(|r| r.algo);
        Ok(usable.filter(|algo| !in_one_piece || self.adds_in_one_piece(algo)).collect())
    }

    /// Whether the algorithm adds up each result in one piece: how many pieces there are may depend on
    /// the number of rows, and a row's bits with them.
    fn adds_in_one_piece(&self, algo: &MatmulAlgo) -> bool {
        let attribute = |which| {
            let (mut value, mut written) = (0i32, 0usize);
            // SAFETY: `algo` has the size of the header's structure; both attributes are 4 bytes.
            let code = unsafe {
                self.blas.api.cublasLtMatmulAlgoConfigGetAttribute(
                    std::ptr::from_ref(algo),
                    which,
                    (&raw mut value).cast(),
                    size_of::<i32>(),
                    &raw mut written,
                )
            };
            matches!(code, Ok(0)).then_some(value)
        };
        attribute(ALGO_SPLITK_NUM).is_some_and(|pieces| pieces <= 1)
            && attribute(ALGO_REDUCTION_SCHEME) == Some(0)
    }

    /// Whether a stored algorithm can still run this product.
    pub(crate) fn accepts(&self, algo: &MatmulAlgo) -> bool {
        let mut result = HeuristicResult::default();
        let [w, x, out] = self.layouts;
        // SAFETY: descriptors are live; `algo` has the size of the header's structure; writes `result`.
        let code = unsafe {
            self.blas.api.cublasLtMatmulAlgoCheck(
                self.blas.handle,
                self.desc,
                w,
                x,
                out,
                out,
                std::ptr::from_ref(algo),
                &raw mut result,
            )
        };
        matches!(code, Ok(0)) && result.workspace_size as u64 <= WORKSPACE_BYTES
    }

    /// Queues the product with the given algorithm and a workspace of `WORKSPACE_BYTES`, which nothing else uses
    /// until the stream has passed this.
    pub(crate) fn run(
        &self,
        stream: &Stream,
        algo: &MatmulAlgo,
        args: &GemmArgs,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        args.check(self.m, self.shape);
        assert!(workspace.len() >= WORKSPACE_BYTES, "{workspace:?}");
        let alpha = 1f32;
        let beta = if self.shape.out == GemmOut::AddF32 { 1f32 } else { 0f32 };
        let [w, x, out] = self.layouts;
        let pointer = |address: u64| std::ptr::without_provenance_mut::<c_void>(address as usize);
        let result = pointer(args.out.as_bytes().address());
        // SAFETY: descriptors are live; alpha and beta are read before the call returns (host pointer
        // mode is the default); the addresses are the device's, and the asserts above show that the operands and
        // the workspace have this problem's sizes.
        let code = unsafe {
            self.blas.api.cublasLtMatmul(
                self.blas.handle,
                self.desc,
                (&raw const alpha).cast(),
                pointer(args.w.as_bytes().address()),
                w,
                pointer(args.x.as_bytes().address()),
                x,
                (&raw const beta).cast(),
                result,
                out,
                result,
                out,
                std::ptr::from_ref(algo),
                pointer(workspace.address()),
                WORKSPACE_BYTES as usize,
                stream.handle,
            )?
        };
        check("cublasLtMatmul", code, || self.label())
    }
}

impl Drop for Problem {
    fn drop(&mut self) {
        let api = &self.blas.api;
        // SAFETY: each descriptor was created in `Blas::problem` or is null, and is destroyed once.
        unsafe {
            if !self.desc.is_null() {
                let _ = api.cublasLtMatmulDescDestroy(self.desc);
            }
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                let _ = api.cublasLtMatrixLayoutDestroy(layout);
            }
        }
    }
}

fn check(call: &'static str, code: Status, detail: impl Fn() -> String) -> Result<(), CudaError> {
    if code == 0 { Ok(()) } else { Err(CudaError::Blas { call, code, detail: detail() }) }
}

/// Workspace of all products: what cuBLAS itself takes on Hopper.
pub(crate) const WORKSPACE_BYTES: u64 = 32 << 20;
