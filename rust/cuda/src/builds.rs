//! The builds of each kernel file: those that a model needs on a card, and those that the wheel
//! contains. `registry.rs` names one of the policies below for each file. At load only.

use ingle_model::{
    Activation, DeltaNetSpec, FeedForwardSpec, LayerSpec, ModelSpec, MoeSpec, QkNorm, RouterScores,
};

use crate::attention_launch;
use crate::contract::{
    Dims, GEMM_OUT_ACT, GEMM_OUT_ADD_F32, GEMM_OUT_F32, GEMM_OUT_GATED, attention_shared_bytes,
    delta_chunk_bytes, prompt_shared_bytes,
};
use crate::dtypes::{Dtypes, KvDtype, ScaleMode, WeightDtype, has_e4m3};
use crate::four_bit::FourBitForm;
use crate::four_bit_tile::{FOUR_BIT_TILES, FourBitTile, expert_tiles};
use crate::limits::DeviceLimits;
use crate::prompt_launch::{PROMPT_HEAD_DIMS, is_built};
use crate::shapes::{FourBitShape, GemmOut, GemmShape};
use crate::stream_tile::{STREAM_TILES, StreamTile, is_streamed, stream_tiles};

/// What one build of a file has that others have not, apart from dtypes and the sizes that all share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Variant {
    Plain,
    Rope {
        head_dim: u32,
        full_norm: bool,
        scales_queries: bool,
        output_gate: bool,
    },
    DeltaNet {
        key_dim: u32,
        value_dim: u32,
        conv_kernel: u32,
    },
    Attention {
        head_dim: u32,
        stages: u32,
        causal: bool,
        sinks: bool,
    },
    Prompt {
        head_dim: u32,
        sinks: bool,
    },
    Gate {
        intermediate_size: u32,
        clamped: bool,
    },
    Experts {
        num_experts: u32,
        experts_per_token: u32,
        gemm_n: u32,
        gemm_k: u32,
        kind: ExpertKind,
    },
    Stream {
        shape: GemmShape,
        tile: StreamTile,
    },
    /// `most_shared`: what a launch may ask for.
    FourBit {
        shape: FourBitShape,
        tile: FourBitTile,
        most_shared: u32,
    },
    FourBitExperts {
        num_experts: u32,
        experts_per_token: u32,
        shape: FourBitShape,
        bias: bool,
        tile: FourBitTile,
    },
    Widen {
        n: u32,
        k: u32,
        form: FourBitForm,
    },
}

/// What experts have that others have not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExpertKind {
    /// Biases of router and experts.
    pub(crate) bias: bool,
    /// Scores are sigmoids of the router's logits.
    pub(crate) sigmoid: bool,
}

impl ExpertKind {
    /// Of a mixture of experts.
    pub(crate) fn of(spec: &MoeSpec) -> Self {
        Self { bias: spec.bias, sigmoid: spec.router.scores == RouterScores::Sigmoid }
    }
}

impl Variant {
    /// The sizes of its launches.
    pub(crate) fn dims(self, shared: Dims) -> Dims {
        match self {
            Self::Gate { intermediate_size, .. } => Dims { intermediate_size, ..shared },
            Self::Experts { num_experts, experts_per_token, gemm_n, gemm_k, .. } => {
                Dims { num_experts, experts_per_token, gemm_n, gemm_k, ..shared }
            }
            Self::FourBitExperts { num_experts, experts_per_token, shape, .. } => {
                let (gemm_n, gemm_k) = (shape.n, shape.k);
                Dims { num_experts, experts_per_token, gemm_n, gemm_k, ..shared }
            }
            Self::Stream { shape, .. } => shared.gemm(shape.n, shape.k),
            Self::FourBit { shape, .. } => shared.gemm(shape.n, shape.k),
            Self::Widen { n, k, .. } => shared.gemm(n, k),
            Self::Plain
            | Self::Rope { .. }
            | Self::DeltaNet { .. }
            | Self::Attention { .. }
            | Self::Prompt { .. } => shared,
        }
    }

