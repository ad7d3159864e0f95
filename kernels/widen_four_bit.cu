// A matrix of 4-bit codes (four_bit.cuh) as bf16, for products of many rows: out [gemm_n, gemm_k], row-major.
//
// w in records; gemm_n % 16 == 0, gemm_k % 8 == 0. Numerics: a weight is a product in f32, rounded once.
// Launch: grid ceil(records of the matrix / 8), block 256.
#include "four_bit.cuh"

constexpr u32 THREADS = FB_THREADS, WARPS = THREADS / 32;

// One warp widens one record, through shared memory, so that rows are written in whole pieces.
extern "C" __global__ void __launch_bounds__(THREADS)
PASTE(widen_four_bit, DT, sm80)
(Dims dims, const u8* __restrict__ w, act* __restrict__ out) {
    constexpr u32 LD = FB_BLOCK + 8;
    __shared__ __align__(16) act smem[WARPS][16 * LD];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, records = records_of(DIM(gemm_k));
    u32 index = blockIdx.x * WARPS + warp;
    grid_trigger();
    grid_wait();
    if (index >= DIM(gemm_n) / 16 * records) return;
    const u8* record = w + (u64)index * RECORD_BYTES;
    act* own = smem[warp];
#pragma unroll
    for (u32 unit = 0; unit < UNITS; unit++) {
        uint2 codes = *(const uint2*)(record + unit / 2 * 512 + lane * 16 + unit % 2 * 8);
        Group group = read_group(record + CODE_BYTES + unit / GROUP_UNITS * GROUP_BYTES);
#pragma unroll
        for (int step = 0; step < 2; step++) {
            u32 a[4];
            fragment(a, step ? codes.y : codes.x, group);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 pair = unpack2(a[i]);
                u32 row = lane / 4 + 8 * (i & 1), column = unit * 32 + step * 16 + 2 * (lane & 3) + 8 * (i >> 1);
                *(u32*)(own + row * LD + column) = pack2(pair.x * group.scale[i & 1], pair.y * group.scale[i & 1]);
            }
        }
    }
    __syncwarp();
    u32 first = index % records * FB_BLOCK;
#pragma unroll
    for (u32 i = 0; i < FB_BLOCK / 16; i++) {
        u32 piece = i * 32 + lane, row = piece / (FB_BLOCK / 8), column = piece % (FB_BLOCK / 8) * 8;
        if (first + column < DIM(gemm_k))
            *(uint4*)(out + (u64)(index / records * 16 + row) * DIM(gemm_k) + first + column) =
                *(const uint4*)(own + row * LD + column);
    }
}
