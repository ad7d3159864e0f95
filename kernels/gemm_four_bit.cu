// y = x W^T where W is of 4-bit codes (four_bit.cuh), for few rows of x.
//
// gemm_four_bit: x [rows, gemm_k] bf16; w [gemm_n, gemm_k] in records. GEMM_EPI (GEMM_OUT_*) and `kind` as in gemm_stream.cu:
//   ACT, ADD_F32, F32 or GATED, whose out is [rows, gemm_n / 2]. gemm_k % 8 == 0; gemm_n % (16 * FB_TILES) == 0, GATED has
//   FB_TILES = 2 and gemm_n % 32 == 0. Blocks of one blockIdx.y take FB_ROWS rows of x each.
//   How: a block takes every gridDim.x-th item, FB_TILES groups of 16 rows of W; its 8 warps share K, record by record, through
//     rings in shared memory that no other warp reads. x lies in shared memory, `x_columns` of its columns at a time (a
//     multiple of FB_BLOCK): where that is not all, all items go through the first columns, then through the next ones.
//   Numerics: see four_bit_stream.cuh; the warps' sums are added in warp order, those of later columns behind. A row's result depends
//     on neither the other rows nor the grid, only on `x_columns`.
//   Launch: grid (up to items, ceil(rows / FB_ROWS)), block 256, dynamic shared memory FIXED_BYTES
//     + x rows * four_bit_x_stride(x_columns) + (all of K at once ? 0 : ceil(items / gridDim.x)
//     * four_bit_kept_bytes(FB_ROWS, FB_TILES)), x rows = min(rows, FB_ROWS).
//   The first weights are read before griddepcontrol.wait, so the previous kernel must not write W.
#include "four_bit_stream.cuh"

#ifndef GEMM_EPI
#define GEMM_EPI 0
#endif
static_assert(GEMM_EPI != GEMM_OUT_GATED || TILES == 2, "gate and up");
static_assert(four_bit_kept_bytes(FB_ROWS, TILES) == PART_FLOATS * sizeof(float), "an item's sums");

struct Problem {
    const act* x;
    const u8* w;
    u32 gemm_n, gemm_k, rows, kind, x_columns;
};

// A place in this warp's stream of (columns of x, item, record).
struct Cursor {
    const u8* at;  // this lane's piece of the record of tile 0
    u32 first, item, record, end;
};

DEV u32 num_items(const Problem& p) { return p.gemm_n / (16 * TILES); }

// The group of 16 rows that is a tile of an item.
DEV u32 group_of(const Problem& p, u32 item, u32 tile) {
    return GEMM_EPI == GEMM_OUT_GATED ? item + tile * (p.gemm_n / 32) : item * TILES + tile;
}

DEV u32 records_end(const Problem& p, u32 first) { return min(first + p.x_columns / FB_BLOCK, records_of(p.gemm_k)); }

DEV void place(Cursor& c, const Problem& p) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    c.record = c.first + warp;
    c.end = records_end(p, c.first);
    c.at = p.w + ((u64)group_of(p, c.item, 0) * records_of(p.gemm_k) + c.record) * RECORD_BYTES + lane * 16;
}

DEV void advance(Cursor& c, const Problem& p) {
    c.record += WARPS;
    c.at += WARPS * RECORD_BYTES;
    if (c.record < c.end + (threadIdx.x >> 5)) return;
    c.item += gridDim.x;
    if (c.item >= num_items(p)) {
        c.item = blockIdx.x;
        c.first += p.x_columns / FB_BLOCK;
    }
    place(c, p);
}

DEV void issue(const Cursor& c, const Problem& p, u32 stage) {
    u64 tile_bytes = (u64)(GEMM_EPI == GEMM_OUT_GATED ? p.gemm_n / 32 : 1) * records_of(p.gemm_k) * RECORD_BYTES;
    if (c.record < c.end) issue_records(stage, c.at, tile_bytes);
    cp_async_commit();
}