    /// Macros other than the dimensions.
    pub(crate) fn macros(self) -> Vec<String> {
        match self {
            Self::Rope { head_dim, full_norm, scales_queries, output_gate } => vec![
                format!("-DHEAD_DIM={head_dim}"),
                format!("-DFULL_NORM={}", u32::from(full_norm)),
                format!("-DQUERY_SCALE={}", u32::from(scales_queries)),
                format!("-DOUTPUT_GATE={}", u32::from(output_gate)),
            ],
            Self::DeltaNet { key_dim, value_dim, conv_kernel } => vec![
                format!("-DKEY_DIM={key_dim}"),
                format!("-DVALUE_DIM={value_dim}"),
                format!("-DCONV_KERNEL={conv_kernel}"),
            ],
            Self::Prompt { head_dim, sinks } => {
                vec![format!("-DHEAD_DIM={head_dim}"), format!("-DSINKS={}", u32::from(sinks))]
            }
            Self::Attention { head_dim, stages, causal, sinks } => vec![
                format!("-DHEAD_DIM={head_dim}"),
                format!("-DATTN_STAGES={stages}"),
                format!("-DCAUSAL={}", u32::from(causal)),
                format!("-DSINKS={}", u32::from(sinks)),
            ],
            Self::Gate { clamped, .. } => vec![format!("-DGATE_CLAMPED={}", u32::from(clamped))],
            Self::Experts { kind, .. } => vec![
                format!("-DMOE_BIAS={}", u32::from(kind.bias)),
                format!("-DMOE_SIGMOID={}", u32::from(kind.sigmoid)),
            ],
            Self::FourBit { shape, tile, .. } => {
                let mut macros = shape.form.macros();
                macros.extend(tile.macros());
                macros.push(format!("-DGEMM_EPI={}", epilogue(shape.out)));
                macros
            }
            Self::FourBitExperts { shape, bias, tile, .. } => {
                let mut macros = shape.form.macros();
                macros.extend(tile.macros());
                macros.push(format!("-DMOE_BIAS={}", u32::from(bias)));
                macros
            }
            Self::Widen { form, .. } => form.macros(),
            Self::Stream { shape, tile } => {
                vec![
                    format!("-DGEMM_EPI={}", epilogue(shape.out)),
                    format!("-DGEMM_ROWS={}", tile.rows),
                    format!("-DGEMM_STAGES={}", tile.stages),
                    format!("-DGEMM_STEPS={}", tile.steps),
                    format!("-DGEMM_X_SHARED={}", u32::from(tile.x_shared)),
                    format!("-DGEMM_WEIGHT_E4M3={}", u32::from(is_e4m3(shape))),
                ]
            }
            Self::Plain => Vec::new(),
        }
    }

