//! From a checkpoint to a running executor: memory, weights, kernels and algorithms, as much of it at
//! once as can be. The loading thread; blocking.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ingle_core::{CompletionSink, ExecutorShape};
use ingle_model::{CopyPlan, FeedForwardSpec, ModelSpec, WeightSource, WeightType};

use crate::CudaError;
use crate::arena::Region;
use crate::budget::{BudgetInputs, MemoryBudget};
use crate::buffers::{BufferSizes, Buffers, LIST_ROWS, OUT_BYTES};
use crate::cache::Cache;
use crate::compile::Compiler;
use crate::config::{CudaConfig, DeviceType};
use crate::context::{Context, Driver};
use crate::dims::{Buckets, Dims, EngineDims};
use crate::executor::{BUFFER_SETS, CudaExecutor, STEPS_IN_FLIGHT};
use crate::gemm::{Blas, GemmOut, GemmShape};
use crate::graphs::Graphs;
use crate::kernels::{AttentionLaunch, HEADER, KernelSettings, Kernels, Program};
use crate::kv_pool::KvPool;
use crate::loader::load_weights;
use crate::memory::{PinnedBuffer, fill, upload};
use crate::metadata::SlotRecord;
use crate::model::{Model, StepShape, activation_kind, gemm_shapes};
use crate::module::{Launch, args};
use crate::product::{OwnProduct, Products};
use crate::slots::Staging;
use crate::stream::{Event, Stream};
use crate::tune::{Operands, Tuner};
use crate::waiter::{self, StepBuffers};
use crate::weights::{FeedForwardWeights, WeightLayout, Weights};

/// What loading found and did, for the table at start.
#[derive(Clone, Debug)]
pub struct StartReport {
    /// The card's name and compute capability.
    pub device: String,
    /// How the memory is divided.
    pub memory: MemoryBudget,
    /// Phases in order; some ran beside each other.
    pub phases: Vec<(&'static str, Duration)>,
    /// Bytes read from the checkpoint.
    pub weight_bytes_read: u64,
    /// Kernels that no cache held.
    pub kernels_compiled: usize,
    /// Products whose algorithm no cache held.
    pub products_measured: usize,
    /// Library, version, file.
    pub libraries: Vec<String>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

impl fmt::Display for StartReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.device)?;
        writeln!(f, "{}", self.memory)?;
        for (name, time) in &self.phases {
            writeln!(f, "{name:<40} {:>8.1} ms", time.as_secs_f64() * 1e3)?;
        }
        for line in self.libraries.iter().chain(&self.warnings) {
            writeln!(f, "{line}")?;
        }
        write!(
            f,
            "{} kernels compiled, {} products measured",
            self.kernels_compiled, self.products_measured
        )
    }
}

impl CudaExecutor {
    /// Loads a checkpoint onto a GPU. Blocking: seconds.
    ///
    /// # Errors
    /// Whatever is missing or does not fit, in one line with the numbers.
    pub fn load(
        spec: ModelSpec,
        plan: &CopyPlan,
        source: &Arc<dyn WeightSource>,
        config: &CudaConfig,
        sink: CompletionSink,
    ) -> Result<(Self, StartReport), CudaError> {
        let clock = Clock::default();
        check_supported(&spec, config)?;
        let context =
            clock.time("driver and context", || Context::retain(Driver::open()?, config.device))?;
        let setup = Setup::new(spec, config, &context);
        let memory = setup.map_memory(plan, &clock)?;
        let stream = Stream::new(&context)?;
        let parts = setup.load_parts(&memory, source, &stream, &clock)?;
        let libraries = parts.libraries.clone();
        let (kernels_compiled, weight_bytes_read) = (parts.kernels_compiled, parts.bytes_read);
        let budget = memory.budget.clone();
        let (gemms, products_measured) =
            clock.time("algorithms", || setup.pick_algorithms(&memory, &parts, &stream))?;
        let model = Arc::new(setup.model(memory, parts.kernels, gemms));
        clock.time("tables and warm pass", || warm(&model, &stream))?;
        let graphs = if config.enforce_eager {
            None
        } else {
            Some(Graphs::start(&model, &first_graphs(&model))?)
        };
        let executor = clock
            .time("host buffers", || assemble(&model, budget.num_blocks, stream, graphs, sink))?;
        let report = StartReport {
            device: setup.device_line(),
            memory: budget,
            phases: clock.into_phases(),
            weight_bytes_read,
            kernels_compiled,
            products_measured,
            libraries,
            warnings: setup.warnings(),
        };
        Ok((executor, report))
    }
}

