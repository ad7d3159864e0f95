//! Which part of a model each rank of a tensor-parallel group has. Pure arithmetic, at load.
//!
//! A rank computes some of the heads, of the inner columns of every feed-forward network and of the rows of the
//! head. Its products back to the hidden size are partial sums: the ranks' are added in rank order. All the rest
//! (norms, embedding, router) is whole on every rank, so that all of them hold the same residual stream.

mod slice;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::{
    CopyPlan, FeedForwardSpec, LayerWeight, ModelSpec, MoeSpec, QkNorm, TensorView, WeightRole,
};

/// A model cut for a number of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    spec: ModelSpec,
    ranks: u32,
    experts: ExpertCut,
}

/// How experts are given to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertCut {
    /// Each rank has a part of the inner columns of every expert.
    Inner,
    /// Each rank has some experts whole.
    Whole,
}

/// The part of a tensor that a rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All of it, as every rank.
    Whole,
    /// These rows of a matrix.
    Rows(Range<u32>),
    /// These columns of a matrix, or elements of a vector.
    Columns(Range<u32>),
    /// None of it.
    Absent,
}

/// What one rank has of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RankModel {
    /// Below the number of ranks.
    pub rank: u32,
    /// The model as this rank computes it: its heads, its inner sizes. `vocab_size` is the whole model's, and so is
    /// the number of experts.
    pub spec: ModelSpec,
    /// The rank's tensors. Of several ranks each has a head, also where the whole model uses its embedding as one.
    pub plan: CopyPlan,
    /// Rows of the head.
    pub vocabulary: Range<u32>,
    /// The experts that this rank computes, all or a part of each; empty without experts.
    pub experts: Range<u32>,
    /// Whether this rank adds the biases that follow the products of experts, which are part of its sum.
    pub adds_expert_bias: bool,
}

/// Why a model cannot be cut for so many ranks. Each message is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// A number that the ranks do not divide.
    #[error("tensor_parallel_size {ranks}: does not divide {what} ({value})")]
    Uneven {
        /// Ranks asked for.
        ranks: u32,
        /// What is to be divided, as config.json names it.
        what: &'static str,
        /// How many there are.
        value: u32,
    },
    /// Key and value heads that can neither be divided nor repeated evenly.
    #[error(
        "tensor_parallel_size {ranks}: num_key_value_heads ({kv_heads}) is neither a multiple nor a divisor"
    )]
    KvHeads {
        /// Ranks asked for.
        ranks: u32,
        /// How many there are.
        kv_heads: u32,
    },
    /// A part too narrow for the kernels.
    #[error(
        "tensor_parallel_size {ranks}: {what} ({value}) leaves {part} a rank, want a multiple of {WIDTH}"
    )]
    Narrow {
        /// Ranks asked for.
        ranks: u32,
        /// What is to be divided, as config.json names it.
        what: &'static str,
        /// Its size.
        value: u32,
        /// What a rank would have.
        part: u32,
    },
    /// A model whose layers need more than sums from the other ranks.
    #[error("tensor_parallel_size {ranks}: {what} cannot be divided among ranks")]
    Unsupported {
        /// Ranks asked for.
        ranks: u32,
        /// The part of the model.
        what: &'static str,
    },
    /// Experts are to be spread, and there are none.
    #[error("enable_expert_parallel: the model has no experts")]
    NoExperts,
    /// A tensor whose storage has no cut where one is needed.
    #[error("tensor_parallel_size {ranks}: tensor {tensor}: {reason}")]
    Tensor {
        /// Ranks asked for.
        ranks: u32,
        /// Its name in the file.
        tensor: String,
        /// Where the cut would be, and where cuts can be.
        reason: String,
    },
}

/// Columns and rows are cut at multiples of this.
const WIDTH: u32 = 8;
/// Rows of the head are cut at multiples of this.
const VOCABULARY_ROWS: u32 = 64;

impl Partition {
    /// Cuts a model.
    ///
    /// # Errors
    /// A model that cannot be cut for so many ranks. One rank is always possible.
    ///
    /// # Panics
    /// If `ranks` is 0.
    pub fn new(spec: &ModelSpec, ranks: u32, experts: ExpertCut) -> Result<Self, PartitionError> {
        assert!(ranks > 0, "a group of no ranks");
        let partition = Self { spec: spec.clone(), ranks, experts };
        if ranks > 1 {
            partition.check()?;
        }
        Ok(partition)
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// What a rank has of a checkpoint's tensors.
    ///
    /// # Errors
    /// `PartitionError::Tensor` for a tensor that is stored in blocks which a cut would divide.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn rank_model(&self, rank: u32, plan: &CopyPlan) -> Result<RankModel, PartitionError> {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        let mut tensors = BTreeMap::new();
        for (&role, view) in &plan.tensors {
            if let Some(view) = self.part(role, rank, view)? {
                tensors.insert(role, view);
            }
        }
        if self.ranks > 1
            && !plan.tensors.contains_key(&WeightRole::LmHead)
            && let Some(embedding) = plan.tensors.get(&WeightRole::Embedding)
            && let Some(head) = self.part(WeightRole::LmHead, rank, embedding)?
        {
            tensors.insert(WeightRole::LmHead, head);
        }
        Ok(RankModel {
            rank,
            spec: self.local_spec(),
            plan: CopyPlan { files: plan.files.clone(), tensors },
            vocabulary: self.vocabulary(rank),
            experts: self.experts_of(rank),
            adds_expert_bias: self.experts == ExpertCut::Whole || rank == 0,
        })
    }

