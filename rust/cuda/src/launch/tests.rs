//! Runs every launch function on the fake driver and compares the number of arguments with the
//! kernel's source.

use std::collections::BTreeMap;

use ingle_model::{DeltaNetSpec, HeadSizes, MoeSpec, RouterSpec};

use super::*;
use crate::CudaError;
use crate::attention_kinds::{AttentionKind, AttentionKinds};
use crate::attention_launch::AttentionLaunch;
use crate::builds::{delta_net, expert_norms, four_bit_experts};
use crate::contract::{GATE_SILU, QUERY_ROWS, ROPE_HALF_SPLIT};
use crate::device_slice::{Act, DevicePtr, DeviceSlice};
use crate::dtypes::{Dtypes, KvDtype, ScaleMode, WeightDtype};
use crate::fake;
use crate::four_bit::{FourBitForm, GroupScale};
use crate::four_bit_gemm::FourBitProduct;
use crate::four_bit_tile::{FOUR_BIT_TILES, FourBitBuild, expert_tiles};
use crate::four_bit_wgmma::{WGMMA_TILES, expert_wgmma_tiles};
use crate::gemm::{GemmArgs, GemmInput, GemmResult};
use crate::kv_pool::KvLayer;
use crate::limits::DeviceLimits;
use crate::matrix::Matrix;
use crate::program::{KernelSettings, Program};
use crate::prompt_launch::PromptLaunch;
use crate::registry::{Entry, Source};
use crate::rope_build::{KeyParts, QueryScaling, RopeBuild, RopeRules};
use crate::shapes::{GemmOut, GemmShape};
use crate::state_pool::StateLayer;
use crate::stream_gemm::OwnProduct;
use crate::stream_tile::STREAM_TILES;
use crate::sys::driver::TensorMap;
use crate::variant::{ExpertKind, Variant};

const DIMS: Dims = Dims {
    vocab_size: 100,
    sample_vocab: 100,
    hidden_size: 32,
    num_heads: 4,
    num_kv_heads: 2,
    rotary_dim: 64,
    block_size: 16,
    max_blocks: 8,
    num_slots: 4,
    intermediate_size: 0,
    num_experts: 0,
    experts_per_token: 0,
    gemm_n: 0,
    gemm_k: 0,
    rotary_pairs: 0,
    reserved: 0,
};
const HEAD: u32 = 64;
const H200: DeviceLimits = DeviceLimits::assumed((9, 0), 132, 228);
const SHAPE: GemmShape = GemmShape {
    n: 32,
    k: 32,
    out: GemmOut::Device,
    weight: WeightDtype::Bf16,
    scale: ScaleMode::None,
};
const FORM: FourBitForm =
    FourBitForm { scale: GroupScale::E8M0, zeros: false, block: 64, groups: 2 };
const FOUR_BIT: GemmShape = GemmShape {
    n: 32,
    k: 64,
    out: GemmOut::Device,
    weight: WeightDtype::FourBit(FORM),
    scale: ScaleMode::Group,
};
const ROPE: RopeBuild = RopeBuild {
    head_dim: HEAD,
    rules: RopeRules {
        full_norm: false,
        unweighted_norm: false,
        value_norm: false,
        output_gate: false,
        query_scale: QueryScaling::None,
        keys: KeyParts::KeysAndValues,
        rotary_part: false,
    },
    num_kv_heads: 2,
    rotary_dim: 64,
    rotary_pairs: 0,
};
const ATTENTION: Variant = Variant::Attention {
    head_dim: HEAD,
    num_kv_heads: 2,
    stages: 3,
    causal: true,
    sinks: false,
    chunks: false,
};
const PROMPT: Variant =
    Variant::Prompt { head_dim: HEAD, num_kv_heads: 2, sinks: false, chunks: false };
const NET: DeltaNetSpec = DeltaNetSpec {
    num_key_heads: 2,
    num_value_heads: 4,
    key_dim: 32,
    value_dim: 64,
    conv_kernel: 4,
};
const GATE: Variant = Variant::Gate { intermediate_size: 16, clamped: false };

fn moe() -> MoeSpec {
    let (num_experts, experts_per_token, intermediate_size) = (4, 2, 16);
    let router = RouterSpec::softmax(true);
    MoeSpec {
        num_experts,
        experts_per_token,
        intermediate_size,
        router,
        bias: false,
        shared_size: None,
        scales_input: false,
        shared_score: false,
        own_norms: false,
    }
}

