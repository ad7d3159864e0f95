// The gate of a feed-forward part: out = act(gate + bias) * (up + bias).
//
// Shapes: gate_up [rows, 2 * intermediate_size] act, gate first then up; bias [2 * intermediate_size]
//   f32 or null; out [rows, intermediate_size] act. Contiguous, 16-byte aligned.
// `kind`: GATE_SILU (x * sigmoid(x)) or GATE_GELU_TANH. Built with -DGATE_CLAMPED=1, instead
//   out = g * sigmoid(1.702 * g) * (u + 1), g the gate with its bias, at most `limit`, u up with its bias, between
//   -limit and limit. Numerics: f32, one rounding to act.
// Launch: grid (rows, ceil(intermediate_size / GATE_COLUMNS)), block 256. intermediate_size % 8 == 0.
#include "ptx.cuh"

#ifndef GATE_CLAMPED
#define GATE_CLAMPED 0
#endif

struct Gate {
    u32 kind;
    float limit;
};

DEV float gated(float gate, float up, const Gate& by) {
#if GATE_CLAMPED
    // Comparisons, not fminf, which would make a number of a NaN.
    gate = gate > by.limit ? by.limit : gate;
    up = up > by.limit ? by.limit : up < -by.limit ? -by.limit : up;
    return __fdividef(gate, 1.0f + exp2_approx(-1.702f * fmaxf(gate, -47.0f) * LOG2E)) * (up + 1.0f);
#else
    return gate_f32(gate, by.kind) * up;
#endif
}

DEV u32 gate_pair(u32 gate, u32 up, const float* gate_bias, const float* up_bias, const Gate& by) {
    float2 g = unpack2(gate), u = unpack2(up);
    if (gate_bias) {
        g.x += gate_bias[0];
        g.y += gate_bias[1];
        u.x += up_bias[0];
        u.y += up_bias[1];
    }
    return pack2(gated(g.x, u.x, by), gated(g.y, u.y, by));
}

ENTRY(act_mul_rows)
(Dims dims, const act* __restrict__ gate_up, const float* __restrict__ bias,
 act* __restrict__ out, u32 kind, float limit) {
    Gate by{kind, limit};
    grid_trigger();
    grid_wait();
    u32 width = DIM(intermediate_size), i = blockIdx.y * GATE_COLUMNS + threadIdx.x * 8;
    if (i >= width) return;
    const act* row = gate_up + (u64)blockIdx.x * 2 * width;
    uint4 g = *(const uint4*)(row + i), u = *(const uint4*)(row + width + i), o;
    const float* gb = bias ? bias + i : nullptr;
    const float* ub = bias ? bias + width + i : nullptr;
    o.x = gate_pair(g.x, u.x, gb, ub, by);
    o.y = gate_pair(g.y, u.y, gb ? gb + 2 : gb, ub + 2, by);
    o.z = gate_pair(g.z, u.z, gb ? gb + 4 : gb, ub + 4, by);
    o.w = gate_pair(g.w, u.w, gb ? gb + 6 : gb, ub + 6, by);
    *(uint4*)(out + (u64)blockIdx.x * width + i) = o;
}
