// The output gate of attention: attended *= sigmoid(gate).
//
// Shapes: qkv [rows, (2 * num_heads + 2 * num_kv_heads) * head_dim] act, each query head followed by its gate;
//   attended [rows, num_heads * head_dim] act. Where qkv is a product of e4m3 numbers, row_scale [rows] and
//   scale [its width] f32, else both null. Contiguous, 16-byte aligned. head_dim % 8 == 0.
// Numerics: f32, one rounding to act.
// Launch: grid (rows, ceil(num_heads * head_dim / GATE_COLUMNS)), block 256.
#include "ptx.cuh"

DEV float sigmoid(float x) { return __fdividef(1.0f, 1.0f + exp2_approx(-fmaxf(x, -80.0f) * LOG2E)); }

DEV u32 gate_pair(u32 value, u32 gate, const float* scale, float row_scale) {
    float2 v = unpack2(value), g = unpack2(gate);
    if (scale) g.x *= row_scale * scale[0], g.y *= row_scale * scale[1];
    return pack2(v.x * sigmoid(g.x), v.y * sigmoid(g.y));
}

ENTRY(output_gate)
(Dims dims, const act* __restrict__ qkv, const float* __restrict__ row_scale, const float* __restrict__ scale,
 act* __restrict__ attended, u32 head_dim) {
    grid_trigger();
    grid_wait();
    u32 q_width = DIM(num_heads) * head_dim, i = blockIdx.y * GATE_COLUMNS + threadIdx.x * 8;
    if (i >= q_width) return;
    u32 at = (2 * (i / head_dim) + 1) * head_dim + i % head_dim;
    u64 row = blockIdx.x;
    uint4 gate = *(const uint4*)(qkv + row * 2 * (q_width + DIM(num_kv_heads) * head_dim) + at);
    uint4* target = (uint4*)(attended + row * q_width + i);
    uint4 v = *target;
    const float* by = scale ? scale + at : nullptr;
    float of_row = scale ? row_scale[row] : 1.0f;
    v.x = gate_pair(v.x, gate.x, by, of_row);
    v.y = gate_pair(v.y, gate.y, by ? by + 2 : by, of_row);
    v.z = gate_pair(v.z, gate.z, by ? by + 4 : by, of_row);
    v.w = gate_pair(v.w, gate.w, by ? by + 6 : by, of_row);
    *target = v;
}
