// Products of 4-bit matrices (four_bit.cuh) with many rows of x on Hopper: y^T = W x^T by wgmma.
//
// W is the operand in registers: a record's 16 bytes a lane are the fragments of four instructions, as for mma.m16n8k16, and the
//   four warps of a group take four records below each other. x is the operand in shared memory.
// Roles: the last warp group loads. Codes come by bulk copies of whole records; x by cp.async, so that its rows may lie anywhere,
//   into the swizzled boxes that wgmma reads. The others, FW_GROUPS of them, widen and multiply FW_TILES times 64 rows of W each;
//   while the tensor cores work on up to DEPTH products of 16 columns, the next fragment is widened.
// K may be shared by the blocks of a cluster: each adds up its part of the columns, then each result goes through distributed
//   shared memory to one block, which adds the parts in the order of the blocks.
// Numerics: weights are rounded to bf16 once, as widen_four_bit.cu does it (with f16 scales all but once: see `weights`); sums f32.
//   A row's result depends on neither the other rows nor the tile nor the grid, only on the size of the cluster.
// Macros: FW_ROWS (8, 16, 32, 64 or 128) rows of x a block takes at once; FW_TILES (1 or 2); FW_GROUPS (2 or 4); those of
//   four_bit.cuh.
#pragma once
#include "four_bit.cuh"

#ifndef FW_ROWS
#define FW_ROWS 128
#endif
#ifndef FW_TILES
#define FW_TILES 2
#endif
#ifndef FW_GROUPS
#define FW_GROUPS 2
#endif

constexpr int ROWS = FW_ROWS, TILES = FW_TILES, GROUPS = FW_GROUPS;
constexpr u32 CONSUMERS = 128 * GROUPS, THREADS = four_bit_wgmma_threads(GROUPS);
constexpr u32 SLOTS = 4 * TILES * GROUPS;       // records of a stage: groups of 16 rows of W
constexpr int SUMS = ROWS / 2;                  // sums of a thread, a tile of 64 rows of W
constexpr int STEPS = FB_BLOCK / 16;            // steps of 16 columns a record
constexpr int TURNS = STEPS * TILES;             // instructions of a stage
constexpr int DEPTH = 4;                        // fragments of a thread
constexpr u32 BOX_BYTES = ROWS * 128;           // 64 columns of x
constexpr u32 X_BYTES = ROWS * FB_BLOCK * ACT_BYTES;
constexpr u32 W_BYTES = SLOTS * RECORD_BYTES;
constexpr u32 STAGE_BYTES = four_bit_wgmma_stage_bytes(ROWS, TILES, GROUPS, FB_BLOCK, RECORD_BYTES);
constexpr u32 STAGES = four_bit_wgmma_stages(GROUPS, STAGE_BYTES);
constexpr u32 SHARED_BYTES = four_bit_wgmma_bytes(GROUPS, STAGE_BYTES);
constexpr u32 PIECES = FB_BLOCK / 8;            // 16-byte pieces of a row of x in a stage
constexpr u32 ROW_STEP = 128 / PIECES;          // rows that the loading group copies at once
constexpr u32 COPIES = (ROWS + ROW_STEP - 1) / ROW_STEP;
constexpr u32 STAGING_STRIDE = 20;              // floats of a row: 16 and a pad
constexpr u32 STAGING_FLOATS = 8 * STAGING_STRIDE;
// The block starts with so many registers a thread; a group that requests more than the block has waits forever.
constexpr u32 START_REGISTERS = 65536 / THREADS / 8 * 8;
constexpr u32 LOADER_REGISTERS = GROUPS == 2 ? 88 : 64;
constexpr u32 CONSUMER_REGISTERS = (START_REGISTERS * THREADS / 128 - LOADER_REGISTERS) / GROUPS / 8 * 8;
static_assert(STAGES >= 3, "nothing would be on its way");
static_assert(TURNS % DEPTH == 0, "a stage ends where the fragments begin anew");
static_assert(4 * GROUPS * 2 * STAGING_FLOATS * sizeof(float) == four_bit_wgmma_staging_bytes(GROUPS), "staging");
static_assert(X_BYTES + W_BYTES == STAGE_BYTES, "a stage");
static_assert(STAGES * STAGE_BYTES + FW_ALIGN_BYTES + four_bit_wgmma_staging_bytes(GROUPS) + 16 * STAGES
              <= SHARED_BYTES, "barriers behind the stages");
static_assert((ROWS & (ROWS - 1)) == 0, "rows a power of two");
static_assert(SLOTS <= 32, "a lane copies a record");

