// Shared by all kernels: types, dimensions, number formats and wrappers of PTX instructions.
// Self-contained: NVRTC compiles it without any CUDA header.
//
// Dimensions. Every kernel takes `Dims dims` by value first and reads it through DIM(name). With
// -DCONST_DIMS, DIM(name) is the constant D_name, given as -DD_name=value; without it the argument.
// The argument list is the same in both builds.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

#include "contract.cuh"

#ifdef CONST_DIMS
#define DIM(name) ((u32)(D_##name))
#else
#define DIM(name) (dims.name)
#endif

// Number formats of activations, weights and the KV cache (DTYPE_*). Kernels exist where all three are the same.
#ifndef ACT_DTYPE
#define ACT_DTYPE DTYPE_BF16
#endif
#ifndef WEIGHT_DTYPE
#define WEIGHT_DTYPE ACT_DTYPE
#endif
#ifndef KV_DTYPE
#define KV_DTYPE ACT_DTYPE
#endif
#if WEIGHT_DTYPE != ACT_DTYPE || KV_DTYPE != ACT_DTYPE
#error "weights, activations and KV cache of different formats"
#endif

#if ACT_DTYPE == DTYPE_F16
#define DT f16
#else
#define DT bf16
#endif
#define PASTE_(op, dt, arch) op##_##dt##_##arch
#define PASTE(op, dt, arch) PASTE_(op, dt, arch)
// Entries whose name carries the activation type, and entries that do not depend on it.
#define ENTRY(op) extern "C" __global__ void PASTE(op, DT, sm80)
#define ENTRY_89(op) extern "C" __global__ void PASTE(op, DT, sm89)
#define ENTRY_F32(op) extern "C" __global__ void PASTE(op, f32, sm80)
#define ENTRY_U32(op) extern "C" __global__ void PASTE(op, u32, sm80)

#define DEV static __device__ __forceinline__

// A struct in an array of words: its number of words, the index of a field in it, and the index of a field of the
// i-th struct of a list. All are computed from the declaration at compile time.
#define WORDS(type) ((u32)(sizeof(type) / 4))
#define WORD(type, field) ((u32)(__INTADDR__(&((type*)0)->field) / 4))
#define WORD_AT(type, i, field) (WORDS(type) * (i) + WORD(type, field))
#define FIELD(words, type, field) ((words)[WORD(type, field)])

// The lists behind a StepHeader: of StepRow, u32, BlockUpdate, StepSample, StateSave.
DEV const u32* rows_of(const u32* step) { return step + FIELD(step, StepHeader, rows_at); }
DEV const u32* tokens_of(const u32* step) { return step + FIELD(step, StepHeader, tokens_at); }
DEV const u32* updates_of(const u32* step) { return step + FIELD(step, StepHeader, updates_at); }
DEV const u32* samples_of(const u32* step) { return step + FIELD(step, StepHeader, samples_at); }
DEV const u32* saves_of(const u32* step) { return step + FIELD(step, StepHeader, saves_at); }

// Words of the list of first entries behind a PlanHeader.
DEV u32 plan_grid(u32 grid) { return (grid + PLAN_GRID_STEP - 1) / PLAN_GRID_STEP * PLAN_GRID_STEP; }

// ---- numbers ------------------------------------------------------------------------------------

// Storage of one activation or weight: bf16 or f16 bits.
struct act {
    u16 bits;
};
static_assert(sizeof(act) == ACT_BYTES, "as the host counts");
// Storage of one number of a key or a value.
typedef act kv;

DEV float act_to_f32(act value) {
#if ACT_DTYPE == DTYPE_F16
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
#else
    return __uint_as_float((u32)value.bits << 16);
#endif
}

DEV act f32_to_act(float value) {
    act result;
#if ACT_DTYPE == DTYPE_F16
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
#endif
    return result;
}

// Two values in one register; `low` is the one at the lower address.
DEV u32 pack2(float low, float high) {
    u32 result;
#if ACT_DTYPE == DTYPE_F16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
#endif
    return result;
}

DEV float2 unpack2(u32 pair) {
    act low{(u16)(pair & 0xffffu)}, high{(u16)(pair >> 16)};
    return make_float2(act_to_f32(low), act_to_f32(high));
}

// Two of four e4m3 numbers as act, exactly: the two at the lower addresses, or the others. The bits of exponent and
// mantissa move to act's places, and one multiplication moves the exponent's bias (it finds subnormals right too).
DEV u32 widen_e4m3(u32 four, bool upper) {
    u32 pair = __byte_perm(four, 0, upper ? 0x3424 : 0x1404), wide;
#if ACT_DTYPE == DTYPE_F16
    wide = (pair & 0x80008000u) | ((pair >> 1) & 0x3f803f80u);
    asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(wide) : "r"(0x5c005c00u), "r"(0x80008000u));  // * 2^8 + -0
#else
    wide = (pair & 0x80008000u) | ((pair >> 4) & 0x07f007f0u);
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(wide) : "r"(0x7b807b80u), "r"(0x80008000u));  // * 2^120 + -0
#endif
    return wide;
}

