//! Starts an executor from a checkpoint: loads memory, weights, kernels and algorithms, in parallel
//! where possible. The loading thread; blocking.

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};

use ingle_core::{CompletionSink, ExecutorShape, Micros};
use ingle_model::{CopyPlan, ModelSpec, Phase, Timeline, WeightSource};

use crate::CudaError;
use crate::budget::MemoryBudget;
use crate::buffers::OUT_BYTES;
use crate::config::CudaConfig;
use crate::context::{Context, Driver};
use crate::contract::{StepHeader, Words};
use crate::dims::LIST_ROWS;
use crate::executor::{BUFFER_SETS, CudaExecutor, STEPS_IN_FLIGHT};
use crate::graphs::{Graphs, WarningSink};
use crate::group::{Group, Member as _};
use crate::launches::LaunchCounters;
use crate::memory::{PinnedBuffer, fill, upload};
use crate::metadata::SlotRecord;
use crate::model::{Model, StepShape};
use crate::parts::{LoadFacts, WeightLoad, load_parts};
use crate::rank::Rank;
use crate::row_costs::RowCosts;
use crate::setup::{Memory, Setup};
use crate::sleep::Sleeper;
use crate::slots::{Staging, staging_bytes};
use crate::state_pool::StatePool;
use crate::step_shapes::step_shapes;
use crate::stream::{Event, Stream};
use crate::supported::check_supported;
use crate::waiter::{self, Losing, StepBuffers};
use crate::weight_memory::HostCopy;

