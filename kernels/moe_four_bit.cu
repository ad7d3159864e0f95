// The two products of experts whose matrices are of 4-bit codes (four_bit.cuh); the rest of a mixture is moe.cu.
//
// out[i] = x[r] W_e^T, with MOE_BIAS = 1 + bias_e (bias [E, gemm_n] f32), for i in [expert_offset[e], expert_offset[e + 1]), r = gather ?
//   sorted[i] / experts_per_token : i. x [*, gemm_k] bf16, w [E] matrices [gemm_n, gemm_k] in records, out [*, gemm_n] bf16.
//   E = num_experts <= MAX_EXPERTS. gemm_k % 8 == 0, gemm_n % (16 * FB_TILES) == 0.
// How: a tile is up to FB_ROWS rows of an expert, a unit one tile and FB_TILES groups of 16 rows of W. A block takes every
//   gridDim.x-th unit, tile by tile; its 8 warps share K as in gemm_four_bit.cu. All of a tile's x lies in shared memory.
// Numerics: as gemm_four_bit.cu; a row's result depends neither on its tile nor on FB_ROWS nor on the grid.
// Launch: grid any, best blocks an SM * SMs; block 256; dynamic shared memory FIXED_BYTES
//   + FB_ROWS * four_bit_x_stride(FB_BLOCK * records of a row).
#include "expert_tiles.cuh"
#include "four_bit_stream.cuh"

#ifndef MOE_BIAS
#define MOE_BIAS 0
#endif

struct Problem {
    const u8* w;
    const u32* tiles_before;  // [E + 1], shared memory
    u32 gemm_n, gemm_k, num_experts, num_units;
};

// A place in this warp's stream of (unit, record).
struct Cursor {
    const u8* at;  // this lane's piece of the record of tile 0
    u32 unit, record;
};

DEV u32 num_items(const Problem& p) { return p.gemm_n / (16 * TILES); }

DEV void place(Cursor& c, const Problem& p) {
    c.record = threadIdx.x >> 5;
    if (c.unit >= p.num_units) return;
    u64 group = (u64)expert_of(p.tiles_before, p.num_experts, c.unit / num_items(p)) * (p.gemm_n / 16) + c.unit % num_items(p) * TILES;
    c.at = p.w + (group * records_of(p.gemm_k) + c.record) * RECORD_BYTES + (threadIdx.x & 31) * 16;
}

DEV void advance(Cursor& c, const Problem& p) {
    c.record += WARPS;
    c.at += WARPS * RECORD_BYTES;
    if (c.record < records_of(p.gemm_k) + (threadIdx.x >> 5)) return;
    c.unit += gridDim.x;
    place(c, p);
}

DEV void issue(const Cursor& c, const Problem& p, u32 stage) {
    if (c.unit < p.num_units && c.record < records_of(p.gemm_k))
        issue_records(stage, c.at, (u64)records_of(p.gemm_k) * RECORD_BYTES);
    cp_async_commit();
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
PASTE(moe_four_bit, DT, sm80)
(Dims dims, const act* __restrict__ x, const u8* __restrict__ w, const float* __restrict__ bias, act* __restrict__ out,
 const u32* __restrict__ expert_offset, const u32* __restrict__ sorted, u32 gather) {
    extern __shared__ __align__(128) u8 smem[];
    __shared__ u32 scratch[33], tiles_before[MAX_EXPERTS + 1];
    u32 warp = threadIdx.x >> 5, gemm_k = DIM(gemm_k), columns = records_of(gemm_k) * FB_BLOCK;
    u32 stride = four_bit_x_stride(columns);
    u8* ring = smem + warp * WARP_STAGE;
    float* parts = (float*)(smem + RING_BYTES);
    u8* x_smem = smem + FIXED_BYTES;
    grid_trigger();
    grid_wait();
    u32 num_tiles = count_tiles(expert_offset, DIM(num_experts), FB_ROWS, tiles_before, scratch);
    Problem p{w, tiles_before, DIM(gemm_n), gemm_k, DIM(num_experts), 0};
    p.num_units = num_tiles * num_items(p);
    u32 ring_at = smem_address(ring) + (threadIdx.x & 31) * 16, issued = 0, done = 0, turn = 0;
    Cursor next;
    next.at = w;
    next.unit = blockIdx.x;
    place(next, p);
    for (; issued < FB_STAGES - 1; issued++) {
        issue(next, p, ring_at + issued * STAGE_BYTES);
        advance(next, p);
    }
    float sum[TILES][NT][4] = {};
    u32 tile = NONE, expert = 0, begin = 0, num_rows = 1;
    Rows x_rows;
    for (u32 unit = blockIdx.x; unit < p.num_units; unit += gridDim.x) {
        if (unit / num_items(p) != tile) {
            tile = unit / num_items(p);
            expert = expert_of(tiles_before, p.num_experts, tile);
            begin = expert_offset[expert] + (tile - tiles_before[expert]) * FB_ROWS;
            num_rows = min(expert_offset[expert + 1] - begin, (u32)FB_ROWS);
            x_rows = rows_at(smem_address(x_smem), stride, num_rows);
            // All warps are done with the rows before.
            __syncthreads();
            copy_rows(smem_address(x_smem), stride, num_rows, 0, columns, gemm_k, [&](u32 row) {
                u32 entry = begin + row;
                return x + (u64)(gather ? sorted[entry] / DIM(experts_per_token) : entry) * gemm_k;
            });
            cp_async_wait<0>();
            __syncthreads();
        }
        for (u32 record = warp; record < records_of(gemm_k) + warp; record += WARPS, done++, issued++) {
            cp_async_wait<FB_STAGES - 2>();
            // All lanes have copied their pieces of this stage, and read those of the stage that comes next.
            __syncwarp();
            issue(next, p, ring_at + issued % FB_STAGES * STAGE_BYTES);
            advance(next, p);
            if (record < records_of(gemm_k))
                multiply_records(sum, ring + done % FB_STAGES * STAGE_BYTES, x_rows, record * FB_BLOCK);
        }
        float* own_parts = parts + turn++ % SUM_BUFFERS * WARPS * PART_FLOATS;
        put_sums(sum, own_parts);
        __syncthreads();
        for (u32 place = threadIdx.x; place < PART_FLOATS; place += THREADS) {
            u32 row = place / 16 % FB_ROWS;
            if (row >= num_rows) continue;
            u32 column = (unit % num_items(p) * TILES + place / (16 * FB_ROWS)) * 16 + place % 16;
            float total = add_sums(own_parts, place);
            if (MOE_BIAS) total += bias[(u64)expert * p.gemm_n + column];
            out[(u64)(begin + row) * p.gemm_n + column] = f32_to_act(total);
        }
        if (SUM_BUFFERS == 1) __syncthreads();
    }
}
