//! The kernels: one line per file of kernels/, with its build rule and entries. To add a kernel,
//! add its file, a line here and a function in `launch` that calls it.

use crate::builds::{
    ATTENTION, Builds, DELTA_NETS, EXPERT_NORMS, EXPERTS, FOUR_BIT_EXPERTS, FOUR_BIT_EXPERTS_WGMMA,
    FOUR_BITS, FOUR_BITS_WGMMA, GATES, ONCE, OUTPUT_GATES, PROMPTS, QUANTISED, RANKS, ROPES,
    SHARED_SCORES, SOFTCAP, STEPS, STREAMS, TOKEN_INPUTS, WIDENED,
};
use crate::contract;

/// Declares `Source` and `Entry`. A line: name, file, rule for its builds, then `Entry: OP_layout dtype arch`.
macro_rules! registry {
    ($( $source:ident $file:literal $builds:ident {
        $( $entry:ident: $op:ident $kind:ident $arch:ident ),+ $(,)?
    } )*) => {
        /// A file of kernels/.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Source { $( $source, )* }

        /// An entry point of such a file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Entry { $( $( $entry, )+ )* }

        impl Source {
            /// All files.
            pub(crate) const ALL: &[Self] = &[$( Self::$source, )*];

            /// The file's name.
            pub(crate) fn file(self) -> &'static str {
                match self { $( Self::$source => $file, )* }
            }

            /// CUDA C++.
            pub(crate) fn text(self) -> &'static str {
                match self {
                    $( Self::$source => include_str!(concat!("../../../kernels/", $file)), )*
                }
            }

            /// Which builds there are.
            pub(crate) fn builds(self) -> &'static Builds {
                match self { $( Self::$source => &$builds, )* }
            }

            /// Its entries.
            pub(crate) fn entries(self) -> &'static [Entry] {
                match self { $( Self::$source => &[$( Entry::$entry, )+], )* }
            }
        }

        impl Entry {
            /// All entries.
            pub(crate) const ALL: &[Self] = &[$( $( Self::$entry, )+ )*];

            /// Operation with layout, number format (`act`: that of activations), least architecture.
            fn name(self) -> (&'static str, &'static str, &'static str) {
                match self {
                    $( $( Self::$entry => {
                        (stringify!($op), stringify!($kind), stringify!($arch))
                    } )+ )*
                }
            }
        }
    };
}