    /// What the file name of its run-time build ends in; sizes of launches are not in it, nor what follows
    /// from the target.
    pub(crate) fn suffix(self) -> String {
        match self {
            Self::Rope { head_dim, full_norm, scales_queries, output_gate } => {
                let norm = if full_norm { "-full" } else { "" };
                let gate = if output_gate { "-gated" } else { "" };
                format!("-hd{head_dim}{norm}{gate}{}", if scales_queries { "-scaled" } else { "" })
            }
            Self::DeltaNet { key_dim, value_dim, conv_kernel } => {
                format!("-{key_dim}x{value_dim}-{conv_kernel}")
            }
            Self::Prompt { head_dim, sinks } => {
                format!("-hd{head_dim}{}", if sinks { "-sinks" } else { "" })
            }
            Self::Attention { head_dim, causal, sinks, .. } => {
                let causal = if causal { "" } else { "-bidirectional" };
                format!("-hd{head_dim}{causal}{}", if sinks { "-sinks" } else { "" })
            }
            Self::Gate { clamped: true, .. } => "-clamped".to_owned(),
            Self::Experts { kind, .. } => {
                let bias = if kind.bias { "-bias" } else { "" };
                format!("{bias}{}", if kind.sigmoid { "-sigmoid" } else { "" })
            }
            Self::Stream { shape, tile } => {
                let StreamTile { rows, stages, steps, x_shared } = tile;
                let x = if x_shared { "-x" } else { "" };
                let weight = if is_e4m3(shape) { "-e4m3" } else { "" };
                format!("{weight}-{:?}-{rows}-{stages}x{steps}{x}", shape.out).to_lowercase()
            }
            Self::FourBit { shape, tile, .. } => {
                let FourBitTile { rows, tiles, stages } = tile;
                format!("-{}-{:?}-{rows}-{tiles}x{stages}", shape.form.suffix(), shape.out)
                    .to_lowercase()
            }
            Self::FourBitExperts { shape, bias, tile, .. } => {
                let FourBitTile { rows, tiles, stages } = tile;
                let bias = if bias { "-bias" } else { "" };
                format!("-{}{bias}-{rows}-{tiles}x{stages}", shape.form.suffix())
            }
            Self::Widen { form, .. } => format!("-{}", form.suffix()),
            Self::Plain | Self::Gate { clamped: false, .. } => String::new(),
        }
    }

    /// Dynamic shared memory of a block.
    pub(crate) fn shared_bytes(self, kv: KvDtype) -> u32 {
        match self {
            Self::Attention { head_dim, stages, .. } => {
                attention_shared_bytes(head_dim, stages, kv.bytes())
            }
            Self::Prompt { head_dim, .. } => prompt_shared_bytes(head_dim, kv.bytes()),
            Self::DeltaNet { key_dim, .. } if key_dim <= CHUNK_KEY_DIM => {
                delta_chunk_bytes(key_dim)
            }
            Self::Stream { shape, tile } => tile.shared_bytes(shape),
            Self::FourBit { most_shared, .. } => most_shared,
            Self::FourBitExperts { shape, tile, .. } => tile.expert_bytes(shape.form, shape.k),
            _ => 0,
        }
    }
}

/// GEMM_EPI of a product.
fn epilogue(out: GemmOut) -> u32 {
    match out {
        GemmOut::Device => GEMM_OUT_ACT,
        GemmOut::AddF32 => GEMM_OUT_ADD_F32,
        GemmOut::Gated => GEMM_OUT_GATED,
        GemmOut::F32 => GEMM_OUT_F32,
    }
}

/// A rule for the builds of a file.
#[derive(Debug)]
pub(crate) struct Builds {
    /// Those that a model needs on a card; the same one may be named twice.
    pub(crate) of_model: fn(&Wanted<'_>) -> Vec<Variant>,
    /// Those that any model can need on a card; sizes that belong to a launch are 0.
    pub(crate) of_any_model: fn(&DeviceLimits, Dtypes) -> Vec<Variant>,
}

/// What decides which builds a model needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) limits: &'a DeviceLimits,
    /// Of the model's group.
    pub(crate) ranks: u32,
    /// All products of the model.
    pub(crate) shapes: &'a [GemmShape],
    /// Those of its experts whose matrices are of 4-bit codes.
    pub(crate) experts: &'a [(MoeSpec, FourBitShape)],
}

/// One build for every model.
pub(crate) const ONCE: Builds =
    Builds { of_model: |_| vec![Variant::Plain], of_any_model: |_, _| vec![Variant::Plain] };

/// One build for models that are divided among ranks.
pub(crate) const RANKS: Builds = Builds {
    of_model: |wanted| (wanted.ranks > 1).then_some(Variant::Plain).into_iter().collect(),
    of_any_model: |_, _| vec![Variant::Plain],
};

