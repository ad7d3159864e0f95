// y = x W^T where W is of 4-bit codes (four_bit.cuh), for many rows of x, on Hopper.
//
// gemm_four_bit_wgmma: x [rows, gemm_k] bf16; w [gemm_n, gemm_k] in records; `out`, `kind` and GEMM_EPI as in gemm_four_bit.cu.
//   gemm_k % 8 == 0 with a record for each block of a cluster or more, gemm_n % 16 == 0; GATED has FW_TILES = 2 and gemm_n % 32 == 0.
//   How: four_bit_wgmma.cuh. A tile is FW_ROWS rows of x and 64 * FW_TILES * FW_GROUPS rows of W (for GATED half of them are gate
//     rows and half are the up rows of the same columns). A cluster takes every so many-th tile; of more than one block, one tile.
//   Numerics: four_bit_wgmma.cuh. ADD_F32 rounds as an addition does; one thread adds to an element.
//   Launch: grid a multiple of the cluster's blocks (1 to 8): with one block a cluster any, else the cluster's blocks times tiles;
//     block four_bit_wgmma_threads(FW_GROUPS); dynamic shared memory four_bit_wgmma_bytes(..).
//   The first weights are read before griddepcontrol.wait, so the previous kernel must not write W.
#include "four_bit_wgmma.cuh"

#ifndef GEMM_EPI
#define GEMM_EPI 0
#endif
constexpr bool GATED = GEMM_EPI == GEMM_OUT_GATED;
static_assert(!GATED || TILES == 2, "gate and up");
constexpr u32 ITEM_SLOTS = GATED ? SLOTS / 2 : SLOTS;  // groups of 16 columns of the result that a tile has

struct Problem {
    u32 gemm_n, gemm_k, rows, x_tiles, tiles;
};

// The tile's place in x and in the columns of the result, both in tiles. Tiles of one part of W are neighbours.
struct Place {
    u32 x_tile, item;
};
DEV Place place_of(const Problem& p, u32 tile) { return {tile % p.x_tiles, tile / p.x_tiles}; }

DEV u32 num_columns(const Problem& p) { return GATED ? p.gemm_n / 2 : p.gemm_n; }

// The first record of a slot of a tile, null where W has no such rows.
DEV const u8* record_of(const Problem& p, const u8* w, u32 tile, u32 slot) {
    if (slot >= SLOTS || tile >= p.tiles) return nullptr;
    u32 group = place_of(p, tile).item * ITEM_SLOTS + slot % ITEM_SLOTS;
    if (group >= num_columns(p) / 16) return nullptr;
    if (GATED) group += slot / ITEM_SLOTS * (p.gemm_n / 32);
    return w + (u64)group * records_of(p.gemm_k) * RECORD_BYTES;
}

DEV void load(const Problem& p, const Shared& sh, const act* x, const u8* w) {
    u32 clusters = gridDim.x / cluster_size(), first = blockIdx.x / cluster_size();
    u32 warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31;
    Span span = span_of(records_of(p.gemm_k));
    const u8* source = record_of(p, w, first, lane);
    u32 ahead = min(span.end - span.begin, STAGES);
    if (warp == 0)
        for (u32 i = 0; i < ahead; i++) load_codes(sh, i, source ? source + (u64)(span.begin + i) * RECORD_BYTES : nullptr);
    grid_wait();
    Ring ring{0, 0};
    for (u32 tile = first; tile < p.tiles; tile += clusters) {
        u32 row = place_of(p, tile).x_tile * ROWS + first_row();
        source = record_of(p, w, tile, lane);
        for (u32 record = span.begin; record < span.end; record++) {
            barrier_wait(sh.empty + 8 * ring.stage, ring.phase ^ 1);
            bool is_there = tile == first && record - span.begin < ahead;
            if (warp == 0 && !is_there)
                load_codes(sh, ring.stage, source ? source + (u64)record * RECORD_BYTES : nullptr);
            load_x(sh, ring.stage, x, record, p.gemm_k,
                   [&](u32 i) { return row + i * ROW_STEP < p.rows ? row + i * ROW_STEP : NONE; });
            step_ring(ring);
        }
    }
    cp_async_commit();
    cp_async_wait<0>();
}

DEV void write_unit(const Problem& p, void* out, u64 row, u32 column, float4 v) {
    u64 at = row * num_columns(p) + column;
    if (GEMM_EPI == GEMM_OUT_ACT || GATED) *(uint2*)((act*)out + at) = make_uint2(pack2(v.x, v.y), pack2(v.z, v.w));
    if (GEMM_EPI == GEMM_OUT_F32) *(float4*)((float*)out + at) = v;
    if (GEMM_EPI == GEMM_OUT_ADD_F32)
        asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"((float*)out + at), "f"(v.x), "f"(v.y),
                     "f"(v.z), "f"(v.w)
                     : "memory");
}

DEV void write_tile(const Problem& p, void* out, float (&sum)[TILES][SUMS], const Units<GATED>& units, float* staging, u32 tile,
                    u32 kind) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    Place place = place_of(p, tile);
#pragma unroll
    for (int unit = 0; unit < Units<GATED>::COUNT; unit++) {
        if (unit < units.own_begin || unit >= units.own_end) continue;
        int t = unit / (ROWS / 8), n = unit % (ROWS / 8);
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = sum[t][4 * n + i];
            if (GATED) v[i] = gate_f32(v[i], kind) * sum[TILES - 1][4 * n + i];
        }
        float4 turned = turn_unit(v, staging, unit);
        u32 row = place.x_tile * ROWS + 8 * n + lane / 4, group = place.item * ITEM_SLOTS + t * 4 * GROUPS + warp;
        if (row < p.rows && group < num_columns(p) / 16) write_unit(p, out, row, group * 16 + (lane & 3) * 4, turned);
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
PASTE(gemm_four_bit_wgmma, DT, sm90)
(Dims dims, const act* __restrict__ x, const u8* __restrict__ w, void* out, u32 rows, u32 kind) {
    extern __shared__ u8 smem[];
    Shared sh = set_up(smem);
    Problem p{DIM(gemm_n), DIM(gemm_k), rows, (rows + ROWS - 1) / ROWS, 0};
    p.tiles = p.x_tiles * ((num_columns(p) / 16 + ITEM_SLOTS - 1) / ITEM_SLOTS);
    grid_trigger();
    if (threadIdx.x >= CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOADER_REGISTERS));
        load(p, sh, x, w);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
    u8* at = smem + (sh.x - smem_address(smem));
    float* staging = (float*)(at + (sh.staging - sh.x));
    Span span = span_of(records_of(p.gemm_k));
    Ring ring{0, 0};
    u32 clusters = gridDim.x / cluster_size();
    for (u32 tile = blockIdx.x / cluster_size(); tile < p.tiles; tile += clusters) {
        float sum[TILES][SUMS];
        multiply(sum, sh, at + (sh.w - sh.x), ring, span.end - span.begin);
        write_tile(p, out, sum, join<GATED>(sum, sh, at), staging, tile, kind);
    }
}
