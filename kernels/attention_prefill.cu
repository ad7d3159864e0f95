// Paged attention of prompt chunks on Hopper: TMA brings K and V, wgmma multiplies, warp groups take turns.
//
// Shapes: q, out [T_pad, num_heads, HEAD_DIM] act; KV pages as attention.cu has them, seen through `kv_map`:
//   a tensor map over {HEAD_DIM, block_size, num_kv_heads, 2 (K, V), blocks} act from the layer's address
//   on, box {BOX, min(block_size, KT)} and 128-byte swizzle, zeros beyond HEAD_DIM; block_table
//   [num_slots, max_blocks] u32; plan as step_prepare.cu writes it for prompts: PromptHeader, then
//   PromptEntry; counter: one u32, zero before. Only the rows of the plan's entries are written.
// A token at position p sees positions (p - window, p], all of [0, p] if window is 0.
//   CHUNKS as in attention.cu.
//   Scores are scale * q.k, then softcap * tanh(score / softcap) if softcap > 0. Sinks as in attention.cu.
// Work: an item is an (entry, kv head): up to PROMPT_ROWS packed rows, row = token * group + head in its group,
//   against the KV tiles [tile_begin, tile_end), the last one first. Blocks take items in order, the next one
//   from `counter` (the results do not depend on which block takes which item).
// Roles (FlashAttention-3, Shah et al. 2024): warp group 0 only loads; groups 1 and 2 hold 64 rows each.
//   A group starts q.k of the next tile before p.v of this one, and takes the exponentials of the one while
//   the tensor cores work on the other; named barriers let the two groups take turns at the tensor cores.
// Numerics: act operands, f32 scores, sums and output; P rounded to act.
// Launch: after attention.cu, whose plan has PLAN_PROMPT_FOLLOWS; grid up to one block an SM, block 384, dynamic
//   shared memory prompt_shared_bytes(HEAD_DIM, bytes of a kv). It waits for attention.cu, which writes other rows, only
//   at its end: what it reads is complete when attention.cu starts dependents.
#include "ptx.cuh"

#ifndef SINKS
#define SINKS 0
#endif
#ifndef CHUNKS
#define CHUNKS 0
#endif

constexpr int D = HEAD_DIM;
constexpr int BOX = PROMPT_ROW_BYTES / sizeof(kv);  // elements of one swizzled row
constexpr int BOXES = (D + BOX - 1) / BOX;
constexpr int Q_GROUP = 64;                  // packed rows of a consumer group
constexpr int KT = prompt_tile(D);           // tokens a tile
constexpr u32 log2_of(u32 power) { return power > 1 ? 1 + log2_of(power / 2) : 0; }
constexpr u32 KT_SHIFT = log2_of(KT);
static_assert(KT == 1 << KT_SHIFT, "blocks and tiles divide each other");
constexpr int STAGES = PROMPT_STAGES;
// The block starts with 168 registers a thread; a group that requests more than the block has waits forever.
constexpr u32 LOADER_REGISTERS = D == 64 ? 56 : 40, CONSUMER_REGISTERS = D == 64 ? 224 : 232;
static_assert(LOADER_REGISTERS + 2 * CONSUMER_REGISTERS <= 3 * 168, "registers that the block does not have");
constexpr int SN = KT / 2;                   // score registers a thread: KT / 8 groups of 4
constexpr int ON = D / 2;                    // output registers a thread
constexpr u32 BOX_BYTES = KT * PROMPT_ROW_BYTES;
constexpr u32 KV_BYTES = BOXES * BOX_BYTES;
constexpr u32 Q_GROUP_BYTES = BOXES * Q_GROUP * PROMPT_ROW_BYTES;
constexpr u32 THREADS = PROMPT_THREADS;
static_assert(2 * Q_GROUP == PROMPT_ROWS, "two groups hold an entry");
constexpr u32 ITEM_SLOTS = 2;
// Barriers, then a word an item.
static_assert(PROMPT_ALIGN_BYTES + 2 * (Q_GROUP_BYTES + STAGES * KV_BYTES) + 8 * (4 * STAGES + 2 * ITEM_SLOTS)
              + sizeof(u32) * ITEM_SLOTS <= prompt_shared_bytes(D, sizeof(kv)), "what lies behind the tiles");