/// One build of every file.
fn kernels() -> Kernels {
    let experts = |gemm_n, gemm_k| {
        let MoeSpec { num_experts, experts_per_token, .. } = moe();
        let kind = ExpertKind::default();
        Variant::Experts { num_experts, experts_per_token, gemm_n, gemm_k, kind }
    };
    let variants = |source| match source {
        Source::Activation => vec![GATE],
        Source::Attention => vec![ATTENTION],
        Source::AttentionPrefill => vec![PROMPT],
        Source::ExpertNorms => vec![expert_norms(&moe())],
        Source::StepPrepare => vec![Variant::Plain, Variant::PlanKinds],
        Source::DeltaNet | Source::DeltaChunks => vec![delta_net(&NET)],
        Source::RopeKv => vec![Variant::Rope(ROPE)],
        Source::Moe => vec![experts(32, 32), experts(32, 16)],
        Source::GemmFourBit => {
            let (tile, most_shared) = (FourBitBuild::Stream(FOUR_BIT_TILES[0]), 1 << 16);
            vec![Variant::FourBit { shape: FOUR_BIT.four_bit().unwrap(), tile, most_shared }]
        }
        Source::MoeFourBit => {
            let tile = FourBitBuild::Stream(expert_tiles(&H200, FORM, (32, 64))[0]);
            vec![four_bit_experts(&moe(), FOUR_BIT.four_bit().unwrap(), tile)]
        }
        Source::GemmFourBitWgmma => {
            let (tile, most_shared) = (FourBitBuild::Wgmma(WGMMA_TILES[0]), 1 << 16);
            vec![Variant::FourBit { shape: FOUR_BIT.four_bit().unwrap(), tile, most_shared }]
        }
        Source::MoeFourBitWgmma => {
            let tile = FourBitBuild::Wgmma(expert_wgmma_tiles(&H200, FORM, (32, 64))[0]);
            vec![four_bit_experts(&moe(), FOUR_BIT.four_bit().unwrap(), tile)]
        }
        Source::WidenFourBit => vec![Variant::Widen { n: 32, k: 64, form: FORM }],
        Source::GemmStream => vec![Variant::Stream { shape: SHAPE, tile: STREAM_TILES[0] }],
        _ => vec![Variant::Plain],
    };
    let programs: Vec<Program> = Source::ALL
        .iter()
        .flat_map(|&source| {
            variants(source).into_iter().map(move |variant| Program { source, variant })
        })
        .collect();
    let codes = vec![Vec::new(); programs.len()];
    let settings = KernelSettings { dims: DIMS, dtypes: Dtypes::ALL[0] };
    Kernels::load(&fake::context(), &programs, &codes, &settings).unwrap()
}

fn some<T>(len: u32) -> DeviceSlice<T> {
    DeviceSlice::new(DevicePtr::new(1 << 20), u64::from(len))
}

fn attention_kind() -> AttentionKind {
    AttentionKind {
        window: 0,
        heads: HeadSizes { num_kv_heads: 2, head_dim: HEAD },
        launch: AttentionLaunch::on(&H200, HEAD, KvDtype::Bf16),
        prompt: PromptLaunch::on(&H200, HEAD, 16, KvDtype::Bf16),
        build: ATTENTION,
        prompt_build: PROMPT,
    }
}

fn attention_sizes() -> (AttentionKind, Attention) {
    let kind = attention_kind();
    let sizes = kind.launch;
    let partials = 2 * sizes.grid * QUERY_ROWS * (HEAD + 2);
    let attention = Attention {
        q: some(8 * 4 * HEAD),
        out: some(8 * 4 * HEAD),
        plan: some(100),
        block_table: some(32),
        kv: KvLayer { base: DevicePtr::new(1 << 30), block_stride: 1 << 16, layer_offset: 0 },
        partials: some(partials),
        counters: some(sizes.grid),
        scale: 1.0,
        softcap: 0.0,
        window: 0,
        sinks: Some(some(4)),
    };
    (kind, attention)
}

