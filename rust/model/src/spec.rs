//! Describes what a decoder-only transformer computes, independent of the file format. Plain data.

use crate::{KvFormat, WeightType};

/// A decoder-only transformer. Built by the readers of config.json and GGUF, checked before any
/// weight is read; executors trust it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// `model_type` of config.json, or `general.architecture` of GGUF.
    pub architecture: String,
    /// Rows of the embedding and the head.
    pub vocab_size: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Query heads.
    pub num_attention_heads: u32,
    /// Key and value heads; divides `num_attention_heads`.
    pub num_kv_heads: u32,
    /// Width of a head; not always `hidden_size / num_attention_heads`.
    pub head_dim: u32,
    /// Longest context that the checkpoint declares.
    pub max_position_embeddings: u32,
    /// All norms of the model.
    pub norm: NormSpec,
    /// The rotations of the layers, each once; `LayerSpec::rope` is an index.
    pub ropes: Vec<RopeSpec>,
    /// Attention details that all layers share.
    pub attention: AttentionSpec,
    /// Of the gate.
    pub activation: Activation,
    /// A norm before attention and before the feed-forward part.
    pub pre_norms: bool,
    /// A norm after both, before the residual stream is added.
    pub post_norms: bool,
    /// Embeddings are multiplied by this (Gemma: square root of `hidden_size`); else 1.
    pub embedding_scale: f32,
    /// What the head computes is multiplied by this.
    pub logit_scale: f32,
    /// Then logits become `cap * tanh(logits / cap)`.
    pub final_logit_softcap: Option<f32>,
    /// The head is the embedding, or there is none.
    pub tie_word_embeddings: bool,
    /// The type most weights are stored in.
    pub weight_type: WeightType,
    /// How keys and values are kept. Not the checkpoint's choice but the operator's.
    pub kv_format: KvFormat,
    /// What every layer gets of the token itself besides the residual stream (Gemma 4).
    pub token_input: Option<TokenInputSpec>,
    /// Each layer multiplies the residual stream by a number of its own, last of all (Gemma 4).
    pub scales_layers: bool,
    /// Why the model makes embeddings only; `None` if it generates text.
    pub embeds_only: Option<EmbedsOnly>,
    /// One per layer.
    pub layers: Vec<LayerSpec>,
}

/// Why a checkpoint makes embeddings only. Displays as a clause: `it has no output layer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbedsOnly {
    /// A token sees the whole prompt, so there is no next one.
    Bidirectional,
    /// It is published as a sentence-transformers model.
    SentenceTransformers,
    /// Its GGUF file states a pooling.
    Pooled,
    /// It was saved without its output layer.
    NoOutputLayer,
}

impl std::fmt::Display for EmbedsOnly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bidirectional => "its attention is bidirectional",
            Self::SentenceTransformers => "it is a sentence-transformers model",
            Self::Pooled => "its file says how to pool",
            Self::NoOutputLayer => "it has no output layer",
        })
    }
}

/// Root-mean-square norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Added to the mean square.
    pub eps: f32,
    /// Gemma: multiply by `1 + weight` (GGUF files store it already added).
    pub plus_one: bool,
}

/// What all attention layers share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// A token sees only itself and what comes before it. If not, it sees its whole sequence: then a
    /// prompt must be computed in one step, and no layer has a window.
    pub causal: bool,
    /// Windows of layers are chunks: a sequence is cut into chunks of a window's length, and a token sees its own chunk
    /// up to itself (Llama 4).
    pub chunks: bool,
    /// Scores are multiplied by this.
    pub scale: f32,
    /// Scores become `cap * tanh(scores / cap)` before the mask.
    pub logit_softcap: Option<f32>,
    /// Before the rotation.
    pub qk_norm: QkNorm,
    /// RMS norm of each head of the values, without weights (Gemma 4).
    pub value_norm: bool,
    /// Queries are multiplied by a factor that grows with their position.
    pub query_scale: Option<QueryScale>,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// Bias on the output projection.
    pub o_bias: bool,
    /// Each query head has a logit of its own that joins the softmax and has no value (gpt-oss).
    pub sinks: bool,
    /// What attention gives is multiplied by the sigmoid of a gate (Qwen3-Next): the projection to queries
    /// is twice as wide, each head's query followed by its gate.
    pub output_gate: bool,
    /// Keys and values of all heads are products of one short vector a token (DeepSeek V2).
    pub latent: Option<LatentSpec>,
}