// ---- barriers, copies, clusters -----------------------------------------------------------------

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
// Arrives once this thread's copies by cp.async so far are there.
DEV void barrier_arrive_copied(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
DEV void copy_bulk(u32 target, const void* source, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
                 "l"(source), "r"(bytes), "r"(barrier)
                 : "memory");
}
DEV void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEV u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
DEV u32 cluster_size() {
    u32 size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}
// Waits for all threads of the cluster that have not ended; what they wrote is seen behind it.
DEV void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same place in the shared memory of another block.
DEV u32 address_in(u32 address, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
DEV void store_there(u32 address, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

// ---- wgmma --------------------------------------------------------------------------------------

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define T4 "%0,%1,%2,%3"
#define T8 T4 ",%4,%5,%6,%7"
#define T16 T8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define T32 T16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define T64                                                                                                          \
    T32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"                                           \
        ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
// d += a * b with a in registers and b in shared memory, its rows along k.
#define WGMMA_RS(columns, registers, operands, a0, a1, a2, a3, at_b, ...)                                            \
    DEV void wgmma_rs(float (&d)[registers], const u32 (&a)[4], u64 b) {                                             \
        asm volatile("{\n.reg .pred use;\nsetp.ne.b32 use, 1, 0;\n"                                                  \
                     "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" operands "}, {" a0 "," a1 "," a2 \
                     "," a3 "}, " at_b ", use, 1, 1, 0;\n}\n"                                                        \
                     : __VA_ARGS__                                                                                   \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                          \
    }
WGMMA_RS("8", 4, T4, "%4", "%5", "%6", "%7", "%8", D4(0))
WGMMA_RS("16", 8, T8, "%8", "%9", "%10", "%11", "%12", D4(0), D4(4))
WGMMA_RS("32", 16, T16, "%16", "%17", "%18", "%19", "%20", D16(0))
WGMMA_RS("64", 32, T32, "%32", "%33", "%34", "%35", "%36", D16(0), D16(16))
WGMMA_RS("128", 64, T64, "%64", "%65", "%66", "%67", "%68", D16(0), D16(16), D16(32), D16(48))

DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
DEV void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Descriptor of a 128-byte swizzled operand whose groups of 8 rows lie side by side.
DEV u64 descriptor(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

// ---- shared memory ------------------------------------------------------------------------------

struct Shared {
    u32 x, w;           // stages
    u32 staging;        // of this warp
    u32 full, empty;    // barriers
};

struct Ring {
    u32 stage, phase;
};
DEV void step_ring(Ring& ring) {
    if (++ring.stage == STAGES) ring.stage = 0, ring.phase ^= 1;
}

// All threads.
DEV Shared set_up(u8* smem) {
    Shared sh;
    sh.x = (smem_address(smem) + FW_ALIGN_BYTES - 1) & ~(FW_ALIGN_BYTES - 1);
    sh.w = sh.x + STAGES * X_BYTES;
    u32 behind = sh.w + STAGES * W_BYTES;
    sh.staging = behind + (threadIdx.x >> 5) * (2 * STAGING_FLOATS * sizeof(float));
    sh.full = behind + four_bit_wgmma_staging_bytes(GROUPS);
    sh.empty = sh.full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            // The loading threads, and the one that expects the codes.
            barrier_init(sh.full + 8 * i, 128 + 1);
            barrier_init(sh.empty + 8 * i, 4 * GROUPS);
        }
        fence_async();
    }
    __syncthreads();
    return sh;
}

// ---- the loading group --------------------------------------------------------------------------

// What a tile needs: records [begin, end) of K.
struct Span {
    u32 begin, end;
};

// The part of K of one block of a cluster.
DEV Span span_of(u32 records) {
    u32 rank = cluster_rank(), size = cluster_size();
    return {records * rank / size, records * (rank + 1) / size};
}

// Queues the copies of one record of each slot. The first warp; `source` is the lane's slot's, or null.
DEV void load_codes(const Shared& sh, u32 stage, const u8* source) {
    u32 barrier = sh.full + 8 * stage, count = __popc(__ballot_sync(0xffffffffu, source != nullptr));
    if ((threadIdx.x & 31) == 0) barrier_expect(barrier, count * RECORD_BYTES);
    __syncwarp();
    if (source)
        copy_bulk(sh.w + stage * W_BYTES + (threadIdx.x & 31) * RECORD_BYTES, source, RECORD_BYTES, barrier);
}

// The first of this thread's rows of a tile of x; the others come every ROW_STEP rows.
DEV u32 first_row() { return (threadIdx.x & 127) / PIECES; }

// Queues the copies of one stage of x, zeros where there is none. `row_of`: where the thread's i-th row lies in x, or NONE.
template <typename Source>
DEV void load_x(const Shared& sh, u32 stage, const act* x, u32 record, u32 gemm_k, Source row_of) {
    u32 piece = (threadIdx.x & 127) % PIECES, row = first_row(), column = record * FB_BLOCK + piece * 8;
    u32 target = sh.x + stage * X_BYTES + piece / 8 * BOX_BYTES + row * 128 + ((piece % 8) ^ (row % 8)) * 16;
#pragma unroll
    for (u32 i = 0; i < COPIES; i++) {
        if (ROWS % ROW_STEP && row + i * ROW_STEP >= ROWS) break;
        u32 source = row_of(i);
        bool exists = source != NONE && column < gemm_k;
        cp_async_16(target + i * ROW_STEP * 128, exists ? x + (u64)source * gemm_k + column : x, exists ? 16 : 0);
    }
    barrier_arrive_copied(sh.full + 8 * stage);
}

// ---- the other groups ---------------------------------------------------------------------------

// What the weights of a group of columns need, for rows g and g + 8.
struct Factors {
    Group group;
    u32 scale[2], rest[2];  // INT4: the scale as bf16, twice, and what an f16 one is more than that
};

DEV Factors read_factors(const u8* side) {
    Factors found;
    found.group = read_group(side);
#if FB_CODES == FB_INT4
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float scale = found.group.scale[h];
        found.scale[h] = pack2(scale, scale);
        float rest = scale - __uint_as_float(found.scale[h] & 0xffff0000u);
        found.rest[h] = FB_SCALE == FB_SCALE_F16 ? pack2(rest, rest) : 0;
    }
#endif
    return found;
}

// Eight weights as an A fragment in bf16. An f16 scale is the sum of two bf16 numbers; its smaller part's product is rounded to 8
// bits before the sum is, which moves the result by less than 2^-8 of its last place.
DEV void weights(u32 (&a)[4], u32 q, const Factors& f) {
    fragment(a, q, f.group);
#if FB_CODES == FB_INT4
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 rest = FB_SCALE == FB_SCALE_F16 ? fma_bf16x2(a[i], f.rest[i & 1], 0x80008000u) : 0x80008000u;
        a[i] = fma_bf16x2(a[i], f.scale[i & 1], rest);
    }
#endif
}

