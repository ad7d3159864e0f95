// The gate of a feed-forward part: out = act(gate + bias) * (up + bias).
//
// Shapes: gate_up [rows, 2 * intermediate_size] act, gate first then up; bias [2 * intermediate_size]
//   f32 or null; out [rows, intermediate_size] act. Contiguous, 16-byte aligned.
// `kind`: GATE_SILU (x * sigmoid(x)) or GATE_GELU_TANH. Numerics: f32, one rounding to act.
// Launch: grid (rows, ceil(intermediate_size / GATE_COLUMNS)), block 256. intermediate_size % 8 == 0.
#include "ptx.cuh"

DEV u32 gate_pair(u32 gate, u32 up, const float* gate_bias, const float* up_bias, u32 kind) {
    float2 g = unpack2(gate), u = unpack2(up);
    if (gate_bias) {
        g.x += gate_bias[0];
        g.y += gate_bias[1];
        u.x += up_bias[0];
        u.y += up_bias[1];
    }
    return pack2(gate_f32(g.x, kind) * u.x, gate_f32(g.y, kind) * u.y);
}

ENTRY(act_mul_rows)
(Dims dims, const act* __restrict__ gate_up, const float* __restrict__ bias,
 act* __restrict__ out, u32 kind) {
    grid_trigger();
    grid_wait();
    u32 width = DIM(intermediate_size), i = blockIdx.y * GATE_COLUMNS + threadIdx.x * 8;
    if (i >= width) return;
    const act* row = gate_up + (u64)blockIdx.x * 2 * width;
    uint4 g = *(const uint4*)(row + i), u = *(const uint4*)(row + width + i), o;
    const float* gb = bias ? bias + i : nullptr;
    const float* ub = bias ? bias + width + i : nullptr;
    o.x = gate_pair(g.x, u.x, gb, ub, kind);
    o.y = gate_pair(g.y, u.y, gb ? gb + 2 : gb, ub + 2, kind);
    o.z = gate_pair(g.z, u.z, gb ? gb + 4 : gb, ub + 4, kind);
    o.w = gate_pair(g.w, u.w, gb ? gb + 6 : gb, ub + 6, kind);
    *(uint4*)(out + (u64)blockIdx.x * width + i) = o;
}
