//! Which kernel sources there are, how they are built for a model, and their entries. Load only.
//!
//! The launch contract stands on top of each file in kernels/.

use std::collections::BTreeMap;
use std::sync::Arc;

use ingle_model::{FeedForwardSpec, ModelSpec};

use crate::CudaError;
use crate::compile::Unit;
use crate::context::Context;
use crate::dims::Dims;
use crate::gemm::{GemmOut, GemmShape};
use crate::module::{Kernel, Module};
use crate::prompt_attention::PromptLaunch;
use crate::stream_gemm::{STREAM_TILES, StreamTile, own_shapes, stream_tiles};

macro_rules! source {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../kernels/", $name)))
    };
}

/// The header that every source includes.
pub(crate) const HEADER: &str = include_str!("../../../kernels/ptx.cuh");

/// All sources by file name.
const SOURCES: &[(&str, &str)] = &[
    source!("activation.cu"),
    source!("attention.cu"),
    source!("attention_prefill.cu"),
    source!("embedding.cu"),
    source!("gemm_stream.cu"),
    source!("log_probs.cu"),
    source!("moe.cu"),
    source!("pool.cu"),
    source!("rms_norm.cu"),
    source!("rope_kv.cu"),
    source!("sampler.cu"),
    source!("slot_state.cu"),
    source!("softcap.cu"),
    source!("step_prepare.cu"),
];

/// How attention is launched on this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionLaunch {
    /// Blocks of the persistent grid.
    pub(crate) grid: u32,
    /// Dynamic shared memory of a block.
    pub(crate) shared_bytes: u32,
    /// Tiles in flight.
    pub(crate) stages: u32,
    /// Tokens a tile.
    pub(crate) kv_tile: u32,
}

impl AttentionLaunch {
    /// The most blocks an SM that shared memory allows, two at most.
    pub(crate) fn on(compute_capability: (u32, u32), num_sms: u32, head_dim: u32) -> Self {
        let shared_per_sm = match compute_capability {
            (9, _) => 228 << 10,
            (8, 0) => 164 << 10,
            _ => 100 << 10,
        };
        let stages = if compute_capability.0 == 9 && head_dim <= 128 { 3 } else { 2 };
        let kv_tile = if head_dim == 256 { 32 } else { 64 };
        let query_rows = if head_dim == 256 { 64 } else { stages * 8 };
        let row_bytes = (head_dim + 8) * 2;
        let shared_bytes = (stages * 2 * kv_tile + query_rows) * row_bytes + 1024;
        // The driver keeps 1 KiB of each block's shared memory for itself.
        let fits = shared_per_sm / (shared_bytes + 1024);
        let per_sm = if head_dim > 128 { 1 } else { fits.clamp(1, 2) };
        Self { grid: per_sm * num_sms, shared_bytes, stages, kv_tile }
    }
}

/// What decides how the kernels of a model are built.
#[derive(Clone, Debug)]
pub(crate) struct KernelSettings {
    pub(crate) dims: Dims,
    pub(crate) f16_device: bool,
    pub(crate) head_dim: u32,
    /// Whether a token sees only what comes before it.
    pub(crate) causal: bool,
    pub(crate) attention: AttentionLaunch,
    pub(crate) prompt_attention: Option<PromptLaunch>,
}

/// A program of a model: source file and the sizes that belong to the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Program {
    Activation { intermediate_size: u32 },
    Attention { causal: bool },
    AttentionPrefill,
    Embedding,
    GemmStream { shape: GemmShape, tile: StreamTile },
    LogProbs,
    Moe { num_experts: u32, experts_per_token: u32, gemm_n: u32, gemm_k: u32 },
    Pool,
    RmsNorm,
    RopeKv,
    Sampler,
    SlotState,
    Softcap,
    StepPrepare,
}