registry! {
    Activation "activation.cu" GATES { ActMulRows: act_mul_rows act sm80 }
    Attention "attention.cu" ATTENTION { AttentionPaged: attention_paged act sm80 }
    AttentionPrefill "attention_prefill.cu" PROMPTS { AttentionPrefill: attention_prefill act sm90 }
    DeltaChunks "delta_chunks.cu" DELTA_NETS { DeltaChunks: delta_chunks act sm80 }
    DeltaNet "delta_net.cu" DELTA_NETS {
        DeltaConv: delta_conv act sm80, DeltaRule: delta_rule act sm80,
        DeltaNorm: delta_norm act sm80
    }
    Embedding "embedding.cu" ONCE { EmbeddingGather: embedding_gather act sm80 }
    ExpertNorms "expert_norms.cu" EXPERT_NORMS {
        ExpertInputs: expert_inputs act sm80, ExpertJoin: expert_join act sm80
    }
    GemmFourBit "gemm_four_bit.cu" FOUR_BITS { GemmFourBit: gemm_four_bit act sm80 }
    GemmFourBitWgmma "gemm_four_bit_wgmma.cu" FOUR_BITS_WGMMA { GemmFourBitWgmma: gemm_four_bit_wgmma act sm90 }
    GemmStream "gemm_stream.cu" STREAMS { GemmStream: gemm_stream act sm80 }
    LogProbs "log_probs.cu" ONCE {
        LogProbsRows: log_probs_rows f32 sm80, LogProbsSamples: log_probs_samples f32 sm80
    }
    Moe "moe.cu" EXPERTS {
        MoeRoute: moe_route f32 sm80, MoeSort: moe_sort u32 sm80,
        MoeGemm: moe_gemm act sm80, MoeScaleRows: moe_scale_rows act sm80,
        MoeCombine: moe_combine act sm80
    }
    MoeFourBit "moe_four_bit.cu" FOUR_BIT_EXPERTS { MoeFourBit: moe_four_bit act sm80 }
    MoeFourBitWgmma "moe_four_bit_wgmma.cu" FOUR_BIT_EXPERTS_WGMMA { MoeFourBitWgmma: moe_four_bit_wgmma act sm90 }
    OutputGate "output_gate.cu" OUTPUT_GATES { OutputGate: output_gate act sm80 }
    Pool "pool.cu" ONCE { PoolScale: pool_scale f32 sm80, PoolRows: pool_rows f32 sm80 }
    Quantise "quantise.cu" QUANTISED {
        QuantiseRows: quantise_rows act sm89, RmsNormQuantise: rms_norm_quantise act sm89,
        ActMulQuantise: act_mul_quantise act sm89, ScaledAddRows: scaled_add_rows act sm89
    }
    Ranks "ranks.cu" RANKS { RanksReduce: ranks_reduce act sm80, RanksGather: ranks_gather f32 sm80 }
    RmsNorm "rms_norm.cu" ONCE {
        RmsNormRows: rms_norm_rows act sm80, RmsNormAdd: rms_norm_add act sm80,
        NormAddScaled: norm_add_scaled act sm80,
        BiasAddRows: bias_add_rows f32 sm80, CastRows: cast_rows act sm80
    }
    RopeKv "rope_kv.cu" ROPES { RopeTable: rope_table f32 sm80, RopeKvPaged: rope_kv_paged act sm80 }
    Sampler "sampler.cu" ONCE { SampleScan: sample_scan f32 sm80, SampleFinish: sample_finish f32 sm80 }
    SharedScore "shared_score.cu" SHARED_SCORES { SharedScore: shared_score act sm80 }
    SlotState "slot_state.cu" ONCE { SampleOpen: sample_open u32 sm80 }
    Softcap "softcap.cu" SOFTCAP { SoftcapRows: softcap_rows f32 sm80 }
    StepPrepare "step_prepare.cu" STEPS { StepPrepareTokens: step_prepare_tokens u32 sm80 }
    TokenInput "token_input.cu" TOKEN_INPUTS {
        TokenInputRows: token_input_rows act sm80, TokenGateRows: token_gate_rows act sm80
    }
    WidenFourBit "widen_four_bit.cu" WIDENED { WidenFourBit: widen_four_bit act sm80 }
}

/// The headers that every source includes, by name.
pub(crate) const HEADERS: [(&str, &str); 8] = [
    ("ptx.cuh", include_str!("../../../kernels/ptx.cuh")),
    ("attention_plan.cuh", include_str!("../../../kernels/attention_plan.cuh")),
    ("contract.cuh", contract::HEADER),
    ("delta_net.cuh", include_str!("../../../kernels/delta_net.cuh")),
    ("expert_tiles.cuh", include_str!("../../../kernels/expert_tiles.cuh")),
    ("four_bit.cuh", include_str!("../../../kernels/four_bit.cuh")),
    ("four_bit_stream.cuh", include_str!("../../../kernels/four_bit_stream.cuh")),
    ("four_bit_wgmma.cuh", include_str!("../../../kernels/four_bit_wgmma.cuh")),
];

impl Entry {
    /// The name in the cubin: `OP_layout_dtype_smXX`. `act` names the dtype of activations.
    pub(crate) fn symbol(self, act: &str) -> String {
        let (op, kind, arch) = self.name();
        format!("{op}_{}_{arch}", if kind == "act" { act } else { kind })
    }
}
