//! [5] A model on the CPU: one forward pass over the rows of a step. Runs on the driver thread,
//! which shares the work with the pool. It knows sequences, positions and blocks, but not requests.

use std::sync::Arc;

use ingle_core::{BlockId, SlotId, StateCopy, TokenId};
use ingle_model::{CopyPlan, ModelSpec, RankModel, WeightSource};

use crate::attention::Span;
use crate::buffers::Buffers;
use crate::delta_net::States;
use crate::elementwise::{rms_norm, soft_cap};
use crate::forward::Pass;
use crate::gemm::{Item, Product, multiply};
use crate::kv_cache::KvCache;
use crate::pool::Pool;
use crate::rope::Rope;
use crate::rows::Rows;
use crate::scratch::Scratch;
use crate::threads::physical_cores;
use crate::vector_path::VectorPath;
use crate::weights::{self, Weights};
use crate::{CpuConfig, CpuError};

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// At least one; ids are below the vocabulary's size.
    pub tokens: &'a [TokenId],
    /// Position of the first.
    pub start: u32,
    /// For each KV group (`KvLayout::of` the spec) the blocks of positions 0 and up, enough for all of
    /// `tokens`. What the group's window has passed is not used.
    pub tables: &'a [Vec<BlockId>],
    /// Where layers that are no attention keep their state of the sequence. A sequence that starts at
    /// position 0 takes the slot; a later start goes on from what its last tokens have left there.
    pub slot: SlotId,
    /// Copies of that state, taken after some of `tokens`.
    pub saves: &'a [StateCopy],
}

/// Weights, KV blocks and the threads that compute with them.
#[derive(Debug)]
pub struct Model {
    spec: ModelSpec,
    /// The model as a rank computes it.
    of_rank: ModelSpec,
    config: CpuConfig,
    /// `None` while it sleeps.
    memory: Option<Memory>,
    /// One for each of the spec's.
    ropes: Vec<Rope>,
    /// What each row's queries are multiplied by; empty if by nothing.
    query_factors: Vec<f32>,
    buffers: Buffers,
    pool: Pool,
    path: VectorPath,
    num_threads: usize,
    num_rows: usize,
}

/// What a sleeping model gives back.
#[derive(Debug)]
struct Memory {
    weights: Arc<Weights>,
    /// Each rank's.
    kv: Vec<KvCache>,
    states: States,
}

impl Model {
    /// Reads the weights, allocates the KV blocks and starts the worker threads.
    ///
    /// # Errors
    /// `CpuError` for settings without sense, a tensor that does not fit the spec, or failed reads.
    pub fn load(
        spec: &ModelSpec,
        plan: &CopyPlan,
        source: &dyn WeightSource,
        config: &CpuConfig,
    ) -> Result<Self, CpuError> {
        let partition = config.partition(spec)?;
        let ranks = (0..partition.ranks()).map(|rank| partition.rank_model(rank, plan));
        Self::of_ranks(spec, &ranks.collect::<Result<Vec<_>, _>>()?, source, config)
    }

    /// A model of ranks whose parts are given.
    pub(crate) fn of_ranks(
        spec: &ModelSpec,
        ranks: &[RankModel],
        source: &dyn WeightSource,
        config: &CpuConfig,
    ) -> Result<Self, CpuError> {
        let of_rank = ranks[0].spec.clone();
        let weights = |pool: &mut Pool| weights::load(ranks, source, pool).map(Arc::new);
        Self::new((spec.clone(), of_rank), config, weights)
    }