/// Multi-head latent attention (DeepSeek-AI 2024, section 2.1). All heads read one vector of a token, its latent, beside
/// a key that rotates:
///
/// ```text
/// c = norm(x Wdown)     r = rope(x Wrope)                        kept: `rank` and `rope_dim` numbers a token
/// q, p = norm(x Qdown) Qup, or x Q                               of each head: `plain_dim` and `rope_dim` numbers
/// score = (q (c Wkey) + rope(p) r) * scale                       Wkey, Wvalue: a head's rows of `LatentUp`
/// out = sum of weight * (c Wvalue)
/// ```
///
/// Executors move Wkey to the query and Wvalue behind the sum, so that a token has one key `[c | r]`, whose first `rank`
/// numbers are its value, for all heads: `ModelSpec::num_kv_heads` is 1, and `head_dim` is `rank + rope_dim`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentSpec {
    /// Width of what queries are computed from; `None`: the residual stream's norm itself.
    pub query_rank: Option<u32>,
    /// Width of the latent.
    pub rank: u32,
    /// Elements of a query that rotate, the last ones, and of the key that does.
    pub rope_dim: u32,
    /// Elements of a query that do not.
    pub plain_dim: u32,
    /// Elements of a value.
    pub value_dim: u32,
    /// Of the norms of the latent and of what queries are computed from.
    pub norm_eps: f32,
}

impl LatentSpec {
    /// Width of a head of the query.
    #[must_use]
    pub fn query_dim(&self) -> u32 {
        self.plain_dim + self.rope_dim
    }

    /// Numbers that a token keeps.
    #[must_use]
    pub fn kept_dim(&self) -> u32 {
        self.rank + self.rope_dim
    }

    /// Rows of `LatentUp` of a head: those of its keys, then those of its values.
    #[must_use]
    pub fn up_rows(&self) -> u32 {
        self.plain_dim + self.value_dim
    }
}

/// RMS norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// There is none.
    None,
    /// Over each head, weights `[head_dim]`.
    Head,
    /// Over each head, without weights, in layers that rotate (Llama 4; there after the rotation, which changes no
    /// head's length).
    Unweighted,
    /// Over all heads of q, and over all of k; weights `[num_attention_heads * head_dim]` and
    /// `[num_kv_heads * head_dim]`.
    Full,
}

/// A query at position p is multiplied by `1 + beta * ln(1 + floor(p / length))` (Ministral 3), or p + 1 in place of p
/// in layers that do not rotate alone (Llama 4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScale {
    /// Above 0.
    pub beta: f32,
    /// Length of training.
    pub length: u32,
    /// As in Llama 4.
    pub without_rope: bool,
}

impl QueryScale {
    /// The factor at a position.
    #[must_use]
    pub fn at(&self, position: usize) -> f32 {
        let position = position + usize::from(self.without_rope);
        let lengths = position / self.length.max(1) as usize;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^24")]
        let lengths = lengths as f32;
        1.0 + self.beta * (1.0 + lengths).ln()
    }
}

/// What becomes of gate and up: `act(gate) * up`, with one exception.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// x * sigmoid(x)
    Silu,
    /// GELU, tanh approximation.
    GeluTanh,
    /// `g * sigmoid(1.702 * g) * (u + 1)`, where g is the gate, at most `limit`, and u is up, between
    /// `-limit` and `limit` (gpt-oss).
    ClampedSwiglu {
        /// Above 0.
        limit: f32,
    },
}

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// A token sees itself and the `window - 1` tokens before it, or a chunk (`AttentionSpec::chunks`); `None` sees all.
    pub window: Option<u32>,
    /// Which of `ModelSpec::ropes` rotates queries and keys; `None`: they stay as they are.
    pub rope: Option<usize>,
    /// The layer has this instead of attention; then it has no window and no rope.
    pub delta_net: Option<DeltaNetSpec>,
    /// Sizes of its heads where they are not the model's.
    pub heads: Option<HeadSizes>,
    /// It reads the keys and values of this earlier layer, and has none of its own (Gemma 4).
    pub keys_of: Option<u32>,
    /// Values are what the projection to keys gives, before the keys' norm and rotation (Gemma 4).
    pub values_are_keys: bool,
    /// The part after attention.
    pub feed_forward: FeedForwardSpec,
}

/// Sizes of a layer's heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSizes {
    /// Key and value heads; divides `num_attention_heads`.
    pub num_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
}

impl HeadSizes {
    /// Numbers of a token's keys.
    #[must_use]
    pub fn kv_width(&self) -> u32 {
        self.num_kv_heads * self.head_dim
    }
}

