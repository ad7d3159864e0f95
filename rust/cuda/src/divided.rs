//! Starts an executor whose model is divided among ranks: connects their devices, loads each rank, records all graphs,
//! and proves that what a rank writes reaches the others. The loading thread; blocking.
//!
//! Until all ranks are ready each of them is alone: its kernels neither send nor wait. What is loaded late may wait for a
//! whole device, so every kernel has run or been recorded before the first exchange.

use std::sync::Arc;

use ingle_core::CompletionSink;
use ingle_model::{CopyPlan, FeedForwardSpec, ModelSpec, Partition, Timeline, WeightSource};

use crate::CudaError;
use crate::config::CudaConfig;
use crate::context::{Context, Driver};
use crate::dims::{Buckets, LIST_ROWS};
use crate::exchange::{ExchangeSizes, connect, set_alone};
use crate::executor::CudaExecutor;
use crate::graphs::WarningSink;
use crate::group::Member as _;
use crate::launches::LaunchCounters;
use crate::memory::{PinnedBuffer, copy_to_host, upload};
use crate::rank::Rank;
use crate::setup::Setup;
use crate::start::{LoadedRank, StartReport, finish, graph_shapes, load_rank, record};
use crate::supported::check_supported;

impl CudaExecutor {
    /// Loads a checkpoint onto a group of ranks. Blocking: seconds. As `load` otherwise. `devices`: each rank's, as
    /// `cuda:N`; several ranks on one device are for tests. `config.device` is not used.
    ///
    /// # Errors
    /// Whatever is missing or does not fit, in one line with the numbers; devices that cannot write each other's memory.
    pub fn load_divided(
        partition: &Partition,
        plan: &CopyPlan,
        source: &Arc<dyn WeightSource>,
        (config, devices): (&CudaConfig, &[u32]),
        sink: CompletionSink,
        warn: &WarningSink,
    ) -> Result<(Self, StartReport), CudaError> {
        let timeline = Timeline::default();
        let spec = partition.local_spec();
        check_supported(&spec, config)?;
        check_divided(&spec, partition, (config, devices))?;
        let contexts = timeline.time("driver and contexts", || contexts(devices))?;
        let vocabularies = (0..partition.ranks()).map(|rank| partition.vocabulary(rank)).collect();
        let sizes = ExchangeSizes::new(&spec, most_samples(config), vocabularies, &contexts);
        let places = timeline.time("ranks connected", || connect(&contexts, &sizes))?;
        let launches = Arc::new(LaunchCounters::default());
        let mut loaded = Vec::with_capacity(contexts.len());
        for ((rank, context), place) in (0..).zip(&contexts).zip(places) {
            context.make_current()?;
            let model = partition.rank_model(rank, plan);
            let model = model.map_err(|error| CudaError::Unsupported(error.to_string()))?;
            let config = CudaConfig { device: devices[rank as usize], ..config.clone() };
            let setup = Setup::new(model.spec, &config, context, Some(place))?;
            let mut rank = load_rank(&setup, &model.plan, source, &timeline)?;
            ready(&mut rank.rank, &config, &launches, warn, &timeline)?;
            loaded.push(rank);
        }
        timeline.time("first exchange", || prove(&loaded))?;
        finish(loaded, launches, timeline, sink)
    }
}

/// Records all graphs of a rank, or runs each shape once. Nothing is recorded after that.
fn ready(
    rank: &mut Rank,
    config: &CudaConfig,
    launches: &Arc<LaunchCounters>,
    warn: &WarningSink,
    timeline: &Timeline,
) -> Result<(), CudaError> {
    timeline.time("graphs recorded", || {
        rank.graphs = record(&rank.model, config, launches, warn)?;
        match &rank.graphs {
            // A graph that failed is counted; whoever seals the executor hears of it.
            Some(graphs) => _ = graphs.seal().close(),
            None => {
                for shape in graph_shapes(&rank.model) {
                    rank.model.step(&rank.stream, shape)?;
                }
                rank.stream.synchronise()?;
            }
        }
        Ok(())
    })
}

fn contexts(devices: &[u32]) -> Result<Vec<Arc<Context>>, CudaError> {
    let open = |&ordinal: &u32| {
        let context = Context::retain(Driver::open()?, ordinal)?;
        context.info.check_capability()?;
        Ok(context)
    };
    devices.iter().map(open).collect()
}