    /// The model as each rank computes it.
    #[must_use]
    pub fn local_spec(&self) -> ModelSpec {
        let mut spec = self.spec.clone();
        if self.ranks == 1 {
            return spec;
        }
        spec.num_attention_heads /= self.ranks;
        spec.num_kv_heads = (spec.num_kv_heads / self.ranks).max(1);
        spec.tie_word_embeddings = false;
        for layer in &mut spec.layers {
            match &mut layer.feed_forward {
                FeedForwardSpec::Dense { intermediate_size, .. } => {
                    *intermediate_size /= self.ranks
                }
                FeedForwardSpec::Moe(moe) => {
                    if self.experts == ExpertCut::Inner {
                        moe.intermediate_size /= self.ranks;
                    }
                    moe.shared_size = moe.shared_size.map(|size| size / self.ranks);
                }
            }
        }
        spec
    }

    /// The rows of the head that a rank has: in pieces of 64, the first ranks have one more where they do not divide.
    #[must_use]
    pub fn vocabulary(&self, rank: u32) -> Range<u32> {
        let vocab = self.spec.vocab_size;
        let pieces = vocab.div_ceil(VOCABULARY_ROWS);
        let (each, more) = (pieces / self.ranks, pieces % self.ranks);
        let start = |rank: u32| (rank * each + rank.min(more)) * VOCABULARY_ROWS;
        start(rank).min(vocab)..start(rank + 1).min(vocab)
    }

    /// The experts of which a rank has something.
    #[must_use]
    pub fn experts_of(&self, rank: u32) -> Range<u32> {
        let experts = self.moe_layers().map(|moe| moe.num_experts).max().unwrap_or(0);
        match self.experts {
            ExpertCut::Inner => 0..experts,
            ExpertCut::Whole => self.part_of(experts, rank),
        }
    }

    /// The part of a tensor that a rank has.
    #[must_use]
    pub fn cut(&self, role: WeightRole, rank: u32) -> Cut {
        if self.ranks == 1 {
            return Cut::Whole;
        }
        match role {
            WeightRole::Embedding
            | WeightRole::FinalNorm
            | WeightRole::TokenInputEmbedding
            | WeightRole::TokenInputProjection
            | WeightRole::TokenInputNorm => Cut::Whole,
            WeightRole::LmHead => Cut::Rows(self.vocabulary(rank)),
            WeightRole::Layer(layer, part) => self.cut_of_layer(layer, part, rank),
        }
    }

    fn cut_of_layer(&self, layer: u32, part: LayerWeight, rank: u32) -> Cut {
        use LayerWeight as W;
        let spec = &self.spec;
        let query_rows = spec.head_dim * (1 + u32::from(spec.attention.output_gate));
        let queries = |width: u32| scaled(self.part_of(spec.num_attention_heads, rank), width);
        let keys = || scaled(self.kv_heads(rank), spec.head_dim);
        if let Some(latent) = &spec.attention.latent {
            // The latent and what leads to it are whole on every rank.
            match part {
                W::Query => return Cut::Rows(queries(latent.query_dim())),
                W::LatentUp => return Cut::Rows(queries(latent.up_rows())),
                W::Output => return Cut::Columns(queries(latent.value_dim)),
                _ => {}
            }
        }
        let (dense, expert, shared) = self.inner_sizes(layer);
        let inner = |size: u32| self.part_of(size, rank);
        match part {
            W::Query => Cut::Rows(queries(query_rows)),
            W::QueryBias => Cut::Columns(queries(query_rows)),
            W::Key | W::Value => Cut::Rows(keys()),
            W::KeyBias | W::ValueBias => Cut::Columns(keys()),
            W::Sinks => Cut::Columns(queries(1)),
            W::Output => Cut::Columns(queries(spec.head_dim)),
            W::Gate | W::Up => Cut::Rows(inner(dense)),
            W::GateBias | W::UpBias | W::Down => Cut::Columns(inner(dense)),
            W::SharedGate | W::SharedUp => Cut::Rows(inner(shared)),
            W::SharedDown => Cut::Columns(inner(shared)),
            W::ExpertGate(e) | W::ExpertUp(e) => {
                self.cut_of_expert(e, rank, Cut::Rows(inner(expert)))
            }
            W::ExpertGateBias(e) | W::ExpertUpBias(e) | W::ExpertDown(e) => {
                self.cut_of_expert(e, rank, Cut::Columns(inner(expert)))
            }
            // Part of the sum that a token's experts give, so that one rank alone adds it.
            W::ExpertDownBias(e) => {
                let inner = if rank == 0 { Cut::Whole } else { Cut::Absent };
                self.cut_of_expert(e, rank, inner)
            }
            _ => Cut::Whole,
        }
    }

