//! The activations of a step, allocated once at load for the largest step.

use ingle_model::{DeltaNetSpec, FeedForwardSpec, LatentSpec, ModelSpec};

use crate::panel::{LOGIT_ROWS, PANEL};
use crate::rows::Rows;

/// `[row][columns]` f32 each; pages that no step reaches are never touched.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// `[rows][hidden_size]` residual stream.
    pub(crate) residual: Rows,
    /// `[rows][hidden_size]` its norm: input of the next products.
    pub(crate) normed: Rows,
    /// `[rows][query | key | value]`, each part on a whole panel.
    pub(crate) qkv: Rows,
    pub(crate) columns: QkvColumns,
    /// `[rows][num_attention_heads * head_dim]`, where attention has an output gate.
    pub(crate) output_gates: Rows,
    /// `[rows][num_attention_heads * head_dim]`, or as wide as a gated delta net's values.
    pub(crate) attended: Rows,
    pub(crate) delta: Option<DeltaBuffers>,
    pub(crate) latent: Option<LatentBuffers>,
    /// `[rows][hidden_size]` what the residual stream gains.
    pub(crate) projected: Rows,
    /// `[rows][hidden_size]` a rank's part of that; no rows where there is one rank.
    pub(crate) partial: Rows,
    /// `[rows][intermediate_size]`
    pub(crate) gated: Rows,
    pub(crate) moe: Option<MoeBuffers>,
    pub(crate) token_input: Option<TokenInputBuffers>,
    /// `[LOGIT_ROWS][hidden_size]`
    pub(crate) head_input: Rows,
    /// `[LOGIT_ROWS][vocab_size]`
    pub(crate) logits: Rows,
}

/// First columns of key and value in `qkv`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QkvColumns {
    pub(crate) key: usize,
    pub(crate) value: usize,
}

/// For what layers get of the token itself: `[rows][layer][size]`.
#[derive(Debug)]
pub(crate) struct TokenInputBuffers {
    pub(crate) input: Rows,
    /// The token's row of the second embedding.
    pub(crate) embedded: Rows,
}

/// For latent attention. Where there is a row for each head of a row, head h of row r has row
/// `h * num_rows + r`, so that a head's rows lie together.
#[derive(Debug)]
pub(crate) struct LatentBuffers {
    /// `[rows][query_rank]`
    pub(crate) query_input: Rows,
    /// `[rows * heads][plain_dim]`, then `[rows * heads][value_dim]`.
    pub(crate) parts: Rows,
    /// `[rows * heads][kept_dim]`
    pub(crate) queries: Rows,
    /// `[rows * heads][rank]` weighted sums of latents.
    pub(crate) sums: Rows,
}

impl LatentBuffers {
    fn new(latent: &LatentSpec, rows: usize, heads: usize) -> Self {
        let of_heads = |width: u32| Rows::zeroed(rows * heads, width as usize);
        Self {
            query_input: Rows::zeroed(rows, latent.query_rank.unwrap_or(0) as usize),
            parts: of_heads(latent.plain_dim.max(latent.value_dim)),
            queries: of_heads(latent.kept_dim()),
            sums: of_heads(latent.rank),
        }
    }
}

/// For gated delta nets, which have all the same sizes.
#[derive(Debug)]
pub(crate) struct DeltaBuffers {
    /// `[rows][query | key | value | gate | beta | decay]`, each part on a whole panel.
    pub(crate) input: Rows,
    pub(crate) columns: DeltaColumns,
}

/// First columns of the parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaColumns {
    pub(crate) query: usize,
    pub(crate) key: usize,
    pub(crate) value: usize,
    pub(crate) gate: usize,
    pub(crate) beta: usize,
    pub(crate) decay: usize,
}

impl DeltaBuffers {
    pub(crate) fn new(net: &DeltaNetSpec, rows: usize) -> Self {
        let panels = |width: u32| (width as usize).next_multiple_of(PANEL);
        let (key, value) = (panels(net.key_width()), panels(net.value_width()));
        let heads = panels(net.num_value_heads);
        let gate = 2 * key + value;
        let columns = DeltaColumns {
            query: 0,
            key,
            value: 2 * key,
            gate,
            beta: gate + value,
            decay: gate + value + heads,
        };
        Self { input: Rows::zeroed(rows, columns.decay + heads), columns }
    }
}

