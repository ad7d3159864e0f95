//! A minimal engine: sequences, blocks and plans for one executor.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use ingle_core::{
    BlockId, Executor, OpenedSlot, PlanRow, SampleMode, SamplingParams, SlotId, StepCompletion,
    StepId, StepOutput, StepPlan, TokenId, TokenSource, Wants,
};
use ingle_cuda::{CudaConfig, CudaExecutor, LibraryPaths, StartReport, WarningSink};

/// Command-line options.
pub(crate) struct Options {
    pub(crate) site: Option<PathBuf>,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) prebuilt: Option<PathBuf>,
    pub(crate) max_num_seqs: u32,
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) max_model_len: u32,
    pub(crate) eager: bool,
    pub(crate) deterministic: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            site: None,
            cache: None,
            prebuilt: None,
            max_num_seqs: 256,
            max_num_batched_tokens: 2048,
            max_model_len: 8192,
            eager: false,
            deterministic: false,
        }
    }
}

impl Options {
    pub(crate) fn libraries(&self) -> LibraryPaths {
        let mut paths = LibraryPaths {
            site_packages: self.site.iter().cloned().collect(),
            ..LibraryPaths::default()
        };
        if self.prebuilt.is_some() {
            // As on a machine without NVRTC.
            paths.nvrtc = Some(PathBuf::from("/nonexistent/libnvrtc.so.13"));
        }
        paths
    }
}

/// An executor with its completions and blocks.
pub(crate) struct Harness {
    pub(crate) executor: CudaExecutor,
    pub(crate) report: StartReport,
    completions: Receiver<StepCompletion>,
    pub(crate) deterministic: bool,
    next_step: u64,
    next_block: u32,
    block_size: u32,
}

/// One running sequence.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) slot: SlotId,
    pub(crate) position: u32,
    num_blocks: u32,
}

impl Harness {
    pub(crate) fn load(options: &Options, model: &Path, kv_bytes: Option<u64>) -> Self {
        let checkpoint = ingle_model::open(model).unwrap();
        let (sender, completions) = channel();
        let sender = std::sync::Mutex::new(sender);
        let config = CudaConfig {
            libraries: options.libraries(),
            cache_dir: options.cache.clone(),
            prebuilt_kernels: options.prebuilt.clone(),
            max_num_seqs: options.max_num_seqs,
            max_num_batched_tokens: options.max_num_batched_tokens,
            max_model_len: options.max_model_len,
            enforce_eager: options.eager,
            deterministic: options.deterministic,
            kv_cache_memory_bytes: kv_bytes,
            ..CudaConfig::default()
        };
        let sink = Arc::new(move |completion| sender.lock().unwrap().send(completion).unwrap());
        let warn: WarningSink = Arc::new(|text: &str| println!("warning: {text}"));
        let loaded = CudaExecutor::load(
            checkpoint.spec,
            &checkpoint.plan,
            &checkpoint.source,
            &config,
            sink,
            &warn,
        );
        let (executor, report) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                println!("load failed: {error}");
                std::process::exit(1);
            }
        };
        let block_size = executor.shape().block_size;
        Self {
            executor,
            report,
            completions,
            deterministic: options.deterministic,
            next_step: 0,
            next_block: 0,
            block_size,
        }
    }

    /// Forgets all sequences: their blocks are used again.
    pub(crate) fn reset_blocks(&mut self) {
        self.next_block = 0;
    }

    /// A plan with the next number.
    pub(crate) fn plan(&mut self) -> StepPlan {
        self.next_step += 1;
        StepPlan { id: StepId(self.next_step), ..StepPlan::default() }
    }

    /// Opens a slot in the plan.
    pub(crate) fn open(
        &mut self,
        plan: &mut StepPlan,
        slot: u32,
        sampling: &SamplingParams,
    ) -> Sequence {
        plan.closed.push(SlotId::first(slot));
        plan.opened.push(OpenedSlot {
            slot: SlotId::first(slot),
            sampling: Arc::new(sampling.clone()),
            prompt: Arc::from(Vec::new()),
            generated: Vec::new(),
            cached_blocks: Vec::new(),
        });
        Sequence { slot: SlotId::first(slot), position: 0, num_blocks: 0 }
    }

    /// Opens a slot whose first tokens are those of another sequence, in shared blocks.
    pub(crate) fn open_cached(
        &mut self,
        plan: &mut StepPlan,
        slot: u32,
        sampling: &SamplingParams,
        blocks: &[BlockId],
    ) -> Sequence {
        let mut seq = self.open(plan, slot, sampling);
        let opened = plan.opened.last_mut().unwrap();
        opened.cached_blocks = blocks.to_vec();
        seq.num_blocks = (blocks.len() / self.executor.shape().kv_groups.len()) as u32;
        seq.position = seq.num_blocks * self.block_size;
        seq
    }

    /// Adds a row of known tokens.
    pub(crate) fn prefill(
        &mut self,
        plan: &mut StepPlan,
        seq: &mut Sequence,
        ids: &[u32],
        wants: Wants,
    ) {
        let source = TokenSource::Host(ids.iter().map(|id| TokenId(*id)).collect());
        self.row(plan, seq, ids.len() as u32, source, wants);
    }

    /// Adds a decode row that takes the last sampled token.
    pub(crate) fn decode(&mut self, plan: &mut StepPlan, seq: &mut Sequence) {
        let wants = Wants { sample: SampleMode::Now, ..Wants::default() };
        self.row(plan, seq, 1, TokenSource::LastSampled, wants);
    }

    fn row(
        &mut self,
        plan: &mut StepPlan,
        seq: &mut Sequence,
        num_tokens: u32,
        source: TokenSource,
        wants: Wants,
    ) {
        let start = seq.position;
        seq.position += num_tokens;
        let needed = seq.position.div_ceil(self.block_size);
        let num_new = (needed - seq.num_blocks.min(needed)) as usize;
        let num_groups = self.executor.shape().kv_groups.len();
        let new_blocks = (0..num_new * num_groups).map(|_| self.take_block()).collect();
        seq.num_blocks = seq.num_blocks.max(needed);
        plan.rows.push(PlanRow { slot: seq.slot, start, num_tokens, source, new_blocks, wants });
    }

    fn take_block(&mut self) -> BlockId {
        let block = BlockId(self.next_block);
        self.next_block += 1;
        assert!(self.next_block <= self.executor.shape().num_blocks, "out of KV blocks");
        block
    }

    /// Submits without waiting.
    pub(crate) fn submit(&mut self, plan: StepPlan) {
        self.executor.submit(plan).unwrap();
    }

    /// The next completion.
    pub(crate) fn wait(&mut self) -> StepOutput {
        match self.completions.recv().unwrap().result {
            Ok(output) => output,
            Err(error) => {
                println!("step failed: {error}");
                std::process::exit(2);
            }
        }
    }

    /// Submits and waits.
    pub(crate) fn run(&mut self, plan: StepPlan) -> StepOutput {
        self.submit(plan);
        self.wait()
    }
}

/// Greedy with log-probs of `top` alternatives.
pub(crate) fn greedy(top: Option<u32>) -> SamplingParams {
    SamplingParams { log_probs: top, ..SamplingParams::default() }
}