/// One build for models that cap their logits.
pub(crate) const SOFTCAP: Builds = Builds {
    of_model: |wanted| {
        wanted.spec.final_logit_softcap.map(|_| Variant::Plain).into_iter().collect()
    },
    of_any_model: |_, _| vec![Variant::Plain],
};

/// One build for the width of a model's heads, and for what happens to q and k.
pub(crate) const ROPES: Builds = Builds {
    of_model: |wanted| vec![rope(wanted.spec)],
    of_any_model: |_, _| {
        let plain = |head_dim| Variant::Rope {
            head_dim,
            full_norm: false,
            scales_queries: false,
            output_gate: false,
        };
        let all = |head_dim| {
            [(true, false, false), (false, true, false), (false, false, true)]
                .map(|(full_norm, scales_queries, output_gate)| Variant::Rope {
                    head_dim,
                    full_norm,
                    scales_queries,
                    output_gate,
                })
                .into_iter()
                .chain([plain(head_dim)])
        };
        HEAD_DIMS.into_iter().flat_map(all).collect()
    },
};

/// The build of rope_kv.cu for a model.
pub(crate) fn rope(spec: &ModelSpec) -> Variant {
    Variant::Rope {
        head_dim: spec.head_dim,
        full_norm: spec.attention.qk_norm == QkNorm::Full,
        scales_queries: spec.attention.query_scale.is_some(),
        output_gate: spec.attention.output_gate,
    }
}

/// Widest keys of delta_chunks.cu: of wider ones no device below compute capability 9.0 but 8.0 has room for a chunk.
pub(crate) const CHUNK_KEY_DIM: u32 = 128;

/// One build for the widths of heads of a model's gated delta nets; ahead of time, for those of published models.
pub(crate) const DELTA_NETS: Builds = Builds {
    of_model: |wanted| {
        let nets = wanted.spec.layers.iter().filter_map(|layer| layer.delta_net);
        nets.map(|net| delta_net(&net)).collect()
    },
    of_any_model: |_, _| vec![Variant::DeltaNet { key_dim: 128, value_dim: 128, conv_kernel: 4 }],
};

/// The build of delta_net.cu for a net.
pub(crate) fn delta_net(net: &DeltaNetSpec) -> Variant {
    let DeltaNetSpec { key_dim, value_dim, conv_kernel, .. } = *net;
    Variant::DeltaNet { key_dim, value_dim, conv_kernel }
}

/// One build for models whose attention has output gates.
pub(crate) const OUTPUT_GATES: Builds = Builds {
    of_model: |wanted| {
        let has_gates = wanted.spec.attention.output_gate;
        has_gates.then_some(Variant::Plain).into_iter().collect()
    },
    of_any_model: |_, _| vec![Variant::Plain],
};

/// One build for models whose shared networks have scores.
pub(crate) const SHARED_SCORES: Builds = Builds {
    of_model: |wanted| {
        let has_score = |layer: &LayerSpec| match layer.feed_forward {
            FeedForwardSpec::Moe(moe) => moe.shared_score,
            FeedForwardSpec::Dense { .. } => false,
        };
        let has_scores = wanted.spec.layers.iter().any(has_score);
        has_scores.then_some(Variant::Plain).into_iter().collect()
    },
    of_any_model: |_, _| vec![Variant::Plain],
};

/// One build for the width of a model's heads with as many tiles in flight as the card takes, causal or not,
/// with sinks or not.
pub(crate) const ATTENTION: Builds = Builds {
    of_model: |&Wanted { spec, limits, .. }| {
        let kind = (spec.attention.causal, spec.attention.sinks);
        vec![attention(spec.head_dim, kind, limits)]
    },
    of_any_model: |limits, _| {
        let kinds = [(true, false), (false, false)];
        let all = |head_dim| kinds.map(|kind| attention(head_dim, kind, limits));
        let sinks = attention(SINK_HEAD_DIM, (true, true), limits);
        HEAD_DIMS.into_iter().flat_map(all).chain([sinks]).collect()
    },
};

