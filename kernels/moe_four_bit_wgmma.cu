// The two products of experts whose matrices are of 4-bit codes (four_bit.cuh), for many tokens an expert, on Hopper.
//
// moe_four_bit_wgmma: shapes, `gather` and MOE_BIAS as in moe_four_bit.cu; gemm_n % 16 == 0.
// How: four_bit_wgmma.cuh. A unit is up to FW_ROWS rows of an expert and 64 * FW_TILES * FW_GROUPS rows of its W; a block takes every
//   gridDim.x-th unit.
// Numerics: four_bit_wgmma.cuh; a row's result depends neither on its tile nor on FW_ROWS nor on the grid.
// Launch: grid any, best one block an SM; block four_bit_wgmma_threads(FW_GROUPS); dynamic shared memory four_bit_wgmma_bytes(..).
#include "expert_tiles.cuh"
#include "four_bit_wgmma.cuh"

#ifndef MOE_BIAS
#define MOE_BIAS 0
#endif

struct Problem {
    const u32* tiles_before;  // [E + 1], shared memory
    const u32* expert_offset;
    u32 gemm_n, gemm_k, num_experts, num_units;
};

// A unit: rows [begin, begin + num_rows) of the entries, and its part of W's rows.
struct Unit {
    u32 expert, begin, num_rows, item;
};

DEV u32 num_items(const Problem& p) { return (p.gemm_n / 16 + SLOTS - 1) / SLOTS; }

// All lanes of a warp.
DEV Unit unit_at(const Problem& p, u32 index) {
    u32 tile = index / num_items(p), expert = expert_of(p.tiles_before, p.num_experts, tile);
    u32 begin = p.expert_offset[expert] + (tile - p.tiles_before[expert]) * ROWS;
    return {expert, begin, min(p.expert_offset[expert + 1] - begin, (u32)ROWS), index % num_items(p)};
}

DEV void load(const Problem& p, const Shared& sh, const act* x, const u8* w, const u32* sorted, u32 gather, u32 per_token) {
    u32 warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31;
    Ring ring{0, 0};
    for (u32 index = blockIdx.x; index < p.num_units; index += gridDim.x) {
        Unit unit = unit_at(p, index);
        u32 rows[COPIES];
#pragma unroll
        for (u32 i = 0; i < COPIES; i++) {
            u32 row = first_row() + i * ROW_STEP, entry = unit.begin + row;
            rows[i] = row >= unit.num_rows ? NONE : gather ? sorted[entry] / per_token : entry;
        }
        u32 group = unit.item * SLOTS + lane;
        bool exists = lane < SLOTS && group < p.gemm_n / 16;
        const u8* source = w + ((u64)unit.expert * (p.gemm_n / 16) + group) * records_of(p.gemm_k) * RECORD_BYTES;
        for (u32 record = 0; record < records_of(p.gemm_k); record++) {
            barrier_wait(sh.empty + 8 * ring.stage, ring.phase ^ 1);
            if (warp == 0) load_codes(sh, ring.stage, exists ? source + (u64)record * RECORD_BYTES : nullptr);
            load_x(sh, ring.stage, x, record, p.gemm_k, [&](u32 i) { return rows[i]; });
            step_ring(ring);
        }
    }
    cp_async_commit();
    cp_async_wait<0>();
}

DEV void write(const Problem& p, act* out, const float* bias, float (&sum)[TILES][SUMS], float* staging, const Unit& unit) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int each = 0; each < Units<false>::COUNT; each++) {
        int t = each / (ROWS / 8), n = each % (ROWS / 8);
        if (8 * n >= unit.num_rows) continue;
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = sum[t][4 * n + i];
        float4 turned = turn_unit(v, staging, each);
        u32 row = 8 * n + lane / 4, group = unit.item * SLOTS + t * 4 * GROUPS + warp, column = group * 16 + (lane & 3) * 4;
        if (row >= unit.num_rows || group >= p.gemm_n / 16) continue;
        if (MOE_BIAS) {
            float4 more = *(const float4*)(bias + (u64)unit.expert * p.gemm_n + column);
            turned = make_float4(turned.x + more.x, turned.y + more.y, turned.z + more.z, turned.w + more.w);
        }
        *(uint2*)(out + (u64)(unit.begin + row) * p.gemm_n + column) =
            make_uint2(pack2(turned.x, turned.y), pack2(turned.z, turned.w));
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
PASTE(moe_four_bit_wgmma, DT, sm90)
(Dims dims, const act* __restrict__ x, const u8* __restrict__ w, const float* __restrict__ bias, act* __restrict__ out,
 const u32* __restrict__ expert_offset, const u32* __restrict__ sorted, u32 gather) {
    extern __shared__ u8 smem[];
    __shared__ u32 scratch[33], tiles_before[MAX_EXPERTS + 1];
    Shared sh = set_up(smem);
    grid_trigger();
    grid_wait();
    u32 num_tiles = count_tiles(expert_offset, DIM(num_experts), ROWS, tiles_before, scratch);
    Problem p{tiles_before, expert_offset, DIM(gemm_n), DIM(gemm_k), DIM(num_experts), 0};
    p.num_units = num_tiles * num_items(p);
    if (threadIdx.x >= CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOADER_REGISTERS));
        load(p, sh, x, w, sorted, gather, DIM(experts_per_token));
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
    u8* at = smem + (sh.x - smem_address(smem));
    float* staging = (float*)(at + (sh.staging - sh.x));
    Ring ring{0, 0};
    for (u32 index = blockIdx.x; index < p.num_units; index += gridDim.x) {
        Unit unit = unit_at(p, index);
        float sum[TILES][SUMS];
        multiply(sum, sh, at + (sh.w - sh.x), ring, records_of(p.gemm_k));
        write(p, out, bias, sum, staging, unit);
    }
}
