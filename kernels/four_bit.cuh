// Matrices of 4-bit codes, and the stream of them that gemm_four_bit.cu and moe_four_bit.cu multiply.
//
// A matrix [n, k] is cut into records of 16 rows and FB_BLOCK columns (64 or 128): all of the first 16 rows, then of the next;
// k is padded to whole records. A record holds, one after the other:
//   codes: FB_BLOCK / 64 tiles of 512 bytes, 16 bytes a lane: word j is the lane's A fragment of mma.m16n8k16 for columns
//     16 j to 16 j + 15 of the tile. Its register i has the codes at bits 4 i (lower column) and 4 i + 16; E2M1 codes are spread
//     instead, so that one mask finds sign, exponent and mantissa: see `fragment`.
//   for each of its FB_GROUPS groups of columns: the scales of rows 0, 8, 1, 9, .. (FB_SCALE_BYTES each), then with FB_ZEROS = 1
//     the zeros of the rows in that order, a byte each.
// A weight is (code - zero) * scale, zero 8 without FB_ZEROS; with FB_CODES = FB_E2M1 it is e2m1(code) * 2^(scale - 127), scale
//   a byte of at most 128.
// Macros: FB_ROWS (8, 16, 32 or 64) most rows of x; FB_TILES (1 or 2) groups of 16 rows of W that a warp multiplies at once;
//   FB_STAGES of the ring; FB_BLOCK, FB_GROUPS, FB_CODES, FB_SCALE (FB_SCALE_F16, _BF16, _E8M0), FB_ZEROS.
// Numerics: codes are exact in bf16, sums f32. INT4 sums of a group are multiplied by its scale in f32; scales of E2M1 are
//   powers of two and go into the exact bf16 weight.
#pragma once
#include "ptx.cuh"

#ifndef FB_ROWS
#define FB_ROWS 8
#endif
#ifndef FB_TILES
#define FB_TILES 1
#endif
#ifndef FB_STAGES
#define FB_STAGES 6
#endif
#ifndef FB_BLOCK
#define FB_BLOCK 128
#endif
#ifndef FB_GROUPS
#define FB_GROUPS 1
#endif
#ifndef FB_CODES
#define FB_CODES FB_INT4
#endif
#ifndef FB_SCALE
#define FB_SCALE FB_SCALE_BF16
#endif
#ifndef FB_ZEROS
#define FB_ZEROS 0
#endif

constexpr int NT = FB_ROWS / 8;  // mma tiles over rows of x
constexpr int TILES = FB_TILES;
constexpr int THREADS = FB_THREADS, WARPS = THREADS / 32;
constexpr u32 UNITS = FB_BLOCK / 32;            // steps of 32 columns a record
constexpr u32 GROUP_UNITS = UNITS / FB_GROUPS;  // the same a group
constexpr u32 CODE_BYTES = FB_BLOCK * FB_COLUMN_BYTES;
constexpr u32 SCALE_BYTES = FB_SCALE == FB_SCALE_E8M0 ? 1 : 2;
constexpr u32 GROUP_BYTES = four_bit_group_bytes(SCALE_BYTES, FB_ZEROS);
constexpr u32 RECORD_BYTES = four_bit_record_bytes(FB_BLOCK, FB_GROUPS, GROUP_BYTES);
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
static_assert(SIDE_PIECES <= 32 && UNITS % FB_GROUPS == 0, "a lane copies one piece; groups of 32 columns or more");

DEV u32 records_of(u32 gemm_k) { return (gemm_k + FB_BLOCK - 1) / FB_BLOCK; }

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

DEV u32 fma_bf16x2(u32 a, u32 b, u32 c) {
    u32 result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

// (bits & mask) | set as one instruction; of an expression with two constants the compiler makes two.
DEV u32 and_or(u32 bits, u32 mask, u32 set) {
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(bits), "r"(mask), "r"(set));
    return result;
}

// What `fragment` needs of a group, for rows g and g + 8.
struct Group {
    u32 by[2];       // INT4: -(128 + zero) twice; E2M1: 2^126 * scale twice
    float scale[2];  // INT4
};

DEV Group read_group(const u8* group) {
    u32 row = (threadIdx.x & 31) / 4;
    Group found;
#if FB_CODES == FB_E2M1
    u32 pair = ((const u16*)group)[row];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        // 2^126 * 2^(e - 127) = 2^(e - 1); where that is no normal number, all products are as good as zero.
        i32 exponent = (i32)(pair >> (8 * h) & 255) + 126;
        found.by[h] = (u32)min(max(exponent, 0), 254) * 0x00800080u;
        found.scale[h] = 1.0f;
    }
#else
    u32 pair = ((const u32*)group)[row];
    u32 zeros = FB_ZEROS ? ((const u16*)(group + 32))[row] : 0x0808u;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 bits = h ? pair >> 16 : pair & 0xffffu;
        if (FB_SCALE == FB_SCALE_BF16) {
            found.scale[h] = __uint_as_float(bits << 16);
        } else {
            u16 half = (u16)bits;
            asm("cvt.f32.f16 %0, %1;" : "=f"(found.scale[h]) : "h"(half));
        }
        found.by[h] = (0xc300u + (zeros >> (8 * h) & 255)) * 0x00010001u;
    }
#endif
    return found;
}

// Eight codes as an A fragment in bf16.
DEV void fragment(u32 (&a)[4], u32 q, const Group& group) {
#if FB_CODES == FB_E2M1
    // Sign to bit 15, exponent and mantissa to bits 8 to 6: the number times 2^-126. Codes 0 to 2 of each half lie three
    // bits apart from each other; the last one has what they leave.
    a[0] = q & 0x81c081c0u;
    a[1] = q << 3 & 0x81c081c0u;
    a[2] = q << 6 & 0x81c081c0u;
    a[3] = (q << 1 & 0x80008000u) | (q >> 4 & 0x00c000c0u) | (q >> 5 & 0x01000100u);
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = fma_bf16x2(a[i], group.by[i & 1], 0x80008000u);
#else
    // 128 + code, exactly, then code - zero.
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i] = and_or(q >> (4 * i), 0x000f000fu, 0x43004300u);
        a[i] = fma_bf16x2(a[i], 0x3f803f80u, group.by[i & 1]);
    }
#endif
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
