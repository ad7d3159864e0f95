//! The weights of a model in panels, read from the checkpoint once at load.

mod latent;
mod reader;

use std::cell::RefCell;

use ingle_model::{
    Activation, DeltaNetSpec, FeedForwardSpec, LayerSpec, LayerWeight, MoeSpec, QkNorm, RankModel,
    TokenInputSpec, WeightRole, WeightSource,
};

pub(crate) use latent::LatentWeights;
use reader::Reader;

use crate::CpuError;
use crate::aligned::Arena;
use crate::gemm::Gated;
use crate::matrix::PackedMatrix;
use crate::matrix_reader::File;
use crate::pool::Pool;

/// All weights.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) embedding: PackedMatrix,
    pub(crate) final_norm: Vec<f32>,
    pub(crate) token_input: Option<TokenInput>,
    /// In rank order; none if the embedding is the head.
    pub(crate) heads: Vec<Head>,
    /// `[rank][layer]`
    pub(crate) ranks: Vec<Vec<LayerWeights>>,
}

/// What every layer gets of the token itself.
#[derive(Debug)]
pub(crate) struct TokenInput {
    pub(crate) embedding: PackedMatrix,
    pub(crate) projection: PackedMatrix,
    pub(crate) norm: Vec<f32>,
}

/// A rank's rows of the head.
#[derive(Debug)]
pub(crate) struct Head {
    /// Token id of the first row; a multiple of a panel's rows.
    pub(crate) first_row: usize,
    pub(crate) matrix: PackedMatrix,
}

/// One layer. Norm weights have Gemma's 1 added.
#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) input_norm: Option<Vec<f32>>,
    pub(crate) mixer: Mixer,
    pub(crate) post_attention_norm: Option<Vec<f32>>,
    pub(crate) feed_forward_norm: Option<Vec<f32>>,
    pub(crate) post_feed_forward_norm: Option<Vec<f32>>,
    pub(crate) feed_forward: FeedForward,
    pub(crate) token_gate: Option<Box<TokenGate>>,
    /// What the residual stream is multiplied by at the end; 1 in most models.
    pub(crate) scale: f32,
}

/// How a layer adds what it gets of the token itself.
#[derive(Debug)]
pub(crate) struct TokenGate {
    pub(crate) gate: PackedMatrix,
    pub(crate) output: PackedMatrix,
    pub(crate) norm: Vec<f32>,
}

/// The part that mixes tokens.
#[derive(Debug)]
pub(crate) enum Mixer {
    Attention(Box<AttentionWeights>),
    DeltaNet(Box<DeltaWeights>),
    Latent(Box<LatentWeights>),
}

/// Projections of a layer to its own keys and values.
#[derive(Debug)]
pub(crate) struct KeyWeights {
    pub(crate) key: PackedMatrix,
    /// None where a value is its key, before biases and norms.
    pub(crate) value: Option<PackedMatrix>,
}

/// Attention.
#[derive(Debug)]
pub(crate) struct AttentionWeights {
    /// With an output gate: each head's rows of the query, then those of its gate.
    pub(crate) query: PackedMatrix,
    /// None in a layer that reads those of another.
    pub(crate) keys: Option<KeyWeights>,
    /// Query, key, value.
    pub(crate) qkv_bias: Option<[Vec<f32>; 3]>,
    /// Query, key: over a head, or over all of them.
    pub(crate) qk_norm: Option<[Vec<f32>; 2]>,
    /// Of each head of the values: all ones.
    pub(crate) value_norm: Option<Vec<f32>>,
    /// One a query head.
    pub(crate) sinks: Option<Vec<f32>>,
    pub(crate) output: PackedMatrix,
    pub(crate) output_bias: Option<Vec<f32>>,
}

/// A gated delta net.
#[derive(Debug)]
pub(crate) struct DeltaWeights {
    pub(crate) query: PackedMatrix,
    pub(crate) key: PackedMatrix,
    pub(crate) value: PackedMatrix,
    pub(crate) gate: PackedMatrix,
    pub(crate) beta: PackedMatrix,
    pub(crate) decay: PackedMatrix,
    pub(crate) rule: DeltaRule,
    pub(crate) output: PackedMatrix,
}

