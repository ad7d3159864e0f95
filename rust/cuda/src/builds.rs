//! The builds of each kernel file: those that a model needs on a card, and those that the wheel
//! contains. `registry.rs` names one of the policies below for each file. At load only.

use ingle_model::{
    Activation, DeltaNetSpec, FeedForwardSpec, HeadSizes, LayerSpec, ModelSpec, MoeSpec,
};

use crate::attention_launch;
use crate::dtypes::{Dtypes, ScaleMode, WeightDtype, has_e4m3};
use crate::four_bit_tile::{FOUR_BIT_TILES, FourBitBuild, FourBitTile, expert_tiles};
use crate::four_bit_wgmma::{WGMMA_TILES, WgmmaTile, expert_wgmma_tiles};
use crate::limits::DeviceLimits;
use crate::prompt_launch::{PROMPT_HEAD_DIMS, is_built};
use crate::rope_build::{KeyParts, QueryScaling, RopeBuild, RopeRules};
use crate::shapes::{FourBitShape, GemmOut, GemmShape};
use crate::stream_tile::{STREAM_TILES, is_streamed, stream_tiles};
use crate::variant::{ExpertKind, Variant, is_e4m3};

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

/// One build for the width of heads and for what happens to q, k and v, of each kind of layer; ahead of time what one
/// family alone has comes in the widths of its published models.
pub(crate) const ROPES: Builds = Builds {
    of_model: |wanted| {
        let layers = wanted.spec.layers.iter().filter(|layer| layer.delta_net.is_none());
        layers.map(|layer| Variant::Rope(RopeBuild::of(wanted.spec, layer))).collect()
    },
    of_any_model: |_, _| {
        let plain = RopeRules::default();
        let everywhere = [
            plain,
            RopeRules { full_norm: true, ..plain },
            RopeRules { query_scale: QueryScaling::All, ..plain },
            RopeRules { output_gate: true, ..plain },
        ];
        let values = RopeRules { value_norm: true, ..plain };
        let queries = RopeRules { keys: KeyParts::Nothing, ..plain };
        let part = |rules| RopeRules { rotary_part: true, ..rules };
        let keys = RopeRules { keys: KeyParts::Keys, ..values };
        let chunks =
            RopeRules { unweighted_norm: true, query_scale: QueryScaling::WithoutRope, ..plain };
        let built = |head_dim, rules| {
            let (num_kv_heads, rotary_dim, rotary_pairs) = (0, 0, 0);
            Variant::Rope(RopeBuild { head_dim, rules, num_kv_heads, rotary_dim, rotary_pairs })
        };
        let own = [
            (256, values),
            (256, queries),
            (WIDE_HEAD_DIM, part(values)),
            (WIDE_HEAD_DIM, part(keys)),
            (WIDE_HEAD_DIM, part(queries)),
            (128, chunks),
        ];
        let all = HEAD_DIMS.into_iter().flat_map(|dim| everywhere.map(|rules| (dim, rules)));
        all.chain(own).map(|(head_dim, rules)| built(head_dim, rules)).collect()
    },
};

/// One build for how a model's attention plans differ.
pub(crate) const STEPS: Builds = Builds {
    of_model: |&Wanted { spec, .. }| {
        let heads = spec.layers.first().map(|layer| spec.heads(layer));
        let differ = spec.layers.iter().any(|layer| Some(spec.heads(layer)) != heads);
        vec![if differ || has_chunks(spec) { Variant::PlanKinds } else { Variant::Plain }]
    },
    of_any_model: |_, _| vec![Variant::Plain, Variant::PlanKinds],
};

/// One build for models whose layers get something of the token itself.
pub(crate) const TOKEN_INPUTS: Builds = Builds {
    of_model: |wanted| wanted.spec.token_input.map(|_| Variant::Plain).into_iter().collect(),
    of_any_model: |_, _| vec![Variant::Plain],
};

/// One build for experts with norms of their own.
pub(crate) const EXPERT_NORMS: Builds = Builds {
    of_model: |wanted| {
        let own = |layer: &LayerSpec| match layer.feed_forward {
            FeedForwardSpec::Moe(moe) if moe.own_norms => Some(expert_norms(&moe)),
            FeedForwardSpec::Moe(_) | FeedForwardSpec::Dense { .. } => None,
        };
        wanted.spec.layers.iter().filter_map(own).collect()
    },
    of_any_model: |_, _| vec![Variant::ExpertNorms { experts_per_token: 0 }],
};

/// The build of expert_norms.cu for a layer.
pub(crate) fn expert_norms(moe: &MoeSpec) -> Variant {
    Variant::ExpertNorms { experts_per_token: moe.experts_per_token }
}

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

/// One build for each width of a model's heads with as many tiles in flight as the card takes, causal or not,
/// with sinks or not, in chunks or not.
pub(crate) const ATTENTION: Builds = Builds {
    of_model: |&Wanted { spec, limits, .. }| {
        with_attention(spec).map(|layer| attention(spec, spec.heads(layer), limits)).collect()
    },
    of_any_model: |limits, _| {
        let build = |head_dim, causal, (sinks, chunks)| {
            let stages = attention_launch::stages(limits, head_dim);
            Variant::Attention { head_dim, num_kv_heads: 0, stages, causal, sinks, chunks }
        };
        let plain = (false, false);
        let all = |head_dim| [true, false].map(|causal| build(head_dim, causal, plain));
        let own = [
            build(SINK_HEAD_DIM, true, (true, false)),
            build(CHUNK_HEAD_DIM, true, (false, true)),
            build(WIDE_HEAD_DIM, true, plain),
        ];
        HEAD_DIMS.into_iter().flat_map(all).chain(own).collect()
    },
};