struct __align__(64) TensorMap {
    u64 words[16];
};

// ---- barriers and copies ------------------------------------------------------------------------

DEV void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
DEV void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEV void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
DEV void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ready;\nbra again;\nready:\n}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
DEV void copy_box(u32 target, const TensorMap* map, u32 element, u32 row, u32 head, u32 which, u32 block,
                  u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(target),
        "l"(map), "r"(element), "r"(row), "r"(head), "r"(which), "r"(block), "r"(barrier)
        : "memory");
}
DEV void named_arrive(u32 id, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
DEV void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- wgmma --------------------------------------------------------------------------------------

#if ACT_DTYPE == DTYPE_F16
#define WGMMA_TYPES "f32.f16.f16"
#else
#define WGMMA_TYPES "f32.bf16.bf16"
#endif
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define T16_0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define T16_1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define T16_2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define T16_3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
// d += a * b with both in shared memory, b's rows along k; `use_d` 0 starts from zero.
#define WGMMA_SS(columns, registers, operands, at_a, at_b, at_use, ...)                                   \
    DEV void wgmma_ss(float (&d)[registers], u64 a, u64 b, u32 use_d) {                                   \
        asm volatile("{\n.reg .pred use;\nsetp.ne.b32 use, " at_use ", 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n" columns "k16." WGMMA_TYPES " {" operands "}, " at_a \
                     ", " at_b ", use, 1, 1, 0, 0;\n}\n"                                                  \
                     : __VA_ARGS__                                                                        \
                     : "l"(a), "l"(b), "r"(use_d));                                                       \
    }
// d += a * b with a in registers and b's columns along memory (V as it lies).
#define WGMMA_RS(columns, registers, operands, a0, a1, a2, a3, at_b, at_use, ...)                          \
    DEV void wgmma_rs(float (&d)[registers], const u32* a, u64 b, u32 use_d) {                            \
        asm volatile("{\n.reg .pred use;\nsetp.ne.b32 use, " at_use ", 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n" columns "k16." WGMMA_TYPES " {" operands "}, {"  \
                     a0 "," a1 "," a2 "," a3 "}, " at_b ", use, 1, 1, 1;\n}\n"                            \
                     : __VA_ARGS__                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(use_d));                   \
    }
WGMMA_SS("64", 32, T16_0 "," T16_1, "%32", "%33", "%34", D16(0), D16(16))
WGMMA_SS("128", 64, T16_0 "," T16_1 "," T16_2 "," T16_3, "%64", "%65", "%66", D16(0), D16(16), D16(32), D16(48))
WGMMA_RS("64", 32, T16_0 "," T16_1, "%32", "%33", "%34", "%35", "%36", "%37", D16(0), D16(16))
WGMMA_RS("96", 48, T16_0 "," T16_1 "," T16_2, "%48", "%49", "%50", "%51", "%52", "%53", D16(0), D16(16), D16(32))
WGMMA_RS("128", 64, T16_0 "," T16_1 "," T16_2 "," T16_3, "%64", "%65", "%66", "%67", "%68", "%69", D16(0), D16(16), D16(32), D16(48))

DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
DEV void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from moving uses of these registers across.
template <int COUNT>
DEV void hold(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// Descriptor of a 128-byte swizzled operand: bytes between its 64-element boxes and between groups of 8 rows.
DEV u64 descriptor(u32 address, u32 box_bytes) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(box_bytes >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

// ---- one consumer group -------------------------------------------------------------------------

typedef PromptEntry Entry;

DEV Entry load_entry(const u32* plan, u32 index) {
    const uint4* words = (const uint4*)(plan + WORDS(PromptHeader) + WORDS(PromptEntry) * index);
    uint4 a = words[0], b = words[1];
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

struct Rules {
    float scale, softcap, to_log2;
    u32 window;
#if SINKS
    const float* sinks;
#endif
};

// s = q.k of one tile; q and k in shared memory. Queued, not waited for.
DEV void start_scores(float (&s)[SN], u32 q_group, u32 k) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        u32 box = step / 4, within = step % 4 * 32;
        wgmma_ss(s, descriptor(q_group + box * Q_GROUP * 128 + within, 16),
                 descriptor(k + box * BOX_BYTES + within, 16), step > 0);
    }
    wgmma_commit();
}

DEV void add_product(float (&o)[ON], const u32 (&p)[SN / 2], u32 v) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < KT / 16; step++) {
        u32 rows = v + step * 16 * 128;
        if constexpr (D == 256) {
            wgmma_rs(*(float (*)[64]) & o[0], p + 4 * step, descriptor(rows, BOX_BYTES), 1);
            wgmma_rs(*(float (*)[64]) & o[64], p + 4 * step, descriptor(rows + 2 * BOX_BYTES, BOX_BYTES), 1);
        } else {
            wgmma_rs(*(float (*)[D == 256 ? 64 : ON]) & o[0], p + 4 * step, descriptor(rows, BOX_BYTES), 1);
        }
    }
    wgmma_commit();
}

