//! Loads kernels and cuBLASLt beside the weights, and measures algorithms. The loading thread
//! and its helpers.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};

use ingle_model::{Timeline, WeightSource};

use crate::CudaError;
use crate::builds::Wanted;
use crate::compile::Compiler;
use crate::gemm::Blas;
use crate::kernels::Kernels;
use crate::loader::load_weights;
use crate::model::StepShape;
use crate::model_shapes::{four_bit_experts, gemm_shapes};
use crate::picking::Picking;
use crate::prebuilt::read_prebuilt;
use crate::product::Products;
use crate::program::{KernelSettings, Program};
use crate::registry::HEADERS;
use crate::row_costs::RowCosts;
use crate::setup::{Memory, Setup};
use crate::step_shapes::RecordedRows;
use crate::stream::Stream;
use crate::weight_layout::CopyJob;
use crate::weights::Weights;

/// The result of loading.
pub(crate) struct Parts {
    pub(crate) kernels: Kernels,
    pub(crate) products: Products,
    pub(crate) facts: LoadFacts,
}

/// What loading found and did.
#[derive(Debug)]
pub(crate) struct LoadFacts {
    pub(crate) kernels_compiled: usize,
    pub(crate) products_measured: usize,
    pub(crate) row_costs: Option<RowCosts>,
    pub(crate) libraries: Vec<String>,
}

/// The weights on their way to the device: threads that copy them.
pub(crate) struct WeightLoad<'scope>(RefCell<Copying<'scope>>);

enum Copying<'scope> {
    Runs(ScopedJoinHandle<'scope, Result<u64, CudaError>>),
    /// With the bytes read.
    Done(u64),
    Failed,
}

impl<'scope> WeightLoad<'scope> {
    /// Starts to copy `jobs` to where they name.
    pub(crate) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        setup: &'env Setup,
        source: &'env Arc<dyn WeightSource>,
        jobs: &'env [CopyJob],
        timeline: &'env Timeline,
    ) -> Self {
        let copying = scope.spawn(|| {
            timeline.time("weights", || {
                let threads = setup.config.load_threads.max(1) as usize;
                let dtype = setup.dtypes.weight();
                load_weights(&setup.context, source.as_ref(), jobs, dtype, threads)
            })
        });
        Self(RefCell::new(Copying::Runs(copying)))
    }

    /// Blocks until all are there; returns the bytes read. The error comes once.
    pub(crate) fn wait(&self) -> Result<u64, CudaError> {
        let bytes_read = match self.0.replace(Copying::Failed) {
            Copying::Runs(copying) => joined(copying)?,
            Copying::Done(bytes_read) => bytes_read,
            // `load_rank` waits last, where the earlier error is returned anyway.
            Copying::Failed => 0,
        };
        self.0.replace(Copying::Done(bytes_read));
        Ok(bytes_read)
    }
}

/// Kernels and cuBLASLt beside the weights. Algorithms are made ready, or measured, while weights still come and
/// kernels are compiled: which is fastest does not hang on what the weights are. Products that our own kernels may
/// take come last.
///
/// `shapes`: the steps whose graphs will be recorded.
pub(crate) fn load_parts(
    setup: &Setup,
    memory: &Memory,
    weights: &WeightLoad<'_>,
    (stream, shapes): (&Stream, &[StepShape]),
    timeline: &Timeline,
) -> Result<Parts, CudaError> {
    let context = &setup.context;
    std::thread::scope(|scope| {
        let kernels = scope.spawn(|| {
            timeline.time("kernels", || {
                context.make_current()?;
                build_kernels(setup, &memory.weight_layout.weights)
            })
        });
        let blas = timeline.time("cuBLASLt", || {
            Blas::open(context, &setup.config.libraries, setup.dtypes.act()).map(Arc::new)
        })?;
        let recorded = &RecordedRows::of(shapes);
        let alone = Picking { setup, memory, blas: &blas, kernels: None, stream, recorded };
        let stored = timeline.time("stored algorithms", || alone.products(false))?;
        let picked = match stored {
            Some(stored) => stored,
            None => {
                if setup.config.deterministic {
                    // Compares the bits of runs, for which the weights must not change meanwhile.
                    weights.wait()?;
                }
                timeline.time("algorithms measured", || {
                    let _turn = setup.config.turns.algorithms();
                    alone.measured()
                })?
            }
        };
        let (kernels, kernels_compiled, nvrtc) = joined(kernels)?;
        let choosing = Picking { kernels: Some(&kernels), ..alone };
        let chosen = timeline.time("own products measured", || {
            let _turn = setup.config.turns.algorithms();
            choosing.measured()
        })?;
        let picked = choosing.finish(picked, chosen);
        stream.synchronise()?;
        let cublaslt = format!("cuBLASLt {} {}", blas.version()?, blas.path());
        let driver = format!("driver CUDA {}", context.driver.version()?);
        let libraries = vec![driver, nvrtc, cublaslt];
        let facts = LoadFacts {
            kernels_compiled,
            products_measured: picked.num_measured,
            row_costs: picked.row_costs,
            libraries,
        };
        Ok(Parts { kernels, products: picked.products, facts })
    })
}

fn build_kernels(setup: &Setup, weights: &Weights) -> Result<(Kernels, usize, String), CudaError> {
    let settings = KernelSettings { dims: setup.dims()?, dtypes: setup.dtypes };
    let (spec, limits) = (&setup.spec, &setup.context.info.limits);
    let (mut shapes, head) = gemm_shapes(spec, &setup.shapes(), weights);
    shapes.push(head);
    let experts = four_bit_experts(spec, weights);
    let wanted = Wanted { spec, limits, ranks: setup.ranks(), shapes: &shapes, experts: &experts };
    let programs = Program::of(&wanted);
    let compiler = match (Compiler::open(&setup.config.libraries), &setup.config.prebuilt_kernels) {
        (Ok(compiler), _) => compiler,
        (Err(missing), None) => {
            return Err(CudaError::Unsupported(format!(
                "no kernels: this build carries none that are built ahead, and NVRTC, which would \
                 compile them, is missing ({missing}); install the extra cuda13"
            )));
        }
        (Err(missing), Some(folder)) => {
            let codes = read_prebuilt(folder, limits, &programs, &settings)?;
            let kernels = Kernels::load(&setup.context, &programs, &codes, &settings)?;
            let found = format!("kernels built ahead, slower than exact ones: {missing}");
            return Ok((kernels, 0, found));
        }
    };
    let cache = setup.cache("kernels")?;
    let units: Vec<_> = programs.iter().map(|program| program.unit(&settings)).collect();
    let threads = std::thread::available_parallelism().map_or(4, usize::from);
    let arch = setup.context.info.arch();
    let turn = setup.config.turns.kernels();
    let (cubins, compiled) = compiler.build(&units, &HEADERS, &arch, cache.as_ref(), threads)?;
    drop(turn);
    let kernels = Kernels::load(&setup.context, &programs, &cubins, &settings)?;
    let (major, minor) = compiler.version;
    Ok((kernels, compiled, format!("NVRTC {major}.{minor} {}", compiler.path())))
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T, CudaError>>) -> Result<T, CudaError> {
    match thread.join() {
        Ok(result) => result,
        // A panic here is our own mistake; it continues unchanged.
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