impl Program {
    /// Every program that the model needs.
    pub(crate) fn of(
        spec: &ModelSpec,
        compute_capability: (u32, u32),
        has_prompt_attention: bool,
    ) -> Vec<Self> {
        use Program::*;
        let causal = spec.attention.causal;
        let mut programs = vec![
            Attention { causal },
            Embedding,
            LogProbs,
            Pool,
            RmsNorm,
            RopeKv,
            Sampler,
            SlotState,
            StepPrepare,
        ];
        if has_prompt_attention {
            programs.push(AttentionPrefill);
        }
        for shape in own_shapes(spec) {
            let tiles = stream_tiles(compute_capability, shape);
            programs.extend(tiles.map(|tile| GemmStream { shape, tile }));
        }
        if spec.final_logit_softcap.is_some() {
            programs.push(Softcap);
        }
        for layer in &spec.layers {
            match layer.feed_forward {
                FeedForwardSpec::Dense { intermediate_size, .. } => {
                    programs.push(Activation { intermediate_size });
                }
                FeedForwardSpec::Moe(moe) => {
                    let intermediate_size = moe.intermediate_size;
                    programs.push(Activation { intermediate_size });
                    programs.extend(
                        [
                            (2 * intermediate_size, spec.hidden_size),
                            (spec.hidden_size, intermediate_size),
                        ]
                        .map(|(gemm_n, gemm_k)| Moe {
                            num_experts: moe.num_experts,
                            experts_per_token: moe.experts_per_token,
                            gemm_n,
                            gemm_k,
                        }),
                    );
                }
            }
        }
        programs.sort_unstable();
        programs.dedup();
        programs
    }

    /// The sizes of its launches.
    pub(crate) fn dims(self, shared: Dims) -> Dims {
        match self {
            Self::Activation { intermediate_size } => Dims { intermediate_size, ..shared },
            Self::Moe { num_experts, experts_per_token, gemm_n, gemm_k } => {
                Dims { num_experts, experts_per_token, gemm_n, gemm_k, ..shared }
            }
            Self::GemmStream { shape, .. } => shared.gemm(shape.n, shape.k),
            _ => shared,
        }
    }

    /// Macros beside the dimensions.
    fn macros(self) -> Vec<String> {
        match self {
            Self::GemmStream { shape, tile } => {
                let epilogue = match shape.out {
                    GemmOut::Device => 0,
                    GemmOut::AddF32 => 1,
                    GemmOut::Gated => 2,
                    GemmOut::F32 => 3,
                };
                vec![
                    format!("-DGEMM_EPI={epilogue}"),
                    format!("-DGEMM_ROWS={}", tile.rows),
                    format!("-DGEMM_STAGES={}", tile.stages),
                    format!("-DGEMM_STEPS={}", tile.steps),
                    format!("-DGEMM_X_SHARED={}", u32::from(tile.x_shared)),
                ]
            }
            Self::Attention { causal: false } => vec!["-DCAUSAL=0".to_owned()],
            _ => Vec::new(),
        }
    }

    /// Whether its code depends on a head's width.
    pub(crate) fn has_head_dim(self) -> bool {
        matches!(self, Self::Attention { .. } | Self::AttentionPrefill | Self::RopeKv)
    }

    /// The name, without suffix, of its run-time build among the prebuilt kernels.
    pub(crate) fn runtime_name(self, settings: &KernelSettings) -> String {
        let stem = self.file().trim_end_matches(".cu");
        let dtype = if settings.f16_device { "f16" } else { "bf16" };
        let variant = match self {
            Self::Attention { causal: false } => format!("-hd{}-bidirectional", settings.head_dim),
            _ if self.has_head_dim() => format!("-hd{}", settings.head_dim),
            Self::GemmStream { shape, tile } => {
                let StreamTile { rows, stages, steps, x_shared } = tile;
                let x = if x_shared { "-x" } else { "" };
                format!("-{:?}-{rows}-{stages}x{steps}{x}", shape.out).to_lowercase()
            }
            _ => String::new(),
        };
        format!("{stem}-{dtype}{variant}")
    }