/// What loading found and did, for the table at start.
#[derive(Clone, Debug)]
pub struct StartReport {
    /// The card's name and compute capability.
    pub device: String,
    /// How the memory is divided.
    pub memory: MemoryBudget,
    /// In the order in which they ended; some ran in parallel.
    pub phases: Vec<Phase>,
    /// Pinned memory of the host that steps pass through.
    pub host_bytes: u64,
    /// Pinned memory of the host that holds a copy of the weights.
    pub weight_copy_bytes: u64,
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
        writeln!(f, "{:<40} {:>8} MiB", "host memory of steps, pinned", self.host_bytes >> 20)?;
        if self.weight_copy_bytes > 0 {
            let mib = self.weight_copy_bytes >> 20;
            writeln!(f, "{:<40} {mib:>8} MiB", "host copy of weights, pinned")?;
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
    /// Loads a checkpoint onto a GPU. Blocking: seconds. `warn` takes what the operator should know and
    /// comes up after this has returned.
    ///
    /// # Errors
    /// Whatever is missing or does not fit, in one line with the numbers.
    pub fn load(
        spec: ModelSpec,
        plan: &CopyPlan,
        source: &Arc<dyn WeightSource>,
        config: &CudaConfig,
        sink: CompletionSink,
        warn: &WarningSink,
    ) -> Result<(Self, StartReport), CudaError> {
        let timeline = Timeline::default();
        check_supported(&spec, config)?;
        let context = timeline
            .time("driver and context", || Context::retain(Driver::open()?, config.device))?;
        context.info.check_capability()?;
        let setup = Setup::new(spec, config, &context, None)?;
        let mut loaded = load_rank(&setup, plan, source, &timeline)?;
        let launches = Arc::new(LaunchCounters::default());
        loaded.rank.graphs = record(&loaded.rank.model, config, &launches, warn)?;
        finish(vec![loaded], launches, timeline, sink)
    }
}

/// A rank on its device, and what its load found.
pub(crate) struct LoadedRank {
    pub(crate) rank: Rank,
    budget: MemoryBudget,
    device_line: String,
    warnings: Vec<String>,
    /// Of the checkpoint.
    bytes_read: u64,
    facts: LoadFacts,
}

/// Loads what a rank owns, up to its first launches. No graph is recorded yet.
pub(crate) fn load_rank(
    setup: &Setup,
    plan: &CopyPlan,
    source: &Arc<dyn WeightSource>,
    timeline: &Timeline,
) -> Result<LoadedRank, CudaError> {
    let memory = setup.map_memory(plan, timeline)?;
    let jobs = memory.weight_layout.jobs.clone();
    // Weights go on coming where what they come for has failed.
    let _target = Arc::clone(&memory.weights);
    std::thread::scope(|scope| {
        let weights = WeightLoad::start(scope, setup, source, &jobs, timeline);
        let loaded = load_around(setup, memory, &weights, timeline);
        let bytes_read = weights.wait()?;
        Ok(LoadedRank { bytes_read, ..loaded? })
    })
}

/// Everything but the weights, which come meanwhile.
fn load_around(
    setup: &Setup,
    memory: Memory,
    weights: &WeightLoad<'_>,
    timeline: &Timeline,
) -> Result<LoadedRank, CudaError> {
    let stream = Stream::new(&setup.context)?;
    fill(&stream, memory.state.mapped(), 0)?;
    memory.kv.clear(&stream)?;
    let shapes = if setup.config.enforce_eager { Vec::new() } else { setup.step_shapes() };
    let parts = load_parts(setup, &memory, weights, (&stream, &shapes), timeline)?;
    let (budget, device_line) = (memory.budget.clone(), setup.device_line());
    let warnings = setup.warnings(&memory.weight_layout);
    let copied = || {
        weights.wait()?;
        let threads = setup.config.load_threads.max(1) as usize;
        let region = memory.weights.lock().unwrap_or_else(PoisonError::into_inner);
        HostCopy::of(&setup.context, region.mapped(), threads)
    };
    let copy = setup.config.can_sleep.then(|| timeline.time("host copy of weights", copied));
    let copy = copy.transpose()?;
    let model = Arc::new(setup.model(memory, parts.kernels, parts.products, copy)?);
    timeline.time("tables and warm pass", || warm(&model, &stream))?;
    let rank = Rank { graphs: None, stream, model };
    Ok(LoadedRank { rank, budget, device_line, warnings, bytes_read: 0, facts: parts.facts })
}

/// Starts the recording of a rank's graphs, if there are to be any.
pub(crate) fn record(
    model: &Arc<Model>,
    config: &CudaConfig,
    launches: &Arc<LaunchCounters>,
    warn: &WarningSink,
) -> Result<Option<Graphs>, CudaError> {
    if config.enforce_eager {
        return Ok(None);
    }
    Graphs::start(model, &graph_shapes(model), launches, warn).map(Some)
}

/// Puts loaded ranks together.
pub(crate) fn finish(
    loaded: Vec<LoadedRank>,
    launches: Arc<LaunchCounters>,
    timeline: Timeline,
    sink: CompletionSink,
) -> Result<(CudaExecutor, StartReport), CudaError> {
    let (mut ranks, mut others) = (Vec::new(), Vec::new());
    let mut bytes_read = 0;
    for LoadedRank { rank, budget, device_line, warnings, facts, bytes_read: own } in loaded {
        ranks.push(rank);
        bytes_read += own;
        others.push((budget, device_line, warnings, facts));
    }
    let group = Group::new(ranks);
    group.leader().make_current()?;
    // A block is the same one on every rank.
    let num_blocks = others.iter().map(|(budget, ..)| budget.num_blocks).min().unwrap_or(0);
    let host_bytes = SetBytes::of(group.model()).sum() * BUFFER_SETS as u64;
    let weight_copy_bytes = group.model().weight_memory.host_bytes();
    let compiled = others.iter().map(|(.., facts)| facts.kernels_compiled).sum();
    let measured = others.iter().map(|(.., facts)| facts.products_measured).sum();
    let devices: Vec<String> = others.iter().map(|(_, line, ..)| line.clone()).collect();
    let (memory, _, warnings, facts) = others.swap_remove(0);
    let shape = executor_shape(group.model(), num_blocks, facts.row_costs.as_ref());
    let executor = timeline.time("host buffers", || assemble(group, shape, launches, sink))?;
    let report = StartReport {
        device: devices.join("; "),
        memory,
        host_bytes,
        weight_copy_bytes,
        phases: timeline.into_phases(),
        weight_bytes_read: bytes_read,
        kernels_compiled: compiled,
        products_measured: measured,
        libraries: facts.libraries,
        warnings,
    };
    Ok((executor, report))
}

/// Fills the constant tables and runs each kernel once on a step without rows.
fn warm(model: &Arc<Model>, stream: &Stream) -> Result<(), CudaError> {
    let buffers = &model.buffers;
    let bytes: Vec<u8> = model.attention.words().iter().flat_map(|w| w.to_le_bytes()).collect();
    upload(stream, buffers.plan_kinds, &bytes)?;
    model.fill_rope_tables(stream)?;
    let mut words = [0; StepHeader::COUNT];
    StepHeader::empty().write(&mut words);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    upload(stream, buffers.meta, &bytes)?;
    model.states.as_ref().map_or(Ok(()), |states| states.warm(stream))?;
    let prompts = model.attention.prompt_group().is_some();
    for (tokens, has_prompts) in [(1, false), (model.buckets.largest(), prompts)] {
        let samples = tokens.min(LIST_ROWS);
        // The metadata describes a step without rows: every row is padding.
        model.step(stream, StepShape { tokens, samples, has_prompts })?;
    }
    stream.synchronise()
}

/// What the scheduler is built from.
fn executor_shape(model: &Model, num_blocks: u32, costs: Option<&RowCosts>) -> ExecutorShape {
    let engine = &model.engine;
    let steady = |costs: &RowCosts| costs.steady_rows(ROW_TILE);
    let busy = |costs: &RowCosts| costs.rows_within(PAUSE_MILLISECONDS);
    ExecutorShape {
        num_blocks,
        block_size: engine.block_size,
        kv_groups: model.kv_groups,
        keeps_state: model.states.is_some(),
        num_snapshots: model.states.as_ref().map_or(0, StatePool::num_snapshots),
        num_slots: engine.num_slots,
        max_num_seqs: engine.max_rows,
        max_num_batched_tokens: engine.max_tokens,
        max_steps_in_flight: STEPS_IN_FLIGHT,
        row_tile: ROW_TILE,
        tenant_rows: TENANT_ROWS,
        steady_rows: costs.and_then(steady).unwrap_or(u32::MAX),
        // Even the smallest step is too long, so take the smallest.
        busy_rows: costs.map_or(u32::MAX, |costs| busy(costs).unwrap_or(1)),
        pause: Micros((PAUSE_MILLISECONDS * 1e3) as u64),
        vocab_size: model.spec.vocab_size,
    }
}

/// Rows of a GEMM tile: a row count between two multiples costs as much as the next multiple.
const ROW_TILE: u32 = 128;
/// Rows of one of several tenants: an H200 computes 197 rows of an 8B model in bf16 while it reads the weights.
const TENANT_ROWS: u32 = 192;
/// The time that products may take in a step while requests decode. Attention and small kernels add to it.
const PAUSE_MILLISECONDS: f32 = 30.0;

/// The shapes of steps that are recorded at start.
pub(crate) fn graph_shapes(model: &Model) -> Vec<StepShape> {
    step_shapes(model.buckets.sizes(), model.engine.max_rows, model.prompt_group)
}

/// Host buffers and the waiter thread.
fn assemble(
    group: Group,
    shape: ExecutorShape,
    launches: Arc<LaunchCounters>,
    sink: CompletionSink,
) -> Result<CudaExecutor, CudaError> {
    let model = Arc::clone(group.model());
    let context = &model.context;
    let (to_executor, free) = std::sync::mpsc::channel();
    let (to_waiter, messages) = std::sync::mpsc::channel();
    let pinned = |bytes: u64| PinnedBuffer::new(context, bytes as usize);
    let bytes = SetBytes::of(&model);
    for _ in 0..BUFFER_SETS {
        let mut done = Vec::with_capacity(group.ranks().len());
        group.each(|_, rank| {
            done.push(Event::blocking(&rank.model.context)?);
            Ok(())
        })?;
        let set = StepBuffers {
            meta: pinned(bytes.meta)?,
            staging: Staging::new(pinned(bytes.staging)?),
            out: pinned(bytes.out)?,
            list_out: pinned(bytes.list_out)?,
            pooled: pinned(bytes.pooled)?,
            done,
        };
        // The receiver is alive: it is returned below.
        let _ = to_executor.send(set);
    }
    let sleeper = Arc::new(Sleeper::new(&model)?);
    let lost = Arc::new(OnceLock::new());
    let losing = Losing { lost: Arc::clone(&lost), exchange: group.exchange().map(Arc::clone) };
    let waiter = waiter::start(context, messages, to_executor, losing, sink)?;
    Ok(CudaExecutor {
        launches,
        to_waiter: Some(to_waiter),
        waiter: Some(waiter),
        free,
        spare: Vec::new(),
        slots: vec![SlotRecord::default(); shape.num_slots as usize],
        late: None,
        queued: std::collections::VecDeque::new(),
        lost,
        shape,
        sleeper,
        group,
    })
}

/// Pinned memory of one step in flight.
struct SetBytes {
    meta: u64,
    staging: u64,
    out: u64,
    list_out: u64,
    pooled: u64,
}

impl SetBytes {
    fn of(model: &Model) -> Self {
        let (engine, sizes) = (&model.engine, &model.sizes);
        Self {
            meta: sizes.meta_words * 4,
            staging: staging_bytes(model.spec.vocab_size, engine, sizes),
            out: sizes.samples * OUT_BYTES,
            list_out: sizes.list_rows() * OUT_BYTES,
            pooled: u64::from(engine.max_rows) * u64::from(model.spec.hidden_size) * 4,
        }
    }

    fn sum(&self) -> u64 {
        self.meta + self.staging + self.out + self.list_out + self.pooled
    }
}