#if CHUNKS
// The first position that a token at `position` sees.
DEV u32 chunk_start(u32 position, u32 window) { return window ? position - position % window : 0; }
#endif

// Masks this thread's scores: two rows at `position`, columns from token `first` on.
DEV void mask_scores(float (&s)[SN], const u32 (&position)[2], u32 first, u32 window) {
    u32 column = first + 2 * (threadIdx.x & 3);
#if CHUNKS
    u32 seen[2] = {chunk_start(position[0], window), chunk_start(position[1], window)};
#endif
#pragma unroll
    for (int j = 0; j < SN / 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 token = column + 8 * j + (i & 1), p = position[i >> 1];
#if CHUNKS
            if (token > p || token < seen[i >> 1]) s[4 * j + i] = NEG_INF;
#else
            if (token > p || (window && token + window <= p)) s[4 * j + i] = NEG_INF;
#endif
        }
}

// One step of the online softmax: s becomes probabilities, `keep` the factor for earlier sums.
DEV void soften(float (&s)[SN], float (&m)[2], float (&l)[2], float (&keep)[2], float to_log2) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = m[r];
#pragma unroll
        for (int j = 0; j < SN / 4; j++) top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        // Not contracted: `keep` is exactly 1 while m does not change, see attention.cu.
        float base = top == NEG_INF ? 0.0f : __fmul_rn(top, to_log2);
        keep[r] = exp2_approx(__fadd_rn(__fmul_rn(m[r], to_log2), -base));
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < SN / 4; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float p = exp2_approx(fmaf(s[4 * j + 2 * r + i], to_log2, -base));
                s[4 * j + 2 * r + i] = p;
                sum[i] += p;
            }
        m[r] = top;
        l[r] = l[r] * keep[r] + (sum[0] + sum[1]);
    }
}

DEV void to_operand(u32 (&p)[SN / 2], const float (&s)[SN]) {
#pragma unroll
    for (int i = 0; i < SN / 2; i++) p[i] = pack2(s[2 * i], s[2 * i + 1]);
}

// Rows of V that hold no token of the sequence may hold anything, NaN too: 0 * NaN is NaN.
DEV void clear_tail(u32 v, u32 rows) {
    u32 thread = threadIdx.x & 127;
    for (u32 i = rows * 8 + thread; i < KT * 8; i += 128)
#pragma unroll
        for (int box = 0; box < BOXES; box++)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(v + box * BOX_BYTES + i * 16), "r"(0)
                         : "memory");
    fence_async();
    named_wait(4 + (threadIdx.x >> 7), 128);
}

