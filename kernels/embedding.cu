// Gathers embedding rows into the f32 residual stream.
//
// Shapes: token_ids [T_pad] u32, every id below the table's rows; table [vocab_size, hidden_size]
//   act; residual [T_pad, hidden_size] f32, completely overwritten. All contiguous, 16-byte aligned.
// Numerics: exact conversion, one f32 multiplication by `scale`.
// Launch: grid T_pad, block any multiple of 32. hidden_size % 8 == 0.
#include "ptx.cuh"

ENTRY(embedding_gather)
(Dims dims, const u32* __restrict__ token_ids, const act* __restrict__ table,
 float* __restrict__ residual, float scale) {
    grid_trigger();
    grid_wait();
    u64 row = token_ids[blockIdx.x];
    const uint4* source = (const uint4*)(table + row * DIM(hidden_size));
    float4* target = (float4*)(residual + (u64)blockIdx.x * DIM(hidden_size));
    for (u32 i = threadIdx.x; i < DIM(hidden_size) / 8; i += blockDim.x) {
        uint4 v = source[i];
        float2 a = unpack2(v.x), b = unpack2(v.y), c = unpack2(v.z), d = unpack2(v.w);
        target[2 * i] = make_float4(a.x * scale, a.y * scale, b.x * scale, b.y * scale);
        target[2 * i + 1] = make_float4(c.x * scale, c.y * scale, d.x * scale, d.y * scale);
    }
}