    fn file(self) -> &'static str {
        match self {
            Self::Activation { .. } => "activation.cu",
            Self::Attention { .. } => "attention.cu",
            Self::AttentionPrefill => "attention_prefill.cu",
            Self::Embedding => "embedding.cu",
            Self::GemmStream { .. } => "gemm_stream.cu",
            Self::LogProbs => "log_probs.cu",
            Self::Moe { .. } => "moe.cu",
            Self::Pool => "pool.cu",
            Self::RmsNorm => "rms_norm.cu",
            Self::RopeKv => "rope_kv.cu",
            Self::Sampler => "sampler.cu",
            Self::SlotState => "slot_state.cu",
            Self::Softcap => "softcap.cu",
            Self::StepPrepare => "step_prepare.cu",
        }
    }

    /// What NVRTC gets for a build with these very dimensions.
    pub(crate) fn unit(self, settings: &KernelSettings) -> Result<Unit, CudaError> {
        let mut unit = self.runtime_unit(settings)?;
        unit.options.extend(self.dims(settings.dims).macros());
        Ok(unit)
    }

    /// What NVRTC gets for a build that reads its dimensions at run time.
    pub(crate) fn runtime_unit(self, settings: &KernelSettings) -> Result<Unit, CudaError> {
        let file = self.file();
        let source =
            SOURCES.iter().find(|(name, _)| *name == file).map(|(_, source)| *source).ok_or_else(
                || CudaError::Unsupported(format!("kernel source {file} is missing")),
            )?;
        let mut options = self.macros();
        options.push(format!("-DDTYPE_F16={}", u32::from(settings.f16_device)));
        options.push(format!("-DHEAD_DIM={}", settings.head_dim));
        options.push(format!("-DATTN_STAGES={}", settings.attention.stages));
        Ok(Unit { name: file, source, options })
    }
}

/// Every program that any model can need, once; sizes that belong to a launch are 0.
pub(crate) fn runtime_programs() -> Vec<Program> {
    use Program::*;
    let mut programs = vec![
        Activation { intermediate_size: 0 },
        Attention { causal: true },
        Attention { causal: false },
        Embedding,
        LogProbs,
        Moe { num_experts: 0, experts_per_token: 0, gemm_n: 0, gemm_k: 0 },
        Pool,
        RmsNorm,
        RopeKv,
        Sampler,
        SlotState,
        Softcap,
        StepPrepare,
    ];
    for out in [GemmOut::Device, GemmOut::F32, GemmOut::AddF32, GemmOut::Gated] {
        let shape = GemmShape { n: 0, k: 0, out };
        programs.extend(STREAM_TILES.map(|tile| GemmStream { shape, tile }));
    }
    programs
}

/// The loaded entries of a model.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) embedding_gather: Kernel,
    pub(crate) step_prepare: Kernel,
    pub(crate) rms_norm_rows: Kernel,
    pub(crate) rms_norm_add: Kernel,
    pub(crate) bias_add_rows: Kernel,
    pub(crate) rope_table: Kernel,
    pub(crate) rope_kv: Kernel,
    pub(crate) attention: Kernel,
    pub(crate) attention_prefill: Option<Kernel>,
    pub(crate) softcap_rows: Option<Kernel>,
    pub(crate) sample_open: Kernel,
    pub(crate) sample_scan: Kernel,
    pub(crate) sample_finish: Kernel,
    pub(crate) log_probs_rows: Kernel,
    pub(crate) log_probs_samples: Kernel,
    pub(crate) pool_scale: Kernel,
    pub(crate) pool_rows: Kernel,
    /// By intermediate size.
    pub(crate) act_mul: BTreeMap<u32, Kernel>,
    /// By number of experts and experts a token.
    pub(crate) moe: BTreeMap<(u32, u32), MoeKernels>,
    /// By experts, experts a token, n and k.
    pub(crate) moe_gemm: BTreeMap<(u32, u32, u32, u32), Kernel>,
    /// By shape and tile.
    pub(crate) gemm_stream: BTreeMap<(GemmShape, StreamTile), Kernel>,
}

/// Entries of moe.cu that do not depend on a matrix.
#[derive(Debug)]
pub(crate) struct MoeKernels {
    pub(crate) route: Kernel,
    pub(crate) sort: Kernel,
    pub(crate) combine: Kernel,
}