/// What it does between its projections.
#[derive(Debug)]
pub(crate) struct DeltaRule {
    /// `[conv_kernel][channels]`, oldest token first.
    pub(crate) conv: Vec<f32>,
    /// One a value head.
    pub(crate) rate: Vec<f32>,
    pub(crate) bias: Vec<f32>,
    /// `[value_dim]`, plain.
    pub(crate) norm: Vec<f32>,
}

impl Mixer {
    fn byte_len(&self) -> usize {
        let matrices = match self {
            Self::Attention(w) => {
                let of_keys = w.keys.iter().flat_map(|keys| [Some(&keys.key), keys.value.as_ref()]);
                [&w.query, &w.output].into_iter().chain(of_keys.flatten()).collect()
            }
            Self::DeltaNet(w) => {
                vec![&w.query, &w.key, &w.value, &w.gate, &w.beta, &w.decay, &w.output]
            }
            Self::Latent(w) => w.matrices(),
        };
        matrices.iter().map(|matrix| matrix.byte_len()).sum()
    }
}

/// The part after attention.
#[derive(Debug)]
pub(crate) enum FeedForward {
    Dense(Box<Network>),
    Moe(Box<Experts>),
}

/// A mixture of experts.
#[derive(Debug)]
pub(crate) struct Experts {
    pub(crate) spec: MoeSpec,
    pub(crate) router: PackedMatrix,
    pub(crate) router_bias: Option<Vec<f32>>,
    /// Added to scores for the choice.
    pub(crate) correction: Option<Vec<f32>>,
    /// Those that this rank computes; the number of the first one is `first`.
    pub(crate) experts: Vec<Network>,
    pub(crate) first: usize,
    /// The network that every row visits.
    pub(crate) shared: Option<Network>,
    /// The sigmoid of its product is that network's weight.
    pub(crate) shared_score: Option<PackedMatrix>,
    pub(crate) own_norms: Option<ExpertNorms>,
}

/// Norms of experts beside the usual network.
#[derive(Debug)]
pub(crate) struct ExpertNorms {
    /// Of what the router sees.
    pub(crate) router: Vec<f32>,
    /// Of what the experts see.
    pub(crate) input: Vec<f32>,
    /// Of what the shared network gives.
    pub(crate) shared: Vec<f32>,
    /// Of what the experts give.
    pub(crate) output: Vec<f32>,
    /// A chosen expert's weight is multiplied by this.
    pub(crate) scales: Vec<f32>,
}

/// One feed-forward network.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) gate: PackedMatrix,
    pub(crate) up: PackedMatrix,
    pub(crate) down: PackedMatrix,
    pub(crate) gate_bias: Option<Vec<f32>>,
    pub(crate) up_bias: Option<Vec<f32>>,
    pub(crate) down_bias: Option<Vec<f32>>,
}

impl Network {
    /// Gate and up as one product.
    pub(crate) fn gated(&self, activation: Activation) -> Gated<'_> {
        Gated {
            gate: &self.gate,
            up: &self.up,
            gate_bias: self.gate_bias.as_deref(),
            up_bias: self.up_bias.as_deref(),
            activation,
        }
    }
}

impl Weights {
    /// Bytes that one decode step reads: all matrices, of the experts only those that one row visits;
    /// an embedding that is not also the head costs nothing.
    pub(crate) fn bytes_per_step(&self) -> usize {
        let network = |n: &Network| n.gate.byte_len() + n.up.byte_len() + n.down.byte_len();
        let mut bytes = match self.heads.as_slice() {
            [] => self.embedding.byte_len(),
            heads => heads.iter().map(|head| head.matrix.byte_len()).sum(),
        };
        for layer in self.ranks.iter().flatten() {
            bytes += layer.mixer.byte_len();
            if let Some(token) = &layer.token_gate {
                bytes += token.gate.byte_len() + token.output.byte_len();
            }
            bytes += match &layer.feed_forward {
                FeedForward::Dense(dense) => network(dense),
                FeedForward::Moe(moe) => {
                    let visited = moe.experts.iter().take(moe.spec.experts_per_token as usize);
                    let networks = visited.chain(&moe.shared).map(network).sum::<usize>();
                    moe.router.byte_len() + networks
                }
            };
        }
        bytes
    }
}