fn launch_step_and_attention(launcher: &Launcher<'_>) -> Result<(), CudaError> {
    let (kind, attention) = attention_sizes();
    let plans = &AttentionKinds::alike(vec![kind.clone()]);
    launcher.step_prepare(&StepPrepare {
        step: some(100),
        last_token: some(4),
        block_table: some(32),
        token_ids: some(8),
        positions: some(8),
        slot_of_token: some(8),
        kv_slot: some(8),
        num_groups: 1,
        sample_rows: some(4),
        plan_kinds: some(1),
        plans: some(100),
        plan_words: 100,
        plan_entries: 4,
        tokens: 8,
        samples: 4,
        attention: plans,
        flags: 0,
        prompts: PromptPlans { split: true, plans: some(100), words: 100, counters: some(2) },
    })?;
    launcher.rope_table(&RopeTable {
        inv_freq: some(32),
        table: some(32 * 128),
        attention_factor: 1.0,
        positions: 128,
    })?;
    launcher.sample_open(some(400), some(10), some(4))?;
    launcher.rope_kv(
        8,
        ROPE,
        &RopeKv {
            qkv: some(8 * 8 * HEAD),
            scales: None,
            bias: None,
            q_norm: Some(some(HEAD)),
            k_norm: Some(some(HEAD)),
            table: Some(some(32 * 128)),
            positions: some(8),
            kv_slot: some(8),
            q: some(8 * 4 * HEAD),
            kv: attention.kv,
            eps: 1e-5,
            style: ROPE_HALF_SPLIT,
            query_scale: None,
        },
    )?;
    launcher.attention(8, &kind, &attention)?;
    let map = TensorMap { opaque: [0; 16] };
    let prompts = AttentionPrefill { plan: some(100), kv_map: &map, counter: some(1) };
    launcher.attention_prefill(&kind, &attention, &prompts)
}

fn launch_delta_net(launcher: &Launcher<'_>) -> Result<(), CudaError> {
    let states = StateLayer {
        base: DevicePtr::new(1 << 30),
        place_stride: 1 << 16,
        layer_offset: 0,
        num_places: 4,
    };
    let step = DeltaStep {
        net: NET,
        states,
        projected: some(8 * 648),
        stride: 648,
        mixed: some(8 * 384),
        factors: some(8 * 4),
        dots: some(8 * 2),
        read: some(8 * 256),
        slot_of_token: some(8),
        chunk_from: Some(64),
    };
    let conv = DeltaConv {
        scores: None,
        conv: some(384 * 4),
        log_rate: some(4),
        decay_bias: some(4),
        positions: some(8),
    };
    launcher.delta_conv(8, &step, &conv)?;
    launcher.delta_rule((8, 4), &step, some(100))?;
    launcher.delta_chunks((8, 4), &step, some(100))?;
    let norm = DeltaNorm { norm: some(64), gated: some(8 * 256), eps: 1e-6 };
    launcher.delta_norm(8, &step, &norm)?;
    let (qkv, attended) = (some(8 * 12 * HEAD), some(8 * 4 * HEAD));
    launcher.output_gate(8, &OutputGate { head_dim: HEAD, qkv, scales: None, attended })?;
    launcher.shared_score((8, 16), some(8 * 32), some(32), some(8 * 16))
}

fn launch_ranks(launcher: &Launcher<'_>) -> Result<(), CudaError> {
    let (regions, control, fault) = (some(2), some(4), some(2));
    let exchange = Exchange { regions, control, fault, rank: 1, ranks: 2, grid: 33 };
    let (bias, norm) = (Some(some(32)), Some(some(32)));
    let (partial, residual, out) = (some(8 * 32), some(8 * 32), some(8 * 32));
    let reduce = RanksReduce { partial, bias, post_norm: None, residual, norm, out, eps: 1e-5 };
    launcher.ranks_reduce(&exchange, 8, &reduce)?;
    let (first, columns, most_columns) = (64, 36, 64);
    let gather = RanksGather { local: some(4 * 36), logits_at: 4096, first, columns, most_columns };
    launcher.ranks_gather(&exchange, 4, &gather)
}

