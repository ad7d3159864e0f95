//! Drives a `CpuExecutor` with plans made by hand: one request a slot, blocks handed out in order.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use ingle_core::{
    BlockId, CompletionSink, Executor, ExecutorError, OpenedSlot, PlanRow, SampleMode,
    SamplingParams, SlotId, StepCompletion, StepId, StepOutput, StepPlan, TokenId, TokenSource,
    Wants,
};
use ingle_cpu::{CpuConfig, CpuError, CpuExecutor};

pub(crate) struct Harness {
    pub(crate) executor: CpuExecutor,
    completions: Receiver<StepCompletion>,
    next_step: u64,
    next_block: u32,
    block_size: u32,
}

/// One request in its slot.
pub(crate) struct Request {
    pub(crate) slot: SlotId,
    pub(crate) params: Arc<SamplingParams>,
    pub(crate) prompt: Vec<u32>,
    pub(crate) output: Vec<u32>,
    pub(crate) log_probs: Vec<f32>,
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) computed: u32,
    opened: bool,
}

impl Request {
    pub(crate) fn new(slot: u32, prompt: &[u32], params: SamplingParams) -> Self {
        Self {
            slot: SlotId::first(slot),
            params: Arc::new(params),
            prompt: prompt.to_vec(),
            output: Vec::new(),
            log_probs: Vec::new(),
            blocks: Vec::new(),
            computed: 0,
            opened: false,
        }
    }

    /// As after a preemption: its blocks are gone, prompt and output must be computed again.
    pub(crate) fn preempt(&mut self) {
        self.blocks.clear();
        self.computed = 0;
        self.opened = false;
    }

    /// Starts with blocks that another request filled.
    pub(crate) fn with_cached(mut self, blocks: &[BlockId], block_size: u32) -> Self {
        self.blocks = blocks.to_vec();
        self.computed = blocks.len() as u32 * block_size;
        self
    }

    fn ids(&self) -> Vec<u32> {
        self.prompt.iter().chain(&self.output).copied().collect()
    }
}

pub(crate) fn model(name: &str) -> ingle_model::Checkpoint {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models");
    ingle_model::open(&root.join(name)).expect("checkpoint")
}

pub(crate) fn config(block_size: u32) -> CpuConfig {
    CpuConfig {
        block_size,
        num_blocks: 8192 / block_size,
        max_model_len: 512,
        max_num_batched_tokens: 2048,
        max_steps_in_flight: 2,
        threads: 2,
        ..CpuConfig::default()
    }
}

impl Harness {
    pub(crate) fn new(name: &str, config: &CpuConfig) -> Self {
        Self::of(&model(name), config)
    }

    pub(crate) fn of(checkpoint: &ingle_model::Checkpoint, config: &CpuConfig) -> Self {
        let source = &checkpoint.source;
        Self::started(config, |sink| {
            CpuExecutor::load(&checkpoint.spec, &checkpoint.plan, source, config, sink)
        })
    }

    /// One more on the same weights.
    pub(crate) fn sibling(&self, config: &CpuConfig) -> Self {
        Self::started(config, |sink| self.executor.sibling(config, sink))
    }

    fn started(
        config: &CpuConfig,
        start: impl FnOnce(CompletionSink) -> Result<CpuExecutor, CpuError>,
    ) -> Self {
        let (sender, completions) = channel();
        let executor = start(Arc::new(move |completion| {
            // The receiver is gone once a test drops its harness.
            let _ = sender.send(completion);
        }));
        let (executor, block_size) = (executor.expect("executor"), config.block_size);
        Self { executor, completions, next_step: 0, next_block: 0, block_size }
    }

    /// New blocks come from this one on: also such as earlier requests have left behind.
    pub(crate) fn hand_out_from(&mut self, block: u32) {
        self.next_block = block;
    }

    /// A plan with a row for each request: the next `count` of its tokens.
    pub(crate) fn plan(&mut self, parts: &mut [(&mut Request, u32)]) -> StepPlan {
        self.next_step += 1;
        let mut plan = StepPlan { id: StepId(self.next_step), ..StepPlan::default() };
        for (request, count) in parts {
            if !request.opened {
                request.opened = true;
                plan.closed.push(request.slot);
                plan.opened.push(OpenedSlot {
                    slot: request.slot,
                    sampling: Arc::clone(&request.params),
                    prompt: request.prompt.iter().map(|id| TokenId(*id)).collect(),
                    generated: request.output.iter().map(|id| TokenId(*id)).collect(),
                    cached_blocks: request.blocks.clone(),
                });
            }
            let end = request.computed + *count;
            let missing = end.div_ceil(self.block_size) - request.blocks.len() as u32;
            let new_blocks: Vec<BlockId> =
                (self.next_block..self.next_block + missing).map(BlockId).collect();
            self.next_block += missing;
            request.blocks.extend(&new_blocks);
            let ids = request.ids();
            let known = (request.computed as usize + *count as usize).min(ids.len());
            let source = if request.computed as usize >= ids.len() {
                TokenSource::LastSampled
            } else {
                let ids = &ids[request.computed as usize..known];
                TokenSource::Host(ids.iter().map(|id| TokenId(*id)).collect())
            };
            let sample = if end as usize >= ids.len() { SampleMode::Now } else { SampleMode::None };
            plan.rows.push(PlanRow {
                slot: request.slot,
                start: request.computed,
                num_tokens: *count,
                source,
                new_blocks,
                wants: Wants { sample, ..Wants::default() },
            });
            request.computed = end;
        }
        plan
    }

    pub(crate) fn wait(&self) -> Result<StepOutput, ExecutorError> {
        self.completions.recv().expect("a completion").result
    }

    /// Drops the executor; what it still had to complete.
    pub(crate) fn drop_executor(self) -> Vec<StepCompletion> {
        let Self { executor, completions, .. } = self;
        drop(executor);
        completions.try_iter().collect()
    }

    pub(crate) fn run(&mut self, plan: StepPlan) -> Result<StepOutput, ExecutorError> {
        self.executor.submit(plan).expect("submitted");
        self.wait()
    }

    /// Runs one step and takes its tokens into the requests.
    pub(crate) fn step(&mut self, parts: &mut [(&mut Request, u32)]) {
        let plan = self.plan(parts);
        let output = self.run(plan).expect("step");
        let mut tokens = output.tokens.iter();
        for ((request, _), row) in parts.iter_mut().zip(&output.rows) {
            for _ in 0..row.num_tokens {
                request.output.push(tokens.next().expect("token").0);
            }
            request.log_probs.extend(row.log_probs.iter().map(|around| around.log_prob));
        }
    }

    /// Runs the requests together until each has `count` output tokens, `chunk` prompt tokens at a time.
    pub(crate) fn generate(&mut self, requests: &mut [Request], count: usize, chunk: u32) {
        loop {
            let mut parts: Vec<(&mut Request, u32)> = Vec::new();
            for request in requests.iter_mut() {
                let left = (request.prompt.len() + request.output.len()) as u32 - request.computed;
                if request.output.len() < count {
                    parts.push((request, left.min(chunk)));
                }
            }
            if parts.is_empty() {
                return;
            }
            self.step(&mut parts);
        }
    }
}
