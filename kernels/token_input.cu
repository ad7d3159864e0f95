// What each layer gets of the token itself (Gemma 4).
//
// token_input_rows: each layer's part of a row of x, in place:
//   x[t, l] = (norm(x[t, l] * projected) * weight + table[id[t], l] * embedded) * sqrt(1/2).
//   x [T, num_layers * size] act, the projection of the embeddings; weight [size] f32;
//   table [vocab_size, num_layers * size] act; token_ids [T] u32. size % 8 == 0.
//   Launch: grid (T, ceil(num_layers / 8)), block 256: a warp has a layer's part.
// token_gate_rows: out[t] = act(gate[t]) * x[t, layer], activations as in activation.cu. gate, out [T, size] act.
//   Launch: grid T, block 128.
// Numerics: f32, one rounding to act.
#include "ptx.cuh"

// Eight numbers of 16 bits.
DEV void unpack8(float (&v)[8], uint4 bits) {
    float2 pairs[4] = {unpack2(bits.x), unpack2(bits.y), unpack2(bits.z), unpack2(bits.w)};
#pragma unroll
    for (int i = 0; i < 4; i++) v[2 * i] = pairs[i].x, v[2 * i + 1] = pairs[i].y;
}

ENTRY(token_input_rows)
(Dims dims, act* __restrict__ x, const u32* __restrict__ token_ids, const act* __restrict__ table,
 const float* __restrict__ weight, u32 num_layers, u32 size, float projected, float embedded, float eps) {
    grid_trigger();
    grid_wait();
    u32 lane = threadIdx.x & 31, layer = blockIdx.y * 8 + (threadIdx.x >> 5), eights = size / 8;
    if (layer >= num_layers) return;
    uint4* part = (uint4*)(x + ((u64)blockIdx.x * num_layers + layer) * size);
    const uint4* own = (const uint4*)(table + ((u64)token_ids[blockIdx.x] * num_layers + layer) * size);
    float sum = 0.0f, v[8], e[8];
    for (u32 i = lane; i < eights; i += 32) {
        unpack8(v, part[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) sum += (v[j] * projected) * (v[j] * projected);
    }
    float scale = rsqrtf(warp_sum(sum) / (float)size + eps) * projected;
    for (u32 i = lane; i < eights; i += 32) {
        unpack8(v, part[i]);
        unpack8(e, own[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = (v[j] * scale * weight[8 * i + j] + e[j] * embedded) * 0.70710678f;
        part[i] = make_uint4(pack2(v[0], v[1]), pack2(v[2], v[3]), pack2(v[4], v[5]), pack2(v[6], v[7]));
    }
}

ENTRY(token_gate_rows)
(Dims dims, const act* __restrict__ gate, const act* __restrict__ x, act* __restrict__ out, u32 num_layers, u32 layer,
 u32 size, u32 kind) {
    grid_trigger();
    grid_wait();
    const uint4* gates = (const uint4*)(gate + (u64)blockIdx.x * size);
    const uint4* part = (const uint4*)(x + ((u64)blockIdx.x * num_layers + layer) * size);
    uint4* target = (uint4*)(out + (u64)blockIdx.x * size);
    for (u32 i = threadIdx.x; i < size / 8; i += blockDim.x) {
        float g[8], v[8];
        unpack8(g, gates[i]);
        unpack8(v, part[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] *= gate_f32(g[j], kind);
        target[i] = make_uint4(pack2(v[0], v[1]), pack2(v[2], v[3]), pack2(v[4], v[5]), pack2(v[6], v[7]));
    }
}
