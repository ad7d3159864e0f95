//! What one build of a kernel file has that others have not, and what NVRTC gets for it. At load only.

use ingle_model::{MoeSpec, RouterScores};

use crate::contract::{
    Dims, GEMM_OUT_ACT, GEMM_OUT_ADD_F32, GEMM_OUT_F32, GEMM_OUT_GATED, attention_shared_bytes,
    delta_chunk_bytes, prompt_shared_bytes,
};
use crate::dtypes::{KvDtype, WeightDtype};
use crate::four_bit::FourBitForm;
use crate::four_bit_tile::FourBitBuild;
use crate::rope_build::RopeBuild;
use crate::shapes::{FourBitShape, GemmOut, GemmShape};
use crate::stream_tile::StreamTile;

/// What one build of a file has that others have not, apart from dtypes and the sizes that all share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Variant {
    Plain,
    Rope(RopeBuild),
    /// Of step_prepare.cu, for plans that differ in more than their windows.
    PlanKinds,
    /// Of expert_norms.cu.
    ExpertNorms {
        experts_per_token: u32,
    },
    DeltaNet {
        key_dim: u32,
        value_dim: u32,
        conv_kernel: u32,
    },
    Attention {
        head_dim: u32,
        num_kv_heads: u32,
        stages: u32,
        causal: bool,
        sinks: bool,
        chunks: bool,
    },
    Prompt {
        head_dim: u32,
        num_kv_heads: u32,
        sinks: bool,
        chunks: bool,
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
        tile: FourBitBuild,
        most_shared: u32,
    },
    FourBitExperts {
        num_experts: u32,
        experts_per_token: u32,
        shape: FourBitShape,
        bias: bool,
        tile: FourBitBuild,
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
    /// The same of those whose logits are best.
    pub(crate) sigmoid_of_chosen: bool,
    /// A chosen weight is multiplied by a number of its expert.
    pub(crate) scales: bool,
}

impl ExpertKind {
    /// Of a mixture of experts.
    pub(crate) fn of(spec: &MoeSpec) -> Self {
        Self {
            bias: spec.bias,
            sigmoid: spec.router.scores == RouterScores::Sigmoid,
            sigmoid_of_chosen: spec.router.scores == RouterScores::SigmoidOfChosen,
            scales: spec.own_norms,
        }
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
            Self::Rope(build) => build.dims(shared),
            Self::Attention { num_kv_heads, .. } | Self::Prompt { num_kv_heads, .. } => {
                Dims { num_kv_heads, ..shared }
            }
            Self::ExpertNorms { experts_per_token } => Dims { experts_per_token, ..shared },
            Self::Plain | Self::PlanKinds | Self::DeltaNet { .. } => shared,
        }
    }

    /// Macros other than the dimensions.
    pub(crate) fn macros(self) -> Vec<String> {
        match self {
            Self::Rope(build) => build.macros(),
            Self::PlanKinds => vec!["-DPLAN_KINDS=1".to_owned()],
            Self::DeltaNet { key_dim, value_dim, conv_kernel } => vec![
                format!("-DKEY_DIM={key_dim}"),
                format!("-DVALUE_DIM={value_dim}"),
                format!("-DCONV_KERNEL={conv_kernel}"),
            ],
            Self::Prompt { head_dim, sinks, chunks, .. } => vec![
                format!("-DHEAD_DIM={head_dim}"),
                format!("-DSINKS={}", u32::from(sinks)),
                format!("-DCHUNKS={}", u32::from(chunks)),
            ],
            Self::Attention { head_dim, stages, causal, sinks, chunks, .. } => vec![
                format!("-DHEAD_DIM={head_dim}"),
                format!("-DATTN_STAGES={stages}"),
                format!("-DCAUSAL={}", u32::from(causal)),
                format!("-DSINKS={}", u32::from(sinks)),
                format!("-DCHUNKS={}", u32::from(chunks)),
            ],
            Self::Gate { clamped, .. } => vec![format!("-DGATE_CLAMPED={}", u32::from(clamped))],
            Self::Experts { kind, .. } => vec![
                format!("-DMOE_BIAS={}", u32::from(kind.bias)),
                format!(
                    "-DMOE_SIGMOID={}",
                    u32::from(kind.sigmoid) + 2 * u32::from(kind.sigmoid_of_chosen)
                ),
                format!("-DMOE_SCALES={}", u32::from(kind.scales)),
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
            Self::Plain | Self::ExpertNorms { .. } => Vec::new(),
        }
    }

    /// What the file name of its run-time build ends in; sizes of launches are not in it, nor what follows
    /// from the target.
    pub(crate) fn suffix(self) -> String {
        match self {
            Self::Rope(build) => build.suffix(),
            Self::PlanKinds => "-kinds".to_owned(),
            Self::DeltaNet { key_dim, value_dim, conv_kernel } => {
                format!("-{key_dim}x{value_dim}-{conv_kernel}")
            }
            Self::Prompt { head_dim, sinks, chunks, .. } => {
                let chunks = if chunks { "-chunks" } else { "" };
                format!("-hd{head_dim}{}{chunks}", if sinks { "-sinks" } else { "" })
            }
            Self::Attention { head_dim, causal, sinks, chunks, .. } => {
                let causal = if causal { "" } else { "-bidirectional" };
                let chunks = if chunks { "-chunks" } else { "" };
                format!("-hd{head_dim}{causal}{}{chunks}", if sinks { "-sinks" } else { "" })
            }
            Self::Gate { clamped: true, .. } => "-clamped".to_owned(),
            Self::Experts { kind, .. } => {
                let parts = [
                    (kind.bias, "-bias"),
                    (kind.sigmoid, "-sigmoid"),
                    (kind.sigmoid_of_chosen, "-sigmoid-of-chosen"),
                    (kind.scales, "-scales"),
                ];
                parts.into_iter().filter(|(is_there, _)| *is_there).map(|(_, part)| part).collect()
            }
            Self::Stream { shape, tile } => {
                let StreamTile { rows, stages, steps, x_shared } = tile;
                let x = if x_shared { "-x" } else { "" };
                let weight = if is_e4m3(shape) { "-e4m3" } else { "" };
                format!("{weight}-{:?}-{rows}-{stages}x{steps}{x}", shape.out).to_lowercase()
            }
            Self::FourBit { shape, tile, .. } => {
                format!("-{}-{:?}{}", shape.form.suffix(), shape.out, tile.suffix()).to_lowercase()
            }
            Self::FourBitExperts { shape, bias, tile, .. } => {
                let bias = if bias { "-bias" } else { "" };
                format!("-{}{bias}{}", shape.form.suffix(), tile.suffix())
            }
            Self::Widen { form, .. } => format!("-{}", form.suffix()),
            Self::Plain | Self::ExpertNorms { .. } | Self::Gate { clamped: false, .. } => {
                String::new()
            }
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

/// Whether a product's matrix is of e4m3 numbers.
pub(crate) fn is_e4m3(shape: GemmShape) -> bool {
    shape.weight == WeightDtype::E4m3
}

/// Widest keys of delta_chunks.cu: of wider ones no device below compute capability 9.0 but 8.0 has room for a chunk.
pub(crate) const CHUNK_KEY_DIM: u32 = 128;