DEV void load_q(const act* q, const Entry& e, u32 head, u32 group, u32 num_heads, u32 q_group) {
    u32 thread = threadIdx.x & 127, first = e.packed_begin + ((threadIdx.x >> 7) - 1) * Q_GROUP;
    constexpr int PIECES = D / 8;
#pragma unroll 4
    for (u32 i = thread; i < Q_GROUP * PIECES; i += 128) {
        u32 row = i / PIECES, chunk = i % PIECES, packed = first + row;
        u32 target = q_group + chunk / 8 * (Q_GROUP * 128) + row * 128 + ((chunk % 8) ^ (row % 8)) * 16;
        bool valid = packed < e.packed_end;
        if (!valid) packed = e.packed_begin;
        u64 at = ((u64)(e.first_token + packed / group) * num_heads + head * group + packed % group) * D + chunk * 8;
        cp_async_16(target, q + at, valid ? 16 : 0);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_async();
    named_wait(4 + (threadIdx.x >> 7), 128);
}

struct Ring {
    u32 stage, phase;
};
DEV void step_ring(Ring& ring) {
    if (++ring.stage == STAGES) ring.stage = 0, ring.phase ^= 1;
}

struct Shared {
    u32 q, k, v, full_k, empty_k, full_v, empty_v, full_item, empty_item, items;
};

DEV void release(u32 barrier) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(barrier);
}

DEV void cap_scores(float (&s)[SN], const Rules& rules) {
    float inner = rules.scale / rules.softcap;
#pragma unroll
    for (int i = 0; i < SN; i++) s[i] = rules.softcap * tanh_f32(s[i] * inner);
}

DEV void consume(const Entry& e, u32 head, const Rules& rules, const Shared& sh, Ring& kr, Ring& vr, const act* q,
                 act* out, u32 group, u32 num_heads) {
    u32 lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3, self = (threadIdx.x >> 7) - 1;
    u32 q_group = sh.q + self * Q_GROUP_BYTES;
    u32 row = e.packed_begin + self * Q_GROUP + warp * 16 + lane / 4;
    u32 position[2];
#pragma unroll
    for (int r = 0; r < 2; r++) position[r] = e.start + min(row + 8 * r, e.packed_end - 1) / group;
    u32 lowest = e.start + min(e.packed_begin + self * Q_GROUP, e.packed_end - 1) / group;
    u32 highest = e.start + min(e.packed_begin + self * Q_GROUP + Q_GROUP, e.packed_end) / group;
    float s[SN], o[ON], m[2] = {NEG_INF, NEG_INF}, l[2] = {0.0f, 0.0f}, keep[2];
    u32 p[SN / 2];
#pragma unroll
    for (int i = 0; i < ON; i++) o[i] = 0.0f;
    load_q(q, e, head, group, num_heads, q_group);

    u32 tile = e.tile_end - 1;
    auto finish_scores = [&](u32 t) {
        if (rules.softcap > 0.0f) cap_scores(s, rules);
        u32 first = t * KT;
#if CHUNKS
        if (first + KT > lowest + 1 || first < chunk_start(highest, rules.window))
#else
        if (first + KT > lowest + 1 || (rules.window && first + rules.window <= highest))
#endif
            mask_scores(s, position, first, rules.window);
        soften(s, m, l, keep, rules.to_log2);
    };
    barrier_wait(sh.full_k + 8 * kr.stage, kr.phase);
    start_scores(s, q_group, sh.k + kr.stage * KV_BYTES);
    wgmma_wait<0>();
    hold(s);
    release(sh.empty_k + 8 * kr.stage);
    step_ring(kr);
    finish_scores(tile);
    to_operand(p, s);
    bool tail = (tile + 1) * KT > e.kv_end;
    u32 tail_rows = e.kv_end - tile * KT;
    while (tile > e.tile_begin) {
        tile--;
        barrier_wait(sh.full_k + 8 * kr.stage, kr.phase);
        named_wait(1 + self, 256);
        start_scores(s, q_group, sh.k + kr.stage * KV_BYTES);
        barrier_wait(sh.full_v + 8 * vr.stage, vr.phase);
        u32 v = sh.v + vr.stage * KV_BYTES;
        if (tail) clear_tail(v, tail_rows), tail = false;
        add_product(o, p, v);
        named_arrive(2 - self, 256);
        wgmma_wait<1>();
        hold(s);
        release(sh.empty_k + 8 * kr.stage);
        step_ring(kr);
        finish_scores(tile);
        wgmma_wait<0>();
        hold(o);
        release(sh.empty_v + 8 * vr.stage);
        step_ring(vr);
#pragma unroll
        for (int i = 0; i < ON; i++) o[i] *= keep[(i >> 1) & 1];
        to_operand(p, s);
    }
    barrier_wait(sh.full_v + 8 * vr.stage, vr.phase);
    u32 v = sh.v + vr.stage * KV_BYTES;
    if (tail) clear_tail(v, tail_rows);
    add_product(o, p, v);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l[r] += __shfl_xor_sync(0xffffffffu, l[r], 1);
        l[r] += __shfl_xor_sync(0xffffffffu, l[r], 2);
#if SINKS
        float m2 = m[r] * rules.to_log2, sink = rules.sinks[head * group + (row + 8 * r) % group] * LOG2E;
        float top = fmaxf(m2, sink), share = exp2_approx(m2 - top);
        l[r] = __fdividef(share, l[r] * share + exp2_approx(sink - top));
#else
        l[r] = l[r] > 0.0f ? 1.0f / l[r] : 0.0f;
#endif
    }
    wgmma_wait<0>();
    hold(o);
    release(sh.empty_v + 8 * vr.stage);
    step_ring(vr);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        u32 packed = row + 8 * r;
        if (packed >= e.packed_end) continue;
        act* target = out + ((u64)(e.first_token + packed / group) * num_heads + head * group + packed % group) * D;
