// Experts' entries in tiles of rows: what the products of experts (moe_four_bit.cu, moe_four_bit_wgmma.cu) take at once.
#pragma once
#include "ptx.cuh"

constexpr u32 SEGMENT = MAX_EXPERTS / 32;  // experts that a lane's first look skips

// The expert of a tile that exists: the last one with no more tiles before it. All lanes look together.
DEV u32 expert_of(const u32* tiles_before, u32 num_experts, u32 tile) {
    u32 lane = threadIdx.x & 31, first = lane * SEGMENT;
    bool begins = first < num_experts && tiles_before[min(first, num_experts)] <= tile;
    u32 segment = (__popc(__ballot_sync(0xffffffffu, begins)) - 1) * SEGMENT, expert = segment + lane;
    bool is_behind = lane < SEGMENT && expert < num_experts && tiles_before[min(expert, num_experts)] <= tile;
    return segment + __popc(__ballot_sync(0xffffffffu, is_behind)) - 1;
}

// Fills tiles_before, [num_experts + 1], and returns the number of all tiles. All threads of the block; `scratch` holds 33 words.
DEV u32 count_tiles(const u32* expert_offset, u32 num_experts, u32 tile_rows, u32* tiles_before, u32* scratch) {
    u32 done = 0, total;
    for (u32 base = 0; base < num_experts; base += blockDim.x) {
        u32 e = base + threadIdx.x, rows = 0;
        if (e < num_experts) rows = expert_offset[e + 1] - expert_offset[e];
        u32 before = block_prefix_u32((rows + tile_rows - 1) / tile_rows, scratch, &total);
        if (e < num_experts) tiles_before[e] = done + before;
        done += total;
    }
    if (threadIdx.x == 0) tiles_before[num_experts] = done;
    __syncthreads();
    return done;
}
