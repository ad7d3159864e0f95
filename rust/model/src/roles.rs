//! The parts that tensors play in a model. Plain data.

/// The part that a tensor plays. Fused tensors of a file (Phi-3's qkv, stacked experts) appear as one
/// view per part, since rows are contiguous; executors fuse again as they like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightRole {
    /// `[vocab_size, hidden_size]`
    Embedding,
    /// `[hidden_size]`
    FinalNorm,
    /// `[vocab_size, hidden_size]`; absent if tied.
    LmHead,
    /// Of the token input: `[vocab_size, layers * size]`,
    TokenInputEmbedding,
    /// `[layers * size, hidden_size]`,
    TokenInputProjection,
    /// `[size]`.
    TokenInputNorm,
    /// Layer number and part.
    Layer(u32, LayerWeight),
}

/// The part that a tensor plays in a layer. Matrices are `[out, in]`, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayerWeight {
    /// Before attention, `[hidden_size]`.
    InputNorm,
    /// `[num_attention_heads * head_dim, hidden_size]`
    Query,
    /// `[num_kv_heads * head_dim, hidden_size]`
    Key,
    /// `[num_kv_heads * head_dim, hidden_size]`
    Value,
    /// `[num_attention_heads * head_dim]`
    QueryBias,
    /// `[num_kv_heads * head_dim]`
    KeyBias,
    /// `[num_kv_heads * head_dim]`
    ValueBias,
    /// `[head_dim]`, or as `QkNorm` says.
    QueryNorm,
    /// The same.
    KeyNorm,
    /// `[hidden_size, num_attention_heads * head_dim]`
    Output,
    /// `[hidden_size]`
    OutputBias,
    /// After attention, before the residual is added (Gemma, OLMo 3), `[hidden_size]`.
    PostAttentionNorm,
    /// Before the feed-forward part, `[hidden_size]`.
    FeedForwardNorm,
    /// After the feed-forward part, before the residual is added (Gemma, OLMo 3), `[hidden_size]`.
    PostFeedForwardNorm,
    /// `[intermediate_size, hidden_size]`
    Gate,
    /// `[intermediate_size, hidden_size]`
    Up,
    /// `[hidden_size, intermediate_size]`
    Down,
    /// `[intermediate_size]`
    GateBias,
    /// `[intermediate_size]`
    UpBias,
    /// `[hidden_size]`
    DownBias,
    /// A logit each query head, `[num_attention_heads]`.
    Sinks,
    /// Of latent attention (`LatentSpec`), whose `Query` is `[num_attention_heads * query_dim, query_rank]` or as wide as
    /// the residual stream, and whose `Output` is `[hidden_size, num_attention_heads * value_dim]`: what queries are
    /// computed from, `[query_rank, hidden_size]`,
    QueryDown,
    /// `[query_rank]`,
    QueryDownBias,
    /// `[query_rank]`;
    QueryDownNorm,
    /// the latent, then the key that rotates, `[kept_dim, hidden_size]`,
    LatentDown,
    /// `[kept_dim]`,
    LatentDownBias,
    /// `[rank]`;
    LatentNorm,
    /// of each head its keys and its values, `[num_attention_heads * up_rows, rank]`.
    LatentUp,
    /// Of a gated delta net: projections to q, k `[key_width, hidden_size]`,
    DeltaQuery,
    /// the same,
    DeltaKey,
    /// to v, to the gate `[value_width, hidden_size]`,
    DeltaValue,
    /// the same,
    DeltaGate,
    /// to what a token writes and to what the state loses, `[num_value_heads, hidden_size]`,
    DeltaBeta,
    /// the same.
    DeltaDecay,
    /// `[channels, conv_kernel]`, oldest token first.
    DeltaConv,
    /// Logarithm of the rate, `[num_value_heads]`.
    DeltaLogRate,
    /// `[num_value_heads]`
    DeltaBias,
    /// `[value_dim]`
    DeltaNorm,
    /// `[hidden_size, value_width]`
    DeltaOutput,
    /// `[num_experts, hidden_size]`
    Router,
    /// `[num_experts]`
    RouterBias,
    /// Added to scores for the choice, `[num_experts]`.
    RouterCorrection,
    /// Gate of one expert.
    ExpertGate(u32),
    /// Up of one expert.
    ExpertUp(u32),
    /// Down of one expert.
    ExpertDown(u32),
    /// Its biases.
    ExpertGateBias(u32),
    /// Of up.
    ExpertUpBias(u32),
    /// Of down.
    ExpertDownBias(u32),
    /// Of the network beside the experts that every token visits.
    SharedGate,
    /// The same.
    SharedUp,
    /// The same.
    SharedDown,
    /// The sigmoid of its product is that network's weight, `[1, hidden_size]`.
    SharedScore,
    /// What the layer multiplies the residual stream by, `[1]`.
    Scale,
    /// Of the token input: `[size, hidden_size]`,
    TokenGate,
    /// `[hidden_size, size]`,
    TokenOutput,
    /// `[hidden_size]`.
    TokenNorm,
    /// Where experts have norms of their own, `[hidden_size]`: of what the router sees, to be divided by the root of
    /// that,
    RouterNorm,
    /// of what the experts see,
    ExpertNorm,
    /// of what the shared network gives,
    SharedPostNorm,
    /// of what the experts give.
    ExpertPostNorm,
    /// A chosen expert's weight is multiplied by this, `[num_experts]`.
    RouterScale,
}