/// Times phases from several threads.
#[derive(Default)]
struct Clock(Mutex<Vec<(&'static str, Duration)>>);

impl Clock {
    fn time<T>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let start = Instant::now();
        let result = work();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name, start.elapsed()));
        result
    }

    fn into_phases(self) -> Vec<(&'static str, Duration)> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is fixed before memory is taken.
struct Setup {
    context: Arc<Context>,
    spec: ModelSpec,
    config: CudaConfig,
    engine: EngineDims,
    attention: AttentionLaunch,
    f16_device: bool,
    windows: Vec<u32>,
}

/// Mapped regions and what lies where.
struct Memory {
    budget: MemoryBudget,
    weight_layout: WeightLayout,
    buffers: Buffers,
    weights: Region,
    state: Region,
    kv: KvPool,
}

/// What the three lanes of loading bring.
struct Parts {
    kernels: Kernels,
    kernels_compiled: usize,
    blas: Arc<Blas>,
    bytes_read: u64,
    libraries: Vec<String>,
}

impl Setup {
    fn new(spec: ModelSpec, config: &CudaConfig, context: &Arc<Context>) -> Self {
        let info = &context.info;
        let engine = EngineDims {
            sample_vocab_size: config.sample_vocab_size,
            block_size: config.block_size,
            // One block more than the longest sequence, for the row that runs after its last token.
            max_blocks: config.max_model_len.div_ceil(config.block_size) + 1,
            // A request that left holds its slot until the steps that name it are done.
            num_slots: 2 * config.max_num_seqs,
            max_rows: config.max_num_seqs,
            max_tokens: config.max_num_batched_tokens.max(config.max_num_seqs),
            max_model_len: config.max_model_len + 1,
        };
        let attention = AttentionLaunch::on(info.compute_capability, info.num_sms, spec.head_dim);
        let f16_device = match config.dtype {
            DeviceType::Auto => spec.weight_type == WeightType::F16,
            DeviceType::Bf16 => false,
            DeviceType::F16 => true,
        };
        let mut windows: Vec<u32> =
            spec.layers.iter().map(|layer| layer.window.unwrap_or(0)).collect();
        windows.sort_unstable();
        windows.dedup();
        Self {
            context: Arc::clone(context),
            spec,
            config: config.clone(),
            engine,
            attention,
            f16_device,
            windows,
        }
    }

    fn device_line(&self) -> String {
        let info = &self.context.info;
        let (major, minor) = info.compute_capability;
        format!("{} (compute capability {major}.{minor}, {} SMs)", info.name, info.num_sms)
    }

    fn warnings(&self) -> Vec<String> {
        let (major, minor) = self.context.info.compute_capability;
        let mut warnings = Vec::new();
        if (major, minor) != (9, 0) {
            warnings.push(format!("untested GPU: compute capability {major}.{minor}"));
        }
        let device = if self.f16_device { WeightType::F16 } else { WeightType::Bf16 };
        if self.spec.weight_type != device {
            warnings
                .push(format!("weights stored as {:?} run as {device:?}", self.spec.weight_type));
        }
        warnings
    }

    /// Computes the budget and takes the memory.
    fn map_memory(&self, plan: &CopyPlan, clock: &Clock) -> Result<Memory, CudaError> {
        let context = &self.context;
        let (free_bytes, total_bytes) = context.memory_info()?;
        let num_plans = self.windows.len() as u64;
        let buffer_bytes =
            Buffers::layout(0, &self.spec, &self.engine, &self.attention, num_plans).1;
        let head_bytes = u64::from(self.engine.block_size) * u64::from(self.spec.head_dim) * 2;
        let layer_bytes = 2 * u64::from(self.spec.num_kv_heads) * head_bytes;
        let block_stride = layer_bytes * self.spec.layers.len() as u64;
        let weight_bytes = WeightLayout::new(0, &self.spec, plan)?.bytes;
        let budget = MemoryBudget::new(&BudgetInputs {
            total_bytes,
            free_bytes,
            weight_bytes,
            buffer_bytes,
            utilization: self.config.gpu_memory_utilization,
            kv_cache_memory_bytes: self.config.kv_cache_memory_bytes,
            block_bytes: block_stride,
            block_size: self.engine.block_size,
            max_model_len: self.config.max_model_len,
        })?;
        clock.time("memory mapped", || {
            let weights = Region::mapped(context, weight_bytes)?;
            let state = Region::mapped(context, buffer_bytes)?;
            // The whole card's worth of addresses, so that the pool can grow where it stands.
            let (kv_bytes, num_layers) = (budget.kv_cache_bytes, self.spec.layers.len() as u64);
            let kv = KvPool::new(context, kv_bytes, total_bytes, block_stride, num_layers)?;
            let (buffers, _) =
                Buffers::layout(state.base(), &self.spec, &self.engine, &self.attention, num_plans);
            Ok(Memory {
                weight_layout: WeightLayout::new(weights.base(), &self.spec, plan)?,
                buffers,
                weights,
                state,
                kv,
                budget,
            })
        })
    }

    /// Weights, kernels and cuBLASLt beside each other.
    fn load_parts(
        &self,
        memory: &Memory,
        source: &Arc<dyn WeightSource>,
        stream: &Stream,
        clock: &Clock,
    ) -> Result<Parts, CudaError> {
        let context = &self.context;
        fill(stream, memory.state.base(), 0, memory.state.mapped_bytes() as usize)?;
        memory.kv.clear(stream)?;
        std::thread::scope(|scope| {
            let weights = scope.spawn(|| {
                clock.time("weights", || {
                    let threads = self.config.load_threads.max(1) as usize;
                    let jobs = &memory.weight_layout.jobs;
                    load_weights(context, source.as_ref(), jobs, self.f16_device, threads)
                })
            });
            let kernels = scope.spawn(|| {
                clock.time("kernels", || {
                    context.make_current()?;
                    self.build_kernels()
                })
            });
            let blas = clock.time("cuBLASLt", || {
                Blas::open(context, &self.config.libraries, self.f16_device).map(Arc::new)
            });
            let bytes_read = joined(weights)?;
            let (kernels, kernels_compiled, nvrtc) = joined(kernels)?;
            let blas = blas?;
            let cublaslt = format!("cuBLASLt {} {}", blas.version()?, blas.path());
            let driver = format!("driver CUDA {}", context.driver.version()?);
            let libraries = vec![driver, nvrtc, cublaslt];
            stream.synchronise()?;
            Ok(Parts { kernels, kernels_compiled, blas, bytes_read, libraries })
        })
    }

    fn build_kernels(&self) -> Result<(Kernels, usize, String), CudaError> {
        let settings = KernelSettings {
            dims: Dims::of(&self.spec, &self.engine),
            f16_device: self.f16_device,
            head_dim: self.spec.head_dim,
            attention: self.attention,
        };
        let compiler = Compiler::open(&self.config.libraries)?;
        let cache = self.cache("kernels")?;
        let programs = Program::of(&self.spec);
        let units = programs
            .iter()
            .map(|program| program.unit(&settings))
            .collect::<Result<Vec<_>, _>>()?;
        let threads = std::thread::available_parallelism().map_or(4, usize::from);
        let arch = self.context.info.arch();
        let (cubins, compiled) = compiler.build(&units, HEADER, &arch, cache.as_ref(), threads)?;
        let kernels = Kernels::load(&self.context, &programs, &cubins, &settings)?;
        let (major, minor) = compiler.version;
        Ok((kernels, compiled, format!("NVRTC {major}.{minor} {}", compiler.path())))
    }

    fn cache(&self, folder: &str) -> Result<Option<Cache>, CudaError> {
        match &self.config.cache_dir {
            Some(path) => {
                Cache::open(path)?;
                Cache::open(&path.join(folder)).map(Some)
            }
            None => Ok(None),
        }
    }

    fn buckets(&self) -> Buckets {
        Buckets::up_to(self.engine.max_tokens.max(LIST_ROWS))
    }

    fn pick_algorithms(
        &self,
        memory: &Memory,
        parts: &Parts,
        stream: &Stream,
    ) -> Result<(Products, usize), CudaError> {
        let cache = self.cache("products")?;
        let sizes = BufferSizes::new(&self.spec, &self.engine, &self.attention);
        let (layer_shapes, head) = gemm_shapes(&self.spec);
        let mut wanted = Vec::new();
        for &rows in self.buckets().sizes() {
            // A gated product is our own kernel's alone, where it has one; sorted behind the plain one.
            let exists = |shape: &&GemmShape| {
                shape.out != GemmOut::Gated || parts.kernels.skinny(rows, **shape).is_some()
            };
            wanted.extend(layer_shapes.iter().filter(exists).map(|shape| (rows, *shape)));
            if u64::from(rows) <= sizes.samples {
                wanted.push((rows, head));
            }
        }
        let weights = &memory.weight_layout.weights;
        let operands = operands(&self.spec, weights, &memory.buffers);
        // Constant, finite and not zero: zeros would flatter the clock.
        for (shape, operand) in &operands {
            let rows = if *shape == head { sizes.samples } else { sizes.tokens };
            fill(stream, operand.x, 0x3c, (rows * u64::from(shape.k) * 2) as usize)?;
        }
        let own = |rows, shape| {
            let kernel = parts.kernels.skinny(rows, shape)?.clone();
            let dims = Dims::of(&self.spec, &self.engine);
            let activation = activation_kind(&self.spec);
            Some(OwnProduct { kernel, dims, rows, shape, activation })
        };
        let tuner = Tuner {
            context: &self.context,
            blas: &parts.blas,
            stream,
            cache: cache.as_ref(),
            workspace: memory.buffers.gemm_workspace,
            operands,
            own: &own,
        };
        let (products, measured) = tuner.products(&wanted)?;
        Ok((Products::new(products, memory.buffers.gemm_workspace), measured))
    }

    fn model(&self, memory: Memory, kernels: Kernels, gemms: Products) -> Model {
        Model {
            context: Arc::clone(&self.context),
            spec: self.spec.clone(),
            dims: Dims::of(&self.spec, &self.engine),
            engine: self.engine,
            attention: self.attention,
            sizes: BufferSizes::new(&self.spec, &self.engine, &self.attention),
            buckets: self.buckets(),
            buffers: memory.buffers,
            weights: memory.weight_layout.weights,
            kernels,
            gemms,
            windows: self.windows.clone(),
            kv: memory.kv,
            deterministic: self.config.deterministic,
            _regions: vec![memory.weights, memory.state],
        }
    }
}

fn joined<T>(
    thread: std::thread::ScopedJoinHandle<'_, Result<T, CudaError>>,
) -> Result<T, CudaError> {
    match thread.join() {
        Ok(result) => result,
        // Our own mistake: it goes on as the panic it was.
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Buffers and weights that each product is measured on: those that steps use.
fn operands(
    spec: &ModelSpec,
    weights: &Weights,
    buffers: &Buffers,
) -> HashMap<GemmShape, Operands> {
    let mut operands: HashMap<GemmShape, Operands> = HashMap::new();
    let mut add = |shape: GemmShape, weight: u64, x: u64, out: u64| {
        let entry = operands.entry(shape);
        entry.or_insert_with(|| Operands { weights: Vec::new(), x, out }).weights.push(weight);
    };
    let branch = if spec.post_norms { buffers.branch } else { buffers.residual };
    let shapes = crate::model::Shapes::of(spec);
    for layer in &weights.layers {
        add(shapes.qkv, layer.qkv, buffers.normed, buffers.qkv);
        add(shapes.output, layer.output, buffers.attended, branch);
        match layer.feed_forward {
            FeedForwardWeights::Dense { gate_up, down, intermediate_size, .. } => {
                add(shapes.gate_up(intermediate_size), gate_up, buffers.normed, buffers.gate_up);
                add(shapes.gated(intermediate_size), gate_up, buffers.normed, buffers.gated);
                add(shapes.down(intermediate_size), down, buffers.gated, branch);
            }
            FeedForwardWeights::Moe { router, spec, .. } => {
                let shape = shapes.router(spec.num_experts);
                add(shape, router, buffers.normed, buffers.router_logits);
            }
        }
    }
    add(shapes.head, weights.lm_head, buffers.sampled, buffers.logits);
    operands
}

/// Fills the constant tables and runs each kernel once on a step without rows.
fn warm(model: &Arc<Model>, stream: &Stream) -> Result<(), CudaError> {
    let buffers = &model.buffers;
    let tables = model.spec.rope.tables(model.engine.max_model_len - 1);
    let half = tables.inv_freq.len() as u32;
    let bytes: Vec<u8> = tables.inv_freq.iter().flat_map(|f| f.to_le_bytes()).collect();
    upload(stream, buffers.inv_freq, &bytes)?;
    let bytes: Vec<u8> = model.windows.iter().flat_map(|w| w.to_le_bytes()).collect();
    upload(stream, buffers.windows, &bytes)?;
    let positions = model.engine.max_model_len;
    // SAFETY: the table was laid out for `positions` times `half` pairs, the frequencies are there.
    unsafe {
        model.kernels.rope_table.launch(
            stream,
            Launch::linear((positions * half).div_ceil(256), 256),
            args![buffers.inv_freq, tables.attention_factor, buffers.rope_table, positions, half],
        )?;
    }
    let mut header = [0u32; 16];
    header[4..8].fill(16);
    let bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    upload(stream, buffers.meta, &bytes)?;
    for tokens in [1, model.buckets.largest()] {
        let samples = tokens.min(LIST_ROWS);
        // SAFETY: the metadata says that the step has no rows, so every row is padding.
        unsafe { model.step(stream, StepShape { tokens, samples })? };
    }
    stream.synchronise()
}

/// Decode steps of every size, then mixed ones: under load nearly every step carries prefill.
fn first_graphs(model: &Model) -> Vec<StepShape> {
    let rows_max = model.engine.max_rows;
    let mut shapes = Vec::new();
    for &tokens in model.buckets.sizes() {
        if tokens <= rows_max.next_multiple_of(16) && tokens <= LIST_ROWS {
            shapes.push(StepShape { tokens, samples: tokens });
        }
    }
    for &tokens in model.buckets.sizes().iter().filter(|&&tokens| tokens > LIST_ROWS) {
        for samples in (64..=rows_max.next_multiple_of(64).min(LIST_ROWS)).step_by(64) {
            shapes.push(StepShape { tokens, samples });
        }
    }
    shapes
}

/// Host buffers and the waiter thread.
fn assemble(
    model: &Arc<Model>,
    num_blocks: u32,
    stream: Stream,
    graphs: Option<Graphs>,
    sink: CompletionSink,
) -> Result<CudaExecutor, CudaError> {
    let context = &model.context;
    let (to_executor, free) = std::sync::mpsc::channel();
    let (to_waiter, messages) = std::sync::mpsc::channel();
    let pinned = |bytes: u64| PinnedBuffer::new(context, bytes as usize);
    let rows = u64::from(model.engine.max_rows);
    for _ in 0..BUFFER_SETS {
        let set = StepBuffers {
            meta: pinned(model.sizes.meta_words * 4)?,
            staging: Staging::new(pinned(STAGING_BYTES)?),
            out: pinned(model.sizes.samples * OUT_BYTES)?,
            list_out: pinned(model.sizes.list_rows() * OUT_BYTES)?,
            pooled: pinned(rows * u64::from(model.spec.hidden_size) * 4)?,
            done: Event::blocking(context)?,
        };
        // The receiver is alive: it is returned below.
        let _ = to_executor.send(set);
    }
    let lost = Arc::new(OnceLock::new());
    let (for_thread, lost_there) = (Arc::clone(context), Arc::clone(&lost));
    let waiter = std::thread::Builder::new()
        .name("ingle-waiter".to_owned())
        .spawn(move || waiter::run(&for_thread, &messages, &to_executor, &lost_there, &sink))
        .map_err(|source| CudaError::Io { what: "waiter thread".to_owned(), source })?;
    let engine = &model.engine;
    let shape = ExecutorShape {
        num_blocks,
        block_size: engine.block_size,
        num_slots: engine.num_slots,
        max_num_seqs: engine.max_rows,
        max_num_batched_tokens: engine.max_tokens,
        max_steps_in_flight: STEPS_IN_FLIGHT,
        row_tile: 128,
        vocab_size: model.spec.vocab_size,
    };
    Ok(CudaExecutor {
        graphs,
        to_waiter: Some(to_waiter),
        waiter: Some(waiter),
        free,
        spare: Vec::new(),
        stream,
        slots: vec![SlotRecord::default(); engine.num_slots as usize],
        late: None,
        queued: std::collections::VecDeque::new(),
        lost,
        shape,
        model: Arc::clone(model),
    })
}

/// Refuses what the kernels cannot do, before anything is opened.
fn check_supported(spec: &ModelSpec, config: &CudaConfig) -> Result<(), CudaError> {
    let refuse = |text: String| Err(CudaError::Unsupported(text));
    if !matches!(spec.head_dim, 32 | 64 | 96 | 128 | 256) {
        return refuse(format!("head_dim {}: want 32, 64, 96, 128 or 256", spec.head_dim));
    }
    if spec.hidden_size % 8 != 0 || spec.rope.rotary_dim % 4 != 0 {
        return refuse(format!(
            "hidden_size {} and rotary_dim {}: want multiples of 8 and 4",
            spec.hidden_size, spec.rope.rotary_dim
        ));
    }
    for layer in &spec.layers {
        let width = match layer.feed_forward {
            FeedForwardSpec::Dense { intermediate_size, .. } => intermediate_size,
            FeedForwardSpec::Moe(moe) => {
                if moe.num_experts > 512 || moe.experts_per_token > 16 || spec.post_norms {
                    return refuse(format!(
                        "{} experts, {} a token, post norms {}: at most 512, 16, none",
                        moe.num_experts, moe.experts_per_token, spec.post_norms
                    ));
                }
                moe.intermediate_size
            }
        };
        if width % 8 != 0 {
            return refuse(format!("intermediate_size {width}: want a multiple of 8"));
        }
    }
    let block = config.block_size;
    if !block.is_power_of_two() || !(4..=256).contains(&block) {
        return refuse(format!("block_size {block}: want a power of two from 4 to 256"));
    }
    if !(1..=1024).contains(&config.max_num_seqs) {
        return refuse(format!("max_num_seqs {}: want 1 to 1024", config.max_num_seqs));
    }
    if !(1..=65536).contains(&config.max_num_batched_tokens) {
        let tokens = config.max_num_batched_tokens;
        return refuse(format!("max_num_batched_tokens {tokens}: want 1 to 65536"));
    }
    if !(1..=1 << 22).contains(&config.max_model_len) {
        return refuse(format!("max_model_len {}: want 1 to 4194304", config.max_model_len));
    }
    Ok(())
}

/// Pinned memory for small uploads of a step; more goes as pageable memory.
const STAGING_BYTES: u64 = 1 << 20;