// Keeps the compiler from moving uses of these registers across.
template <int COUNT>
DEV void hold(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// One lane of the warp arrives, if `really`. A branch around it would keep ptxas from leaving instructions of the tensor cores in
// flight.
DEV void release(u32 barrier, bool really) {
    __syncwarp();
    asm volatile("{\n.reg .pred arrives;\nsetp.ne.b32 arrives, %1, 0;\n"
                 "@arrives mbarrier.arrive.shared::cta.b64 _, [%0];\n}\n" ::"r"(barrier),
                 "r"((u32)(really && (threadIdx.x & 31) == 0))
                 : "memory");
}

// One stage as a thread sees it.
struct Stage {
    const u8* records;  // of this warp's first tile
    u64 x;              // descriptor
    uint4 codes[TILES][FB_BLOCK / 64];
    Factors factors[TILES];
};

DEV void read_side(Stage& s, int tile, int group) {
    s.factors[tile] = read_factors(s.records + tile * (4 * GROUPS) * RECORD_BYTES + CODE_BYTES + group * GROUP_BYTES);
}

// Waits for the ring's next stage.
DEV void open_stage(Stage& s, const Shared& sh, const u8* codes_at, const Ring& ring) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    barrier_wait(sh.full + 8 * ring.stage, ring.phase);
    // What cp.async wrote is to be read by wgmma.
    fence_async();
    s.records = codes_at + ring.stage * W_BYTES + warp * RECORD_BYTES;
    s.x = descriptor(sh.x + ring.stage * X_BYTES);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < FB_BLOCK / 64; i++)
            s.codes[t][i] = *(const uint4*)(s.records + t * (4 * GROUPS) * RECORD_BYTES + i * 512 + lane * 16);
        read_side(s, t, 0);
    }
}

// The fragment of a turn: turns go through the steps of 16 columns, and in each through the tiles of W.
DEV void widen_turn(u32 (&a)[4], Stage& s, int turn) {
    int step = turn / TILES, tile = turn % TILES;
    if (step > 0 && step % (2 * GROUP_UNITS) == 0) read_side(s, tile, step / (2 * GROUP_UNITS));
    uint4 four = s.codes[tile][step / 4];
    weights(a, step % 4 == 0 ? four.x : step % 4 == 1 ? four.y : step % 4 == 2 ? four.z : four.w, s.factors[tile]);
}