/// For mixtures of experts: one row per (token, chosen expert).
#[derive(Debug)]
pub(crate) struct MoeBuffers {
    /// `[rows][num_experts]`
    pub(crate) router: Rows,
    /// `[rows * experts_per_token][hidden_size]`, grouped by expert.
    pub(crate) input: Rows,
    /// `[rows * experts_per_token][intermediate_size]`
    pub(crate) gated: Rows,
    /// `[rows * experts_per_token][hidden_size]`
    pub(crate) output: Rows,
}

impl Buffers {
    /// For ranks that are computed one after the other; `spec` is a rank's.
    pub(crate) fn new(spec: &ModelSpec, rows: usize, ranks: usize) -> Self {
        let hidden = spec.hidden_size as usize;
        let heads = spec.num_attention_heads as usize;
        let latent = spec.attention.latent;
        let query_dim = latent.map_or(spec.widest_head(), |latent| latent.query_dim());
        let q_len = heads * query_dim as usize;
        let kv_widths = spec.layers.iter().map(|layer| spec.heads(layer).kv_width());
        let kv_len = (kv_widths.max().unwrap_or(0) as usize).next_multiple_of(PANEL);
        let gates = if spec.attention.output_gate { q_len } else { 0 };
        let key = (q_len + gates).next_multiple_of(PANEL);
        let net = spec.layers.iter().find_map(|layer| layer.delta_net);
        let values = latent.map_or(q_len, |latent| heads * latent.value_dim as usize);
        let attended = values.max(net.map_or(0, |net| net.value_width() as usize));
        let columns = QkvColumns { key, value: key + kv_len };
        let token_input = spec.token_input.map(|input| input.size as usize);
        // A layer's gate of it is computed where the network's is.
        let (mut dense, mut moe) = (token_input.unwrap_or(0), None::<(usize, usize, usize)>);
        for layer in &spec.layers {
            match layer.feed_forward {
                FeedForwardSpec::Dense { intermediate_size, .. } => {
                    dense = dense.max(intermediate_size as usize);
                }
                FeedForwardSpec::Moe(layer) => {
                    // The shared network is computed in the buffers of a dense one.
                    dense = dense.max(layer.shared_size.unwrap_or(0) as usize);
                    let (experts, chosen, size) = moe.unwrap_or_default();
                    moe = Some((
                        experts.max(layer.num_experts as usize),
                        chosen.max(layer.experts_per_token as usize),
                        size.max(layer.intermediate_size as usize),
                    ));
                }
            }
        }
        Self {
            residual: Rows::zeroed(rows, hidden),
            normed: Rows::zeroed(rows, hidden),
            qkv: Rows::zeroed(rows, columns.value + kv_len),
            columns,
            output_gates: Rows::zeroed(if gates > 0 { rows } else { 0 }, q_len),
            attended: Rows::zeroed(rows, attended),
            latent: latent.map(|latent| LatentBuffers::new(&latent, rows, heads)),
            delta: net.map(|net| DeltaBuffers::new(&net, rows)),
            projected: Rows::zeroed(rows, hidden),
            partial: Rows::zeroed(if ranks > 1 { rows } else { 0 }, hidden),
            gated: Rows::zeroed(rows, dense),
            token_input: token_input.map(|size| {
                let all = size * spec.layers.len();
                TokenInputBuffers {
                    input: Rows::zeroed(rows, all),
                    embedded: Rows::zeroed(rows, all),
                }
            }),
            moe: moe.map(|(experts, chosen, size)| MoeBuffers {
                router: Rows::zeroed(rows, experts),
                input: Rows::zeroed(rows * chosen, hidden),
                gated: Rows::zeroed(rows * chosen, size),
                output: Rows::zeroed(rows * chosen, hidden),
            }),
            head_input: Rows::zeroed(LOGIT_ROWS, hidden),
            logits: Rows::zeroed(LOGIT_ROWS, spec.vocab_size as usize),
        }
    }
}
