// y = x W^T for few rows of x: streams W once at memory speed.
//
// Shapes: x [rows, gemm_k] act; w [gemm_n, gemm_k] act; rows <= GEMM_ROWS (macro: 8, 16, 32 or 64).
//   GEMM_EPI 0: out [rows, gemm_n] act.  1: out [rows, gemm_n] f32, out += y.  3: the same, out = y.
//   GEMM_EPI 2: w holds gemm_n / 2 gate rows, then as many up rows; out [rows, gemm_n / 2] act =
//   gate(y_gate) * y_up; `kind` 0 SiLU, 1 GELU by tanh.
// Contiguous, 16-byte aligned; gemm_k % 8 == 0; gemm_n % 16 == 0 (32 for EPI 2).
// How: a CTA owns 16 rows of W (16 gate and 16 up rows for EPI 2); its 8 warps share K. W goes from
//   memory straight into mma A fragments: lane (g, t) reads 16 bytes of rows g and g + 8, and x is
//   read with the same permutation of K, which the product does not see.
// Numerics: f32 accumulation; the warps' sums are added in warp order, so a row's result depends
//   neither on `rows` nor on the other rows.
// Launch: grid gemm_n / 16 (gemm_n / 32 for EPI 2), block 256. The first weights are read before
//   griddepcontrol.wait: W must not be written by the kernel before.
#include "ptx.cuh"

#ifndef GEMM_ROWS
#define GEMM_ROWS 8
#endif
#ifndef GEMM_EPI
#define GEMM_EPI 0
#endif

constexpr int NT = GEMM_ROWS / 8;            // mma tiles over rows of x
constexpr int TILES = GEMM_EPI == 2 ? 2 : 1; // mma tiles over rows of W
constexpr int WARPS = 8, STEPS = 4;          // 32 elements of K a step
constexpr u32 ROUND = WARPS * STEPS * 32;    // elements of K that a CTA reads at once

struct Weights {
    uint4 low[TILES][STEPS], high[TILES][STEPS];  // rows g and g + 8
};

struct Lane {
    const act *w[TILES], *x;
    u32 k, gemm_k, rows, group;
};

DEV uint4 zero4() { return make_uint4(0, 0, 0, 0); }

DEV void load_weights(Weights& v, const Lane& lane, u32 base) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            u32 k = base + lane.k + 32 * j;
            bool valid = k < lane.gemm_k;
            const act* source = lane.w[tile] + k;
            v.low[tile][j] = valid ? load_stream(source) : zero4();
            v.high[tile][j] = valid ? load_stream(source + 8 * (u64)lane.gemm_k) : zero4();
        }
}

DEV void multiply(float (&sum)[TILES][NT][4], const Weights& v, const Lane& lane, u32 base) {
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        u32 k = base + lane.k + 32 * j;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            u32 row = n * 8 + lane.group;
            uint4 x = zero4();
            if (row < lane.rows && k < lane.gemm_k)
                x = *(const uint4*)(lane.x + (u64)row * lane.gemm_k + k);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const uint4 &a = v.low[tile][j], &b = v.high[tile][j];
                mma_16816(sum[tile][n], {a.x, b.x, a.y, b.y}, x.x, x.y);
                mma_16816(sum[tile][n], {a.z, b.z, a.w, b.w}, x.z, x.w);
            }
        }
    }
}

DEV float gate_f32(float x, u32 kind) {
    if (kind == 0) return __fdividef(x, 1.0f + exp2_approx(-fmaxf(x, -80.0f) * LOG2E));
    float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanh_f32(inner));
}

// Adds the warps' sums in order and writes what the epilogue asks for.
DEV void finish(const float (&sum)[TILES][NT][4], void* out, u32 rows, u32 gemm_n, u32 kind) {
    constexpr u32 COLUMNS = GEMM_ROWS, SIZE = TILES * COLUMNS * 16;
    __shared__ float parts[WARPS][SIZE];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 w_row = lane / 4 + 8 * (i >> 1), x_row = n * 8 + 2 * (lane & 3) + (i & 1);
                parts[warp][(tile * COLUMNS + x_row) * 16 + w_row] = sum[tile][n][i];
            }
    __syncthreads();
    for (u32 i = threadIdx.x; i < rows * 16; i += WARPS * 32) {
        float total[TILES];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            total[tile] = parts[0][tile * COLUMNS * 16 + i];
#pragma unroll
            for (int w = 1; w < WARPS; w++) total[tile] += parts[w][tile * COLUMNS * 16 + i];
        }
        u64 width = gemm_n / TILES, at = i / 16 * width + blockIdx.x * 16 + i % 16;
        if (GEMM_EPI == 0) ((act*)out)[at] = f32_to_act(total[0]);
        if (GEMM_EPI == 1) ((float*)out)[at] += total[0];
        if (GEMM_EPI == 2) ((act*)out)[at] = f32_to_act(gate_f32(total[0], kind) * total[TILES - 1]);
        if (GEMM_EPI == 3) ((float*)out)[at] = total[0];
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
PASTE(gemm_skinny, DT, sm80)
(Dims dims, const act* __restrict__ x, const act* __restrict__ w, void* out, u32 rows, u32 kind) {
    u32 thread = threadIdx.x & 31, warp = threadIdx.x >> 5, gemm_k = DIM(gemm_k), gemm_n = DIM(gemm_n);
    Lane lane;
    lane.group = thread / 4;
    lane.k = warp * STEPS * 32 + (thread & 3) * 8;
    lane.gemm_k = gemm_k;
    lane.rows = rows;
    lane.x = x;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
        lane.w[tile] = w + (u64)(tile * (gemm_n / 2) + blockIdx.x * 16 + lane.group) * gemm_k;
    float sum[TILES][NT][4] = {};
    Weights current, next;
    grid_trigger();
    load_weights(current, lane, 0);
    grid_wait();
    for (u32 base = 0; base < gemm_k; base += ROUND) {
        load_weights(next, lane, base + ROUND);
        multiply(sum, current, lane, base);
        current = next;
    }
    finish(sum, out, rows, gemm_n, kind);
}