DEV void write_item(const Problem& p, void* out, u64 first_row, u32 item, u32 place, float total, float other) {
    u32 row = place / 16 % FB_ROWS, tile = place / (16 * FB_ROWS);
    u64 column = group_of(p, item, tile) * 16 + place % 16;
    u64 at = (first_row + row) * (u64)(GEMM_EPI == GEMM_OUT_GATED ? p.gemm_n / 2 : p.gemm_n) + column;
    if (GEMM_EPI == GEMM_OUT_ACT) ((act*)out)[at] = f32_to_act(total);
    if (GEMM_EPI == GEMM_OUT_ADD_F32) ((float*)out)[at] += total;
    if (GEMM_EPI == GEMM_OUT_GATED) ((act*)out)[at] = f32_to_act(gate_f32(total, p.kind) * other);
    if (GEMM_EPI == GEMM_OUT_F32) ((float*)out)[at] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
PASTE(gemm_four_bit, DT, sm80)
(Dims dims, const act* __restrict__ x, const u8* __restrict__ w, void* out, u32 rows, u32 kind, u32 x_columns) {
    extern __shared__ __align__(128) u8 smem[];
    u64 first_row = (u64)blockIdx.y * FB_ROWS;
    Problem p{x + first_row * DIM(gemm_k), w, DIM(gemm_n), DIM(gemm_k), min(rows - (u32)first_row, (u32)FB_ROWS), kind, x_columns};
    u32 warp = threadIdx.x >> 5, stride = four_bit_x_stride(x_columns);
    u8* ring = smem + warp * WARP_STAGE;
    float* parts = (float*)(smem + RING_BYTES);
    u8* x_smem = smem + FIXED_BYTES;
    float* kept = (float*)(x_smem + min(rows, (u32)FB_ROWS) * stride);
    u32 ring_at = smem_address(ring) + (threadIdx.x & 31) * 16, issued = 0, done = 0, turn = 0;
    Cursor next;
    next.first = 0;
    next.item = blockIdx.x;
    place(next, p);
    grid_trigger();
    for (; issued < FB_STAGES - 1; issued++) {
        issue(next, p, ring_at + issued * STAGE_BYTES);
        advance(next, p);
    }
    grid_wait();
    Rows x_rows = rows_at(smem_address(x_smem), stride, p.rows);
    float sum[TILES][NT][4] = {};
    for (u32 first = 0; first < records_of(p.gemm_k); first += x_columns / FB_BLOCK) {
        __syncthreads();
        copy_rows(smem_address(x_smem), stride, p.rows, first * FB_BLOCK, x_columns, p.gemm_k,
                  [&](u32 row) { return p.x + (u64)row * p.gemm_k; });
        cp_async_wait<0>();
        __syncthreads();
        u32 end = records_end(p, first);
        bool is_first = first == 0, is_last = end == records_of(p.gemm_k);
        float* own = kept;
        for (u32 item = blockIdx.x; item < num_items(p); item += gridDim.x, own += PART_FLOATS) {
            for (u32 record = first + warp; record < end + warp; record += WARPS, done++, issued++) {
                cp_async_wait<FB_STAGES - 2>();
                // All lanes have copied their pieces of this stage, and read those of the stage that comes next.
                __syncwarp();
                issue(next, p, ring_at + issued % FB_STAGES * STAGE_BYTES);
                advance(next, p);
                if (record < end)
                    multiply_records(sum, ring + done % FB_STAGES * STAGE_BYTES, x_rows, (record - first) * FB_BLOCK);
            }
            float* own_parts = parts + turn++ % SUM_BUFFERS * WARPS * PART_FLOATS;
            put_sums(sum, own_parts);
            __syncthreads();
            constexpr u32 PLACES = GEMM_EPI == GEMM_OUT_GATED ? PART_FLOATS / 2 : PART_FLOATS;
            for (u32 place = threadIdx.x; place < PLACES; place += THREADS) {
                if (place / 16 % FB_ROWS >= p.rows) continue;
                float total = add_sums(own_parts, place), other = 0.0f;
                if (GEMM_EPI == GEMM_OUT_GATED) other = add_sums(own_parts, PART_FLOATS / 2 + place);
                if (!is_first) {
                    total = own[place] + total;
                    if (GEMM_EPI == GEMM_OUT_GATED) other = own[PART_FLOATS / 2 + place] + other;
                }
                if (is_last) {
                    write_item(p, out, first_row, item, place, total, other);
                } else {
                    own[place] = total;
                    if (GEMM_EPI == GEMM_OUT_GATED) own[PART_FLOATS / 2 + place] = other;
                }
            }
            if (SUM_BUFFERS == 1) __syncthreads();
        }
    }
}
