// y = x W^T for few rows of x. A persistent grid streams W once, with many loads in flight.
//
// Shapes: x [rows, gemm_k] act; w [gemm_n, gemm_k] act; rows <= GEMM_ROWS (macro: 8, 16, 32 or 64).
//   GEMM_WEIGHT_E4M3 (macro): w is e4m3, and row i counts scale[i] times; scale [gemm_n] f32, else null.
//   GEMM_EPI (GEMM_OUT_*) ACT: out [rows, gemm_n] act. ADD_F32: out [rows, gemm_n] f32, out += y. F32: the
//   same, out = y. GATED: w holds gemm_n / 2 gate rows, then as many up rows; out [rows, gemm_n / 2] act =
//   gate(y_gate) * y_up; `kind` GATE_SILU or GATE_GELU_TANH.
// Contiguous, 16-byte aligned; gemm_k % 8 == 0 (16 for e4m3); gemm_n % 16 == 0 (32 for GATED).
// How: a CTA takes every gridDim.x-th group of 16 rows of W (16 gate and 16 up rows for GATED); its 8 warps
//   share K. Each lane copies what it will multiply, 16 bytes of rows g and g + 8 at a time, into its own
//   places of a ring in shared memory (no barrier), and reads it back as mma A fragments. x is read with the
//   same permutation of K, so the product is unchanged. The ring continues across groups.
// Numerics: f32 accumulation; e4m3 is widened to act, exactly, and scaled at the end; the warps' sums are added in warp order, so a row's result depends
//   neither on `rows` nor on the other rows nor on the grid.
// Launch: grid up to gemm_n / 16 (gemm_n / 32 for GATED), best CTAs an SM * SMs; block 256; dynamic shared
//   memory stream_ring_bytes(GEMM_STAGES, GEMM_STEPS, TILES) + stream_sum_bytes(GEMM_ROWS, TILES)
//   + (GEMM_X_SHARED ? GEMM_ROWS * stream_x_stride(gemm_k) : 0), TILES = GATED ? 2 : 1.
//   The first weights are read before griddepcontrol.wait, so the previous kernel must not write W.
#include "ptx.cuh"

#ifndef GEMM_ROWS
#define GEMM_ROWS 8
#endif
#ifndef GEMM_EPI
#define GEMM_EPI 0
#endif
#ifndef GEMM_STAGES
#define GEMM_STAGES 4
#endif
#ifndef GEMM_STEPS
#define GEMM_STEPS 2
#endif
#ifndef GEMM_X_SHARED
#define GEMM_X_SHARED 0
#endif
#ifndef GEMM_WEIGHT_E4M3
#define GEMM_WEIGHT_E4M3 0
#endif

constexpr int NT = GEMM_ROWS / 8;             // mma tiles over rows of x
constexpr int TILES = GEMM_EPI == GEMM_OUT_GATED ? 2 : 1;  // mma tiles over rows of W
constexpr int THREADS = GEMM_THREADS, WARPS = THREADS / 32, STEPS = GEMM_STEPS;
constexpr u32 WEIGHT_BYTES = GEMM_WEIGHT_E4M3 ? 1 : 2;
constexpr u32 PIECE = 16 / WEIGHT_BYTES;      // elements that a lane copies at once
constexpr u32 STEP = 4 * PIECE;               // elements of K a step
constexpr u32 ROUND = WARPS * STEPS * STEP;   // elements of K that a CTA reads at once
constexpr u32 PIECES = TILES * 2 * STEPS;     // 16-byte pieces of a lane a stage
constexpr u32 STAGE_BYTES = PIECES * THREADS * 16;
constexpr u32 RING_BYTES = stream_ring_bytes(GEMM_STAGES, STEPS, TILES), SUM_BYTES = stream_sum_bytes(GEMM_ROWS, TILES);
static_assert(RING_BYTES == GEMM_STAGES * STAGE_BYTES && SUM_BYTES == WARPS * TILES * GEMM_ROWS * 16 * sizeof(float), "parts");

struct Problem {
    const act* x;
    const u8* w;
    const float* scale;
    u32 gemm_n, gemm_k, rows, kind, x_stride;
};

// A place in this CTA's stream of (group of rows, round of K).
struct Cursor {
    const u8* w;  // row g of the group, at this lane's first element of K
    u32 group, base;
};

DEV u32 num_groups(const Problem& p) { return p.gemm_n / (16 * TILES); }

DEV void place(Cursor& c, const Problem& p) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    c.w = p.w + ((u64)(c.group * 16 + lane / 4) * p.gemm_k + warp * STEPS * STEP + (lane & 3) * PIECE) * WEIGHT_BYTES;
    c.base = 0;
}

DEV void advance(Cursor& c, const Problem& p) {
    c.base += ROUND;
    if (c.base < p.gemm_k) return;
    c.group += gridDim.x;
    place(c, p);
}

DEV void issue(const Cursor& c, const Problem& p, u32 stage) {
    if (c.group < num_groups(p)) {
        u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        u32 k = c.base + warp * STEPS * STEP + (lane & 3) * PIECE;
        u32 target = stage + threadIdx.x * 16;
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            u32 bytes = k + STEP * j < p.gemm_k ? 16 : 0;
            const u8* source = bytes ? c.w + (c.base + STEP * j) * WEIGHT_BYTES : p.w;
#pragma unroll
            for (int part = 0; part < TILES * 2; part++) {
                u64 rows = (part & 1) * 8 + (part >> 1) * (p.gemm_n / 2);
                cp_async_16(target + (part * STEPS + j) * THREADS * 16,
                            bytes ? source + rows * p.gemm_k * WEIGHT_BYTES : source, bytes);
            }
        }
    }
    cp_async_commit();
}

