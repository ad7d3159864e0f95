// The weight of the network beside experts that every token visits: gated *= sigmoid(x * score).
//
// Shapes: x [rows, hidden_size] act; score [hidden_size] f32; gated [rows, width] act, what goes into the network's
//   last product, which is linear. Contiguous, 16-byte aligned. hidden_size % 8 == 0, width % 8 == 0.
// Numerics: f32, the sum in a fixed order; one rounding to act.
// Launch: grid rows, block 256.
#include "ptx.cuh"

ENTRY(shared_score)
(Dims dims, const act* __restrict__ x, const float* __restrict__ score, act* __restrict__ gated, u32 width) {
    __shared__ float scratch[33];
    grid_trigger();
    grid_wait();
    const uint4* row = (const uint4*)(x + (u64)blockIdx.x * DIM(hidden_size));
    const float4* weights = (const float4*)score;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < DIM(hidden_size) / 8; i += blockDim.x) {
        uint4 v = row[i];
        float4 low = weights[2 * i], high = weights[2 * i + 1];
        float2 a = unpack2(v.x), b = unpack2(v.y), c = unpack2(v.z), d = unpack2(v.w);
        sum += (a.x * low.x + a.y * low.y) + (b.x * low.z + b.y * low.w);
        sum += (c.x * high.x + c.y * high.y) + (d.x * high.z + d.y * high.w);
    }
    float weight = 1.0f / (1.0f + expf(-block_sum(sum, scratch)));
    u32* target = (u32*)(gated + (u64)blockIdx.x * width);
    for (u32 i = threadIdx.x; i < width / 2; i += blockDim.x) {
        float2 v = unpack2(target[i]);
        target[i] = pack2(v.x * weight, v.y * weight);
    }
}