impl LayerSpec {
    /// A layer that sees everything and does not rotate.
    #[must_use]
    pub fn plain(feed_forward: FeedForwardSpec) -> Self {
        Self {
            window: None,
            rope: None,
            delta_net: None,
            heads: None,
            keys_of: None,
            values_are_keys: false,
            feed_forward,
        }
    }

    /// Whether it keeps keys and values of its own.
    #[must_use]
    pub fn keeps_keys(&self) -> bool {
        self.delta_net.is_none() && self.keys_of.is_none()
    }
}

impl ModelSpec {
    /// Sizes of a layer's heads.
    #[must_use]
    pub fn heads(&self, layer: &LayerSpec) -> HeadSizes {
        let of_model = HeadSizes { num_kv_heads: self.num_kv_heads, head_dim: self.head_dim };
        layer.heads.unwrap_or(of_model)
    }

    /// Width of the widest head.
    #[must_use]
    pub fn widest_head(&self) -> u32 {
        let widths = self.layers.iter().map(|layer| self.heads(layer).head_dim);
        widths.max().unwrap_or(self.head_dim)
    }
}

/// What every layer gets of the token itself (Gemma 4). For each layer `size` numbers, of the token's row of a second
/// embedding and of a projection of its embedding:
///
/// ```text
/// t = (norm(E x / sqrt(hidden_size)) + row * sqrt(size)) / sqrt(2)      x: the embedding, scaled
/// h += norm(P (act(G h) * t))                                           in each layer, last
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenInputSpec {
    /// Numbers for a layer.
    pub size: u32,
}

/// A gated delta net (Yang et al. 2024, as in Qwen3-Next): it keeps a matrix of fixed size a head, in which a token
/// replaces what its key stands for, instead of keys and values of all tokens.
///
/// ```text
/// q, k, v = silu(conv(x Wq, x Wk, x Wv))     each channel over its last `conv_kernel` tokens
/// S = exp(-rate * softplus(x Wa + bias)) * S     then S += k (sigmoid(x Wb) * (v - k S))
/// out = norm(q S) * silu(x Wz)               q and k scaled to length 1, q divided by the root of key_dim
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNetSpec {
    /// Heads of q and k; divides `num_value_heads`. Consecutive value heads share one.
    pub num_key_heads: u32,
    /// Heads of v, and of the state.
    pub num_value_heads: u32,
    /// Width of a head of q and k.
    pub key_dim: u32,
    /// Width of a head of v.
    pub value_dim: u32,
    /// Tokens that a channel of the convolution sees.
    pub conv_kernel: u32,
}

impl DeltaNetSpec {
    /// Rows of the projections to q and to k.
    #[must_use]
    pub fn key_width(&self) -> u32 {
        self.num_key_heads * self.key_dim
    }

    /// Rows of the projections to v and to the gate.
    #[must_use]
    pub fn value_width(&self) -> u32 {
        self.num_value_heads * self.value_dim
    }

    /// Channels of the convolution: q, k, v.
    #[must_use]
    pub fn channels(&self) -> u32 {
        2 * self.key_width() + self.value_width()
    }

    /// Rows of all projections of its input: q, k, v, gate, and what a token writes and the state loses.
    #[must_use]
    pub fn input_rows(&self) -> u32 {
        self.channels() + self.value_width() + 2 * self.num_value_heads
    }

    /// Numbers that a layer keeps of a sequence: the inputs of the convolution that the next token sees, and
    /// the state.
    #[must_use]
    pub fn state_len(&self) -> u64 {
        let inputs = u64::from(self.conv_kernel - 1) * u64::from(self.channels());
        inputs + u64::from(self.value_width()) * u64::from(self.key_dim)
    }
}

/// The part after attention: `down(act(gate(x)) * up(x))`, once or by experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedForwardSpec {
    /// One network.
    Dense {
        /// Rows of gate and up.
        intermediate_size: u32,
        /// Biases on gate, up and down.
        bias: bool,
    },
    /// Mixture of experts.
    Moe(MoeSpec),
}

/// Mixture of experts. A token visits the experts with the highest scores; ties go to the lowest expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeSpec {
    /// Rows of the router.
    pub num_experts: u32,
    /// Experts a token visits.
    pub experts_per_token: u32,
    /// Rows of each expert's gate and up.
    pub intermediate_size: u32,
    /// How experts are chosen and weighted.
    pub router: RouterSpec,
    /// Biases on gate, up and down of each expert.
    pub bias: bool,
    /// Rows of gate and up of a network that every token visits besides.
    pub shared_size: Option<u32>,
    /// A chosen weight multiplies what an expert gets, not what it gives (Llama 4).
    pub scales_input: bool,
    /// That network's weight is the sigmoid of a score of its own (Qwen3-Next); else it is 1.
    pub shared_score: bool,
    /// Experts and router each see the residual stream by a norm of their own, what the experts and what the shared
    /// network give is normed before they are added, and a chosen weight is multiplied by a number of its expert
    /// (Gemma 4).
    pub own_norms: bool,
}