#pragma unroll
        for (int j = 0; j < ON / 4; j++)
            *(u32*)(target + 8 * j + 2 * (lane & 3)) = pack2(o[4 * j + 2 * r] * l[r], o[4 * j + 2 * r + 1] * l[r]);
    }
}

// ---- the loading warp ---------------------------------------------------------------------------

struct Loader {
    const TensorMap* map;
    const u32* table;
    u32 head, block_shift, last_page;  // a block has 2^block_shift tokens
};

// Copies K (which = 0) or V (1) of one tile; the whole warp calls, lane 0 issues.
DEV void load_tile(const Loader& loader, u32 tile, u32 which, u32 target, u32 barrier) {
    u32 shift = min(loader.block_shift, KT_SHIFT), lane = threadIdx.x & 31, count = KT >> shift;
    u32 mine = (tile * KT + (lane << shift)) >> loader.block_shift;
    u32 page = lane < count ? loader.table[min(mine, loader.last_page)] : 0;
    u32 row = tile * KT & ((1u << loader.block_shift) - 1);
    if (lane == 0) barrier_expect(barrier, KV_BYTES);
    __syncwarp();
    for (u32 i = 0; i < count; i++) {
        u32 block = __shfl_sync(0xffffffffu, page, i);
        if (lane == 0)
#pragma unroll
            for (int box = 0; box < BOXES; box++)
                copy_box(target + box * BOX_BYTES + (i << shift) * 128, loader.map, box * BOX, row, loader.head,
                         which, block, barrier);
    }
}