    /// A model on the weights that `weights` gives; its KV blocks and threads are its own. `of_rank` is the
    /// spec as a rank computes it.
    ///
    /// # Errors
    /// As `load`, and those of `weights`.
    pub(crate) fn new(
        (spec, of_rank): (ModelSpec, ModelSpec),
        config: &CpuConfig,
        weights: impl FnOnce(&mut Pool) -> Result<Arc<Weights>, CpuError>,
    ) -> Result<Self, CpuError> {
        config.check()?;
        let path = VectorPath::resolve(config.path)?.with(config.precision)?;
        let num_threads = match config.threads {
            0 => physical_cores(),
            threads => threads as usize,
        };
        let (head_dim, max_len) = (spec.widest_head() as usize, config.max_model_len as usize);
        let scratch = || match spec.attention.latent {
            Some(_) => Scratch::latent(head_dim, max_len),
            None => Scratch::new(head_dim, max_len),
        };
        let mut pool = Pool::new(num_threads, config.first_thread as usize, scratch)
            .map_err(CpuError::Thread)?;
        let memory = match config.starts_asleep {
            true => None,
            false => Some(Memory::new(weights(&mut pool)?, &of_rank, config)),
        };
        let ranks = config.tensor_parallel_size.max(1) as usize;
        Ok(Self {
            config: *config,
            memory,
            ropes: spec.ropes.iter().map(|rope| Rope::new(rope, config.max_model_len)).collect(),
            query_factors: Vec::new(),
            buffers: Buffers::new(&of_rank, config.max_num_batched_tokens as usize, ranks),
            pool,
            path,
            num_threads,
            num_rows: 0,
            spec,
            of_rank,
        })
    }

    /// Gives back weights, KV blocks and states. No effect on a model that sleeps.
    pub(crate) fn sleep(&mut self) {
        self.memory = None;
    }

    /// Takes them back, the weights from `weights`. No effect on a model that is awake.
    ///
    /// # Errors
    /// Those of `weights`; then it sleeps on.
    pub(crate) fn wake(
        &mut self,
        weights: impl FnOnce(&mut Pool) -> Result<Arc<Weights>, CpuError>,
    ) -> Result<(), CpuError> {
        if self.memory.is_none() {
            self.memory = Some(Memory::new(weights(&mut self.pool)?, &self.of_rank, &self.config));
        }
        Ok(())
    }

    /// Gives the KV pool so many blocks; those that stay keep their contents.
    ///
    /// # Errors
    /// What there is no memory for; the pool is as it was.
    pub(crate) fn resize_kv(&mut self, num_blocks: u32) -> Result<(), String> {
        let before = self.config.num_blocks;
        let caches = self.memory.as_mut().map_or(&mut [][..], |memory| &mut memory.kv);
        let resized = caches.iter_mut().try_for_each(|kv| kv.resize(num_blocks));
        if let Err(error) = resized {
            // Those that have grown shrink again, which needs no memory.
            let _ = caches.iter_mut().try_for_each(|kv| kv.resize(before));
            return Err(error.to_string());
        }
        self.config.num_blocks = num_blocks;
        Ok(())
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.memory.is_none()
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect(AWAKE)
    }

    /// What the model is.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Name of the vector path and number of threads, for the start-up message.
    #[must_use]
    pub fn description(&self) -> (&'static str, usize) {
        (self.path.name(), self.num_threads)
    }