impl Kernels {
    /// Loads the cubins of `programs`, given in the same order.
    pub(crate) fn load(
        context: &Arc<Context>,
        programs: &[Program],
        cubins: &[Vec<u8>],
        settings: &KernelSettings,
    ) -> Result<Self, CudaError> {
        let mut modules = BTreeMap::new();
        for (program, cubin) in programs.iter().zip(cubins) {
            modules.insert(*program, Module::load(context, program.file(), cubin)?);
        }
        let dtype = if settings.f16_device { "f16" } else { "bf16" };
        let entry = |program: Program, op: &str, kind: &str, shared: u32| {
            let module = modules.get(&program).ok_or_else(|| {
                CudaError::Unsupported(format!("program {program:?} was not built"))
            })?;
            Kernel::new(module, &format!("{op}_{kind}_sm80"), shared)
        };
        let (mut act_mul, mut moe) = (BTreeMap::new(), BTreeMap::new());
        let (mut moe_gemm, mut gemm_stream) = (BTreeMap::new(), BTreeMap::new());
        for &program in programs {
            match program {
                Program::Activation { intermediate_size } => {
                    let kernel = entry(program, "act_mul_rows", dtype, 0)?;
                    act_mul.insert(intermediate_size, kernel);
                }
                Program::Moe { num_experts, experts_per_token, gemm_n, gemm_k } => {
                    moe.insert(
                        (num_experts, experts_per_token),
                        MoeKernels {
                            route: entry(program, "moe_route", "f32", 0)?,
                            sort: entry(program, "moe_sort", "u32", 0)?,
                            combine: entry(program, "moe_combine", dtype, 0)?,
                        },
                    );
                    moe_gemm.insert(
                        (num_experts, experts_per_token, gemm_n, gemm_k),
                        entry(program, "moe_gemm", dtype, 0)?,
                    );
                }
                Program::GemmStream { shape, tile } => {
                    let shared = tile.shared_bytes(shape);
                    let kernel = entry(program, "gemm_stream", dtype, shared)?;
                    gemm_stream.insert((shape, tile), kernel);
                }
                _ => {}
            }
        }
        let has_softcap = modules.contains_key(&Program::Softcap);
        let softcap = || entry(Program::Softcap, "softcap_rows", "f32", 0);
        let softcap_rows = has_softcap.then(softcap).transpose()?;
        let attention_shared = settings.attention.shared_bytes;
        let attention = Program::Attention { causal: settings.causal };
        Ok(Self {
            embedding_gather: entry(Program::Embedding, "embedding_gather", dtype, 0)?,
            step_prepare: entry(Program::StepPrepare, "step_prepare_tokens", "u32", 0)?,
            rms_norm_rows: entry(Program::RmsNorm, "rms_norm_rows", dtype, 0)?,
            rms_norm_add: entry(Program::RmsNorm, "rms_norm_add", dtype, 0)?,
            bias_add_rows: entry(Program::RmsNorm, "bias_add_rows", "f32", 0)?,
            rope_table: entry(Program::RopeKv, "rope_table", "f32", 0)?,
            rope_kv: entry(Program::RopeKv, "rope_kv_paged", dtype, 0)?,
            attention: entry(attention, "attention_paged", dtype, attention_shared)?,
            attention_prefill: prompt_attention(&modules, settings, dtype)?,
            softcap_rows,
            sample_open: entry(Program::SlotState, "sample_open", "u32", 0)?,
            sample_scan: entry(Program::Sampler, "sample_scan", "f32", 0)?,
            sample_finish: entry(Program::Sampler, "sample_finish", "f32", 0)?,
            log_probs_rows: entry(Program::LogProbs, "log_probs_rows", "f32", 0)?,
            log_probs_samples: entry(Program::LogProbs, "log_probs_samples", "f32", 0)?,
            pool_scale: entry(Program::Pool, "pool_scale", "f32", 0)?,
            pool_rows: entry(Program::Pool, "pool_rows", "f32", 0)?,
            act_mul,
            moe,
            moe_gemm,
            gemm_stream,
        })
    }
}

/// The entry of attention_prefill.cu, where it runs.
fn prompt_attention(
    modules: &BTreeMap<Program, Arc<Module>>,
    settings: &KernelSettings,
    dtype: &str,
) -> Result<Option<Kernel>, CudaError> {
    let Some(launch) = &settings.prompt_attention else { return Ok(None) };
    let module = modules
        .get(&Program::AttentionPrefill)
        .ok_or_else(|| CudaError::Unsupported("attention_prefill.cu was not built".to_owned()))?;
    Kernel::new(module, &format!("attention_prefill_{dtype}_sm90"), launch.shared_bytes()).map(Some)
}