DEV void produce_item(const Entry& e, const Loader& loader, const Shared& sh, Ring& kr, Ring& vr) {
    auto load = [&](u32 tile, u32 which) {
        Ring& ring = which ? vr : kr;
        u32 full = which ? sh.full_v : sh.full_k, empty = which ? sh.empty_v : sh.empty_k;
        barrier_wait(empty + 8 * ring.stage, ring.phase ^ 1);
        load_tile(loader, tile, which, (which ? sh.v : sh.k) + ring.stage * KV_BYTES, full + 8 * ring.stage);
        step_ring(ring);
    };
    u32 tile = e.tile_end - 1;
    load(tile, 0);
    while (tile > e.tile_begin) {
        load(tile - 1, 0);
        load(tile, 1);
        tile--;
    }
    load(tile, 1);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
PASTE(attention_prefill, DT, sm90)
(Dims dims, const act* q, act* out, const u32* plan, const u32* block_table,
 const __grid_constant__ TensorMap kv_map, u32* counter, float scale, float softcap, u32 window,
 const float* sinks) {
    extern __shared__ u8 smem[];
    u32 base = (smem_address(smem) + PROMPT_ALIGN_BYTES - 1) & ~(PROMPT_ALIGN_BYTES - 1);
    Shared sh;
    sh.q = base;
    sh.k = sh.q + 2 * Q_GROUP_BYTES;
    sh.v = sh.k + STAGES * KV_BYTES;
    sh.full_k = sh.v + STAGES * KV_BYTES;
    sh.empty_k = sh.full_k + 8 * STAGES;
    sh.full_v = sh.empty_k + 8 * STAGES;
    sh.empty_v = sh.full_v + 8 * STAGES;
    sh.full_item = sh.empty_v + 8 * STAGES;
    sh.empty_item = sh.full_item + 8 * ITEM_SLOTS;
    sh.items = sh.empty_item + 8 * ITEM_SLOTS;
    u32 group_of_warps = threadIdx.x >> 7;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(sh.full_k + 8 * i, 1);
            barrier_init(sh.full_v + 8 * i, 1);
            barrier_init(sh.empty_k + 8 * i, 8);
            barrier_init(sh.empty_v + 8 * i, 8);
        }
        for (u32 i = 0; i < ITEM_SLOTS; i++) {
            barrier_init(sh.full_item + 8 * i, 1);
            barrier_init(sh.empty_item + 8 * i, 8);
        }
        fence_async();
    }
    __syncthreads();
    grid_trigger();
    u32 kv_heads = DIM(num_kv_heads), num_heads = DIM(num_heads), group = num_heads / kv_heads;
    u32 items = FIELD(plan, PromptHeader, num_entries) * kv_heads;
    Ring kr{0, 0}, vr{0, 0};
    if (group_of_warps == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOADER_REGISTERS));
        if (threadIdx.x >= 32) return;
        u32 lane = threadIdx.x & 31, block_shift = 31 - __clz(DIM(block_size));
        u32 item = blockIdx.x;
        for (u32 turn = 0;; turn++) {
            u32 slot = turn % ITEM_SLOTS, next = 0;
            barrier_wait(sh.empty_item + 8 * slot, (turn / ITEM_SLOTS & 1) ^ 1);
            if (lane == 0) {
                asm volatile("st.shared.u32 [%0], %1;" ::"r"(sh.items + 4 * slot), "r"(item) : "memory");
                barrier_arrive(sh.full_item + 8 * slot);
                if (item < items) next = gridDim.x + atomicAdd(counter, 1u);
            }
            if (item >= items) return;
            Entry e = load_entry(plan, item / kv_heads);
            Loader loader{&kv_map, block_table + (u64)e.slot * DIM(max_blocks), item % kv_heads, block_shift,
                          (e.kv_end - 1) >> block_shift};
            produce_item(e, loader, sh, kr, vr);
            item = __shfl_sync(0xffffffffu, next, 0);
        }
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
    Rules rules{scale, softcap, softcap > 0.0f ? LOG2E : scale * LOG2E, window};
#if SINKS
    rules.sinks = sinks;
#endif
    if (group_of_warps == 2) named_arrive(1, 256);
    for (u32 turn = 0;; turn++) {
        u32 slot = turn % ITEM_SLOTS, item;
        barrier_wait(sh.full_item + 8 * slot, turn / ITEM_SLOTS & 1);
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(item) : "r"(sh.items + 4 * slot) : "memory");
        release(sh.empty_item + 8 * slot);
        if (item >= items) break;
        Entry e = load_entry(plan, item / kv_heads);
        consume(e, item % kv_heads, rules, sh, kr, vr, q, out, group, num_heads);
    }
    // The other group still arrives once on the barrier of the first one.
    if (group_of_warps == 1) named_wait(1, 256);
    // The next kernel waits for this one only, so this one must wait for attention.cu.
    grid_wait();
}