/// Reads everything that the ranks' specs ask for.
pub(crate) fn load(
    ranks: &[RankModel],
    source: &dyn WeightSource,
    pool: &mut Pool,
) -> Result<Weights, CpuError> {
    let (pool, arena) = (RefCell::new(pool), Arena::default());
    let readers: Vec<Reader<'_>> = ranks
        .iter()
        .map(|model| {
            let file = File { names: &model.plan.files, source, arena: &arena };
            Reader { model, spec: &model.spec, plan: &model.plan, file, pool: &pool }
        })
        .collect();
    let first = &readers[0];
    let spec = first.spec;
    let (hidden, vocab) = (spec.hidden_size as usize, spec.vocab_size as usize);
    let heads = readers.iter().filter(|reader| !reader.spec.tie_word_embeddings);
    Ok(Weights {
        embedding: first.matrix(WeightRole::Embedding, vocab, hidden)?,
        final_norm: first.norm(WeightRole::FinalNorm, hidden)?,
        token_input: spec.token_input.map(|input| first.token_input(input)).transpose()?,
        heads: heads.map(Reader::head).collect::<Result<_, _>>()?,
        ranks: readers.iter().map(Reader::layers).collect::<Result<_, _>>()?,
    })
}

impl Reader<'_> {
    fn head(&self) -> Result<Head, CpuError> {
        let rows = &self.model.vocabulary;
        let hidden = self.spec.hidden_size as usize;
        let matrix = self.matrix(WeightRole::LmHead, rows.len(), hidden)?;
        Ok(Head { first_row: rows.start as usize, matrix })
    }

    fn layers(&self) -> Result<Vec<LayerWeights>, CpuError> {
        (0..).zip(&self.spec.layers).map(|(index, layer)| self.layer(index, layer)).collect()
    }

    fn layer(&self, index: u32, layer: &LayerSpec) -> Result<LayerWeights, CpuError> {
        use LayerWeight as W;
        let role = |part| WeightRole::Layer(index, part);
        let spec = self.spec;
        let hidden = spec.hidden_size as usize;
        let norm_if =
            |wanted: bool, part| wanted.then(|| self.norm(role(part), hidden)).transpose();
        let mixer = match (&layer.delta_net, &spec.attention.latent) {
            (Some(net), _) => Mixer::DeltaNet(Box::new(self.delta_net(index, net)?)),
            (None, Some(latent)) => Mixer::Latent(Box::new(self.latent(index, latent)?)),
            (None, None) => Mixer::Attention(Box::new(self.attention(index, layer)?)),
        };
        Ok(LayerWeights {
            input_norm: norm_if(spec.pre_norms, W::InputNorm)?,
            mixer,
            post_attention_norm: norm_if(spec.post_norms, W::PostAttentionNorm)?,
            feed_forward_norm: norm_if(spec.pre_norms, W::FeedForwardNorm)?,
            post_feed_forward_norm: norm_if(spec.post_norms, W::PostFeedForwardNorm)?,
            feed_forward: self.feed_forward(index, layer.feed_forward)?,
            token_gate: spec
                .token_input
                .map(|input| self.token_gate(index, input).map(Box::new))
                .transpose()?,
            scale: match spec.scales_layers {
                true => self.vector(role(W::Scale), 1)?[0],
                false => 1.0,
            },
        })
    }

    fn token_input(&self, input: TokenInputSpec) -> Result<TokenInput, CpuError> {
        let (hidden, size) = (self.spec.hidden_size as usize, input.size as usize);
        let (vocab, all) = (self.spec.vocab_size as usize, size * self.spec.layers.len());
        Ok(TokenInput {
            embedding: self.matrix(WeightRole::TokenInputEmbedding, vocab, all)?,
            projection: self.matrix(WeightRole::TokenInputProjection, all, hidden)?,
            norm: self.norm(WeightRole::TokenInputNorm, size)?,
        })
    }

    fn token_gate(&self, index: u32, input: TokenInputSpec) -> Result<TokenGate, CpuError> {
        use LayerWeight as W;
        let role = |part| WeightRole::Layer(index, part);
        let (hidden, size) = (self.spec.hidden_size as usize, input.size as usize);
        Ok(TokenGate {
            gate: self.matrix(role(W::TokenGate), size, hidden)?,
            output: self.matrix(role(W::TokenOutput), hidden, size)?,
            norm: self.norm(role(W::TokenNorm), hidden)?,
        })
    }

    fn expert_norms(&self, index: u32, num_experts: usize) -> Result<ExpertNorms, CpuError> {
        use LayerWeight as W;
        let role = |part| WeightRole::Layer(index, part);
        let hidden = self.spec.hidden_size as usize;
        let mut router = self.norm(role(W::RouterNorm), hidden)?;
        let root = (self.spec.hidden_size as f32).sqrt();
        router.iter_mut().for_each(|weight| *weight /= root);
        Ok(ExpertNorms {
            router,
            input: self.norm(role(W::ExpertNorm), hidden)?,
            shared: self.norm(role(W::SharedPostNorm), hidden)?,
            output: self.norm(role(W::ExpertPostNorm), hidden)?,
            scales: self.vector(role(W::RouterScale), num_experts)?,
        })
    }

    fn delta_net(&self, index: u32, net: &DeltaNetSpec) -> Result<DeltaWeights, CpuError> {
        use LayerWeight as W;
        let role = |part| WeightRole::Layer(index, part);
        let hidden = self.spec.hidden_size as usize;
        let heads = net.num_value_heads as usize;
        let (key, value) = (net.key_width() as usize, net.value_width() as usize);
        let (channels, kernel) = (net.channels() as usize, net.conv_kernel as usize);
        let stored = self.numbers(role(W::DeltaConv), channels, kernel)?;
        let conv = (0..kernel).flat_map(|tap| stored[tap..].iter().step_by(kernel).copied());
        let log_rate = self.vector(role(W::DeltaLogRate), heads)?;
        Ok(DeltaWeights {
            query: self.matrix(role(W::DeltaQuery), key, hidden)?,
            key: self.matrix(role(W::DeltaKey), key, hidden)?,
            value: self.matrix(role(W::DeltaValue), value, hidden)?,
            gate: self.matrix(role(W::DeltaGate), value, hidden)?,
            beta: self.matrix(role(W::DeltaBeta), heads, hidden)?,
            decay: self.matrix(role(W::DeltaDecay), heads, hidden)?,
            rule: DeltaRule {
                conv: conv.collect(),
                rate: log_rate.into_iter().map(f32::exp).collect(),
                bias: self.vector(role(W::DeltaBias), heads)?,
                norm: self.vector(role(W::DeltaNorm), net.value_dim as usize)?,
            },
            output: self.matrix(role(W::DeltaOutput), hidden, value)?,
        })
    }

    fn attention(&self, index: u32, layer: &LayerSpec) -> Result<AttentionWeights, CpuError> {
        use LayerWeight as W;
        let role = |part| WeightRole::Layer(index, part);
        let spec = self.spec;
        let hidden = spec.hidden_size as usize;
        let heads = spec.heads(layer);
        let has_keys = layer.keys_of.is_none();
        let head_dim = heads.head_dim as usize;
        let q_len = spec.num_attention_heads as usize * head_dim;
        let kv_len = heads.kv_width() as usize;
        let query_rows = q_len * (1 + usize::from(spec.attention.output_gate));
        let optional =
            |wanted: bool, part, len| wanted.then(|| self.vector(role(part), len)).transpose();
        let qkv_bias = if spec.attention.qkv_bias {
            let of_keys = |part| match has_keys {
                true => self.vector(role(part), kv_len),
                false => Ok(Vec::new()),
            };
            let query = self.vector(role(W::QueryBias), q_len)?;
            Some([query, of_keys(W::KeyBias)?, of_keys(W::ValueBias)?])
        } else {
            None
        };
        let norms = |q_len, kv_len| -> Result<_, CpuError> {
            let query = self.norm(role(W::QueryNorm), q_len)?;
            let key = match has_keys {
                true => self.norm(role(W::KeyNorm), kv_len)?,
                false => Vec::new(),
            };
            Ok(Some([query, key]))
        };
        let qk_norm = match spec.attention.qk_norm {
            QkNorm::None => None,
            QkNorm::Head => norms(head_dim, head_dim)?,
            QkNorm::Unweighted => layer.rope.map(|_| [vec![1.0; head_dim], vec![1.0; head_dim]]),
            QkNorm::Full => norms(q_len, kv_len)?,
        };
        Ok(AttentionWeights {
            query: self.matrix(role(W::Query), query_rows, hidden)?,
            keys: match has_keys {
                true => Some(KeyWeights {
                    key: self.matrix(role(W::Key), kv_len, hidden)?,
                    value: (!layer.values_are_keys)
                        .then(|| self.matrix(role(W::Value), kv_len, hidden))
                        .transpose()?,
                }),
                false => None,
            },
            qkv_bias,
            qk_norm,
            value_norm: (has_keys && spec.attention.value_norm).then(|| vec![1.0; head_dim]),
            sinks: optional(spec.attention.sinks, W::Sinks, spec.num_attention_heads as usize)?,
            output: self.matrix(role(W::Output), hidden, q_len)?,
            output_bias: optional(spec.attention.o_bias, W::OutputBias, hidden)?,
        })
    }

    fn feed_forward(&self, layer: u32, spec: FeedForwardSpec) -> Result<FeedForward, CpuError> {
        use LayerWeight as W;
        let role = |part| WeightRole::Layer(layer, part);
        let hidden = self.spec.hidden_size as usize;
        let network = |parts: [W; 3], size: usize| -> Result<Network, CpuError> {
            Ok(Network {
                gate: self.matrix(role(parts[0]), size, hidden)?,
                up: self.matrix(role(parts[1]), size, hidden)?,
                down: self.matrix(role(parts[2]), hidden, size)?,
                gate_bias: None,
                up_bias: None,
                down_bias: None,
            })
        };
        match spec {
            FeedForwardSpec::Dense { intermediate_size, bias } => {
                let size = intermediate_size as usize;
                let mut dense = network([W::Gate, W::Up, W::Down], size)?;
                if bias {
                    dense.gate_bias = Some(self.vector(role(W::GateBias), size)?);
                    dense.up_bias = Some(self.vector(role(W::UpBias), size)?);
                    dense.down_bias = Some(self.vector(role(W::DownBias), hidden)?);
                }
                Ok(FeedForward::Dense(Box::new(dense)))
            }
            FeedForwardSpec::Moe(spec) => {
                let size = spec.intermediate_size as usize;
                let num_experts = spec.num_experts as usize;
                let expert = |e| -> Result<Network, CpuError> {
                    let mut expert =
                        network([W::ExpertGate(e), W::ExpertUp(e), W::ExpertDown(e)], size)?;
                    if spec.bias {
                        expert.gate_bias = Some(self.vector(role(W::ExpertGateBias(e)), size)?);
                        expert.up_bias = Some(self.vector(role(W::ExpertUpBias(e)), size)?);
                        if self.model.adds_expert_bias {
                            let bias = self.vector(role(W::ExpertDownBias(e)), hidden)?;
                            expert.down_bias = Some(bias);
                        }
                    }
                    Ok(expert)
                };
                let shared = [W::SharedGate, W::SharedUp, W::SharedDown];
                let vector = |wanted: bool, part| {
                    wanted.then(|| self.vector(role(part), num_experts)).transpose()
                };
                Ok(FeedForward::Moe(Box::new(Experts {
                    spec,
                    router: self.matrix(role(W::Router), num_experts, hidden)?,
                    router_bias: vector(spec.router.bias, W::RouterBias)?,
                    correction: vector(spec.router.correction, W::RouterCorrection)?,
                    experts: self.model.experts.clone().map(expert).collect::<Result<_, _>>()?,
                    first: self.model.experts.start as usize,
                    shared: spec
                        .shared_size
                        .map(|size| network(shared, size as usize))
                        .transpose()?,
                    shared_score: spec
                        .shared_score
                        .then(|| self.matrix(role(W::SharedScore), 1, hidden))
                        .transpose()?,
                    own_norms: spec
                        .own_norms
                        .then(|| self.expert_norms(layer, num_experts))
                        .transpose()?,
                })))
            }
        }
    }
}