/// One build for causal models where the card and the width of heads have it.
pub(crate) const PROMPTS: Builds = Builds {
    of_model: |&Wanted { spec, limits, .. }| {
        let is_built = spec.attention.causal && is_built(limits, spec.head_dim);
        let (head_dim, sinks) = (spec.head_dim, spec.attention.sinks);
        is_built.then_some(Variant::Prompt { head_dim, sinks }).into_iter().collect()
    },
    of_any_model: |limits, _| {
        let built = PROMPT_HEAD_DIMS.into_iter().filter(|head_dim| is_built(limits, *head_dim));
        let kinds = |head_dim| {
            let sinks = (head_dim == SINK_HEAD_DIM).then_some(true);
            [false].into_iter().chain(sinks).map(move |sinks| Variant::Prompt { head_dim, sinks })
        };
        built.flat_map(kinds).collect()
    },
};

/// One build for each width of a feed-forward part.
pub(crate) const GATES: Builds = Builds {
    of_model: |&Wanted { spec, .. }| {
        let widths = |part| match part {
            FeedForwardSpec::Dense { intermediate_size, .. } => [Some(intermediate_size), None],
            FeedForwardSpec::Moe(moe) => [Some(moe.intermediate_size), moe.shared_size],
        };
        let widths = spec.layers.iter().flat_map(|layer| widths(layer.feed_forward));
        widths.flatten().map(|intermediate_size| gate(spec.activation, intermediate_size)).collect()
    },
    of_any_model: |_, _| {
        [false, true].map(|clamped| Variant::Gate { intermediate_size: 0, clamped }).to_vec()
    },
};

/// The build of activation.cu for a width.
pub(crate) fn gate(activation: Activation, intermediate_size: u32) -> Variant {
    let clamped = matches!(activation, Activation::ClampedSwiglu { .. });
    Variant::Gate { intermediate_size, clamped }
}

/// Two builds for each kind of expert layer: into the experts and back.
pub(crate) const EXPERTS: Builds = Builds {
    of_model: |&Wanted { spec, .. }| {
        spec.layers.iter().flat_map(|layer| experts(spec, layer.feed_forward)).collect()
    },
    of_any_model: |_, _| {
        let (num_experts, experts_per_token, gemm_n, gemm_k) = (0, 0, 0, 0);
        [(false, false), (true, false), (false, true)]
            .map(|(bias, sigmoid)| ExpertKind { bias, sigmoid })
            .map(|kind| Variant::Experts { num_experts, experts_per_token, gemm_n, gemm_k, kind })
            .to_vec()
    },
};

/// Every tile that fits the card, for each product of the model.
pub(crate) const STREAMS: Builds = Builds {
    of_model: |&Wanted { limits, shapes, .. }| {
        let tiles =
            |&shape| stream_tiles(limits, shape).map(move |tile| Variant::Stream { shape, tile });
        shapes.iter().filter(|shape| is_streamed(**shape)).flat_map(tiles).collect()
    },
    of_any_model: |limits, dtypes| {
        let outs = [GemmOut::Device, GemmOut::F32, GemmOut::AddF32, GemmOut::Gated];
        let plain = outs.map(|out| GemmShape::plain(0, 0, out, dtypes.weight()));
        let e4m3 = plain.map(|shape| GemmShape {
            weight: WeightDtype::E4m3,
            scale: ScaleMode::Channel,
            ..shape
        });
        let tiles = |shape| STREAM_TILES.map(|tile| Variant::Stream { shape, tile });
        let e4m3 = e4m3.into_iter().filter(|_| has_e4m3(limits.compute_capability, dtypes));
        plain.into_iter().chain(e4m3).flat_map(tiles).collect()
    },
};