/// How a mixture of experts chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterSpec {
    /// What becomes of the router's logits.
    pub scores: RouterScores,
    /// A bias is added to the logits.
    pub bias: bool,
    /// A number for each expert is added to its score for the choice, but not for its weight.
    pub correction: bool,
    /// The chosen weights are scaled to sum to 1.
    pub normalise_top_k: bool,
    /// The chosen weights are multiplied by this.
    pub scale: f32,
    /// Consecutive experts form groups, and a token visits experts of its best groups only.
    pub groups: Option<ExpertGroups>,
}

/// Groups of experts, all of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Divides the number of experts.
    pub num_groups: u32,
    /// Groups whose experts a token may visit; ties go to the lowest group.
    pub chosen: u32,
    /// What a group is judged by.
    pub score: GroupScore,
}

/// The score of a group of experts, from the scores by which experts are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// Of its best expert (DeepSeek V2).
    Best,
    /// Of its best two, added (DeepSeek V3).
    BestTwo,
}

/// From logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScores {
    /// Over all experts.
    Softmax,
    /// Each by itself.
    Sigmoid,
    /// The same, of the experts with the highest logits.
    SigmoidOfChosen,
}

impl RouterSpec {
    /// Softmax over all experts, the chosen ones scaled to sum to 1 or not.
    #[must_use]
    pub fn softmax(normalise_top_k: bool) -> Self {
        let scores = RouterScores::Softmax;
        Self { scores, bias: false, correction: false, normalise_top_k, scale: 1.0, groups: None }
    }
}

/// Which elements of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Element i with i + rotary_dim / 2 (Hugging Face checkpoints, GGUF qwen).
    HalfSplit,
    /// Element 2i with 2i + 1 (GGUF llama, whose q and k rows are permuted for it).
    Interleaved,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Pairing.
    pub style: RopeStyle,
    /// Elements of a head that rotate, even, at most `head_dim`.
    pub rotary_dim: u32,
    /// Base of the frequencies.
    pub theta: f32,
    /// How frequencies change with length.
    pub kind: RopeKind,
}

/// Frequency schedules. `RopeSpec::tables(max_model_len)` turns them into numbers once, at load.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeKind {
    /// theta^(-2i / rotary_dim)
    Default,
    /// All frequencies divided by `factor`.
    Linear {
        /// Divisor.
        factor: f32,
    },
    /// theta^(-2i / rotary_dim) for the first pairs; the others stay as they are (Gemma 4).
    Proportional {
        /// Pairs that rotate.
        pairs: u32,
        /// Divisor.
        factor: f32,
    },
    /// NTK by length, fixed at load for the served length, so that KV never changes its meaning.
    Dynamic {
        /// Stretch.
        factor: f32,
        /// Length of training.
        original_max_position_embeddings: u32,
    },
    /// Llama 3.1.
    Llama3 {
        /// Stretch of low frequencies.
        factor: f32,
        /// Lower edge of the blend.
        low_freq_factor: f32,
        /// Upper edge of the blend.
        high_freq_factor: f32,
        /// Length of training.
        original_max_position_embeddings: u32,
    },
    /// YaRN (Peng et al. 2023).
    Yarn {
        /// Stretch.
        factor: f32,
        /// Length of training.
        original_max_position_embeddings: u32,
        /// Rotations above which a frequency stays.
        beta_fast: f32,
        /// Rotations below which a frequency is stretched.
        beta_slow: f32,
        /// Multiplies cos and sin.
        attention_factor: f32,
        /// Whether the ramp's edges are rounded to whole dimensions.
        truncate: bool,
    },
    /// LongRoPE (Phi-3): per-frequency factors, long ones if the served length exceeds training.
    LongRope {
        /// `[rotary_dim / 2]`
        short_factor: Vec<f32>,
        /// `[rotary_dim / 2]`
        long_factor: Vec<f32>,
        /// Length of training.
        original_max_position_embeddings: u32,
        /// Multiplies cos and sin.
        attention_factor: f32,
    },
    /// Divisors stored in the file (GGUF `rope_freqs.weight`): frequency i divided by entry i.
    Factors {
        /// `[rotary_dim / 2]`
        divisors: Vec<f32>,
    },
}
