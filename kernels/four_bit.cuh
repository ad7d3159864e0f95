// Matrices of 4-bit codes: how they lie in memory, and how their codes become bf16. Products of them are in gemm_four_bit.cu,
// gemm_four_bit_wgmma.cu, moe_four_bit.cu and moe_four_bit_wgmma.cu.
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
// Macros: FB_BLOCK, FB_GROUPS, FB_CODES, FB_SCALE (FB_SCALE_F16, _BF16, _E8M0), FB_ZEROS.
#pragma once
#include "ptx.cuh"

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

constexpr u32 UNITS = FB_BLOCK / 32;            // steps of 32 columns a record
constexpr u32 GROUP_UNITS = UNITS / FB_GROUPS;  // the same a group
constexpr u32 CODE_BYTES = FB_BLOCK * FB_COLUMN_BYTES;
constexpr u32 SCALE_BYTES = FB_SCALE == FB_SCALE_E8M0 ? 1 : 2;
constexpr u32 GROUP_BYTES = four_bit_group_bytes(SCALE_BYTES, FB_ZEROS);
constexpr u32 RECORD_BYTES = four_bit_record_bytes(FB_BLOCK, FB_GROUPS, GROUP_BYTES);
static_assert(UNITS % FB_GROUPS == 0, "groups of 32 columns or more");

DEV u32 records_of(u32 gemm_k) { return (gemm_k + FB_BLOCK - 1) / FB_BLOCK; }

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