/// One build for models with e4m3 matrices.
pub(crate) const QUANTISED: Builds = Builds {
    of_model: |&Wanted { shapes, .. }| {
        let quantises = shapes.iter().any(|shape| is_e4m3(*shape));
        quantises.then_some(Variant::Plain).into_iter().collect()
    },
    of_any_model: |limits, dtypes| {
        let exists = has_e4m3(limits.compute_capability, dtypes);
        exists.then_some(Variant::Plain).into_iter().collect()
    },
};

/// Every tile that can do a product with 4-bit codes. There are none ahead of time: without NVRTC such matrices are
/// widened at load.
pub(crate) const FOUR_BITS: Builds = Builds {
    of_model: |&Wanted { limits, shapes, .. }| {
        let most_shared = limits.shared_bytes_per_block;
        let tiles = |shape: FourBitShape| {
            let fits = move |tile: &FourBitTile| tile.launch(limits, shape, 1, 1).is_some();
            let build = move |tile| Variant::FourBit { shape, tile, most_shared };
            FOUR_BIT_TILES.into_iter().filter(fits).map(build)
        };
        shapes.iter().filter_map(|shape| shape.four_bit()).flat_map(tiles).collect()
    },
    of_any_model: |_, _| Vec::new(),
};

/// One build for each matrix of 4-bit codes, its epilogue aside.
pub(crate) const WIDENED: Builds = Builds {
    of_model: |&Wanted { shapes, .. }| {
        let widen = |FourBitShape { n, k, form, .. }| Variant::Widen { n, k, form };
        shapes.iter().filter_map(|shape| shape.four_bit()).map(widen).collect()
    },
    of_any_model: |_, _| Vec::new(),
};

/// The builds of moe_four_bit.cu for each product of experts.
pub(crate) const FOUR_BIT_EXPERTS: Builds = Builds {
    of_model: |&Wanted { limits, experts, .. }| {
        let tiles = |&(spec, shape): &(MoeSpec, FourBitShape)| {
            let tiles = expert_tiles(limits, shape.form, (shape.n, shape.k));
            tiles.into_iter().map(move |tile| four_bit_experts(&spec, shape, tile))
        };
        experts.iter().flat_map(tiles).collect()
    },
    of_any_model: |_, _| Vec::new(),
};

/// The build of moe_four_bit.cu for one product of experts.
pub(crate) fn four_bit_experts(spec: &MoeSpec, shape: FourBitShape, tile: FourBitTile) -> Variant {
    let MoeSpec { num_experts, experts_per_token, bias, .. } = *spec;
    Variant::FourBitExperts { num_experts, experts_per_token, shape, bias, tile }
}

fn is_e4m3(shape: GemmShape) -> bool {
    shape.weight == WeightDtype::E4m3
}

fn attention(head_dim: u32, (causal, sinks): (bool, bool), limits: &DeviceLimits) -> Variant {
    let stages = attention_launch::stages(limits, head_dim);
    Variant::Attention { head_dim, stages, causal, sinks }
}

/// The builds of moe.cu for one layer: of its first product, then of its second.
fn experts(spec: &ModelSpec, part: FeedForwardSpec) -> Vec<Variant> {
    let FeedForwardSpec::Moe(moe) = part else { return Vec::new() };
    let (hidden, inner) = (spec.hidden_size, moe.intermediate_size);
    [(2 * inner, hidden), (hidden, inner)]
        .map(|(gemm_n, gemm_k)| Variant::Experts {
            num_experts: moe.num_experts,
            experts_per_token: moe.experts_per_token,
            gemm_n,
            gemm_k,
            kind: ExpertKind::of(&moe),
        })
        .to_vec()
}

/// Width of the heads of models with sinks.
pub(crate) const SINK_HEAD_DIM: u32 = 64;

/// Widths of a head that attention is built for.
pub(crate) const HEAD_DIMS: [u32; 6] = [16, 32, 64, 96, 128, 256];