fn launch_rows(launcher: &Launcher<'_>) -> Result<(), CudaError> {
    let (token_ids, table, residual) = (some(8), some(3200), some(256));
    launcher.embedding_gather(8, &EmbeddingGather { token_ids, table, residual, scale: 1.0 })?;
    let (row_index, weight) = (Some(some(4)), some(32));
    launcher.rms_norm_rows(
        4,
        32,
        &RmsNorm { x: residual, row_index, weight, out: some(128), eps: 1e-5 },
    )?;
    launcher.rms_norm_add((8, 32), residual, weight, residual, 1e-5)?;
    launcher.bias_add_rows((8, 32), residual, weight)?;
    let norm = NormAddScaled {
        x: residual,
        weight,
        residual,
        factor: Some(some(1)),
        out: Some(some(256)),
        eps: 1e-5,
    };
    launcher.norm_add_scaled((8, 32), &norm)?;
    launcher.cast_rows((8, 32), residual, some(256))?;
    let (gate_up, bias, out) = (some(8 * 32), Some(some(32)), some(8 * 16));
    let gate = ActMul { intermediate_size: 16, gate_up, bias, out, kind: GATE_SILU, limit: 0.0 };
    launcher.act_mul_rows(8, GATE, &gate)?;
    launcher.softcap_rows(4, some(400), 30.0)?;
    launch_ranks(launcher)?;
    let (x, w) = (GemmInput::Act(some(256)), Matrix::Plain(some(1024)));
    let args = GemmArgs { x, w, out: GemmResult::Act(some(256)) };
    let own = OwnProduct::all(launcher.kernels, DIMS, 132, (8, SHAPE), GATE_SILU);
    own.iter().try_for_each(|own| own.run(launcher.stream, &args))?;
    let places = ExpertPlaces {
        ids: some(16),
        weights: some(16),
        offsets: some(5),
        sorted: some(16),
        place: some(16),
    };
    let (w, out) = (Matrix::Plain(some(4 * 32 * 32)), some(16 * 32));
    let (moe, bias) = (moe(), Some(some(4)));
    let routing = Routing { logits: some(32), bias, correction: bias };
    launcher.route(8, &moe, &routing, &places)?;
    let bias = Some(some(4 * 32));
    let into = MoeGemm { n: 32, k: 32, x: some(256), w, bias, out, gather: true };
    launcher.moe_gemm(16, &moe, &places, &into)?;
    launcher.moe_scale_rows(8, &moe, some(256), &places, out)?;
    launcher.moe_combine(8, &moe, out, &places, residual)?;
    launch_expert_norms(launcher, places, out)
}

fn launch_expert_norms(
    launcher: &Launcher<'_>,
    places: ExpertPlaces,
    expert_out: DeviceSlice<Act>,
) -> Result<(), CudaError> {
    let (residual, norm, size) = (some(256), some(32), (8, 32));
    let inputs = ExpertInputs { residual, weights: [norm; 3], outs: [some(256); 3], eps: 1e-6 };
    launcher.expert_inputs(size, &moe(), &inputs)?;
    let join = ExpertJoin {
        shared: some(256),
        expert_out,
        places,
        shared_norm: norm,
        expert_norm: norm,
        post_norm: norm,
        residual,
        factor: Some(some(1)),
        eps: 1e-6,
    };
    launcher.expert_join(size, &moe(), &join)?;
    let (num_layers, width, x) = (3, 16, some(8 * 48));
    let input = TokenInput {
        num_layers,
        size: width,
        x,
        token_ids: some(8),
        table: some(100 * 48),
        norm: some(16),
        projected: 0.1,
        embedded: 4.0,
        eps: 1e-6,
    };
    launcher.token_input_rows(8, &input)?;
    let gate = TokenGate {
        num_layers,
        layer: 2,
        size: width,
        gate: some(128),
        x,
        out: some(128),
        kind: GATE_SILU,
    };
    launcher.token_gate_rows(8, &gate)
}

fn launch_four_bit(launcher: &Launcher<'_>) -> Result<(), CudaError> {
    let records = |n: u32| some(u32::try_from(FORM.bytes(n, 64)).unwrap());
    let matrix =
        |n: u32| Matrix::FourBit { records: records(n), elements: u64::from(n) * 64, form: FORM };
    let (x, w, out) = (GemmInput::Act(some(8 * 64)), matrix(32), GemmResult::Act(some(8 * 32)));
    let own = FourBitProduct::all(launcher.kernels, DIMS, &H200, (8, FOUR_BIT), GATE_SILU);
    // One and two blocks an SM, and a cluster of one block: there is but one record.
    assert_eq!(own.len(), 3);
    own.iter().try_for_each(|own| own.run(launcher.stream, &GemmArgs { x, w, out }))?;
    let kernel = launcher.kernels.only(Entry::WidenFourBit)?.clone();
    let widen = WidenFourBit { kernel, dims: DIMS.gemm(32, 64), records: 2 };
    widen.launch(launcher.stream, w, some(32 * 64))?;
    // Few entries for each expert, and many.
    [4, 64].into_iter().try_for_each(|entries| {
        let places = ExpertPlaces {
            ids: some(entries),
            weights: some(entries),
            offsets: some(5),
            sorted: some(entries),
            place: some(entries),
        };
        let (x, out, w) = (some(entries * 64), some(entries * 32), matrix(4 * 32));
        let product = MoeGemm { n: 32, k: 64, x, w, bias: None, out, gather: true };
        let tiles = expert_tiles(&H200, FORM, (32, 64));
        let many = expert_wgmma_tiles(&H200, FORM, (32, 64));
        let experts = FourBitExperts {
            form: FORM,
            tiles: &tiles[..1],
            wgmma_tiles: &many[..1],
            limits: &H200,
        };
        launcher.moe_four_bit(entries, &moe(), &places, &product, &experts)
    })
}