DEV uint4 load_x(const Problem& p, const u8* x_smem, u32 row, u32 k) {
    if (row >= p.rows || k >= p.gemm_k) return make_uint4(0, 0, 0, 0);
    if (GEMM_X_SHARED) return *(const uint4*)(x_smem + row * p.x_stride + k * 2);
    return *(const uint4*)(p.x + (u64)row * p.gemm_k + k);
}

// Eight weights as act, in the order of K.
DEV uint4 eight_weights(uint4 piece, int half) {
    if (!GEMM_WEIGHT_E4M3) return piece;
    u32 low = half ? piece.z : piece.x, high = half ? piece.w : piece.y;
    return make_uint4(widen_e4m3(low, false), widen_e4m3(low, true), widen_e4m3(high, false), widen_e4m3(high, true));
}

DEV void multiply(float (&sum)[TILES][NT][4], const Problem& p, const u8* stage, const u8* x_smem, u32 base) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint4* w = (const uint4*)stage + threadIdx.x;
#pragma unroll
    for (int j = 0; j < STEPS; j++)
#pragma unroll
        for (int half = 0; half < (int)PIECE / 8; half++) {
            u32 k = base + warp * STEPS * STEP + STEP * j + (lane & 3) * PIECE + 8 * half;
            uint4 a[TILES], b[TILES];
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                a[tile] = eight_weights(w[((2 * tile) * STEPS + j) * THREADS], half);
                b[tile] = eight_weights(w[((2 * tile + 1) * STEPS + j) * THREADS], half);
            }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                uint4 x = load_x(p, x_smem, n * 8 + lane / 4, k);
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    mma_16816(sum[tile][n], {a[tile].x, b[tile].x, a[tile].y, b[tile].y}, x.x, x.y);
                    mma_16816(sum[tile][n], {a[tile].z, b[tile].z, a[tile].w, b[tile].w}, x.z, x.w);
                }
            }
        }
}

// Adds the warps' sums in order and writes what the epilogue asks for.
DEV void finish(float (&sum)[TILES][NT][4], const Problem& p, void* out, float* parts, u32 group) {
    constexpr u32 SIZE = TILES * GEMM_ROWS * 16;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 w_row = lane / 4 + 8 * (i >> 1), x_row = n * 8 + 2 * (lane & 3) + (i & 1);
                parts[warp * SIZE + (tile * GEMM_ROWS + x_row) * 16 + w_row] = sum[tile][n][i];
                sum[tile][n][i] = 0.0f;
            }
    __syncthreads();
    for (u32 i = threadIdx.x; i < p.rows * 16; i += THREADS) {
        float total[TILES];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            total[tile] = parts[tile * GEMM_ROWS * 16 + i];
#pragma unroll
            for (int w = 1; w < WARPS; w++) total[tile] += parts[w * SIZE + tile * GEMM_ROWS * 16 + i];
            if (GEMM_WEIGHT_E4M3) total[tile] *= p.scale[tile * (p.gemm_n / 2) + group * 16 + i % 16];
        }
        u64 at = i / 16 * (u64)(p.gemm_n / TILES) + group * 16 + i % 16;
        if (GEMM_EPI == GEMM_OUT_ACT) ((act*)out)[at] = f32_to_act(total[0]);
        if (GEMM_EPI == GEMM_OUT_ADD_F32) ((float*)out)[at] += total[0];
        if (GEMM_EPI == GEMM_OUT_GATED) ((act*)out)[at] = f32_to_act(gate_f32(total[0], p.kind) * total[TILES - 1]);
        if (GEMM_EPI == GEMM_OUT_F32) ((float*)out)[at] = total[0];
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
PASTE(gemm_stream, DT, sm80)
(Dims dims, const act* __restrict__ x, const u8* __restrict__ w, const float* __restrict__ scale, void* out, u32 rows,
 u32 kind) {
    extern __shared__ __align__(128) u8 smem[];
    float* parts = (float*)(smem + RING_BYTES);
    u8* x_smem = smem + RING_BYTES + SUM_BYTES;
    Problem p{x, w, scale, DIM(gemm_n), DIM(gemm_k), rows, kind, stream_x_stride(DIM(gemm_k))};
    u32 ring = smem_address(smem), issued = 0;
    Cursor next;
    next.group = blockIdx.x;
    place(next, p);
    grid_trigger();
    for (; issued < GEMM_STAGES - 1; issued++) {
        issue(next, p, ring + issued * STAGE_BYTES);
        advance(next, p);
    }
    grid_wait();
    if (GEMM_X_SHARED) {
        u32 pieces = p.gemm_k / 8;
        for (u32 i = threadIdx.x; i < rows * pieces; i += THREADS)
            *(uint4*)(x_smem + i / pieces * p.x_stride + i % pieces * 16) = *((const uint4*)x + i);
        __syncthreads();
    }
    float sum[TILES][NT][4] = {};
    u32 done = 0;
    for (u32 group = blockIdx.x; group < num_groups(p); group += gridDim.x) {
        for (u32 base = 0; base < p.gemm_k; base += ROUND, done++, issued++) {
            cp_async_wait<GEMM_STAGES - 2>();
            // Only this lane reads this place, and it did so in the round before.
            issue(next, p, ring + issued % GEMM_STAGES * STAGE_BYTES);
            advance(next, p);
            multiply(sum, p, smem + done % GEMM_STAGES * STAGE_BYTES, x_smem, base);
        }
        finish(sum, p, out, parts, group);
    }
}