/// One build for each width of a causal model's heads where the card and the width have it.
pub(crate) const PROMPTS: Builds = Builds {
    of_model: |&Wanted { spec, limits, .. }| {
        let heads = with_attention(spec).map(|layer| spec.heads(layer));
        let built = |heads: &HeadSizes| spec.attention.causal && is_built(limits, heads.head_dim);
        heads.filter(built).map(|heads| prompt(spec, heads)).collect()
    },
    of_any_model: |limits, _| {
        let built = PROMPT_HEAD_DIMS.into_iter().filter(|head_dim| is_built(limits, *head_dim));
        let kinds = |head_dim| {
            let sinks = (head_dim == SINK_HEAD_DIM).then_some((true, false));
            let chunks = (head_dim == CHUNK_HEAD_DIM).then_some((false, true));
            [(false, false)].into_iter().chain(sinks).chain(chunks).map(move |(sinks, chunks)| {
                Variant::Prompt { head_dim, num_kv_heads: 0, sinks, chunks }
            })
        };
        built.flat_map(kinds).collect()
    },
};

fn with_attention(spec: &ModelSpec) -> impl Iterator<Item = &LayerSpec> {
    spec.layers.iter().filter(|layer| layer.delta_net.is_none())
}

/// Whether windows of a model's layers are chunks.
pub(crate) fn has_chunks(spec: &ModelSpec) -> bool {
    spec.attention.chunks && spec.layers.iter().any(|layer| layer.window.is_some())
}

/// The build of attention.cu for such heads.
pub(crate) fn attention(spec: &ModelSpec, heads: HeadSizes, limits: &DeviceLimits) -> Variant {
    let HeadSizes { head_dim, num_kv_heads } = heads;
    let stages = attention_launch::stages(limits, head_dim);
    let (causal, sinks) = (spec.attention.causal, spec.attention.sinks);
    Variant::Attention { head_dim, num_kv_heads, stages, causal, sinks, chunks: has_chunks(spec) }
}

/// The build of attention_prefill.cu for such heads.
pub(crate) fn prompt(spec: &ModelSpec, heads: HeadSizes) -> Variant {
    let HeadSizes { head_dim, num_kv_heads } = heads;
    let sinks = spec.attention.sinks;
    Variant::Prompt { head_dim, num_kv_heads, sinks, chunks: has_chunks(spec) }
}

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
        let plain = ExpertKind::default();
        [
            plain,
            ExpertKind { bias: true, ..plain },
            ExpertKind { sigmoid: true, ..plain },
            ExpertKind { sigmoid_of_chosen: true, ..plain },
            ExpertKind { scales: true, ..plain },
        ]
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
            let build = move |tile| Variant::FourBit {
                shape,
                tile: FourBitBuild::Stream(tile),
                most_shared,
            };
            FOUR_BIT_TILES.into_iter().filter(fits).map(build)
        };
        shapes.iter().filter_map(|shape| shape.four_bit()).flat_map(tiles).collect()
    },
    of_any_model: |_, _| Vec::new(),
};

/// The same on Hopper for many rows.
pub(crate) const FOUR_BITS_WGMMA: Builds = Builds {
    of_model: |&Wanted { limits, shapes, .. }| {
        let tiles = |shape: FourBitShape| {
            let fits = move |tile: &WgmmaTile| tile.takes(limits, shape);
            let build = move |tile: WgmmaTile| Variant::FourBit {
                shape,
                tile: FourBitBuild::Wgmma(tile),
                most_shared: tile.shared_bytes(shape.form),
            };
            WGMMA_TILES.into_iter().filter(fits).map(build)
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
            tiles
                .into_iter()
                .map(move |tile| four_bit_experts(&spec, shape, FourBitBuild::Stream(tile)))
        };
        experts.iter().flat_map(tiles).collect()
    },
    of_any_model: |_, _| Vec::new(),
};

/// The builds of moe_four_bit_wgmma.cu for each product of experts.
pub(crate) const FOUR_BIT_EXPERTS_WGMMA: Builds = Builds {
    of_model: |&Wanted { limits, experts, .. }| {
        let tiles = |&(spec, shape): &(MoeSpec, FourBitShape)| {
            let tiles = expert_wgmma_tiles(limits, shape.form, (shape.n, shape.k));
            tiles
                .into_iter()
                .map(move |tile| four_bit_experts(&spec, shape, FourBitBuild::Wgmma(tile)))
        };
        experts.iter().flat_map(tiles).collect()
    },
    of_any_model: |_, _| Vec::new(),
};

/// The build of moe_four_bit.cu or moe_four_bit_wgmma.cu for one product of experts.
pub(crate) fn four_bit_experts(spec: &MoeSpec, shape: FourBitShape, tile: FourBitBuild) -> Variant {
    let MoeSpec { num_experts, experts_per_token, bias, .. } = *spec;
    Variant::FourBitExperts { num_experts, experts_per_token, shape, bias, tile }
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

/// Width of the heads of published models whose attention is cut into chunks.
const CHUNK_HEAD_DIM: u32 = 128;

/// Width of a head that causal attention alone is built for.
pub(crate) const WIDE_HEAD_DIM: u32 = 512;

/// Other widths of a head that attention is built for.
pub(crate) const HEAD_DIMS: [u32; 6] = [16, 32, 64, 96, 128, 256];