/// Most rows of logits of a step.
fn most_samples(config: &CudaConfig) -> u64 {
    u64::from(Buckets::up_to(config.max_num_seqs.max(LIST_ROWS)).largest())
}

/// Refuses what ranks cannot do, before anything is loaded.
fn check_divided(
    spec: &ModelSpec,
    partition: &Partition,
    (config, devices): (&CudaConfig, &[u32]),
) -> Result<(), CudaError> {
    let refuse = |text: String| Err(CudaError::Unsupported(text));
    let (ranks, count) = (partition.ranks(), devices.len());
    if count != ranks as usize || !(2..=MAX_RANKS).contains(&ranks) {
        return refuse(format!("{ranks} ranks on {} devices: want 2 to {MAX_RANKS}", count));
    }
    if config.can_sleep {
        return refuse(
            "enable_sleep_mode: a model that is divided among ranks cannot sleep".to_owned(),
        );
    }
    if spec.hidden_size > MAX_HIDDEN_SIZE {
        let size = spec.hidden_size;
        return refuse(format!(
            "hidden_size {size} divided among ranks: at most {MAX_HIDDEN_SIZE}"
        ));
    }
    let has_biased_experts = spec
        .layers
        .iter()
        .any(|layer| matches!(layer.feed_forward, FeedForwardSpec::Moe(moe) if moe.bias));
    if has_biased_experts {
        return refuse("experts with biases cannot be divided among ranks here".to_owned());
    }
    if spec.scales_layers || spec.token_input.is_some() {
        let parts = "scales and embeddings of layers cannot be divided among ranks here";
        return refuse(parts.to_owned());
    }
    let mut distinct = devices.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() < count && config.kv_cache_memory_bytes.is_none() {
        return refuse("ranks on one device: kv_cache_memory_bytes must say each one's".to_owned());
    }
    Ok(())
}

/// Lets the ranks exchange, and checks that each receives what the others send: rank r adds r + 1 to every element.
fn prove(loaded: &[LoadedRank]) -> Result<(), CudaError> {
    let ranks = || loaded.iter().map(|loaded| &loaded.rank);
    let fail = |text: String| Err(CudaError::Unsupported(text));
    for (number, rank) in (1_u8..).zip(ranks()) {
        rank.make_current()?;
        let Some(place) = &rank.model.place else { continue };
        let width = rank.model.spec.hidden_size as usize;
        let (branch, residual) = (rank.model.buffers.branch, rank.model.buffers.residual);
        let own = f32::from(number).to_le_bytes().repeat(width);
        upload(&rank.stream, branch.slice(0, width as u64), &own)?;
        upload(&rank.stream, residual.slice(0, width as u64), &vec![0; 4 * width])?;
        set_alone(&rank.stream, place.exchange.control, false)?;
    }
    for rank in ranks() {
        rank.make_current()?;
        rank.model.exchange_row(&rank.stream)?;
    }
    let sum: u32 = (1..=loaded.len() as u32).sum();
    for (number, rank) in ranks().enumerate() {
        rank.make_current()?;
        let width = rank.model.spec.hidden_size as usize;
        let received = PinnedBuffer::new(&rank.model.context, 4 * width)?;
        copy_to_host(&rank.stream, &received, rank.model.buffers.residual, 4 * width)?;
        let waited = rank.stream.synchronise();
        let reason = |error: &CudaError| match &rank.model.place {
            Some(place) => place.memory.fault.reason(error),
            None => error.to_string(),
        };
        if let Err(error) = waited {
            return fail(format!("ranks cannot reach each other: {}", reason(&error)));
        }
        let is_sum = |word: &&u32| f32::from_bits(**word) == sum as f32;
        let right = received.as_words().iter().filter(is_sum).count();
        if right < width {
            return fail(format!("rank {number} received {right} of {width} numbers rightly"));
        }
    }
    Ok(())
}

/// As many as the kernels were tested with.
const MAX_RANKS: u32 = 8;
/// Four times four elements a thread of a block of 1024.
const MAX_HIDDEN_SIZE: u32 = 16384;