    /// Bytes of packed weights that a decode step reads, experts counted once each.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.memory().weights.bytes_per_step()
    }

    pub(crate) fn num_blocks(&self) -> usize {
        self.config.num_blocks as usize
    }

    /// Gives a slot the state that a snapshot holds.
    ///
    /// # Panics
    /// If slot or snapshot is out of range, or the model sleeps.
    pub fn restore(&mut self, copy: &StateCopy) {
        self.memory.as_mut().expect(AWAKE).states.restore(copy);
    }

    /// Runs all layers over the sequences' tokens and writes their keys and values. Rows are numbered
    /// through all sequences, in order.
    ///
    /// # Panics
    /// If there are more tokens than `max_num_batched_tokens`, blocks or ids are out of range, or the model
    /// sleeps.
    pub fn forward(&mut self, sequences: &[Sequence<'_>]) {
        let Memory { weights, kv, states } = self.memory.as_mut().expect(AWAKE);
        let mut spans = Vec::with_capacity(sequences.len());
        self.num_rows = 0;
        for sequence in sequences {
            spans.push(Span {
                first_row: self.num_rows,
                num_tokens: sequence.tokens.len(),
                start: sequence.start as usize,
                tables: sequence.tables,
                slot: sequence.slot.index(),
                saves: sequence.saves,
            });
            self.num_rows += sequence.tokens.len();
            if sequence.start == 0 {
                states.reset(sequence.slot);
            }
        }
        let positions = || spans.iter().flat_map(|s| s.start..s.start + s.num_tokens);
        for rope in &mut self.ropes {
            rope.set_positions(positions());
        }
        if let Some(scale) = self.spec.attention.query_scale {
            self.query_factors.clear();
            self.query_factors.extend(positions().map(|position| scale.at(position)));
        }
        let tokens: Vec<TokenId> =
            sequences.iter().flat_map(|sequence| sequence.tokens.iter().copied()).collect();
        let pass = Pass {
            spec: &self.of_rank,
            weights,
            ropes: &self.ropes,
            query_factors: &self.query_factors,
            kv,
            states,
            buffers: &mut self.buffers,
            pool: &mut self.pool,
            path: self.path,
            spans: &spans,
            num_rows: self.num_rows,
        };
        pass.run(&tokens);
    }

    /// The last layer's hidden state of a row after the final norm.
    pub fn final_hidden(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.num_rows, "row beyond the step");
        let x = self.buffers.residual.row(row, self.spec.hidden_size as usize);
        rms_norm(self.path, x, &self.memory().weights.final_norm, self.spec.norm.eps, out);
    }

    /// Logits of up to `LOGIT_ROWS` rows of the last forward pass; row i of them is `logit_row(i)`.
    ///
    /// # Panics
    /// If there are too many rows or one is beyond the step.
    pub fn compute_logits(&mut self, rows: &[usize]) {
        let hidden = self.spec.hidden_size as usize;
        let vocab = self.spec.vocab_size as usize;
        let weights = &self.memory.as_ref().expect(AWAKE).weights;
        for (index, row) in rows.iter().enumerate() {
            assert!(*row < self.num_rows, "row beyond the step");
            let x = self.buffers.residual.row(*row, hidden);
            let out = self.buffers.head_input.row_mut(index, hidden);
            rms_norm(self.path, x, &weights.final_norm, self.spec.norm.eps, out);
            if self.spec.logit_scale != 1.0 {
                out.iter_mut().for_each(|x| *x *= self.spec.logit_scale);
            }
        }
        let item = |(matrix, out_col)| Item {
            rows: 0..rows.len(),
            product: Product::Plain(matrix),
            out_col,
        };
        let Weights { embedding, heads, .. } = &**weights;
        let items: Vec<Item<'_>> = match heads.as_slice() {
            [] => vec![item((embedding, 0))],
            heads => heads.iter().map(|head| item((&head.matrix, head.first_row))).collect(),
        };
        let Buffers { head_input, logits, .. } = &mut self.buffers;
        multiply(&mut self.pool, self.path, head_input, &items, logits);
        if let Some(cap) = self.spec.final_logit_softcap {
            let (path, shared) = (self.path, logits.shared());
            self.pool.run(rows.len(), &|row, _| {
                // SAFETY: one task a row.
                soft_cap(path, unsafe { shared.row_part(row, 0, vocab) }, cap);
            });
        }
    }

    /// `[vocab_size]` logits of the i-th row given to `compute_logits`.
    #[must_use]
    pub fn logit_row(&self, index: usize) -> &[f32] {
        self.buffers.logits.row(index, self.spec.vocab_size as usize)
    }

    /// Logits with the vocabulary's size, and the pool, for a sampler that takes several rows at once.
    pub(crate) fn logits_and_pool(&mut self) -> ((&Rows, usize), &mut Pool, VectorPath) {
        let logits = (&self.buffers.logits, self.spec.vocab_size as usize);
        (logits, &mut self.pool, self.path)
    }
}

impl Memory {
    fn new(weights: Arc<Weights>, of_rank: &ModelSpec, config: &CpuConfig) -> Self {
        let ranks = weights.ranks.len();
        let kv = || KvCache::new(of_rank, config.block_size, config.num_blocks);
        Self {
            weights,
            kv: (0..ranks).map(|_| kv()).collect(),
            states: States::new(of_rank, config.num_slots, config.num_snapshots),
        }
    }
}

/// The executor runs no step while its model sleeps.
const AWAKE: &str = "a model that is awake";

#[cfg(test)]
mod tests;