DEV float exp2_approx(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define NEG_INF (-__uint_as_float(0x7f800000u))

// tanh to about 1e-6 relative of 1; never overflows.
DEV float tanh_f32(float x) {
    float e = exp2_approx(fminf(fabsf(x), 20.0f) * (2.0f * LOG2E));
    return copysignf(1.0f - __fdividef(2.0f, e + 1.0f), x);
}

// The gate of a feed-forward part: GATE_SILU or GATE_GELU_TANH.
DEV float gate_f32(float x, u32 kind) {
    if (kind == GATE_SILU) return __fdividef(x, 1.0f + exp2_approx(-fmaxf(x, -80.0f) * LOG2E));
    float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanh_f32(inner));
}

DEV bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// Maps a float to a u32 with the same order, and back.
DEV u32 order_key(float x) {
    u32 bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEV float key_value(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// ---- warp and block -----------------------------------------------------------------------------

DEV float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

DEV float warp_max(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

DEV u32 warp_sum_u32(u32 x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

// Sum over the block in a fixed order; every thread gets it. `scratch` holds 33 floats.
DEV float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    __syncthreads();
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

// Waits until so many threads, whole warps, have come to barrier `id`; __syncthreads has 0.
DEV void named_wait(u32 id, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Maximum over the block; every thread gets it. `scratch` holds 33 floats.
DEV float block_max(float x, float* scratch) {
    x = warp_max(x);
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    __syncthreads();
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    return warp_max(lane < warps ? scratch[lane] : NEG_INF);
}

// Exclusive prefix sum over the block; `total` is the sum. `scratch` holds 33 words.
DEV u32 block_prefix_u32(u32 x, u32* scratch, u32* total) {
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    u32 inclusive = x;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        u32 below = __shfl_up_sync(0xffffffffu, inclusive, offset);
        if (lane >= offset) inclusive += below;
    }
    __syncthreads();
    if (lane == 31) scratch[warp] = inclusive;
    __syncthreads();
    u32 part = lane < warps ? scratch[lane] : 0;
    u32 scan = part;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        u32 below = __shfl_up_sync(0xffffffffu, scan, offset);
        if (lane >= offset) scan += below;
    }
    *total = __shfl_sync(0xffffffffu, scan, 31);
    u32 before = __shfl_sync(0xffffffffu, scan - part, warp);
    return before + inclusive - x;
}

// Exclusive prefix sum over the block in a fixed order; `total` is the sum. `scratch` holds 32 doubles.
DEV double block_prefix_f64(double x, double* scratch, double* total) {
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    double inclusive = x;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        double below = __shfl_up_sync(0xffffffffu, inclusive, offset);
        if (lane >= offset) inclusive += below;
    }
    __syncthreads();
    if (lane == 31) scratch[warp] = inclusive;
    __syncthreads();
    double part = lane < blockDim.x / 32 ? scratch[lane] : 0.0, scan = part;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        double below = __shfl_up_sync(0xffffffffu, scan, offset);
        if (lane >= offset) scan += below;
    }
    *total = __shfl_sync(0xffffffffu, scan, 31);
    return __shfl_sync(0xffffffffu, scan - part, warp) + inclusive - x;
}

// A value and its id. The higher value is better; on a tie, the lower id.
struct Best {
    float value;
    u32 id;
};

DEV Best better(Best a, Best b) {
    return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

DEV Best warp_best(Best best) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
        best = better(best, {__shfl_xor_sync(0xffffffffu, best.value, offset),
                             __shfl_xor_sync(0xffffffffu, best.id, offset)});
    return best;
}

// Best over the block; every thread gets it. `scratch` holds 32.
DEV Best block_best(Best best, Best* scratch) {
    best = warp_best(best);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = best;
    __syncthreads();
    u32 lane = threadIdx.x & 31;
    return warp_best(lane < blockDim.x / 32 ? scratch[lane] : Best{NEG_INF, NONE});
}

// Philox4x32-10 (Salmon et al. 2011).
DEV uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
        u32 high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}

// ---- memory -------------------------------------------------------------------------------------

DEV u32 smem_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

DEV uint4 load_stream(const void* pointer) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(pointer));
    return v;
}

// 16 bytes global -> shared, zeros if `bytes` is 0. Both sides 16-byte aligned.
DEV void cp_async_16(u32 destination, const void* source, u32 bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination),
                 "l"(source), "r"(bytes)
                 : "memory");
}
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
DEV void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Programmatic dependent launch: `wait` before the first access to what earlier kernels write (or
// still read); `trigger` lets the next kernel start its prologue. No-ops before sm_90.
DEV void grid_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEV void grid_trigger() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- tensor cores -------------------------------------------------------------------------------

DEV void ldmatrix_x4(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
DEV void ldmatrix_x4_trans(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// d[16 x 8] += a[16 x 16] * b[16 x 8], f32 accumulate.
DEV void mma_16816(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if ACT_DTYPE == DTYPE_F16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