fn launch_quantise(launcher: &Launcher<'_>) -> Result<(), CudaError> {
    let raw = |n: u32| Raw { values: some(8 * n), row_scale: some(8), scale: some(n) };
    let rows = |width: u32| E4m3Rows { values: some(8 * width), scale: some(8) };
    launcher.quantise_rows((8, 64), some(512), &rows(64))?;
    let (residual, weight) = (some(256), some(32));
    let norm = RmsNormQuantise { residual, raw: Some(raw(32)), weight, out: rows(32), eps: 1e-5 };
    launcher.rms_norm_quantise((8, 32), &norm)?;
    launcher.scaled_add_rows((8, 32), residual, &raw(32), true)?;
    let (gate_up, bias, out) = (raw(32), Some(some(32)), rows(16));
    let gate = ActMulQuantise { intermediate_size: 16, gate_up, bias, out, kind: GATE_SILU };
    launcher.act_mul_quantise(8, &gate)
}

fn launch_sampler(launcher: &Launcher<'_>) -> Result<(), CudaError> {
    let scores = Scores {
        logits: some(400),
        work: some(400),
        step: some(100),
        slots: some(4),
        counts: some(400),
        partials: some(4),
        chunks: 1,
    };
    let scan = SampleScan { mask: some(16), bias: some(4096), banned: some(512) };
    launcher.sample_scan(4, &scores, &scan)?;
    launcher.sample_finish(4, &scores, &SampleFinish { last_token: some(4), out: some(4) })?;
    launcher.log_probs_samples(4, &scores, some(4))?;
    launcher.log_probs_rows(4, some(400), some(4), 2, some(4))?;
    let (step, sums, out) = (some(100), some(128), some(128));
    let (residual, scale, weight) = (some(256), some(8), some(32));
    launcher.pool(8, 4, &PoolRows { step, residual, scale, weight, sums, out, eps: 1e-5 })
}

/// How many parameters each entry of a file declares, by operation.
fn declared(text: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for head in ["\nENTRY(", "\nENTRY_89(", "\nENTRY_F32(", "\nENTRY_U32(", "\nPASTE("] {
        for part in text.split(head).skip(1) {
            let (name, rest) = part.split_once(')').unwrap();
            let operation = name.split(',').next().unwrap().to_owned();
            let parameters =
                rest.trim_start().strip_prefix('(').unwrap().split_once(") {").unwrap().0;
            found.insert(operation, parameters.split(',').count());
        }
    }
    found
}

/// Every entry of every file is launched, with as many arguments as it has parameters.
#[test]
fn every_launch_has_the_parameters_of_its_kernel() {
    let context = fake::context();
    let stream = Stream::new(&context).unwrap();
    let kernels = kernels();
    let launcher = Launcher { kernels: &kernels, stream: &stream, dims: &DIMS };
    launch_step_and_attention(&launcher).unwrap();
    launch_rows(&launcher).unwrap();
    launch_delta_net(&launcher).unwrap();
    launch_quantise(&launcher).unwrap();
    launch_four_bit(&launcher).unwrap();
    launch_sampler(&launcher).unwrap();
    let launched: BTreeMap<String, usize> = fake::launches().into_iter().collect();
    let mut want = BTreeMap::new();
    for source in Source::ALL {
        let of_file = declared(source.text());
        for entry in source.entries() {
            let symbol = entry.symbol("bf16");
            let operation =
                of_file.keys().find(|op| symbol.starts_with(&format!("{op}_"))).unwrap();
            want.insert(symbol, of_file[operation]);
        }
        assert_eq!(of_file.len(), source.entries().len(), "{}: {of_file:?}", source.file());
    }
    assert_eq!(launched, want);
    assert_eq!(launched.len(), Entry::ALL.len());
}

/// A buffer that a kernel would overrun is found where it is launched.
#[test]
#[should_panic(expected = "a.counters: 5 u32")]
fn a_short_buffer_is_found_before_the_launch() {
    let stream = Stream::new(&fake::context()).unwrap();
    let kernels = kernels();
    let launcher = Launcher { kernels: &kernels, stream: &stream, dims: &DIMS };
    let (kind, attention) = attention_sizes();
    let _ = launcher.attention(8, &kind, &Attention { counters: some(5), ..attention });
}