    fn cut_of_expert(&self, expert: u32, rank: u32, inner: Cut) -> Cut {
        match self.experts {
            ExpertCut::Inner => inner,
            ExpertCut::Whole if self.experts_of(rank).contains(&expert) => Cut::Whole,
            ExpertCut::Whole => Cut::Absent,
        }
    }

    fn part(
        &self,
        role: WeightRole,
        rank: u32,
        view: &TensorView,
    ) -> Result<Option<TensorView>, PartitionError> {
        let part = match self.cut(role, rank) {
            Cut::Whole => Ok(view.clone()),
            Cut::Rows(rows) => view.rows_of(rows),
            Cut::Columns(columns) => view.columns_of(columns),
            Cut::Absent => return Ok(None),
        };
        let ranks = self.ranks;
        part.map(Some).map_err(|reason| PartitionError::Tensor {
            ranks,
            tensor: view.name.clone(),
            reason,
        })
    }

    /// A rank's key and value heads: one that others have too, where there are fewer heads than ranks.
    fn kv_heads(&self, rank: u32) -> Range<u32> {
        let heads = self.spec.num_kv_heads;
        if heads < self.ranks {
            let head = rank * heads / self.ranks;
            return head..head + 1;
        }
        self.part_of(heads, rank)
    }

    fn part_of(&self, size: u32, rank: u32) -> Range<u32> {
        let each = size / self.ranks;
        rank * each..(rank + 1) * each
    }

    fn moe_layers(&self) -> impl Iterator<Item = MoeSpec> {
        self.spec.layers.iter().filter_map(|layer| match layer.feed_forward {
            FeedForwardSpec::Moe(moe) => Some(moe),
            FeedForwardSpec::Dense { .. } => None,
        })
    }

    /// Inner sizes of a layer's dense network, of its experts and of the shared network; 0 where there is none.
    fn inner_sizes(&self, layer: u32) -> (u32, u32, u32) {
        match self.spec.layers.get(layer as usize).map(|layer| layer.feed_forward) {
            Some(FeedForwardSpec::Dense { intermediate_size, .. }) => (intermediate_size, 0, 0),
            Some(FeedForwardSpec::Moe(moe)) => {
                (0, moe.intermediate_size, moe.shared_size.unwrap_or(0))
            }
            None => (0, 0, 0),
        }
    }

    fn check(&self) -> Result<(), PartitionError> {
        let (spec, ranks) = (&self.spec, self.ranks);
        let unsupported = |what| Err(PartitionError::Unsupported { ranks, what });
        if spec.layers.iter().any(|layer| layer.delta_net.is_some()) {
            return unsupported("a gated delta net");
        }
        if spec.layers.iter().any(|layer| layer.heads.is_some() || layer.keys_of.is_some()) {
            return unsupported("a model whose layers differ in their heads");
        }
        if self.moe_layers().any(|moe| moe.own_norms) {
            return unsupported("experts with norms of their own");
        }
        if spec.attention.qk_norm == QkNorm::Full {
            return unsupported("a norm over all heads of queries and keys");
        }
        self.divides("num_attention_heads", spec.num_attention_heads)?;
        let kv_heads = spec.num_kv_heads;
        if !kv_heads.is_multiple_of(ranks) && !ranks.is_multiple_of(kv_heads) {
            return Err(PartitionError::KvHeads { ranks, kv_heads });
        }
        for layer in &spec.layers {
            match layer.feed_forward {
                FeedForwardSpec::Dense { intermediate_size, .. } => {
                    self.is_wide("intermediate_size", intermediate_size)?;
                }
                FeedForwardSpec::Moe(moe) => {
                    match self.experts {
                        ExpertCut::Inner => {
                            self.is_wide("moe_intermediate_size", moe.intermediate_size)?;
                        }
                        ExpertCut::Whole => self.divides("num_experts", moe.num_experts)?,
                    }
                    self.is_wide("the size of shared experts", moe.shared_size.unwrap_or(0))?;
                }
            }
        }
        if self.experts == ExpertCut::Whole && self.moe_layers().next().is_none() {
            return Err(PartitionError::NoExperts);
        }
        if self.vocabulary(ranks - 1).is_empty() {
            let (what, value) = ("vocab_size", spec.vocab_size);
            return Err(PartitionError::Narrow { ranks, what, value, part: 0 });
        }
        Ok(())
    }

    fn divides(&self, what: &'static str, value: u32) -> Result<(), PartitionError> {
        let ranks = self.ranks;
        if value.is_multiple_of(ranks) {
            return Ok(());
        }
        Err(PartitionError::Uneven { ranks, what, value })
    }

    fn is_wide(&self, what: &'static str, value: u32) -> Result<(), PartitionError> {
        self.divides(what, value)?;
        let (ranks, part) = (self.ranks, value / self.ranks);
        if part.is_multiple_of(WIDTH) {
            return Ok(());
        }
        Err(PartitionError::Narrow { ranks, what, value, part })
    }
}

fn scaled(range: Range<u32>, width: u32) -> Range<u32> {
    range.start * width..range.end * width
}