// sum = W x^T over `count` > 0 records that the loading group brings. A thread has rows g and g + 8 of each of its tiles of W, as
// wgmma has them. In the order of a turn (start, commit, wait for an earlier turn, widen for the next one) ptxas keeps
// instructions of the tensor cores asynchronous; where a turn begins with the wait it does not.
DEV void multiply(float (&sum)[TILES][SUMS], const Shared& sh, const u8* codes_at, Ring& ring, u32 count) {
    u32 a[DEPTH][4];
    Stage s;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < SUMS; i++) sum[t][i] = 0.0f;
    open_stage(s, sh, codes_at, ring);
    widen_turn(a[0], s, 0);
    u32 last = 0;
    for (u32 done = 0; done < count; done++) {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            int step = turn / TILES;
            wgmma_fence();
            wgmma_rs(sum[turn % TILES], a[turn % DEPTH], s.x + (step / 4 * BOX_BYTES + step % 4 * 32) / 16);
            wgmma_commit();
            wgmma_wait<DEPTH - 1>();
            // The last product of the stage before is done.
            if (turn == DEPTH - 2) release(sh.empty + 8 * last, done > 0);
            if (turn + 1 < TURNS) widen_turn(a[(turn + 1) % DEPTH], s, turn + 1);
        }
        last = ring.stage;
        step_ring(ring);
        if (done + 1 < count) {
            open_stage(s, sh, codes_at, ring);
            widen_turn(a[0], s, 0);
        }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int t = 0; t < TILES; t++) hold(sum[t]);
    release(sh.empty + 8 * last, true);
}

// ---- what becomes of the sums -------------------------------------------------------------------

// A unit is 8 rows of x and one tile of W, or with PAIRED both tiles: four (eight) sums of a thread, of rows g, g, g + 8, g + 8 of
// W and 2 t, 2 t + 1 of x.
template <bool PAIRED>
struct Units {
    static constexpr int COUNT = (PAIRED ? 1 : TILES) * (ROWS / 8);
    u32 own_begin, own_end;  // those that this block writes
};

// Sends the sums of each unit to the block that writes it and adds there what comes. All consumer threads; the stages are
// overwritten, so that a block of a cluster takes one tile alone.
template <bool PAIRED>
DEV Units<PAIRED> join(float (&sum)[TILES][SUMS], const Shared& sh, const u8* ring) {
    constexpr int COUNT = Units<PAIRED>::COUNT, PARTS = PAIRED ? TILES : 1;
    u32 rank = cluster_rank(), size = cluster_size();
    if (size == 1) return {0, COUNT};
    // Both are powers of two.
    u32 shift = size < COUNT ? 31 - __clz(COUNT / size) : 0, per_block = 1 << shift, first = rank << shift;
    // Where this thread's sums of a block, a unit and a part lie: 16 bytes a thread side by side.
    auto place = [&](u32 from, u32 to, u32 unit, u32 part) {
        u32 index = from < to ? from : from - 1;
        return (((index * per_block + unit - to * per_block) * PARTS + part) * CONSUMERS + threadIdx.x) * 16;
    };
    cluster_sync();
#pragma unroll
    for (int unit = 0; unit < COUNT; unit++) {
        u32 owner = unit >> shift;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const float* own = &sum[PAIRED ? part : unit / (ROWS / 8)][unit % (ROWS / 8) * 4];
            if (owner != rank)
                store_there(address_in(sh.x + place(rank, owner, unit, part), owner),
                            make_float4(own[0], own[1], own[2], own[3]));
        }
    }
    cluster_sync();
#pragma unroll
    for (int unit = 0; unit < COUNT; unit++) {
        if (unit >> shift != rank) continue;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            float* own = &sum[PAIRED ? part : unit / (ROWS / 8)][unit % (ROWS / 8) * 4];
            float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
            for (u32 from = 0; from < size; from++) {
                float4 more = make_float4(own[0], own[1], own[2], own[3]);
                if (from != rank) more = *(const float4*)(ring + place(from, rank, unit, part));
                total = make_float4(total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w);
            }
            own[0] = total.x, own[1] = total.y, own[2] = total.z, own[3] = total.w;
        }
    }
    return {min(first, (u32)COUNT), min(first + per_block, (u32)COUNT)};
}

// Turns a unit's sums so that a lane has columns 4 (lane % 4) to 4 (lane % 4) + 3 of row lane / 4 of x. Units take turns at two
// places.
DEV float4 turn_unit(const float (&v)[4], float* staging, u32 unit) {
    u32 lane = threadIdx.x & 31;
    float* at = staging + unit % 2 * STAGING_FLOATS;
#pragma unroll
    for (int i = 0; i < 4; i++) at[(2 * (lane & 3) + (i & 1)) * STAGING_STRIDE + lane / 4 + 8 * (i >> 1)] = v[i];
    __syncwarp();
    return *(const float4*)(at + lane / 4 * STAGING_STRIDE + (lane & 3) * 4);
}
