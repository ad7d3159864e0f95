// The stream of 4-bit records (four_bit.cuh) that gemm_four_bit.cu and moe_four_bit.cu multiply with few rows of x.
//
// Macros: FB_ROWS (8, 16, 32 or 64) most rows of x; FB_TILES (1 or 2) groups of 16 rows of W that a warp multiplies at once;
//   FB_STAGES of the ring; those of four_bit.cuh.
// Numerics: codes are exact in bf16, sums f32. INT4 sums of a group are multiplied by its scale in f32; scales of E2M1 are
//   powers of two and go into the exact bf16 weight.
#pragma once
#include "four_bit.cuh"

#ifndef FB_ROWS
#define FB_ROWS 8
#endif
#ifndef FB_TILES
#define FB_TILES 1
#endif
#ifndef FB_STAGES
#define FB_STAGES 6
#endif

constexpr int NT = FB_ROWS / 8;  // mma tiles over rows of x
constexpr int TILES = FB_TILES;
constexpr int THREADS = FB_THREADS, WARPS = THREADS / 32;
constexpr u32 SIDE_PIECES = FB_GROUPS * GROUP_BYTES / 16;  // 16-byte pieces behind the codes
constexpr u32 WARP_STAGE = TILES * RECORD_BYTES;
constexpr u32 STAGE_BYTES = WARPS * WARP_STAGE;
constexpr u32 RING_BYTES = four_bit_ring_bytes(FB_STAGES, TILES, RECORD_BYTES);
constexpr u32 PART_FLOATS = TILES * FB_ROWS * 16;  // sums of one warp
constexpr u32 SUM_BYTES = four_bit_sum_bytes(FB_ROWS, TILES);
// Where the warps' sums lie: with two buffers in turn one barrier an item is enough.
constexpr u32 SUM_BUFFERS = four_bit_sum_buffers(FB_ROWS);
// Shared memory ahead of the rows of x.
constexpr u32 FIXED_BYTES = four_bit_fixed_bytes(FB_STAGES, FB_ROWS, TILES, RECORD_BYTES);
// Blocks of an SM, where registers allow more than one.
constexpr int MIN_BLOCKS = NT * TILES <= 2 ? 2 : 1;
static_assert(RING_BYTES == FB_STAGES * STAGE_BYTES && SUM_BYTES == WARPS * PART_FLOATS * sizeof(float), "parts");
static_assert(SIDE_PIECES <= 32, "a lane copies one piece");

// Copies the records of one place in K of TILES groups of rows, `tile_bytes` apart: each lane what it reads itself, and some
// of them pieces of the scales. `stage` and `record` have this lane's offset of 16 bytes.
DEV void issue_records(u32 stage, const u8* record, u64 tile_bytes) {
    bool has_piece = (threadIdx.x & 31) < SIDE_PIECES;
#pragma unroll
    for (int t = 0; t < TILES; t++, record += tile_bytes, stage += RECORD_BYTES) {
#pragma unroll
        for (u32 at = 0; at < CODE_BYTES; at += 512) cp_async_16(stage + at, record + at, 16);
        if (has_piece) cp_async_16(stage + CODE_BYTES, record + CODE_BYTES, 16);
    }
}

// Copies columns [first, first + columns) of rows of x to shared memory, zeros behind the last column. All threads; they
// must wait for their copies, and for each other.
template <typename Source>
DEV void copy_rows(u32 target, u32 stride, u32 num_rows, u32 first, u32 columns, u32 gemm_k, Source row_of) {
    for (u32 row = threadIdx.x >> 5; row < num_rows; row += WARPS) {
        const act* source = row_of(row);
        for (u32 column = (threadIdx.x & 31) * 8; column < columns; column += 256) {
            bool exists = first + column < gemm_k;
            cp_async_16(target + row * stride + column * 2, source + (exists ? first + column : 0), exists ? 16 : 0);
        }
    }
    cp_async_commit();
}

// Rows of x in shared memory as B fragments.
struct Rows {
    u32 at[NT];  // this lane's address for ldmatrix, column 0
};

// `stride` in bytes, an odd number of 16-byte pieces. Rows beyond the last are the last.
DEV Rows rows_at(u32 x, u32 stride, u32 num_rows) {
    u32 lane = threadIdx.x & 31;
    Rows rows;
#pragma unroll
    for (int n = 0; n < NT; n++) rows.at[n] = x + min(n * 8 + (lane & 7), num_rows - 1) * stride + (lane >> 3) * 16;
    return rows;
}

// sum[t][n] += x W^T of one place in K; `column` is the record's first in x.
DEV void multiply_records(float (&sum)[TILES][NT][4], const u8* stage, const Rows& rows, u32 column) {
    u32 lane = threadIdx.x & 31;
    uint4 codes[TILES];
    Group group[TILES];
    float part[TILES][NT][4];
#pragma unroll
    for (u32 unit = 0; unit < UNITS; unit++) {
        u32 b[NT][4];
#pragma unroll
        for (int n = 0; n < NT; n++) ldmatrix_x4(b[n], rows.at[n] + (column + unit * 32) * 2);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const u8* record = stage + t * RECORD_BYTES;
            if (unit % 2 == 0) codes[t] = *(const uint4*)(record + unit / 2 * 512 + lane * 16);
            if (unit % GROUP_UNITS == 0) {
                group[t] = read_group(record + CODE_BYTES + unit / GROUP_UNITS * GROUP_BYTES);
#if FB_CODES == FB_INT4
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) part[t][n][i] = 0.0f;
#endif
            }
#pragma unroll
            for (int step = 0; step < 2; step++) {
                u32 a[4];
                u32 q = unit % 2 ? (step ? codes[t].w : codes[t].z) : (step ? codes[t].y : codes[t].x);
                fragment(a, q, group[t]);
#pragma unroll
                for (int n = 0; n < NT; n++)
                    mma_16816(FB_CODES == FB_INT4 ? part[t][n] : sum[t][n], a, b[n][2 * step], b[n][2 * step + 1]);
            }
#if FB_CODES == FB_INT4
            if ((unit + 1) % GROUP_UNITS == 0)
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) sum[t][n][i] += group[t].scale[i >> 1] * part[t][n][i];
#endif
        }
    }
}

// Puts this warp's sums where all can read them, and clears them. [WARPS][TILES][FB_ROWS][16 rows of W]
DEV void put_sums(float (&sum)[TILES][NT][4], float* parts) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 w_row = lane / 4 + 8 * (i >> 1), x_row = n * 8 + 2 * (lane & 3) + (i & 1);
                parts[warp * PART_FLOATS + (t * FB_ROWS + x_row) * 16 + w_row] = sum[t][n][i];
                sum[t][n][i] = 0.0f;
            }
}

// The warps' sums of one place, in warp order.
DEV float add_sums(const float* parts, u32 place) {
    float total = parts[place];
#pragma unroll
    for (int w = 1; w < WARPS; w++) total += parts[w * PART_FLOATS + place];
    return total;
}
